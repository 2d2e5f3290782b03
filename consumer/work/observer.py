"""Observer: what the worker tells the outside about itself: metrics, and a log line for what someone must know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import structlog

from consumer.broker.base import Record
from consumer.clock import Clock
from consumer.ledger.tables import RunStatus
from consumer.telemetry.metrics import Metrics
from consumer.work.intake import Taken
from consumer.work.results import Result

_log = structlog.get_logger(__name__)
