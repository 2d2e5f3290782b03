"""The quarantine: deliveries and records that could not be verified or understood, kept raw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import orjson
from sqlalchemy import Table, delete, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.columns import among, insert_into, unindexed
from consumer.events import Delivery
from consumer.ledger.engine.chunks import CHUNK, portions
from consumer.ledger.engine.counting import COUNT_MAX, count_between, each_of, numbered, up_to
from consumer.ledger.reading import room
from consumer.ledger.tables import QuarantineRow
from consumer.reason import Reason, reason_of, stored_as

_QUARANTINE: Table = QuarantineRow.__table__
PRUNED_AT_ONCE: Final = 5000
DISCARDED: Final = "quarantine.discarded"
"""The trail's word for one that somebody threw away."""
# What nobody has proved to be the service's word: it is kept as far as there is room for it.
_STRANGERS = _QUARANTINE.c.reason.in_(
    [
        stored
        for reason in (
            Reason.NOT_JSON, Reason.NOT_AN_OBJECT, Reason.NO_EVENT_ID, Reason.UNSUPPORTED_CONTENT_TYPE,
            Reason.FLOODED, Reason.NOT_CONFIRMED, Reason.OTHER_BODY,
        )
        for stored in stored_as(reason)
    ]
)  # fmt: skip


async def put(session: AsyncSession, deliveries: Sequence[tuple[Delivery, Reason]], now: datetime) -> None:
    """Keep deliveries with a reason code each; the same delivery is kept once. One that lies here already and comes
    anew is marked so, that whoever looked at it before does not drop it (`drop`)."""
    if deliveries:
        insert = insert_into(_QUARANTINE, session.get_bind().dialect.name)
        new = insert.excluded
        statement = insert.on_conflict_do_update(
            index_elements=["application", "delivery_id"],
            set_={name: new[name] for name in ("reason", "event_id", "received_at", "created_at")},
            where=(_QUARANTINE.c.created_at != new.created_at) | (_QUARANTINE.c.received_at != new.received_at),
        )
        rows = [_values(delivery, reason, now) for delivery, reason in deliveries]
        rows.sort(
            key=lambda row: (row["application"], row["delivery_id"])
        )  # who locks rows in one order waits, at most
        await session.execute(statement, rows)


async def unproved_bytes(session: AsyncSession) -> dict[str, int]:
    """How many bytes of each application lie here that a stranger may have sent; one that has none is left out."""
    column = _QUARANTINE.c.application
    size = func.coalesce(func.sum(room.stored_size(_QUARANTINE)), 0)
    rows = await session.execute(select(column, size).where(_STRANGERS).group_by(column))
    return {row[0]: int(row[1]) for row in rows}


async def prune(session: AsyncSession, application: str, too_many_bytes: int) -> tuple[int, int]:
    """Forget the oldest of what a stranger may have sent, at least so many bytes, at most `PRUNED_AT_ONCE` deliveries;
    returns how many, and their bytes. What the service itself said is never forgotten here."""
    mine = _STRANGERS & (_QUARANTINE.c.application == application)
    oldest = select(_QUARANTINE.c.id, room.stored_size(_QUARANTINE)).where(mine).order_by(_QUARANTINE.c.id)
    ids: list[int] = []
    freed = 0
    for number, size in await session.execute(oldest.limit(PRUNED_AT_ONCE)):
        if freed >= too_many_bytes:
            break
        ids.append(number)
        freed += size
    for some in portions(ids, CHUNK):
        await session.execute(delete(_QUARANTINE).where(_QUARANTINE.c.id.in_(some)))
    return len(ids), freed


def _values(delivery: Delivery, reason: Reason, now: datetime) -> dict[str, Any]:
    """What is not understood may be anything, and its names too: the columns' type makes them storable, so that keeping
    it never fails; the raw bytes stay as they came."""
    return {
        "application": delivery.application,
        "delivery_id": delivery.id,
        "event_id": delivery.event_id,
        "reason": reason.value,
        "raw": delivery.raw,
        "headers": room.stored_headers(delivery),
        "received_at": delivery.received_at,
        "created_at": now,
    }


class Kept(NamedTuple):
    """One that lies here, without its body; `size`: how many bytes that takes, packed where that makes them fewer."""

    id: int
    application: str
    delivery_id: str
    event_id: str | None
    reason: str
    headers: str
    received_at: datetime
    created_at: datetime
    size: int


_SIZE: Final = func.length(_QUARANTINE.c.raw).label("size")
_KEPT: Final = tuple(_SIZE if name == "size" else _QUARANTINE.c[name] for name in Kept._fields)


async def newest(
    session: AsyncSession,
    *,
    application: str | None = None,
    reason: Reason | None = None,
    event_id: str | None = None,
    number: int | None = None,
    limit: int = 100,
) -> Sequence[Kept]:
    """The newest quarantined deliveries, newest first; `reason_of` reads the column, whose old rows hold sentences."""
    statement = select(*_KEPT).order_by(_QUARANTINE.c.id.desc()).limit(limit)
    if application is not None:
        statement = statement.where(_QUARANTINE.c.application == application)
    if number is not None:
        statement = statement.where(_QUARANTINE.c.id == number)
    if event_id is not None:
        statement = statement.where(_QUARANTINE.c.event_id == event_id)
    if reason is None:
        return [Kept(*row) for row in await session.execute(statement)]
    found: list[Kept] = []
    for word in stored_as(reason):  # each by the index of reasons, newest first
        found += [Kept(*row) for row in await session.execute(statement.where(_QUARANTINE.c.reason == word))]
    return sorted(found, key=lambda row: -row.id)[:limit]


async def get(session: AsyncSession, number: int) -> QuarantineRow | None:
    """The one of this number, with its body; None when it does not lie here."""
    return await session.get(QuarantineRow, number)


async def other_bodies(
    session: AsyncSession, application: str, event_ids: Sequence[str], limit: int, *, but: Sequence[str] = ()
) -> Sequence[QuarantineRow]:
    """What lies here as another body of one of these events, in no order, but for these deliveries. At most a few
    hundred of either at once."""
    if not event_ids:
        return []
    mine = (unindexed(_QUARANTINE.c.application) == application) & (
        unindexed(_QUARANTINE.c.reason) == Reason.OTHER_BODY.value
    )
    statement = select(QuarantineRow).where(among(_QUARANTINE.c.event_id, event_ids), mine).limit(limit)
    if but:
        statement = statement.where(_QUARANTINE.c.delivery_id.not_in(but))
    return (await session.execute(statement)).scalars().all()


def as_delivery(row: QuarantineRow) -> Delivery:
    """The delivery that lies here."""
    return Delivery(
        application=row.application,
        id=row.delivery_id,
        raw=row.raw,
        received_at=row.received_at,
        headers=orjson.loads(row.headers),
        event_id=row.event_id,
    )


async def drop(session: AsyncSession, seen: Sequence[Kept]) -> frozenset[int]:
    """These were taken in again, or thrown away; returns the numbers of those that went. One that was put here anew
    since it was read stays: it is another delivery's arrival, and nobody has decided about that."""
    gone: set[int] = set()
    for row in seen:
        as_read = (
            (_QUARANTINE.c.id == row.id)
            & (_QUARANTINE.c.created_at == row.created_at)
            & (_QUARANTINE.c.received_at == row.received_at)
        )
        statement = delete(_QUARANTINE).where(as_read).returning(_QUARANTINE.c.id)
        gone.update((await session.execute(statement)).scalars())
    return frozenset(gone)


async def count(session: AsyncSession) -> int:
    """How many deliveries lie in quarantine; of more than COUNT_MAX the newest."""
    span = await numbered(session, _QUARANTINE.c.id)
    return 0 if span is None else await count_between(session, span)


async def count_since(session: AsyncSession, since: datetime, application: str | None = None) -> Counter[str]:
    """How many were put there since then, by the code of their reason; among the newest COUNT_MAX."""
    lately = select(_QUARANTINE.c.reason, _QUARANTINE.c.application).where(_QUARANTINE.c.created_at >= since)
    newest_first = lately.order_by(_QUARANTINE.c.created_at.desc()).limit(COUNT_MAX).subquery()
    statement = select(newest_first.c.reason, func.count()).group_by(newest_first.c.reason)
    if application is not None:
        statement = statement.where(newest_first.c.application == application)
    counted: Counter[str] = Counter()
    for stored, count_ in await session.execute(statement):
        counted[reason_of(stored).value] += count_
    return counted


async def count_of(session: AsyncSession, reasons: Collection[Reason]) -> int:
    """How many lie there for one of these reasons, at most COUNT_MAX of each."""
    columns = _QUARANTINE.c.reason
    return sum([await up_to(session, select(columns).where(columns == reason)) for reason in sorted(reasons)])


async def count_each(session: AsyncSession) -> dict[str, int]:
    """How many deliveries of each application lie in quarantine, at most COUNT_MAX; one that has none is left out."""
    column = _QUARANTINE.c.application
    return {name: await up_to(session, select(column).where(column == name)) for name in await each_of(session, column)}
