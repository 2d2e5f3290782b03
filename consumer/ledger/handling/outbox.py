"""The outbox: derived events, stored with what caused them and published by the relay afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import orjson
from sqlalchemy import Executable, Row, Table, bindparam, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.columns import among, among_given, insert_into, unindexed
from consumer.events import Event
from consumer.ledger.engine.counting import up_to
from consumer.ledger.handling.events import EventKey
from consumer.ledger.tables import OutboxRow
from consumer.telemetry.way import onwards

if TYPE_CHECKING:
    from consumer.plugin import Emission

_OUTBOX: Table = OutboxRow.__table__

WINDOW = 2000

# Asked several times a second, also where nothing happens: built once.
_IS_DUE = (_OUTBOX.c.published_at.is_(None), _OUTBOX.c.not_before <= bindparam("now"))
_LONGEST_FIRST = select(_OUTBOX.c.not_before).where(*_IS_DUE).order_by(_OUTBOX.c.not_before)
_WHOLE = select(_OUTBOX).where(*_IS_DUE).order_by(_OUTBOX.c.not_before, _OUTBOX.c.seq).limit(bindparam("most"))
_LONGEST = select(_OUTBOX.c.seq).where(*_IS_DUE).order_by(_OUTBOX.c.not_before, _OUTBOX.c.seq).limit(bindparam("most"))
_MARK = update(_OUTBOX).where(among_given(_OUTBOX.c.seq, "b_numbers"))
_seq = attrgetter("seq")


@dataclass(frozen=True, kw_only=True)
class Emitted:
    """A derived event with the event, the handler and the plan (if any) it came from."""

    emission: Emission
    cause: Event
    handler: str
    plan: str | None = None


async def put(session: AsyncSession, emitted: Sequence[Emitted], now: datetime) -> None:
    """Store derived events; one with the same id is there already and stays (it is the same event)."""
    if emitted:
        await session.execute(_putting(session.get_bind().dialect.name), [_values(one, now) for one in emitted])


@cache
def _putting(dialect: str) -> Executable:
    return insert_into(_OUTBOX, dialect).on_conflict_do_nothing(index_elements=["application", "event_id"])


def _values(one: Emitted, now: datetime) -> dict[str, object]:
    return {
        "application": one.cause.application,
        "event_id": one.emission.id,
        "type": one.emission.type,
        "key": one.emission.key,
        "data": orjson.dumps(dict(one.emission.data)),
        "not_before": one.emission.not_before or now,
        "created_at": now,
        "cause": one.cause.id,
        "handler": one.handler,
        "plan": one.plan,
        "traceparent": onwards(one.cause),
    }


async def due(session: AsyncSession, now: datetime, limit: int) -> Sequence[Row[Any]]:
    """What is to be published now, in the order it was emitted; with a long backlog, in that order among those that
    are due for longest. Rows of `OutboxRow`'s columns."""
    rows = (await session.execute(_WHOLE, {"now": now, "most": limit})).all()
    return sorted(rows, key=_seq) if len(rows) < limit else await _among_many(session, now, limit)


async def _among_many(session: AsyncSession, now: datetime, limit: int) -> Sequence[Row[Any]]:
    found = await session.scalars(_LONGEST, {"now": now, "most": max(limit, WINDOW)})
    numbers = sorted(found)[:limit]
    if not numbers:
        return ()
    waits = unindexed(_OUTBOX.c.published_at).is_(None)  # of a few rows: by no index of all that wait
    rows = select(_OUTBOX).where(among(_OUTBOX.c.seq, numbers), waits)
    return (await session.execute(rows.order_by(_OUTBOX.c.seq))).all()


async def mark_published(session: AsyncSession, rows: Sequence[Row[Any] | OutboxRow], now: datetime) -> None:
    """These are durable in the broker."""
    if rows:
        await session.execute(_MARK, {"b_numbers": [row.seq for row in rows], "published_at": now})


async def below(session: AsyncSession, seq: int, limit: int) -> Sequence[tuple[int, EventKey, bool]]:
    """The next rows with lower numbers, newest first: number, event, and whether it was published."""
    columns = (_OUTBOX.c.seq, _OUTBOX.c.application, _OUTBOX.c.event_id, _OUTBOX.c.published_at.is_not(None))
    rows = await session.execute(
        select(*columns).where(_OUTBOX.c.seq < seq).order_by(_OUTBOX.c.seq.desc()).limit(limit)
    )
    return [(number, (application, event_id), bool(sent)) for number, application, event_id, sent in rows]


async def publish_again(session: AsyncSession, numbers: Sequence[int]) -> None:
    """These are to be published once more, under the ids they had. At most a few thousand at once."""
    await session.execute(update(_OUTBOX).where(among(_OUTBOX.c.seq, numbers)).values(published_at=None))


async def waiting(session: AsyncSession, now: datetime) -> tuple[int, datetime | None]:
    """How many derived events are due and not published, at most COUNT_MAX, and since when the oldest is due."""
    oldest: datetime | None = await session.scalar(_LONGEST_FIRST.limit(1), {"now": now})
    return (await up_to(session, _LONGEST_FIRST.params(now=now)) if oldest is not None else 0), oldest
