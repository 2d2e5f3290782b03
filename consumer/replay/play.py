"""Play: a batch of a plan's events in one trial, handled as the workers would.

All of a turn are handled first, then what they emitted for the first time, then what that emitted: so what was sent
before is asked once a step. A handler that takes many events gets those of a turn at once. A handler that fails undoes
what it wrote. Since few do, the batch is played together at first, without a savepoint for each; it is `Disturbed` by
the first failure, and is then played again with them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from typing import Protocol

from sqlalchemy.ext.asyncio import AsyncSession

from consumer.events import Event, Source
from consumer.ledger.plans import trial
from consumer.ledger.plans.candidates import Pair
from consumer.ledger.plans.tables import RENEWS
from consumer.ledger.tables import RunStatus
from consumer.plugin import Context, Emission, Handler, idempotency_key
from consumer.replay.effects import Call, Effects, Emits
from consumer.replay.turns import Turned, waves
from consumer.wire import own_event

DERIVED_MAX = 10_000
PARKED, CALLED = "parked", "called"
NEWEST = 1 << 62

Lane = tuple[str, str, str]


class Disturbed(Exception):
    """A handler failed while the batch was played together: what it wrote is still there."""


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


class Try(Protocol):
    """Runs a transactional handler as a worker would."""

    def __call__(
        self, session: AsyncSession, handler: Handler, events: Sequence[Event], plan: str, *, isolated: bool
    ) -> Awaitable[Sequence[Tried]]:
        """One attempt under `plan` for each of the events: of one, or of many that the handler takes together.
        `isolated`, of one: what it wrote is undone when it fails; else the caller does that."""
        ...


@dataclass(frozen=True, kw_only=True)
class Staging:
    """What a play is given: the deployment's handlers, what tries one, and how: under which plan, at which time,
    whether each attempt is `isolated`, and whether effects that run again get new keys."""

    handlers: Handlers
    attempt: Try
    plan: str
    now: datetime
    isolated: bool
    renews_keys: bool


class Play:
    """One batch in one trial. Raises Disturbed when a handler failed and the attempts are not isolated."""

    def __init__(self, session: AsyncSession, staging: Staging) -> None:
        self._session = session
        self._staging = staging
        self._handlers = staging.handlers
        self._lanes = _Lanes()
        self._sent: set[tuple[str, str]] = set()
        self._emitted: list[tuple[Event, Emission, Effects]] = []
        self._count = 0

    async def all(
        self, batch: Sequence[Turned], loaded: Mapping[tuple[str, str], Event]
    ) -> dict[tuple[str, str, str], Effects]:
        """What becomes of each pair."""
        self._lanes = _Lanes(await trial.blocking(self._session, {one.pair.lane for one in batch}))
        found: dict[tuple[str, str, str], Effects] = {}
        for _, turn in groupby(sorted(batch, key=_turn), key=_turn):
            for wave in waves([one.pair for one in turn], self._order):
                found |= await self._wave([(pair, loaded[pair.application, pair.event_id]) for pair in wave])
            while self._emitted:
                await self._follow(await self._sent_first())
        await trial.look(self._session)
        return found

    def _order(self, event_type: str) -> Sequence[str]:
        return [one.name for one in self._handlers.wanting(event_type)]

    async def _wave(self, wave: Sequence[tuple[Pair, Event]]) -> dict[tuple[str, str, str], Effects]:
        """Of one handler, of one application, no two of a key."""
        handler = self._handlers.get(wave[0][0].handler)
        found = {pair.id: self._expected(pair, event, handler) for pair, event in wave}
        if handler is not None and handler.transactional:
            ready = [(event, found[pair.id]) for pair, event in wave if found[pair.id].ends == CALLED]
            takes_many = handler.together is not None and not self._staging.isolated
            for some in [ready] if ready and takes_many else [[one] for one in ready]:
                for (_, effects), tried in zip(some, await self._run(handler, some), strict=True):
                    effects.ends, effects.code = tried.status.value, tried.code
        for pair, _ in wave:
            if handler is not None and _is_over(handler, found[pair.id].ends):
                self._lanes.done(pair.lane, pair.seq)
            else:
                self._lanes.waits(pair.lane, pair.seq, pair.event_id)
        return found

    def _expected(self, pair: Pair, event: Event, handler: Handler | None) -> Effects:
        """What becomes of it if all goes well."""
        if handler is None:
            return Effects(ends="no_handler")
        if (behind := self._lanes.behind(pair.lane, pair.seq)) is not None:
            return Effects(ends=PARKED, behind=behind)
        if handler.transactional:
            return Effects(ends=CALLED)
        key = idempotency_key(event.application, event.id, handler.name, pair.key_plan)
        if not (self._staging.renews_keys and pair.action in RENEWS):
            return Effects(ends=CALLED, key=key)
        renewed = idempotency_key(event.application, event.id, handler.name, self._staging.plan)
        return Effects(ends=CALLED, key=renewed, replaces=key)

    async def _run(self, handler: Handler, events: Sequence[tuple[Event, Effects]]) -> Sequence[Tried]:
        """A transactional handler, in the trial: how it ends for each of these, and with which code. What it emitted is
        handled afterwards, as the relay would send it; all of that belongs to the `effects` of the item it came
        from."""
        staging = self._staging
        batch = [event for event, _ in events]
        tried = await staging.attempt(self._session, handler, batch, staging.plan, isolated=staging.isolated)
        for (event, effects), one in zip(events, tried, strict=True):
            if one.context is not None:
                effects.reads += len(one.context.reads)
                self._emitted += [(event, emission, effects) for emission in one.context.emissions]
            elif not staging.isolated:
                raise Disturbed
        return tried

    async def _sent_first(self) -> list[tuple[Event, Effects, bool]]:
        """What was emitted, and is to be handled now: what nobody sent before, and what is no timer; whether it is
        history, on which no effect handler acts."""
        emitted, self._emitted = self._emitted, []
        names = {(cause.application, one.id) for cause, one, _ in emitted} - self._sent
        news = names - await trial.derived_before(self._session, names)
        due = []
        for cause, one, effects in emitted:
            name = (cause.application, one.id)
            if name not in news or name in self._sent:
                continue
            self._sent.add(name)
            is_later = one.not_before is not None and one.not_before > self._staging.now
            effects.emits.append(Emits(id=one.id, type=one.type, key=one.key, later=is_later))
            if not is_later and self._count < DERIVED_MAX:
                self._count += 1
                due.append((self._as_event(cause.application, one), effects, bool(one.is_history)))
        return due

    def _as_event(self, application: str, one: Emission) -> Event:
        return own_event(
            application=application,
            id=one.id,
            type=one.type,
            key=one.key,
            source=Source.RELAY,
            at=self._staging.now,
            data=one.data,
        )

    async def _follow(self, due: Sequence[tuple[Event, Effects, bool]]) -> None:
        """Handle what was derived."""
        lanes = {_lane(event, handler) for event, _, _ in due for handler in self._handlers.wanting(event.type)}
        self._lanes.open |= await trial.blocking(self._session, lanes - self._lanes.open.keys())
        for event, effects, is_history in due:
            for handler in self._handlers.wanting(event.type):
                if is_history and not handler.transactional:
                    continue
                effects.calls.append(await self._call(handler, event, effects))

    async def _call(self, handler: Handler, event: Event, effects: Effects) -> Call:
        lane, ends = _lane(event, handler), CALLED
        if (behind := self._lanes.behind(lane)) is not None:
            ends = PARKED
        elif handler.transactional:
            [tried] = await self._run(handler, [(event, effects)])
            ends = tried.status.value
        if not _is_over(handler, ends):
            self._lanes.waits(lane, NEWEST, event.id)
        key = idempotency_key(event.application, event.id, handler.name)
        return Call(handler=handler.name, event_id=event.id, key=key, ends=ends, behind=behind)


@dataclass
class _Lanes:
    """Which places of a lane are not done yet, and of which events: what is later waits."""

    open: dict[Lane, dict[int, str]] = field(default_factory=dict)

    def behind(self, lane: Lane, seq: int | None = None) -> str | None:
        """The event at the first open place before `seq` (None: at any); None when there is none."""
        places = self.open.get(lane, {})
        first = min((one for one in places if seq is None or one < seq), default=None)
        return None if first is None else places[first]

    def done(self, lane: Lane, seq: int) -> None:
        self.open.get(lane, {}).pop(seq, None)

    def waits(self, lane: Lane, seq: int, event_id: str) -> None:
        self.open.setdefault(lane, {}).setdefault(seq, event_id)


def _turn(one: Turned) -> int:
    """What is done before what was derived from it is handled."""
    return one.turn


def _lane(event: Event, handler: Handler) -> Lane:
    return event.application, handler.name, event.key


def _is_over(handler: Handler, ends: str) -> bool:
    """Whether what comes after it in its lane may go."""
    return ends in (CALLED, RunStatus.SUCCEEDED) or (ends == RunStatus.DEAD and handler.on_dead == "continue")
