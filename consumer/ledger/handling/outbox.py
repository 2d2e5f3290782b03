"""The outbox: derived events, stored with what caused them and published by the relay afterwards.

Those of a key are taken in the order in which they were emitted. So who would take one where it is emitted is told
whether another of its key is on its way by the log.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import orjson
from sqlalchemy import (
    Boolean,
    ColumnElement,
    Executable,
    Row,
    Table,
    bindparam,
    case,
    delete,
    literal_column,
    null,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.clock import AGREES, SET_BACK
from consumer.columns import Given, among, among_given, unindexed
from consumer.events import Event, Source
from consumer.ledger.engine.chunks import grouped
from consumer.ledger.engine.counting import changed, up_to
from consumer.ledger.handling.events import EventKey
from consumer.ledger.tables import OutboxRow
from consumer.telemetry.way import onwards
from consumer.wire import own_event

if TYPE_CHECKING:
    from consumer.plugin import Emission

_OUTBOX: Table = OutboxRow.__table__
_BEFORE: Table = OutboxRow.__table__.alias("before")  # type: ignore[assignment]  # an alias has the table's columns

WINDOW = 2000
APART: Final = 2 * AGREES
"""By so much the clocks of two processes differ at most."""
_EVER = datetime(1, 1, 1, tzinfo=UTC)

# Asked several times a second, also where nothing happens: built once.
_WAITS = _OUTBOX.c.published_at.is_(None)
_IS_DUE = (
    _WAITS,
    _OUTBOX.c.not_before <= bindparam("by_any_clock"),
    # What goes at once is due when it is there: whose clock is behind passes over none of a key.
    or_(_OUTBOX.c.not_before <= bindparam("now"), _OUTBOX.c.not_before <= _OUTBOX.c.created_at),
)
_LONGEST_FIRST = (
    select(_OUTBOX.c.not_before).where(_WAITS, _OUTBOX.c.not_before <= bindparam("now")).order_by(_OUTBOX.c.not_before)
)
_WHOLE = select(_OUTBOX).where(*_IS_DUE).order_by(_OUTBOX.c.not_before, _OUTBOX.c.seq).limit(bindparam("most"))
_LONGEST = select(_OUTBOX.c.seq).where(*_IS_DUE).order_by(_OUTBOX.c.not_before, _OUTBOX.c.seq).limit(bindparam("most"))
_WINDOW = (
    select(_OUTBOX.c.seq, _OUTBOX.c.application, _OUTBOX.c.key, _OUTBOX.c.not_before)
    .where(*_IS_DUE, _OUTBOX.c.not_before >= bindparam("since"))
    .where(or_(_OUTBOX.c.not_before > bindparam("since"), _OUTBOX.c.seq > bindparam("after")))
    .order_by(_OUTBOX.c.not_before, _OUTBOX.c.seq)
    .limit(bindparam("most"))
)
# By their ids, too: SQLite gives the number of a withdrawn row away again.
_MARK = update(_OUTBOX).where(
    among_given(_OUTBOX.c.seq, "b_numbers"), among_given(unindexed(_OUTBOX.c.event_id), "b_event_ids")
)
_ARRIVED = update(_OUTBOX).where(
    among_given(_OUTBOX.c.event_id, "b_event_ids"), _OUTBOX.c.application == bindparam("b_application")
)
_WITHDRAW = delete(_OUTBOX).where(
    among_given(_OUTBOX.c.event_id, "b_event_ids"),
    _OUTBOX.c.application == bindparam("b_application"),
    unindexed(_OUTBOX.c.published_at).is_(None),  # by its id, not among all that waits
    _OUTBOX.c.not_before > bindparam("now"),
)
_SPENT = select(_OUTBOX.c.event_id).where(
    among_given(_OUTBOX.c.event_id, "b_event_ids"),
    _OUTBOX.c.application == bindparam("b_application"),
    or_(unindexed(_OUTBOX.c.published_at).is_not(None), _OUTBOX.c.not_before <= bindparam("now")),
)
_seq = attrgetter("seq")


@dataclass(frozen=True, kw_only=True)
class Emitted:
    """A derived event with the event, the handler and the plan (if any) it came from. `by_log`: nobody takes it
    beforehand."""

    emission: Emission
    cause: Event
    handler: str
    plan: str | None = None
    by_log: bool = True

    @property
    def id(self) -> EventKey:
        """What makes it unique."""
        return (self.cause.application, self.emission.id)

    def is_due(self, now: datetime) -> bool:
        """Whether it goes at once."""
        return not self.emission.is_later(now)


async def put(session: AsyncSession, emitted: Sequence[Emitted], now: datetime) -> Sequence[Row[Any]]:
    """Store derived events; one with the same id is there already and stays (it is the same event). Returns those that
    the caller must take in this transaction, as rows of `OutboxRow`'s columns: new, not `by_log`, and none of their key
    is on its way."""
    if not emitted:
        return ()
    dialect, rows = session.get_bind().dialect.name, [_values(one, now) for one in emitted]
    if all(one.by_log for one in emitted):
        await session.execute(_putting(dialect), _GIVEN.rows(dialect, rows))
        return ()
    given = [row | {"by_log": one.by_log, "by_then": now} for row, one in zip(rows, emitted, strict=True)]
    done = await session.execute(_putting_some(dialect), _GIVEN_SOME.rows(dialect, given))
    return [row for row in done if not row.on_way]


@cache
def _putting(dialect: str) -> Executable:
    insert = _GIVEN.insert(dialect, lambda _: {"on_way": true()})
    return insert.on_conflict_do_nothing(index_elements=["application", "event_id"])


@cache
def _putting_some(dialect: str) -> Executable:
    insert = _GIVEN_SOME.insert(dialect, _on_way)
    return insert.on_conflict_do_nothing(index_elements=["application", "event_id"]).returning(*_OUTBOX.c)


def _on_way(row: Mapping[str, ColumnElement[Any]]) -> dict[str, ColumnElement[Any]]:
    """Asked by the insert itself, after the handlers: what they have locked lets nobody emit for the key in between."""
    first = (
        select(_BEFORE.c.seq)
        .where(
            _BEFORE.c.on_way,
            _BEFORE.c.application == row["application"],
            _BEFORE.c.key == row["key"],
            or_(_BEFORE.c.not_before <= row["by_then"], _BEFORE.c.not_before <= _BEFORE.c.created_at),
        )
        .limit(literal_column("1"))
        .scalar_subquery()
    )
    return {"on_way": case((or_(row["by_log"], first.is_not(None)), true()), else_=null())}


_NAMES = ("application", "event_id", "type", "key", "data", "not_before", "created_at", "cause", "handler", "plan",
          "traceparent")  # fmt: skip
_GIVEN = Given(_OUTBOX, _NAMES, alike=["created_at"])
_GIVEN_SOME = Given(
    _OUTBOX, _NAMES, {"by_log": Boolean(), "by_then": _OUTBOX.c.not_before.type}, alike=["created_at", "by_then"]
)


def derived_event(row: Row[Any] | OutboxRow) -> Event:
    """A row as the event that it is, the same wherever it is made: its body byte for byte. Pure."""
    return own_event(
        application=row.application,
        id=row.event_id,
        type=row.type,
        key=row.key,
        source=Source.RELAY,
        at=row.created_at,
        data=orjson.Fragment(row.data),
        traceparent=row.traceparent,
    )


async def arrived(session: AsyncSession, events: Sequence[EventKey]) -> None:
    """These have come by the log."""
    for (application,), ids in grouped(((application,), event_id) for application, event_id in events):
        await session.execute(_ARRIVED, {"b_application": application, "b_event_ids": ids, "on_way": None})


async def withdraw(session: AsyncSession, ids: Iterable[EventKey], now: datetime) -> None:
    """These derived events are not needed any more: what of them is not due yet never comes."""
    for (application,), event_ids in grouped(((application,), event_id) for application, event_id in ids):
        given = {"b_application": application, "b_event_ids": event_ids, "now": now}
        await session.execute(_WITHDRAW, given)


async def spent(session: AsyncSession, ids: Iterable[EventKey], now: datetime) -> list[EventKey]:
    """Which of these have come, or are due by now: emitted once more to come later, they do not come again."""
    found: list[EventKey] = []
    for (application,), event_ids in grouped(((application,), event_id) for application, event_id in ids):
        given = {"b_application": application, "b_event_ids": event_ids, "now": now}
        found += [(application, event_id) for event_id in await session.scalars(_SPENT, given)]
    return found


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


async def due(
    session: AsyncSession, now: datetime, limit: int, *, held: Container[tuple[str, str]] = ()
) -> Sequence[Row[Any]]:
    """What is to be published now, in the order it was emitted; with a long backlog, in that order among those that
    are due for longest. Not those `held`, by application and key. Rows of `OutboxRow`'s columns."""
    if held:
        return await _but_held(session, now, limit, held)
    rows = (await session.execute(_WHOLE, _by(now) | {"most": limit})).all()
    return sorted(rows, key=_seq) if len(rows) < limit else await _among_many(session, now, limit)


def _by(now: datetime) -> dict[str, Any]:
    return {"now": now, "by_any_clock": now + APART}


async def _among_many(session: AsyncSession, now: datetime, limit: int) -> Sequence[Row[Any]]:
    found = await session.scalars(_LONGEST, _by(now) | {"most": max(limit, WINDOW)})
    return await _waiting_among(session, sorted(found)[:limit])


async def _but_held(
    session: AsyncSession, now: datetime, limit: int, held: Container[tuple[str, str]]
) -> Sequence[Row[Any]]:
    found, since, after = list[int](), _EVER, 0
    while len(found) < limit:
        window = (
            await session.execute(_WINDOW, _by(now) | {"since": since, "after": after, "most": max(limit, WINDOW)})
        ).all()
        found += [row.seq for row in window if (row.application, row.key) not in held]
        if len(window) < max(limit, WINDOW):
            break
        since, after = window[-1].not_before, window[-1].seq
    return await _waiting_among(session, sorted(found)[:limit])


async def _waiting_among(session: AsyncSession, numbers: Sequence[int]) -> Sequence[Row[Any]]:
    if not numbers:
        return ()
    waits = unindexed(_OUTBOX.c.published_at).is_(None)  # of a few rows: by no index of all that wait
    rows = select(_OUTBOX).where(among(_OUTBOX.c.seq, numbers), waits)
    return (await session.execute(rows.order_by(_OUTBOX.c.seq))).all()


async def mark_published(session: AsyncSession, rows: Sequence[Row[Any] | OutboxRow], now: datetime) -> None:
    """These are durable in the broker."""
    if rows:
        named = {"b_numbers": [row.seq for row in rows], "b_event_ids": [row.event_id for row in rows]}
        await session.execute(_MARK, named | {"published_at": now})


async def below(session: AsyncSession, seq: int, limit: int) -> Sequence[tuple[int, EventKey, bool]]:
    """The next rows with lower numbers, newest first: number, event, and whether it was published."""
    columns = (_OUTBOX.c.seq, _OUTBOX.c.application, _OUTBOX.c.event_id, _OUTBOX.c.published_at.is_not(None))
    rows = await session.execute(
        select(*columns).where(_OUTBOX.c.seq < seq).order_by(_OUTBOX.c.seq.desc()).limit(limit)
    )
    return [(number, (application, event_id), bool(sent)) for number, application, event_id, sent in rows]


async def astray(session: AsyncSession, before: datetime, limit: int) -> Sequence[tuple[int, EventKey]]:
    """What was published before then and has not come: number and event, oldest first."""
    columns = (_OUTBOX.c.seq, _OUTBOX.c.application, _OUTBOX.c.event_id)
    lost = select(*columns).where(_OUTBOX.c.on_way == true(), unindexed(_OUTBOX.c.published_at) < before)
    rows = await session.execute(lost.order_by(_OUTBOX.c.seq).limit(limit))
    return [(number, (application, event_id)) for number, application, event_id in rows]


async def publish_again(session: AsyncSession, numbers: Sequence[int]) -> None:
    """These are to be published once more, under the ids they had. At most a few thousand at once."""
    await session.execute(update(_OUTBOX).where(among(_OUTBOX.c.seq, numbers)).values(published_at=None))


async def after_set_back(session: AsyncSession, now: datetime) -> int:
    """Where the clock was ahead, and was set back, what was emitted to go at once is due now; returns how many that
    are. Timers keep their time."""
    waits = (_OUTBOX.c.published_at.is_(None), _OUTBOX.c.not_before > now + SET_BACK)
    at_once = _OUTBOX.c.not_before <= _OUTBOX.c.created_at
    return await changed(session, update(_OUTBOX).where(*waits, at_once).values(not_before=now))


async def waiting(session: AsyncSession, now: datetime) -> tuple[int, datetime | None]:
    """How many derived events are due and not published, at most COUNT_MAX, and since when the oldest is due."""
    oldest: datetime | None = await session.scalar(_LONGEST_FIRST.limit(1), {"now": now})
    return (await up_to(session, _LONGEST_FIRST.params(now=now)) if oldest is not None else 0), oldest
