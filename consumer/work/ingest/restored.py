"""Restored: what the trail and `status` are told where the ledger stands before the log, and where the log has deleted
what lies between: our own events of that time, an operator's word, a registered checkout, are nowhere then."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

import orjson
import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.broker.base import Broker, Partition
from consumer.errors import BrokerError, LedgerError
from consumer.ledger import Database, audit, log_memory

_log = structlog.get_logger(__name__)


def note_restored(
    session: AsyncSession, topic: str, behind: Mapping[Partition, int], stands: Mapping[Partition, int], now: datetime
) -> None:
    """What was noted since the backup is not in the trail, and an anchor from then does not fit. Nothing where the
    ledger is `behind` nowhere."""
    if behind:
        group = {one: stands[one] for one in behind}
        _note(session, topic, "ledger.restored", now, group, behind, "the ledger stood before its group in the log")


async def tell_lost(
    database: Database, broker: Broker, group: str, topic: str, partitions: Collection[Partition], now: datetime
) -> None:
    """These partitions were read from where the ledger stands, and begin behind it. Unless that is a hole (a mark of
    somebody's transaction, say), the log has deleted what nobody had read: it is not the log it was, until state was
    reconciled."""
    if not partitions:
        return
    records = None
    with suppress(BrokerError):  # then it may be so
        records = sum(report.lost for report in await broker.look_at_groups({group: topic}))
    if records == 0:
        return
    _log.error("log_records_lost", topic=topic, partitions=sorted(one.number for one in partitions), records=records)
    try:
        async with database.transaction() as session:
            memory = await log_memory.load(session, topic)
            await log_memory.keep(session, replace(memory, replaced_at=now))
            why = f"the log deleted {'some' if records is None else records} record(s) that nobody had read"
            _note(session, topic, "log.records_lost", now, {}, {}, why)
    except LedgerError as error:
        _log.error("loss_not_noted", topic=topic, code=error.code)


def _note(
    session: AsyncSession,
    topic: str,
    action: str,
    now: datetime,
    before: Mapping[Partition, int],
    after: Mapping[Partition, int],
    reason: str,
) -> None:
    audit.note(
        session,
        at=now,
        application="",
        actor="work",
        action=action,
        subject=f"topic:{topic}",
        before=_offsets(before),
        after=_offsets(after),
        reason=reason,
    )


def _offsets(places: Mapping[Partition, int]) -> str | None:
    return orjson.dumps({str(one.number): at for one, at in sorted(places.items())}).decode() if places else None
