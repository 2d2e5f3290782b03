"""Prediction: what a plan would do, found out by doing it in transactions that are rolled back (case R2).

The transactional handlers themselves run, on the plan's events, in the order in which they would; what they emit for
the first time is handled in turn, at once what is due, and effect handlers are counted, not called. So there is no
second implementation of any rule that could say something else.

It goes in batches, so that live work waits for a moment only: each is a trial of its own. What belongs together (one
key, one order, one subscription, one customer) is never split, because there the second event finds what the first one
left. What only a handler's own tables connect is found in the same batch or not at all.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from typing import Protocol

from sqlalchemy.ext.asyncio import AsyncSession

from consumer.errors import LedgerUnavailable
from consumer.events import Event, Source
from consumer.ledger import Database
from consumer.ledger.handling import events
from consumer.ledger.plans import trial
from consumer.ledger.plans.candidates import Pair
from consumer.ledger.plans.portions import portions
from consumer.ledger.plans.tables import Action
from consumer.ledger.tables import RunStatus
from consumer.plugin import Context, Emission, Handler, idempotency_key
from consumer.replay.effects import Call, Effects, Emits
from consumer.wire import own_event

BATCH = 100
PAUSE_S = 0.005
TRIES = 5
DERIVED_MAX = 10_000
LOAD_AT_ONCE = 300
PARKED, CALLED = "parked", "called"
NEWEST = 1 << 62


@dataclass(frozen=True)
class Tried:
    """One attempt of a transactional handler in a trial: what it left in its context (None: it failed), the state its
    run would be in, and the failure's code."""

    context: Context | None
    status: RunStatus
    code: str | None = None


class Handlers(Protocol):
    """The handlers of this deployment, as the workers have them."""

    def get(self, name: str) -> Handler | None:
        """The handler of this name."""
        ...

    def wanting(self, event_type: str) -> tuple[Handler, ...]:
        """The handlers for an event type, in their order."""
        ...


Try = Callable[[AsyncSession, Handler, Event, str], Awaitable[Tried]]
"""Runs a transactional handler as a worker would: (session, handler, event, plan)."""


@dataclass(frozen=True)
class Turned:
    """A pair and its turn: what may have to do with one another is done one event after the other."""

    turn: int
    pair: Pair


@dataclass(frozen=True, kw_only=True)
class Predictor:
    """Predicts on `database` with the deployment's `handlers`; `attempt` runs one."""

    database: Database
    handlers: Handlers
    attempt: Try

    async def predict(
        self, pairs: Sequence[Pair], *, plan: str, renews_keys: bool, now: datetime,
        progress: Callable[[int], None] = lambda _: None,
    ) -> list[tuple[Turned, Effects]]:  # fmt: skip
        """What becomes of each pair, by arrival, and its turn. `progress` hears how many are done. Raises
        LedgerError."""
        loaded = await self._load(pairs)
        found: list[tuple[Turned, Effects]] = []
        for batch in together(pairs, loaded):
            effects = await self._patiently(batch, loaded, plan, renews_keys=renews_keys, now=now)
            found += [(one, effects[one.pair.id]) for one in batch]
            progress(len(found))
            await asyncio.sleep(PAUSE_S)
        return sorted(found, key=lambda one: one[0].pair)

    async def _load(self, pairs: Sequence[Pair]) -> dict[tuple[str, str], Event]:
        wanted = sorted({(pair.application, pair.event_id) for pair in pairs})
        found: dict[tuple[str, str], Event] = {}
        async with self.database.reading() as session:
            for some in portions(wanted, LOAD_AT_ONCE):
                found |= await events.load(session, some)
        return found

    async def _patiently(
        self, batch: Sequence[Turned], loaded: Mapping[tuple[str, str], Event], plan: str, *, renews_keys: bool,
        now: datetime,
    ) -> dict[tuple[str, str, str], Effects]:  # fmt: skip
        """Live work comes first: a trial that meets its locks gives way, and is made again."""
        for tries_left in reversed(range(TRIES)):
            try:
                async with trial.trial(self.database) as session:
                    play = _Play(self, session, plan, renews_keys=renews_keys, now=now)
                    return await play.all(batch, loaded)
            except LedgerUnavailable:
                if not tries_left:
                    raise
                await asyncio.sleep(PAUSE_S * 10 * (TRIES - tries_left))
        raise AssertionError("a loop that returns or raises")


def together(pairs: Sequence[Pair], loaded: Mapping[tuple[str, str], Event]) -> Iterator[list[Turned]]:
    """Batches of about BATCH pairs; of what belongs together each event has a turn of its own. Pure."""
    groups = _Groups()
    names = {pair.id: _names(pair, loaded.get((pair.application, pair.event_id))) for pair in pairs}
    for some in names.values():
        groups.join(some)
    by_group: dict[str, list[Pair]] = {}
    for pair in pairs:
        by_group.setdefault(groups.of(names[pair.id][0]), []).append(pair)
    batch: list[Turned] = []
    for group in by_group.values():
        if batch and len(batch) + len(group) > BATCH:
            yield batch
            batch = []
        batch += in_turn(group)
    if batch:
        yield batch


def in_turn(group: Sequence[Pair]) -> list[Turned]:
    """The pairs of a group by turn: an event after the other, by arrival. What follows another of its lane has that
    one's turn, since it goes by itself. Pure."""
    turns: dict[int, int] = {}
    lanes: dict[tuple[str, str, str], int] = {}
    found: list[Turned] = []
    for pair in sorted(group):
        if pair.action is Action.FOLLOW and pair.lane in lanes:
            turn = lanes[pair.lane]
        else:
            turn = turns.setdefault(pair.seq, len(turns))
            lanes[pair.lane] = turn
        found.append(Turned(turn, pair))
    return sorted(found, key=lambda one: (one.turn, one.pair))


def _names(pair: Pair, event: Event | None) -> list[str]:
    """What an event is about: everything that has one of these in common stays together."""
    found = [f"{pair.application}/{pair.key}"]
    if event is not None:
        about = {"order": event.order_id, "subscription": event.subscription_id, "customer": event.customer}
        found += [f"{pair.application}/{kind}:{value}" for kind, value in about.items() if value is not None]
    return found


class _Groups:
    """Which names belong together (union-find)."""

    def __init__(self) -> None:
        self._parents: dict[str, str] = {}

    def of(self, name: str) -> str:
        root = name
        while (parent := self._parents.setdefault(root, root)) != root:
            root = parent
        self._parents[name] = root
        return root

    def join(self, names: Sequence[str]) -> None:
        first = self.of(names[0])
        for name in names[1:]:
            self._parents[self.of(name)] = first


@dataclass
class _Lanes:
    """Which places of a lane are not done yet: what is later waits."""

    open: dict[tuple[str, str, str], list[int]] = field(default_factory=dict)

    def is_behind(self, lane: tuple[str, str, str], seq: int | None = None) -> bool:
        """Whether something earlier than `seq` (None: anything) is open."""
        return any(seq is None or one < seq for one in self.open.get(lane, ()))

    def done(self, lane: tuple[str, str, str], seq: int) -> None:
        places = self.open.get(lane, [])
        if seq in places:
            places.remove(seq)

    def waits(self, lane: tuple[str, str, str], seq: int) -> None:
        places = self.open.setdefault(lane, [])
        if seq not in places:
            places.append(seq)


class _Play:
    """One batch in one trial."""

    def __init__(
        self, predictor: Predictor, session: AsyncSession, plan: str, *, renews_keys: bool, now: datetime
    ) -> None:
        self._predictor = predictor
        self._session = session
        self._plan = plan
        self._renews_keys = renews_keys
        self._now = now
        self._lanes = _Lanes()
        self._sent: set[tuple[str, str]] = set()
        self._derived: deque[tuple[Event, Effects]] = deque()
        self._count = 0

    async def all(
        self, batch: Sequence[Turned], loaded: Mapping[tuple[str, str], Event]
    ) -> dict[tuple[str, str, str], Effects]:
        self._lanes = _Lanes(await trial.blocking(self._session, {one.pair.lane for one in batch}))
        found: dict[tuple[str, str, str], Effects] = {}
        for _, turn in groupby(batch, key=_event_and_turn):
            for pair in self._in_order([one.pair for one in turn]):
                found[pair.id] = await self._one(pair, loaded[pair.application, pair.event_id])
            while self._derived:
                event, effects = self._derived.popleft()
                await self._handle_derived(event, effects)
        return found

    def _in_order(self, turn: Sequence[Pair]) -> list[Pair]:
        """By arrival; of one event in the order of the handlers, as a worker calls them."""
        order = {pair.type: [one.name for one in self._predictor.handlers.wanting(pair.type)] for pair in turn}

        def place(pair: Pair) -> tuple[int, int, str]:
            names = order[pair.type]
            return pair.seq, names.index(pair.handler) if pair.handler in names else len(names), pair.handler

        return sorted(turn, key=place)

    async def _one(self, pair: Pair, event: Event) -> Effects:
        handler = self._predictor.handlers.get(pair.handler)
        if handler is None:
            self._lanes.waits(pair.lane, pair.seq)
            return Effects(ends="no_handler")
        if self._lanes.is_behind(pair.lane, pair.seq):
            self._lanes.waits(pair.lane, pair.seq)
            return Effects(ends=PARKED)
        effects = Effects(ends=CALLED)
        if handler.transactional:
            effects.ends, effects.code = await self._run(handler, event, effects)
        else:
            renewed = self._plan if self._renews_keys and pair.action is Action.RERUN else None
            effects.key = idempotency_key(event.application, event.id, handler.name, renewed)
        if _is_over(handler, effects.ends):
            self._lanes.done(pair.lane, pair.seq)
        else:
            self._lanes.waits(pair.lane, pair.seq)
        return effects

    async def _run(self, handler: Handler, event: Event, effects: Effects) -> tuple[str, str | None]:
        """A transactional handler, in the trial: how it ends, and with which code. What it emitted is handled
        afterwards, as the relay would send it; all of that belongs to the `effects` of the item it came from."""
        tried = await self._predictor.attempt(self._session, handler, event, self._plan)
        if tried.context is not None:
            effects.reads += len(tried.context.reads)
            await self._send(event, tried.context.emissions, effects)
        return tried.status.value, tried.code

    async def _send(self, cause: Event, emissions: Sequence[Emission], effects: Effects) -> None:
        ids = {(cause.application, one.id) for one in emissions} - self._sent
        news = ids - await trial.derived_before(self._session, ids)
        for one in emissions:
            name = (cause.application, one.id)
            if name not in news or name in self._sent:
                continue
            self._sent.add(name)
            is_later = one.not_before is not None and one.not_before > self._now
            effects.emits.append(Emits(id=one.id, type=one.type, key=one.key, later=is_later))
            if not is_later and self._count < DERIVED_MAX:
                self._count += 1
                self._derived.append((self._as_event(cause.application, one), effects))

    def _as_event(self, application: str, one: Emission) -> Event:
        return own_event(
            application=application,
            id=one.id,
            type=one.type,
            key=one.key,
            source=Source.RELAY,
            at=self._now,
            data=one.data,
        )

    async def _handle_derived(self, event: Event, effects: Effects) -> None:
        for handler in self._predictor.handlers.wanting(event.type):
            lane = (event.application, handler.name, event.key)
            if lane not in self._lanes.open:
                self._lanes.open |= await trial.blocking(self._session, {lane})
            ends = CALLED
            if self._lanes.is_behind(lane):
                ends = PARKED
            elif handler.transactional:
                ends, _ = await self._run(handler, event, effects)
            if not _is_over(handler, ends):
                self._lanes.waits(lane, NEWEST)
            key = idempotency_key(event.application, event.id, handler.name)
            effects.calls.append(Call(handler=handler.name, event_id=event.id, key=key, ends=ends))


def _event_and_turn(one: Turned) -> tuple[int, str]:
    """What is done before what was derived from it is handled: an event's pairs, and what follows them."""
    return one.turn, one.pair.key


def _is_over(handler: Handler, ends: str) -> bool:
    """Whether what comes after it in its lane may go."""
    return ends in (CALLED, RunStatus.SUCCEEDED) or (ends == RunStatus.DEAD and handler.on_dead == "continue")
