"""Claimed: a run that this worker may work on, with its event."""

from __future__ import annotations

from dataclasses import dataclass

from consumer.events import Event
from consumer.ledger.handling.runs import ClaimedRun


@dataclass(frozen=True, kw_only=True)
class Claimed:
    """`at_s`: when it was claimed, by a monotonic clock."""

    run: ClaimedRun
    event: Event
    at_s: float
