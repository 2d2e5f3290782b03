"""Rebuild: the tables of plugins, dropped and derived again from what the ledger keeps (case G9).

The ledger says more than the events: which run of which handler succeeded, when, and under which plan (runs); every
change of an order, a subscription or an access decision (audit), numbered under the row's lock; and which run caused
which derived event (outbox). So the runs are played again, those that succeeded, in the order in which they were
handled, and what they emitted then is a fact:

- nothing goes out: no derived event, no read, no note;
- a run that changed nothing then changes nothing now: a clock that was off has put it in the wrong place;
- an order whose fulfilment was requested by a run is requested after it;
- anything else that is emitted now and was not then, or the other way round, is a difference: all is undone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
import structlog
from sqlalchemy import Table
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.errors import RebuildDiffers
from consumer.ledger import Database
from consumer.ledger.handling import past
from consumer.plugin import Context, Emission, Event, Handler, Reject, Source
from consumer.wire import SEED, own_event

WriteAtOnce = Callable[[AsyncSession, str, Mapping[str, Any], datetime], Awaitable[None]]
"""What the query API writes beside its word: (session, application, the word's data, when)."""
Noted = Callable[[AsyncSession, str], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class Step:
    """A run that succeeded, or (without a handler) a word whose speaker wrote at once. `place` is its number among
    all changes, None for a run that noted none."""

    event: Event
    handler: Handler | None
    at: datetime
    seq: int = 0
    plan: str | None = None
    place: int | None = None


@dataclass(frozen=True, kw_only=True)
class Rebuilt:
    """What a rebuild made of one table of one application."""

    application: str
    table: str
    rows_before: int
    rows_after: int
    is_same: bool


class _Undo(Exception):
    """The end of a dry run."""


class Rebuild:
    """`tables` are dropped and derived again by `handlers`. `options`: what `ctx.options` is, by handler. `honours`:
    a derived event's type to the word that makes its decision by hand. `at_once`: a word's type, and who says it, to
    what its speaker wrote beside it."""

    def __init__(
        self,
        database: Database,
        handlers: Sequence[Handler],
        options: Mapping[str, Any],
        tables: Sequence[Table],
        *,
        honours: Mapping[str, str],
        at_once: Mapping[tuple[str, str], WriteAtOnce],
    ) -> None:
        self._database = database
        self._handlers = {handler.name: handler for handler in handlers if handler.transactional}
        self._order = {name: number for number, name in enumerate(self._handlers)}
        self._options = options
        self._tables = tables
        self._honours = honours
        self._at_once = at_once

    async def run(self, application: str, *, dry_run: bool = False, noted: Noted | None = None) -> list[Rebuilt]:
        """Do it, in one transaction, and say what came of each table; a dry run is undone. `noted` writes who did it,
        in the same transaction. Raises RebuildDiffers, and has changed nothing then."""
        found: list[Rebuilt] = []
        try:
            async with self._database.transaction() as session:
                before = {table: await past.contents(session, table, application) for table in self._tables}
                for table in self._tables:
                    await past.clear(session, table, application)
                emitted = await past.emitted(session, application)
                steps = await self._changes(session, application)
                await _Play(session, self, emitted, has_trail=_has_trail(steps)).all(in_order(steps))
                for table, then in before.items():
                    now = await past.contents(session, table, application)
                    found.append(
                        Rebuilt(application=application, table=table.name, rows_before=then.rows, rows_after=now.rows,
                                is_same=then == now)
                    )  # fmt: skip
                if dry_run:
                    raise _Undo
                if noted is not None:
                    await noted(session, application)
        except _Undo:
            pass
        return found

    async def _changes(self, session: AsyncSession, application: str) -> list[Step]:
        places: dict[tuple[str | None, str], int] = {}
        steps: list[Step] = []
        for note in await past.notes(session, application):
            places.setdefault((note.reason, note.actor), note.id)
            if (note.action, note.actor) in self._at_once:
                steps.append(_spoken(application, note))
        for one in await past.handled(session, application, self._handlers):
            place = places.get((one.event.id, one.handler[:100]))
            handler = self._handlers[one.handler]
            steps.append(Step(event=one.event, handler=handler, at=one.at, seq=one.seq, plan=one.plan, place=place))
        return sorted(steps, key=lambda step: (step.seq, self._order[step.handler.name] if step.handler else 0))

    async def handle(self, session: AsyncSession, step: Step, handler: Handler) -> Context:
        """The handler once more, as it was called then."""
        ctx = Context(
            application=step.event.application,
            handler=handler,
            event=step.event,
            attempt=1,
            now=step.at,
            log=structlog.get_logger("rebuild"),
            is_replay=True,
            is_history=step.plan == SEED,
            options=self._options[handler.name],
            session=session,
        )
        await handler.function(step.event, ctx)
        await session.flush()
        return ctx

    async def write_at_once(self, session: AsyncSession, step: Step) -> None:
        """What the speaker of a word wrote beside it."""
        data = step.event.data["data"]
        await self._at_once[step.event.type, data["by"]](session, step.event.application, data, step.at)

    def is_for_others(self, emission: Emission) -> bool:
        """Whether somebody outside may act on it; the plugins' own timers and rounds are not."""
        return not any(handler.wants(emission.type) for handler in self._handlers.values())

    def by_hand(self, emission: Emission, at: datetime, application: str) -> tuple[Step, Handler] | None:
        """The word that makes a recorded decision by hand, if there is one."""
        word = self._honours.get(emission.type)
        if word is None:
            return None
        event = own_event(application=application, id=emission.id, type=word, key=emission.key, source=Source.RELAY,
                          at=at, data={})  # fmt: skip
        handler = next(one for one in self._handlers.values() if one.wants(word))
        return Step(event=event, handler=handler, at=at), handler


class _Play:
    """The steps, one after the other, held against what was emitted then."""

    def __init__(
        self,
        session: AsyncSession,
        rebuild: Rebuild,
        emitted: Mapping[tuple[str, str], list[Emission]],
        *,
        has_trail: bool,
    ) -> None:
        self._session = session
        self._has_trail = has_trail
        self._rebuild = rebuild
        self._emitted = emitted
        self._by_now: set[str] = set()

    async def all(self, steps: Iterable[Step]) -> None:
        for step in steps:
            if step.handler is None:
                await self._rebuild.write_at_once(self._session, step)
            else:
                await self._one(step, step.handler)

    async def _one(self, step: Step, handler: Handler) -> None:
        then = self._emitted.get((step.event.id, handler.name), [])
        self._by_now |= {one.id for one in then}
        savepoint = await self._session.begin_nested()
        try:
            ctx = await self._rebuild.handle(self._session, step, handler)
        except Exception as error:
            await savepoint.rollback()
            if step.place is None and isinstance(error, Reject):
                return
            raise RebuildDiffers(f"{handler.name} fails on {step.event.id}, and did not then") from error
        news = [one for one in ctx.emissions if one.id not in self._by_now]
        if step.place is None and (news or ctx.notes):
            if ctx.notes and not self._has_trail:
                raise RebuildDiffers(
                    f"{handler.name} changes something on {step.event.id}, and the ledger has no trail of any change: "
                    "fill a new database with the archives and the `audit export`, in one `events import --missing`"
                )
            await savepoint.rollback()  # then it found something else, and left it as it was
            return
        sent = [one for one in news if self._rebuild.is_for_others(one)]
        if sent:
            raise RebuildDiffers(f"{sent[0].type} by {handler.name} on {step.event.id} was never sent")
        await savepoint.commit()
        missing = {one.id: one for one in then if one.id not in {now.id for now in ctx.emissions}}
        for emission in filter(self._rebuild.is_for_others, missing.values()):
            await self._honour(step, handler, emission)

    async def _honour(self, step: Step, handler: Handler, emission: Emission) -> None:
        made = self._rebuild.by_hand(emission, step.event.received_at, step.event.application)
        ctx = await self._rebuild.handle(self._session, *made) if made else None
        if ctx is None or emission.id not in {one.id for one in ctx.emissions}:
            raise RebuildDiffers(f"{emission.type} by {handler.name} on {step.event.id} was sent, and would not be now")


def _has_trail(steps: Sequence[Step]) -> bool:
    """Whether any run is known to have changed anything: in a ledger that was filled from archives alone none is."""
    return any(step.handler is not None and step.place is not None for step in steps)


def _spoken(application: str, note: past.Note) -> Step:
    """A word whose speaker wrote beside it."""
    said = orjson.loads(note.after or "{}")
    word = own_event(
        application=application,
        id=said["id"],
        type=note.action,
        key="",
        source=Source.RELAY,
        at=note.at,
        data=said["data"] | {"by": note.actor},
    )
    return Step(event=word, handler=None, at=note.at, place=note.id)


def in_order(steps: Sequence[Step]) -> Iterator[Step]:
    """As they were handled. Of two changes their places decide, which no clock has a say in; what changed nothing
    goes by its time, and of the same time by arrival. `steps` come in the order of arrival."""
    noted = sorted((step for step in steps if step.place is not None), key=lambda step: step.place or 0)
    others = sorted((step for step in steps if step.place is None), key=lambda step: step.at)
    latest: datetime | None = None
    waiting = 0
    for step in noted:
        latest = step.at if latest is None else max(latest, step.at)
        while waiting < len(others) and (others[waiting].at, others[waiting].seq) < (latest, step.seq):
            yield others[waiting]
            waiting += 1
        yield step
    yield from others[waiting:]
