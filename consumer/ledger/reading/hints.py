"""The hints: deliveries that wait to be confirmed by an authenticated read, one per (application, event id)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Final

import orjson
from sqlalchemy import ColumnElement, Table, bindparam, case, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.columns import among, insert_into, unpacked_within
from consumer.events import Delivery
from consumer.ledger.engine.chunks import matching
from consumer.ledger.engine.counting import changed
from consumer.ledger.handling.events import EventKey
from consumer.ledger.reading import room
from consumer.ledger.tables import HintRow, SettledHintRow

_HINTS: Table = HintRow.__table__
_SETTLED: Table = SettledHintRow.__table__

AGAIN: Final = timedelta(seconds=5)
OFTEN: Final = 3
AHEAD: Final = timedelta(minutes=1)
"""Who received a delivery so long after it is kept has a clock that is ahead, and no ledger that would tell it so."""
LONGEST: Final = timedelta(minutes=10)
"""No hint is put off for so long."""
OTHER: Final = b""
"""In place of the digest of a body that is longer than all that it is compared with."""


async def keep(session: AsyncSession, deliveries: Sequence[Delivery], now: datetime) -> None:
    """Hints to be confirmed, one per (application, event id); a later delivery of the same id joins the first.

    It may be the real one, and the first a forgery that was denied: one that waits for longer than `AGAIN` is looked
    at after `AGAIN` then, and the wait that this cuts short does not count as patience (its denial is taken back). So
    one who forges an id again and again has it looked at every `AGAIN`, and no sooner given up.
    """
    unique: dict[EventKey, Delivery] = {
        (one.application, one.event_id): one for one in deliveries[::-1] if one.event_id is not None
    }
    if unique:
        fewer = case((_HINTS.c.attempts > 0, _HINTS.c.attempts - 1), else_=0)
        for these in _these(unique):
            waits = these & (_HINTS.c.next_at > now + AGAIN)
            await session.execute(update(_HINTS).where(waits).values(next_at=now + AGAIN, attempts=fewer))
        insert = insert_into(_HINTS, session.get_bind().dialect.name)
        statement = insert.on_conflict_do_nothing(index_elements=["application", "event_id"])
        await session.execute(statement, [_hint_values(delivery, now) for delivery in unique.values()])


async def after_set_back(session: AsyncSession, now: datetime) -> int:
    """Where the clock was ahead, and was set back, what it put off is looked at now; returns how many that are."""
    return await changed(session, update(_HINTS).where(_HINTS.c.next_at > now + LONGEST).values(next_at=now))


async def held(session: AsyncSession) -> dict[str, tuple[int, int]]:
    """How many hints of each application wait, and how many bytes they take (`room`); one that has none is left out."""
    column = _HINTS.c.application
    size = func.coalesce(func.sum(room.stored_size(_HINTS)), 0)
    rows = await session.execute(select(column, func.count(), size).group_by(column))
    return {row[0]: (row[1], int(row[2])) for row in rows}


async def differing(session: AsyncSession, deliveries: Sequence[Delivery]) -> list[Delivery]:
    """Those whose event was confirmed by another body; or has a hint already, or comes twice here, with another body:
    only the first is asked about. At most a few hundred at once."""
    longest: dict[EventKey, int] = {}
    for one in deliveries:
        key = (one.application, str(one.event_id))
        longest[key] = max(longest.get(key, 0), len(one.raw))
    first: dict[EventKey, bytes] = {}
    for these in _these(longest):
        rows = await session.execute(select(_HINTS.c.application, _HINTS.c.event_id, _HINTS.c.raw).where(these))
        for name, event_id, stored in rows:
            # No further than what it is compared with: a stranger's may be a megabyte of zeros.
            body = unpacked_within(stored, longest[name, event_id])
            first[name, event_id] = OTHER if body is None else _digest(body)
    for these in _these(longest, _SETTLED):  # after the hints: one that is settled in between is met here
        first |= {
            (row.application, row.event_id): row.sha256 for row in await session.execute(select(_SETTLED).where(these))
        }
    found = []
    for one in deliveries:
        digest = _digest(one.raw)
        if first.setdefault((one.application, str(one.event_id)), digest) != digest:
            found.append(one)
    return found


async def remember(session: AsyncSession, deliveries: Sequence[Delivery]) -> None:
    """The service confirmed the events of these hints, and their bodies do not contradict it: of each event the first
    such body counts. One row for each event that was confirmed, however much is forged."""
    if deliveries:
        insert = insert_into(_SETTLED, session.get_bind().dialect.name)
        statement = insert.on_conflict_do_nothing(index_elements=["application", "event_id"])
        keys = {(one.application, str(one.event_id)): _digest(one.raw) for one in deliveries}
        rows = [{"application": name, "event_id": of, "sha256": keys[name, of]} for name, of in sorted(keys)]
        await session.execute(statement, rows)


def _digest(raw: bytes) -> bytes:
    return sha256(raw).digest()


def _hint_values(delivery: Delivery, now: datetime) -> dict[str, object]:
    return {
        "application": delivery.application,
        "event_id": delivery.event_id,
        "delivery_id": delivery.id[:100],
        "raw": delivery.raw,
        "headers": room.stored_headers(delivery),
        "received_at": delivery.received_at if delivery.received_at <= now + AHEAD else now,
        "next_at": now,
        "attempts": 0,
        "traceparent": delivery.traceparent,
    }


def as_delivery(row: HintRow) -> Delivery:
    """The delivery that a hint came with."""
    return Delivery(
        application=row.application,
        id=row.delivery_id,
        raw=row.raw,
        received_at=row.received_at,
        headers=orjson.loads(row.headers),
        event_id=row.event_id,
        traceparent=row.traceparent,
    )


async def due_ids(session: AsyncSession, application: str, now: datetime, limit: int) -> Sequence[tuple[str, int]]:
    """Event id and number of denials of the hints to look at now, without their bodies. Those with the fewest denials
    come first: a flood of forged ids waits behind fresh ones."""
    statement = (
        select(_HINTS.c.event_id, _HINTS.c.attempts)
        .where(_HINTS.c.application == application, _HINTS.c.next_at <= now)
        .order_by(_HINTS.c.attempts, _HINTS.c.next_at)
        .limit(limit)
    )
    return [(event_id, attempts) for event_id, attempts in await session.execute(statement)]


async def of_events(session: AsyncSession, application: str, event_ids: Sequence[str]) -> Sequence[HintRow]:
    """The hints that announced these events, due or not. At most a few hundred ids at once."""
    if not event_ids:
        return []
    where = (_HINTS.c.application == application) & among(_HINTS.c.event_id, event_ids)
    return (await session.execute(select(HintRow).where(where))).scalars().all()


async def ids_of(session: AsyncSession, application: str, event_ids: Sequence[str]) -> Sequence[str]:
    """Which of these events have a hint that still waits."""
    found: list[str] = []
    for these in _these((application, one) for one in event_ids):
        found += await session.scalars(select(_HINTS.c.event_id).where(these))
    return found


async def put_off(session: AsyncSession, keys: Sequence[EventKey], next_at: datetime, *, counted: bool) -> None:
    """Look at these again at `next_at`; `counted` says whether the service denied them this time."""
    more = 1 if counted else 0
    for these in _these(keys):
        await session.execute(update(_HINTS).where(these).values(next_at=next_at, attempts=_HINTS.c.attempts + more))


async def drop(session: AsyncSession, keys: Sequence[EventKey]) -> None:
    """These are confirmed, or in quarantine."""
    for these in _these(keys):
        await session.execute(delete(_HINTS).where(these))


def _these(keys: Iterable[EventKey], table: Table = _HINTS) -> Iterator[ColumnElement[bool]]:
    return matching(table.c.event_id, (table.c.application,), ((event_id, name) for name, event_id in keys))


async def oldest_each(session: AsyncSession) -> dict[str, datetime]:
    """When the oldest hint of each application came; one that has none is left out."""
    column = _HINTS.c.application
    rows = await session.execute(select(column, func.min(_HINTS.c.received_at)).group_by(column))
    return {row[0]: row[1] for row in rows}


async def oldest_unasked_each(session: AsyncSession) -> dict[str, datetime]:
    """When the oldest hint of each application came that the service was not yet asked about; one that has none is left
    out."""
    column = _HINTS.c.application
    statement = select(column, func.min(_HINTS.c.received_at)).where(_HINTS.c.attempts == 0).group_by(column)
    return {row[0]: row[1] for row in await session.execute(statement)}


async def unasked(session: AsyncSession) -> tuple[int, datetime | None]:
    """How many hints the service was not yet asked about, and when the oldest of them came."""
    statement = select(func.count(), func.min(_HINTS.c.received_at)).where(_HINTS.c.attempts == 0)
    count, oldest_at = (await session.execute(statement)).one()
    return int(count), oldest_at


async def denied(session: AsyncSession) -> int:
    """How many hints wait that the service did not know OFTEN times, 8 s: less may be that it lists late (case U30)."""
    return int((await session.scalar(select(func.count()).where(_HINTS.c.attempts >= OFTEN))) or 0)


_COUNT = select(func.count()).select_from(_HINTS)  # asked every second: built once
_COUNT_OF = _COUNT.where(_HINTS.c.application == bindparam("of"))


async def count(session: AsyncSession, application: str | None = None) -> int:
    """How many hints wait: of this application, or of all."""
    statement = _COUNT if application is None else _COUNT_OF
    return int((await session.execute(statement, {"of": application})).scalar_one())
