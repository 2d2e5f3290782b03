"""Assertions: put the author's own handler through what happens in production (cases G1, G2, G5, H11).

Each way is played on a fresh ledger and compared with the plain one: the derived events, the reads asked for, the
handler's own tables, and what the outside was told. `state` is for handlers that tell somebody else: a function that
returns, comparable, what was done (it is called at the end of each play; `reset` is called before each). `observed` are
observations taken in before each play, for handlers that look at `ctx.snapshot()`; among `events` they take part in
the order, and a handler that lets the newest one decide is found out.
"""

from __future__ import annotations

import inspect
import itertools
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import orjson

from consumer.errors import HandlerInvalid, UsageError
from consumer.events import Event
from consumer.plugin import Handler, Reject, declared
from consumer.plugin.declaration import FULFILMENT
from consumer.testing.example_events import about
from consumer.testing.ground import Ground
from consumer.testing.mishaps import LOSE, TROUBLES, in_another_process, refused, too_slow
from consumer.testing.outside import Answer, Request, Trouble
from consumer.testing.payments_fake import PaymentsFake
from consumer.testing.refusal import Refused, refuse
from consumer.testing.workbench import Function, Ran, Workbench
from consumer.work.place import home_of, told_import

ORDERS_MAX = 24
PATIENCE_S = 90_000.0
NOTHING = (
    "it left nothing to compare: no request by ctx.http, no derived event, no row, no read; say what it does by "
    "`state=` (a function that returns it, comparable) and `reset=`, and give `events` for which it does something"
)
NEVER_DONE: Mapping[str, Callable[[Request], Answer | None]] = {
    "answered 500": lambda _: Answer(status=500),
    "answered 401": lambda _: Answer(status=401),
    "answered 429": lambda _: Answer(status=429),
    "refused the connection": refused,
    "gave no answer in time": too_slow,
}
"""What never says that it is done: a service that is down or busy, a token that was changed. A 409 may."""
NEVER_SHIPPED: Mapping[str, Callable[[Request], Answer | None]] = {
    "answered 404": lambda one: None if one.method == "DELETE" else Answer(status=404),
}
"""The same where an order is fulfilled by it. Of who has no access any more it may be the end."""
DEAF = (
    "it succeeds although the outside {answered} when it was told: let that fail (answer.raise_for_status(), no "
    "`except` that goes on), then it is tried again; or say that nobody depends on it (best_effort=True)"
)
MIXED_UP = (
    "it sends one Idempotency-Key with two requests, and who honours keys does the first and drops the second: make "
    "each key of ctx.idempotency_key and what the request is for, f'{{ctx.idempotency_key}}-invoice'"
    "\n  key:   {key}\n  first: {first}\n  then:  {then}"
)
TOLD_LESS = (
    "the outside was told less this time: what the handler keeps in its module from one play to the next (a set of ids "
    "that it has seen) is gone after a restart, and no other process has it; leave it to ctx.idempotency_key"
)
NEVER_TOLD = (
    "the outside was told less than when all is well, and the run succeeded: let each error out, do on every attempt "
    "what the first one does (whatever ctx.attempt is), and keep nothing in the module"
)
WENT_ON = (
    "{failed} failed, and the run went on and succeeded, so nobody tries that again: let each error out; what may fail "
    "without harm is a handler of its own with fulfils=False (and best_effort=True here)"
)
TRIED_AGAIN: Mapping[str, str] = {
    "the answer was lost, it is tried again": LOSE,
    "the outside was away at first (a refused connection), then it is tried again": "no connection",
    "the outside was away at first (a 503), then it is tried again": "a 503",
    "the first attempt ended before it did anything, it is tried again": "end early",
}
"""The ways of an effect handler with a second attempt, and the trouble that its events meet at first."""

GIVEN_MAX_CHARS = 300

Play = Callable[[Workbench], None]
Given = Callable[[Workbench], None]
"""What each play begins with, on a workbench of its own."""


@dataclass(frozen=True, kw_only=True)
class Left:
    """What a play left behind."""

    emitted: Counter[tuple[str, str]]
    reads: frozenset[tuple[str, str]]
    tables: Mapping[str, Any]
    said: Counter[tuple[str, str, str]]
    effects: Counter[tuple[str, str, str]]
    outside: Mapping[str, str]
    state: Any = None
    is_stateful: bool = field(default=False, compare=False)
    unfinished: tuple[str, ...] = field(default=(), compare=False)
    gave_up: bool = field(default=False, compare=False)
    before: Mapping[str, Any] = field(default_factory=dict, compare=False)
    mixed_up: tuple[str, str, str] | None = field(default=None, compare=False)
    went_on: tuple[str, ...] = field(default=(), compare=False)

    @property
    def is_something(self) -> bool:
        """Whether there is anything that a repetition could change."""
        return bool(self.is_stateful or self.emitted or self.reads or self.tables != self.before or self.effects)


def assert_idempotent(
    handler: Function,
    events: Sequence[Event] | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    payments: Any = None,
    state: Callable[[], Any] | None = None,
    reset: Callable[[], None] = lambda: None,
    observed: Sequence[Event] = (),
    allow: Collection[str] = (),
    best_effort: bool = False,
    given: Given | None = None,
) -> None:
    """Raise AssertionError, with the way that did it, when repeating changes what the handler leaves behind.

    The ways: delivered twice; delivered by replicas at once; a crash between the effect and its mark; all in one batch
    (`batch=True`); everything again, late, in reverse. Effect handlers with more than one attempt are also tried again:
    the answer was lost; the outside was away at first (refused, then a 503); the first attempt ended before it did
    anything. One that rejects or puts off the event then must only not have told more. The outside fails for good
    (`NEVER_DONE`), which must not count as success. One key for two requests, and what left nothing that could be
    compared, is refused, too. `events` defaults to one event of each of the handler's types, and of another object for
    the keys. `best_effort`: nobody depends on what it tells, so that it may look at such an answer and go on; a handler
    that fulfils may not. `given`: what each way begins with, on a workbench of its own: rows (`fill`), what the outside
    answers.
    """
    with Ground() as ground:
        stage = Stage(
            handler, events, options, payments, state, reset, observed, allow,
            ground=ground, given=given, best_effort=best_effort,
        )  # fmt: skip
        once = stage.play(lambda bench: stage.deliver(bench, stage.events))
        stage.refuse_at_once(once)
        stage.refuse_deafness()
        for way, play in stage.ways().items():
            stage.compare(way, once, stage.play(play), met_trouble=way in TRIED_AGAIN)
        stage.refuse_mixed_up(stage.play(lambda bench: stage.deliver(bench, [*stage.events, *stage.others])))


def assert_order_independent(
    handler: Function,
    events: Sequence[Event] | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    payments: Any = None,
    state: Callable[[], Any] | None = None,
    reset: Callable[[], None] = lambda: None,
    observed: Sequence[Event] = (),
    allow: Collection[str] = (),
    data: bool = False,
    given: Given | None = None,
) -> None:
    """Raise AssertionError, with the order that did it, when the order of the events changes what is left behind.

    Every order of up to four events, else some (always the same): reversed, each one late, shuffled; the last ones
    with duplicates. Derived events are compared by type and key, with `data=True` by their data as well: for handlers
    whose data says what is so, rather than how it was found out. `events` defaults to one of each of the handler's
    types about the same order, which says little: give those that matter. `given` as for `assert_idempotent`.
    """
    with Ground() as ground:
        stage = Stage(
            handler, events, options, payments, state, reset, observed, allow, ground=ground, data=data, given=given
        )
        plain = stage.play(lambda bench: stage.deliver(bench, stage.events))
        stage.refuse_at_once(plain)
        for order in _orders(stage.events):
            way = "in the order " + ", ".join(f"{event.type} ({event.id})" for event in order)
            stage.compare(way, plain, stage.play(partial(stage.deliver, events=order)))


def _orders(events: Sequence[Event]) -> Iterator[Sequence[Event]]:
    if len(events) <= 4:
        yield from itertools.islice(itertools.permutations(events), 1, None)
        return
    yield list(reversed(events))
    for place in range(min(len(events) - 1, ORDERS_MAX // 3)):
        yield [*events[:place], *events[place + 1 :], events[place]]
    chance = random.Random(1)  # noqa: S311 - the same orders every time
    for _ in range(ORDERS_MAX // 3):
        yield chance.sample([*events, *events[:2]], len(events) + 2)


class Stage:
    """Plays ways with one handler, each on a workbench of its own, all on one ground."""

    def __init__(
        self,
        handler: Function,
        events: Sequence[Event] | None,
        options: Mapping[str, Any] | None = None,
        payments: Any = None,
        state: Callable[[], Any] | None = None,
        reset: Callable[[], None] = lambda: None,
        observed: Sequence[Event] = (),
        allow: Collection[str] = (),
        *,
        ground: Ground,
        data: bool = False,
        given: Given | None = None,
        best_effort: bool = False,
    ) -> None:
        if inspect.iscoroutinefunction(given):
            raise UsageError("what is given is a plain function: def name(workbench), not async")
        self._ground = ground
        self._given = given
        self._handler = handler
        self._declared = declaration(handler)
        self._options = options
        self._payments = payments
        self._state = state
        self._reset = reset
        self._observed = observed
        self._allow = allow
        self._data = data
        self._may_go_on = best_effort and not (self._declared.fulfils and self._declared.wants(FULFILMENT))
        self.events = list(events) if events is not None else _examples(self._declared, 1)
        self.others = _examples(self._declared, 2) if events is None else []
        if not any(self._declared.wants(event.type) for event in self.events):
            raise HandlerInvalid("the handler wants none of the events", handler=self._declared.name)

    @property
    def is_tried_again(self) -> bool:
        """Whether it is an effect handler with a second attempt. A crash makes transactional ones try again."""
        return not self._declared.transactional and self._declared.retry.attempts > 1

    def play(self, way: Play) -> Left:
        """What is left behind when it goes this way, on a fresh ledger."""
        self._reset()
        payments = self._payments.fresh() if isinstance(self._payments, PaymentsFake) else self._payments
        with Workbench(options=self._options, payments=payments, allow=self._allow, ground=self._ground) as bench:
            bench.take(*self._observed)
            before = self._begin(bench)
            way(bench)
            return Left(
                emitted=Counter((event.type, event.key) for event in bench.emitted),
                said=Counter((event.type, event.key, _data(event)) for event in bench.emitted if self._data),
                reads=frozenset(bench.reads),
                tables=bench.tables(),
                effects=Counter([*bench.outside.effects(), *_changes(bench.payments)]),
                outside=bench.outside.final(),
                state=self._state() if self._state is not None else None,
                is_stateful=self._state is not None,
                unfinished=tuple(_unfinished(run) for run in bench.runs if not run.succeeded),
                gave_up=any(self._gave_up(run) for run in bench.runs),
                before=before,
                mixed_up=bench.outside.mixed_up(),
                went_on=tuple(bench.went_on),
            )

    def _begin(self, bench: Workbench) -> Mapping[str, Any]:
        """What the tables hold that are given, before the handler is there."""
        if self._given is None:
            return {}
        try:
            bench.begin(self._given)
        except Exception as error:
            told = told_import(error, [self._given.__module__ or ""], GIVEN_MAX_CHARS)
            raise UsageError(f"what is given cannot be played: {told}") from error
        return bench.tables()

    def _gave_up(self, run: Ran) -> bool:
        """Whether the handler itself rejected the event, or puts it off for very long."""
        by_itself = run.code == Reject.code or run.attempts < self._declared.retry.attempts
        is_own_fault = (run.code or "").startswith("handler_")
        return run.status == "retrying" or (run.status == "dead" and by_itself and not is_own_fault)

    def refuse_at_once(self, left: Left) -> None:
        """Raise AssertionError where all is well and it is wrong already: it left nothing to compare, so that a test
        that passes would say nothing, or mixed up its keys."""
        if not left.unfinished and not left.is_something:
            raise self._refuse(NOTHING)
        self.refuse_mixed_up(left)

    def refuse_mixed_up(self, left: Left) -> None:
        """Raise AssertionError where one key stood for two things: the second would not be done."""
        if left.mixed_up is not None:
            key, first, then = map(_shown, left.mixed_up)
            raise self._refuse(MIXED_UP.format(key=key, first=first, then=then))

    def refuse_deafness(self) -> None:
        """Raise AssertionError for a handler that succeeds although the outside refused what it told: the event would
        read as done. Where it may go on only for one that did not even look."""

        def play(bench: Workbench, answered: str, instead: Callable[[Request], Answer | None]) -> None:
            bench.outside.begin_trouble(Trouble(instead=instead))
            for event in self.events:
                if self._wants(bench, event):
                    bench.run(self._handler, event)
            if bench.outside.met and not self._may_go_on and all(run.succeeded for run in bench.runs):
                raise self._refuse(DEAF.format(answered=answered))

        fulfils = self._declared.fulfils and self._declared.wants(FULFILMENT)
        for answered, instead in {**NEVER_DONE, **(NEVER_SHIPPED if fulfils else {})}.items():
            self.play(partial(play, answered=answered, instead=instead))

    def _refuse(self, what: str) -> Refused:
        return refuse(self._declared.name, what, home_of(self._declared.function).start)

    def compare(self, way: str, once: Left, found: Left, *, met_trouble: bool = False) -> None:
        """Raise AssertionError where two plays left different things. `met_trouble`: an attempt failed on the way."""
        if once.unfinished:
            raise AssertionError(f"the handler does not succeed even when all is well: {once.unfinished[0]}")
        goes_on = self._may_go_on and not found.unfinished and found.effects < once.effects
        if met_trouble and (found.gave_up or goes_on):
            # It could not know that it was heard. What it left undone is its author's decision; doing more is not.
            found = replace(once, effects=once.effects | found.effects)
        elif found.unfinished:
            raise AssertionError(f"{way}: the handler did not get through: {found.unfinished[0]}")
        for what in ("effects", "outside", "emitted", "said", "reads", "tables", "state"):
            before, after = getattr(once, what), getattr(found, what)
            if before != after:
                place = home_of(self._declared.function).start
                told = f"\n  otherwise: {_shown(before)}\n  here:      {_shown(after)}"
                lost = {f"{method} {url}" for method, url, _ in once.effects - found.effects}
                failed = next((one for one in found.went_on if one in lost), None)
                never_told = NEVER_TOLD if failed is None else WENT_ON.format(failed=failed)
                told_less = never_told if met_trouble else TOLD_LESS
                meaning = told_less if what == "effects" and after < before else _MEANING[what]
                raise AssertionError(f"{way}: {meaning}{told}\n  handler:   {self._declared.name} ({place})")

    # --- the ways ----------------------------------------------------------------------------------------------

    def ways(self) -> Mapping[str, Play]:
        """What must change nothing, in words, and how it is played."""
        found: dict[str, Play] = {
            "delivered twice": lambda bench: self.deliver(bench, [e for e in self.events for _ in range(2)]),
            "delivered by replicas at once": lambda bench: self.befalls_each(bench, "at once"),
            "a crash between the effect and its mark": self.crash,
            "everything again a day later, newest first": self.again_late,
        }
        if self._declared.together is not None:
            found["all in one batch"] = self.together
        if self.is_tried_again:
            found |= {way: partial(self.befalls_each, what=what) for way, what in TRIED_AGAIN.items()}
        return found

    def befall(self, bench: Workbench, event: Event, what: str) -> None:
        """One thing happens to one event: `deliver`, `at once`, `crash`, or one of `TROUBLES`."""
        if not self._wants(bench, event):
            return
        match what:
            case "at once":
                bench.run_at_once(self._handler, event)
            case "crash":
                bench.run_and_crash(self._handler, event)
            case _ if what in TROUBLES:
                bench.run_in_trouble(self._handler, event, what, PATIENCE_S)
            case _:
                bench.deliver(self._handler, event)

    def deliver(self, bench: Workbench, events: Iterable[Event]) -> None:
        """Each once, in this order, and everything that is tried again."""
        for event in events:
            if self._wants(bench, event):
                bench.outside.begin_event(event)
                bench.deliver(self._handler, event)
        bench.wait(PATIENCE_S, self._handler)

    def crash(self, bench: Workbench) -> None:
        """A crash with each event, which comes again in another process."""
        for event in self.events:
            self.befall(bench, event, "crash")
            with in_another_process(self._declared):
                self.befall(bench, event, "deliver")
        bench.wait(PATIENCE_S, self._handler)

    def together(self, bench: Workbench) -> None:
        """All of them at once, and everything that is tried again; they are taken one by one elsewhere."""
        bench.deliver_together(self._handler, self.events)
        bench.wait(PATIENCE_S, self._handler)

    def befalls_each(self, bench: Workbench, what: str) -> None:
        """This to each event; and everything that is tried again."""
        for event in self.events:
            self.befall(bench, event, what)
        bench.wait(PATIENCE_S, self._handler)

    def _wants(self, bench: Workbench, event: Event) -> bool:
        """Whether the handler is to be run on it; what it does not want is only taken in, as in production."""
        if self._declared.wants(event.type):
            return True
        bench.take(event)
        return False

    def again_late(self, bench: Workbench) -> None:
        """All of them, and again a day later in reverse."""
        self.deliver(bench, self.events)
        bench.clock.advance(86_400)
        self.deliver(bench, reversed(self.events))


def _changes(payments: object) -> list[tuple[str, str, str]]:
    """What the service was made to do by `ctx.payments`."""
    return [("payments", *one) for one in payments.changes] if isinstance(payments, PaymentsFake) else []


def _unfinished(run: Ran) -> str:
    return f"{run.event_id}: {run.reason}" + (f" ({run.trace})" if run.trace else "")


_MEANING = {
    "effects": "the outside was told something else (send ctx.idempotency_key as `Idempotency-Key`)",
    "outside": "the outside holds something else in the end",
    "emitted": "other derived events were emitted (give emit a `once`)",
    "said": "the derived events hold other data",
    "reads": "other reads were asked for",
    "tables": "the handler's tables hold something else",
    "state": "what `state` returns is something else",
}


def _data(event: Event) -> str:
    return orjson.dumps(event.find("/data"), option=orjson.OPT_SORT_KEYS, default=str).decode()


def _shown(value: Any) -> str:
    text = repr(dict(value) if isinstance(value, Counter) else value)
    return text if len(text) <= 600 else text[:600] + " ..."


def declaration(handler: Function) -> Handler:
    """What `@handles` says of a function. Raises HandlerInvalid."""
    found = declared(handler)
    if found is None:
        raise HandlerInvalid("this is no handler: it is not declared with @handles")
    return found


def _examples(handler: Handler, number: int) -> list[Event]:
    """One of each type, about the same order, subscription or customer: the first, or another one."""
    with Workbench() as bench:
        made = [
            _example(bench, _example_type(pattern), one) for one in range(1, number + 1) for pattern in handler.types
        ]
    return made[-len(handler.types) :]


def _example(bench: Workbench, event_type: str, number: int) -> Event:
    match about(event_type):
        case "customer":
            return bench.event(event_type, customer=f"customer-{number}")
        case "subscription_id":
            return bench.event(event_type, subscription_id=f"subscription-{number}")
    return bench.event(event_type, order_id=f"order-{number}")


def _example_type(pattern: str) -> str:
    if pattern == "*":
        return "order.paid"
    return pattern[:-1] + "example" if pattern.endswith(".*") else pattern
