"""ReadAfterWrite: what the answer to a plugin's write speaks of is read, so that a missed event is made good: an order
that is paid already, a subscription whose cancel was tried (cases F27, A38, A39)."""

from __future__ import annotations

from typing import Literal

import structlog

from consumer.clock import Clock
from consumer.errors import ConsumerError
from consumer.ledger import Database
from consumer.ledger.reading import read_requests
from consumer.payments import OnEvidence
from consumer.plugin import ReadRequest

_log = structlog.get_logger(__name__)


def asking(database: Database, application: str, clock: Clock) -> OnEvidence:
    """What the client calls with each object that the answer to a write spoke of."""

    async def ask(kind: Literal["order", "subscription"], object_id: str) -> None:
        """Have it read. The write has its answer, so a failure is told and never passed on."""
        try:
            async with database.transaction() as transaction:
                await read_requests.ask(
                    transaction, application, [ReadRequest(kind=kind, object_id=object_id)], clock.now()
                )
        except ConsumerError as error:
            _log.error("read_not_asked_for", application=application, kind=kind, code=error.code)

    return ask
