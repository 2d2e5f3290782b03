"""Settled: which events need their body no more, a stretch of the ledger at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import ColumnElement, Table, func, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.columns import each
from consumer.events import Source, Trust
from consumer.ledger.engine.chunks import matching
from consumer.ledger.engine.counting import numbered
from consumer.ledger.handling.events import EventKey
from consumer.ledger.handling.handlers import bystanders
from consumer.ledger.tables import DISCARDED, DeadLetterRow, EventRow, RunRow, RunStatus

_EVENTS: Table = EventRow.__table__
_LETTERS: Table = DeadLetterRow.__table__
_RUNS: Table = RunRow.__table__

STRETCH: Final = 500
"""So many numbers of events are looked at in one statement, however many of them are gone already."""
APART: Final = timedelta(days=1)
"""Reads further apart than this were not under way at once: the later one has the higher version (case A40)."""
DONE: Final = (RunStatus.SUCCEEDED.value, RunStatus.SKIPPED.value)
GIVEN_UP: Final = "discarded"
"""A run that an operator gave up: `dead discard --undo` brings it back, with the event as it was."""
OBSERVED: Final = ".observed"
SESSION_OBSERVED: Final = "session.observed"
REQUESTED: Final = "fulfilment.requested"
_IS_DISCARDED: Final = func.coalesce(text(f"runs.{DISCARDED}"), False)


@dataclass(frozen=True, kw_only=True)
class Aged:
    """An event that is old enough; `bytes`: the size of its body."""

    seq: int
    application: str
    id: str
    key: str
    type: str
    source: str
    received_at: datetime
    bytes: int

    @property
    def name(self) -> EventKey:
        """(application, event id)."""
        return (self.application, self.id)


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """What was found among the next numbers: `settled` may go, `kept` events are old enough and may not. `until`: the
    last number looked at, None when there is nothing older any more."""

    settled: Sequence[Aged]
    kept: int
    until: int | None


async def stretch(session: AsyncSession, after: int, before: datetime | None) -> Stretch:
    """The next events that have a body and were recorded `before` then; None: all, whatever they have."""
    span = await numbered(session, _EVENTS.c.seq)
    if span is None or after >= span.last:
        return Stretch(settled=(), kept=0, until=None)
    after = max(after, span.first - 1)
    rows = (
        await session.execute(
            select(*(_EVENTS.c[name] for name in ("seq", "application", "id", "key", "type", "source", "received_at")),
                   _EVENTS.c.recorded_at, _EVENTS.c.archive, func.length(_EVENTS.c.raw).label("bytes"))
            .where(_EVENTS.c.seq > after, _EVENTS.c.seq <= after + STRETCH)
            .order_by(_EVENTS.c.seq)
        )
    ).mappings().all()  # fmt: skip
    if before is not None and rows and all(row["recorded_at"] >= before for row in rows):
        return Stretch(settled=(), kept=0, until=None)
    aged = [
        Aged(**{name: value for name, value in row.items() if name not in ("recorded_at", "archive")})
        for row in rows
        if before is None or (row["archive"] is None and row["recorded_at"] < before)
    ]
    found = aged if before is None else await settled(session, aged)
    return Stretch(settled=found, kept=len(aged) - len(found), until=after + STRETCH)


async def settled(session: AsyncSession, aged: Sequence[Aged]) -> Sequence[Aged]:
    """Those of them that need their body no more."""
    states = await _states(session, aged)
    newest = await _newest_reads(session, aged)
    return [one for one in aged if is_settled(one, states.get(one.name, ()), newest.get(_read(one)))]


def is_settled(event: Aged, states: Collection[str], newest: datetime | None) -> bool:
    """Whether nobody needs the body: all its runs are done; it was not derived for a handler that is not there yet;
    and it is not the newest read of its object, which handlers see as `ctx.snapshot`. `newest`: when the read of the
    same that arrived last was received. Pure."""
    if any(state not in DONE for state in states):
        return False
    if not states and event.source == Source.RELAY.value:
        return False
    return not is_state(event.type) or (newest is not None and newest - event.received_at > APART)


def is_state(event_type: str) -> bool:
    """Whether the newest event of this type is the state of its object. Of a session nothing but whose it is was
    wanted, and is known by then. Pure."""
    return event_type.endswith(OBSERVED) and event_type != SESSION_OBSERVED


def _read(event: Aged) -> tuple[str, str, str]:
    return (event.application, event.type, event.key)


async def _states(session: AsyncSession, aged: Sequence[Aged]) -> Mapping[EventKey, set[str]]:
    """Event to the states of its runs. One whose death was not told yet counts as dead; who by its success fulfils no
    order has not taken the request for it."""
    found: dict[EventKey, set[str]] = defaultdict(set)
    requests = {one.name for one in aged if one.type == REQUESTED}
    beside = frozenset(await session.scalars(bystanders())) if requests else frozenset[str]()
    wanted = select(_RUNS.c.application, _RUNS.c.event_id, _RUNS.c.handler, _RUNS.c.status, _IS_DISCARDED)
    for where in _of(_RUNS, aged):
        for application, event_id, handler, status, is_discarded in await session.execute(wanted.where(where)):
            if status not in DONE or handler not in beside or (application, event_id) not in requests:
                found[application, event_id].add(GIVEN_UP if is_discarded else status)
    letters = select(_LETTERS.c.application, _LETTERS.c.event_id, _LETTERS.c.published_at)
    for where in _of(_LETTERS, aged):
        for application, event_id, published_at in await session.execute(letters.where(where)):
            if published_at is None:
                found[application, event_id].add(RunStatus.DEAD.value)
    return found


def _of(table: Table, aged: Sequence[Aged]) -> Iterator[ColumnElement[bool]]:
    return matching(table.c.event_id, (table.c.application,), ((one.id, one.application) for one in aged))


async def _newest_reads(session: AsyncSession, aged: Sequence[Aged]) -> Mapping[tuple[str, str, str], datetime]:
    """(application, type, key) of the reads to when the one that arrived last was received: one probe for each."""
    keys: dict[tuple[str, str], set[str]] = defaultdict(set)
    for one in aged:
        if is_state(one.type):
            keys[one.application, one.type].add(one.key)
    found = {}
    for (application, event_type), some in keys.items():
        wanted = each(sorted(some))
        last = (
            select(_EVENTS.c.received_at)
            .where(
                _EVENTS.c.key == wanted.c.value,
                _EVENTS.c.application == application,
                _EVENTS.c.type == event_type,
                _EVENTS.c.trust == Trust.READ.value,
            )
            .order_by(_EVENTS.c.seq.desc())
            .limit(1)
            .correlate(wanted)
            .scalar_subquery()
        )
        for key, at in await session.execute(select(wanted.c.value, last)):
            if at is not None:
                found[application, event_type, key] = at
    return found
