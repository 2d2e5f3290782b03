"""The quarantine: deliveries and records that could not be verified or understood, kept raw."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import orjson
from sqlalchemy import Table, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.columns import insert_into
from consumer.events import Delivery
from consumer.ledger.engine.counting import COUNT_MAX, count_between, each_of, numbered, up_to
from consumer.ledger.tables import QuarantineRow
from consumer.reason import Reason, stored_as

_QUARANTINE: Table = QuarantineRow.__table__


async def put(session: AsyncSession, deliveries: Sequence[tuple[Delivery, Reason]], now: datetime) -> None:
    """Keep deliveries with a reason code each; the same delivery is kept once."""
    if deliveries:
        insert = insert_into(_QUARANTINE, session.get_bind().dialect.name)
        statement = insert.on_conflict_do_nothing(index_elements=["application", "delivery_id"])
        await session.execute(statement, [_values(delivery, reason, now) for delivery, reason in deliveries])


def _values(delivery: Delivery, reason: Reason, now: datetime) -> dict[str, object]:
    """What is not understood may be anything: its names are cut and rid of NULs (PostgreSQL's text holds none), so
    that keeping it never fails; the raw bytes stay as they came."""
    return {
        "application": _storable(delivery.application, 64),
        "delivery_id": _storable(delivery.id, 100),
        "event_id": _storable(delivery.event_id, 255) if delivery.event_id is not None else None,
        "reason": reason.value,
        "raw": delivery.raw,
        "headers": orjson.dumps(dict(delivery.headers)).decode(),
        "received_at": delivery.received_at,
        "created_at": now,
    }


def _storable(name: str, max_chars: int) -> str:
    return name.replace("\0", "")[:max_chars]


async def newest(
    session: AsyncSession,
    *,
    application: str | None = None,
    reason: Reason | None = None,
    event_id: str | None = None,
    limit: int = 100,
) -> Sequence[QuarantineRow]:
    """The newest quarantined deliveries, newest first; `reason_of` reads the column, whose old rows hold sentences."""
    statement = select(QuarantineRow).order_by(_QUARANTINE.c.id.desc()).limit(limit)
    if application is not None:
        statement = statement.where(_QUARANTINE.c.application == application)
    if event_id is not None:
        statement = statement.where(_QUARANTINE.c.event_id == event_id)
    if reason is None:
        return (await session.execute(statement)).scalars().all()
    found: list[QuarantineRow] = []
    for word in stored_as(reason):  # each by the index of reasons, newest first
        found += (await session.execute(statement.where(_QUARANTINE.c.reason == word))).scalars()
    return sorted(found, key=lambda row: -row.id)[:limit]


async def count(session: AsyncSession) -> int:
    """How many deliveries lie in quarantine; of more than COUNT_MAX the newest."""
    span = await numbered(session, _QUARANTINE.c.id)
    return 0 if span is None else await count_between(session, span)


async def count_since(session: AsyncSession, since: datetime) -> dict[str, int]:
    """How many were put there since then, by what the row holds as its reason; at most the newest COUNT_MAX."""
    lately = select(_QUARANTINE.c.reason).where(_QUARANTINE.c.created_at >= since)
    newest_first = lately.order_by(_QUARANTINE.c.created_at.desc()).limit(COUNT_MAX).subquery()
    statement = select(newest_first.c.reason, func.count()).group_by(newest_first.c.reason)
    return {row[0]: row[1] for row in await session.execute(statement)}


async def count_each(session: AsyncSession) -> dict[str, int]:
    """How many deliveries of each application lie in quarantine, at most COUNT_MAX; one that has none is left out."""
    column = _QUARANTINE.c.application
    return {name: await up_to(session, select(column).where(column == name)) for name in await each_of(session, column)}
