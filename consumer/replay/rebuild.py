"""Rebuild: the tables of plugins, dropped and derived again from what the ledger keeps (case G9).

The ledger says more than the events: which run of which handler succeeded, when, and under which plan (runs); every
change of an order, a subscription or an access decision (audit), numbered under the row's lock; and which run caused
which derived event (outbox). So the runs are played again, those that succeeded, in the order in which they were
handled, and what they emitted then is a fact:

- nothing goes out: no derived event, no read, no note;
- a run whose handler notes its changes and noted none changes nothing now: a clock that was off has put it in the
  wrong place; one from before the trail begins is refused, as nobody knows what it changed, and so is one from
  after it ends that told others of a change;
- a word whose speaker wrote at once comes before its runs, whatever the clocks said: what they did they did by what
  was written, and mostly noted nothing;
- an order whose fulfilment was requested by a run is requested after it;
- anything else that is emitted now and was not then, or the other way round, is a difference: all is undone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NoReturn

import orjson
import structlog
from sqlalchemy import Table
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.schema import sort_tables

from consumer.errors import HandlerMisuse, RebuildDiffers
from consumer.ledger import Database
from consumer.ledger.handling import events
from consumer.ledger.rebuilding import past
from consumer.ledger.rebuilding.told import Told
from consumer.plugin import Context, Emission, Event, Handler, Reject, SnapshotKind, Source
from consumer.wire import SEED, own_event

WriteAtOnce = Callable[[AsyncSession, str, Mapping[str, Any], datetime], Awaitable[None]]
"""What the query API writes beside its word: (session, application, the word's data, when)."""
Noted = Callable[[AsyncSession, str], Awaitable[None]]
PORTION: Final = 20
"""Steps whose bodies are read together."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """A run that succeeded, or (without a handler) a word whose speaker wrote at once: what was `said`. `place` is its
    number among all changes, None for a run that noted none. `behind`: the place of the word that such a run takes.
    `emitted`: what it was the first to emit."""

    application: str
    event_id: str
    handler: Handler | None
    at: datetime
    seq: int = 0
    plan: str | None = None
    place: int | None = None
    behind: int | None = None
    emitted: Sequence[Emission] = ()
    said: Event | None = None


@dataclass(frozen=True, kw_only=True)
class Rebuilt:
    """What a rebuild made of one table of one application. `differs`: the columns in which the same number of rows has
    something else than before."""

    application: str
    table: str
    rows_before: int
    rows_after: int
    is_same: bool
    differs: Sequence[str]


def _rebuilt(application: str, table: Table, then: past.Contents, now: past.Contents) -> Rebuilt:
    """Where rows came or went, all columns differ, and none is named."""
    differs = [name for name, digest in now.digests.items() if then.rows == now.rows and then.digests[name] != digest]
    return Rebuilt(application=application, table=table.name, rows_before=then.rows, rows_after=now.rows,
                   is_same=then == now, differs=differs)  # fmt: skip


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
                for table in reversed(sort_tables(self._tables)):  # who refers to another goes first
                    await past.clear(session, table, application)
                await self._play(session, application)
                for table, then in before.items():
                    now = await past.contents(session, table, application)
                    found.append(_rebuilt(application, table, then, now))
                if dry_run:
                    raise _Undo
                if noted is not None:
                    await noted(session, application)
        except _Undo:
            pass
        return found

    async def _play(self, session: AsyncSession, application: str) -> None:
        """A few steps at once, as memory is meant to hold; what is to come is read beside, in its order."""
        names = tuple(self._handlers)
        await past.require_bodies(session, application, names)
        play = _Play(session, self, noted=await past.noted_between(session, application, names))
        async with self._database.reading() as beside:
            ran = self._ran(beside, past.handled(beside, application, names, noted=True), application)
            spoken = _spoken(past.spoken(beside, application, self._at_once), application)
            others = self._ran(beside, past.handled(beside, application, names, noted=False), application)
            async for some in _with_bodies_together(in_order(_by_place(ran, spoken), others)):
                bodies = await events.load(session, [(application, one.event_id) for one in some])
                await play.all(some, {event_id: event for (_, event_id), event in bodies.items()})
        await play.told.close()

    async def _ran(
        self, session: AsyncSession, runs: AsyncIterator[past.Handled], application: str
    ) -> AsyncIterator[Step]:
        async for one in runs:
            behind = await self._word_of(session, one, application) if one.place is None else None
            yield Step(
                application=application, event_id=one.event_id, handler=self._handlers[one.handler], at=one.at,
                seq=one.seq, plan=one.plan, place=one.place, behind=behind, emitted=one.emitted,
            )  # fmt: skip

    async def _word_of(self, session: AsyncSession, run: past.Handled, application: str) -> int | None:
        """The place of the word that a run takes, if its speaker wrote at once, and what was said is known."""
        if not any(self._handlers[run.handler].wants(word) for word, _ in self._at_once):
            return None
        words = _spoken(past.spoken(session, application, self._at_once, subject=run.key), application)
        return next((word.place for word in [one async for one in words] if word.event_id == run.event_id), None)

    async def handle(self, session: AsyncSession, step: Step, event: Event, handler: Handler) -> Context:
        """The handler once more, as it was called then: without objects that another call loaded."""
        session.expunge_all()
        ctx = Context(
            application=step.application,
            handler=handler,
            event=event,
            attempt=1,
            now=step.at,
            log=lambda: structlog.get_logger("rebuild"),
            is_replay=True,
            is_history=step.plan == SEED,
            emitted_then=frozenset(one.id for one in step.emitted),
            options=self._options[handler.name],
            session=session,
            snapshots=_of_no_time,
        )
        await handler.function(event, ctx)
        await session.flush()
        return ctx

    async def write_at_once(self, session: AsyncSession, step: Step, said: Event) -> None:
        """What the speaker of a word wrote beside it."""
        data = said.data["data"]
        await self._at_once[said.type, data["by"]](session, step.application, data, step.at)

    def is_for_others(self, emission: Emission, emitter: Handler, plugin: str | None = None) -> bool:
        """Whether somebody outside may act on it; the plugins' own timers and rounds are not. Of what a built-in one
        says, a merchant's is outside, though its tables are derived again, too. With a `plugin`: outside that one, as
        another's projection."""
        own = (handler for handler in self._handlers.values() if plugin in (None, handler.plugin))
        own = (handler for handler in own if handler.is_built_in or not emitter.is_built_in)
        return not any(handler.wants(emission.type) for handler in own)

    def by_hand(self, emission: Emission, at: datetime, application: str) -> tuple[Step, Event, Handler] | None:
        """The word that makes a recorded decision by hand, if there is one."""
        word = self._honours.get(emission.type)
        if word is None:
            return None
        event = own_event(application=application, id=emission.id, type=word, key=emission.key, source=Source.RELAY,
                          at=at, data={})  # fmt: skip
        handler = next(one for one in self._handlers.values() if one.wants(word))
        return Step(application=application, event_id=event.id, handler=handler, at=at), event, handler


class _Play:
    """The steps, one after the other, held against what was emitted then."""

    def __init__(self, session: AsyncSession, rebuild: Rebuild, *, noted: tuple[datetime, datetime] | None) -> None:
        self._session = session
        self._noted = noted
        self._rebuild = rebuild
        self.told = Told(session)

    async def all(self, steps: Iterable[Step], bodies: Mapping[str, Event]) -> None:
        for step in steps:
            if step.said is not None:
                await self._rebuild.write_at_once(self._session, step, step.said)
            elif step.handler is not None:
                await self._one(step, bodies[step.event_id], step.handler)

    async def _one(self, step: Step, event: Event, handler: Handler) -> None:
        then = step.emitted
        ids_then = {one.id for one in then}
        await self.told.add(ids_then)
        savepoint = await self._session.begin_nested()
        try:
            ctx = await self._rebuild.handle(self._session, step, event, handler)
        except Exception as error:
            await savepoint.rollback()
            if step.place is None and isinstance(error, Reject):
                return
            why = error.message if isinstance(error, HandlerMisuse) else type(error).__name__
            raise RebuildDiffers(f"{handler.name} fails on {step.event_id}, and did not then: {why}") from error
        untold = await self.told.without({one.id for one in ctx.emissions} - ids_then)
        news = [one for one in ctx.emissions if one.id in untold]
        if step.place is None and ctx.notes:
            self._require_trail(step, handler)
            await savepoint.rollback()  # then it found something else, and left it as it was
            return
        sent = [one for one in news if self._rebuild.is_for_others(one, handler) and not one.is_later(step.at)]
        if sent:
            raise RebuildDiffers(f"{sent[0].type} by {handler.name} on {step.event_id} was never sent")
        await savepoint.commit()
        await self.told.add({one.id for one in news})  # a timer that was withdrawn left no row
        missing = {one.id: one for one in then if one.id not in {now.id for now in ctx.emissions}}
        for emission in missing.values():
            if self._rebuild.is_for_others(emission, handler):
                await self._honour(event, handler, emission)

    def _require_trail(self, step: Step, handler: Handler) -> None:
        """What it changed then must be known. Raises RebuildDiffers."""
        if self._noted is None or step.at < self._noted[0]:
            raise RebuildDiffers(
                f"{handler.name} changes something on {step.event_id}, and the ledger has no trail of what was "
                "changed then: fill a new database with the archives and the `audit export`, in one "
                "`events import --missing`"
            )
        if step.at > self._noted[1] and any(
            self._rebuild.is_for_others(one, handler, handler.plugin) for one in step.emitted
        ):
            raise RebuildDiffers(
                f"{handler.name} changed something on {step.event_id}, and the trail ends before that: fill a new "
                "database with the archives and an `audit export` that was made after them, in one "
                "`events import --missing`"
            )

    async def _honour(self, event: Event, handler: Handler, emission: Emission) -> None:
        made = self._rebuild.by_hand(emission, event.received_at, event.application)
        ctx = await self._rebuild.handle(self._session, *made) if made else None
        if ctx is None or emission.id not in {one.id for one in ctx.emissions}:
            raise RebuildDiffers(f"{emission.type} by {handler.name} on {event.id} was sent, and would not be now")


async def _of_no_time(_: SnapshotKind, __: str) -> NoReturn:
    raise HandlerMisuse(
        "a snapshot is of its time: what it showed then is not kept, so nothing can be derived of it again"
    )


async def _spoken(notes: AsyncIterator[past.Note], application: str) -> AsyncIterator[Step]:
    """Words whose speakers wrote beside them."""
    async for note in notes:
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
        yield Step(application=application, event_id=word.id, handler=None, at=note.at, place=note.id, said=word)


async def in_order(noted: AsyncIterator[Step], others: AsyncIterator[Step]) -> AsyncIterator[Step]:
    """As they were handled. Of two changes their places decide, which no clock has a say in; what changed nothing
    goes by its time, and of the same time by arrival. A run whose time is before its word waits for that, as one of
    the clocks was wrong, and with it what arrived behind it. `noted` come by their places, `others` by their time."""
    latest: datetime | None = None
    early: deque[Step] = deque()
    waiting = await anext(others, None)
    async for step in noted:
        place = step.place or 0
        latest = step.at if latest is None else max(latest, step.at)
        while early and (early[0].behind or 0) < place:
            yield early.popleft()
        while waiting is not None and (waiting.at, waiting.seq) < (latest, step.seq):
            if (waiting.behind or 0) >= place or any(one.seq < waiting.seq for one in early):
                early.append(waiting)
            else:
                yield waiting
            waiting = await anext(others, None)
        yield step
    for one in early:
        yield one
    while waiting is not None:
        yield waiting
        waiting = await anext(others, None)


async def _by_place(*streams: AsyncIterator[Step]) -> AsyncIterator[Step]:
    """All of them, by their places; each comes so."""
    heads = [(stream, await anext(stream, None)) for stream in streams]
    while waiting := [(stream, step) for stream, step in heads if step is not None]:
        stream, step = min(waiting, key=lambda head: head[1].place or 0)
        yield step
        heads = [(one, await anext(one, None) if one is stream else first) for one, first in heads]


async def _with_bodies_together(steps: AsyncIterator[Step]) -> AsyncIterator[list[Step]]:
    """As many at once as memory is meant to hold with their bodies."""
    portion: list[Step] = []
    async for step in steps:
        portion.append(step)
        if len(portion) == PORTION:
            yield portion
            portion = []
    if portion:
        yield portion
