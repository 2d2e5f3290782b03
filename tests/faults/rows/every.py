"""Rows: every fault that is played, by the scene it is played in."""

from __future__ import annotations

from tests.faults.rows.files import OF_THE_LEDGER_FILE, OF_THE_LOG_FILE
from tests.faults.rows.kafka import OF_KAFKA
from tests.faults.rows.postgres import OF_POSTGRES
from tests.faults.rows.roles import OF_DEPLOYS, OF_ROLES, OF_WAYS, OF_WORKERS
from tests.faults.rows.service import OF_HANDLERS, OF_THE_API, OF_THE_CANARY, OF_WEBHOOKS
from tests.faults.rows.versions import OF_VERSIONS

EVERYWHERE = (
    *OF_ROLES,
    *OF_DEPLOYS,
    *OF_THE_API,
    *OF_THE_CANARY,
    *OF_WEBHOOKS,
    *OF_HANDLERS,
    *OF_VERSIONS,
    *OF_WORKERS,
)
EMBEDDED = (*OF_THE_LOG_FILE, *OF_THE_LEDGER_FILE, *EVERYWHERE)
SERVERS = (*OF_KAFKA, *OF_POSTGRES, *OF_WAYS, *EVERYWHERE)
# One of each sort, for every run of the suite; the rest is `make faults`.
REPRESENTATIVE = ("work hung", "log replaced", "ledger of an incompatible version")
