"""Simulation: a handler under many schedules, and the smallest of them in which it leaves something else behind.

A history is events and what happens to them, one step after the other. What a handler leaves behind after it is
compared with what it leaves when each of the same events comes once, in order, and all is well (cases G1, G2, G5).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from consumer.errors import UsageError
from consumer.events import Event
from consumer.payload import known_types
from consumer.plugin import Handler
from consumer.testing.assertions import Given, Left, Stage, declaration
from consumer.testing.example_events import about
from consumer.testing.ground import Ground
from consumer.testing.mishaps import TROUBLES
from consumer.testing.workbench import Function, Workbench

DELIVER, TOGETHER, CRASH, LATE = "deliver", "at once", "crash", "a day passes"
MISHAPS = (DELIVER, TOGETHER, CRASH, *TROUBLES, LATE)
DAY_S = 86_400.0
STEPS_MAX = 12
EVENTS_MAX = 4
SHRINKS_MAX = 200


@dataclass(frozen=True)
class Step:
    """What happens next, to which event (by its place; None where it is about none)."""

    what: str
    event: int | None = None

    def __str__(self) -> str:
        return self.what if self.event is None else f"{self.what} {self.event}"


@dataclass(frozen=True)
class History:
    """Events, and what happens to them. `tells` is what was left that should not have been, once it was played."""

    events: tuple[Event, ...]
    steps: tuple[Step, ...]
    tells: str = ""


def assert_history(
    handler: Function,
    events: Sequence[Event],
    steps: Sequence[str],
    *,
    options: Mapping[str, Any] | None = None,
    given: Given | None = None,
) -> None:
    """Raise AssertionError when the handler leaves something else behind after these steps than after each event once.

    `steps`: `deliver 0`, `at once 0`, `crash 0`, `lose the answer 0`, `no connection 0`, `a 503 0`, `a 429 0`,
    `end early 0` (the number is the place in `events`), `a day passes`. `given` as for `assert_idempotent`. This is
    what `consumer handlers simulate` prints. Raises UsageError for a step that is none.
    """
    history = History(tuple(events), tuple(_step(one, len(events)) for one in steps))
    with Ground() as ground:
        found = Player(handler, options, ground, given).play(history)
    if found is not None:
        raise AssertionError(f"after {', '.join(steps)}: {found}")


def simulate(
    handler: Function,
    *,
    runs: int,
    seed: int = 1,
    options: Mapping[str, Any] | None = None,
    given: Given | None = None,
) -> History | None:
    """Play `runs` random histories; the smallest failing one that could be found, or None. The same seed plays the
    same histories. `given` as for `assert_idempotent`."""
    with Ground() as ground:
        player = Player(handler, options, ground, given)
        for history in histories(handler, runs=runs, seed=seed):
            told = player.play(history)
            if told is not None:
                return shrunk(player, replace(history, tells=told))
    return None


def histories(handler: Function, *, runs: int, seed: int) -> Iterator[History]:
    """Random histories of a handler, the same ones for the same seed."""
    chance = random.Random(seed)  # noqa: S311 - schedules, no secrets
    events = example_history(declaration(handler))
    return (drawn(chance, events, declaration(handler)) for _ in range(runs))


class Player:
    """Plays histories with one handler. What is left when all is well is kept for each choice of events."""

    def __init__(
        self, handler: Function, options: Mapping[str, Any] | None, ground: Ground, given: Given | None = None
    ) -> None:
        self._ground = ground
        self._given = given
        self._handler = handler
        self._options = options
        self._plain: dict[tuple[str, ...], Left] = {}

    def play(self, history: History) -> str | None:
        """What is wrong after it, or None."""
        stage = Stage(
            self._handler, history.events, options=self._options, ground=self._ground, given=self._given,
            best_effort=not declaration(self._handler).fulfils,
        )  # fmt: skip
        try:
            plain = self._well(stage)
            found = stage.play(lambda bench: self._happen(bench, stage, history))
            met_trouble = any(step.what in TROUBLES for step in history.steps)
            stage.compare("after that", plain, found, met_trouble=met_trouble)
        except AssertionError as error:
            return str(error)
        return None

    def _well(self, stage: Stage) -> Left:
        key = tuple(event.id for event in stage.events)
        if key not in self._plain:
            plain = stage.play(lambda bench: stage.deliver(bench, stage.events))
            stage.refuse_at_once(plain)
            self._plain[key] = plain
        return self._plain[key]

    def _happen(self, bench: Workbench, stage: Stage, history: History) -> None:
        for step in history.steps:
            if step.event is None:
                bench.wait(DAY_S, self._handler)
            else:
                stage.befall(bench, history.events[step.event], step.what)
        # However it went, everything comes at last: the service lists what was not delivered.
        stage.deliver(bench, [event for number, event in enumerate(history.events) if not _has_come(history, number)])


def _has_come(history: History, number: int) -> bool:
    return any(step.event == number for step in history.steps)


def drawn(chance: random.Random, events: Sequence[Event], handler: Handler) -> History:
    """A random history of some of these events."""
    some = tuple(chance.sample(list(events), chance.randint(1, min(EVENTS_MAX, len(events)))))
    some = tuple(sorted(some, key=lambda event: event.id))
    what = [one for one in MISHAPS if not (one in TROUBLES and (handler.transactional or handler.retry.attempts < 2))]
    steps = [Step(chance.choice(what[:-1]), number) for number in range(len(some))]
    for _ in range(chance.randint(0, STEPS_MAX - len(steps))):
        kind = chance.choice(what)
        steps.append(Step(kind, None if kind == LATE else chance.randrange(len(some))))
    chance.shuffle(steps)
    return History(some, tuple(steps))


def shrunk(player: Player, history: History) -> History:
    """The same failure with as few events and steps, as plain, as can be found."""
    left = SHRINKS_MAX
    smaller = True
    while smaller and left > 0:
        smaller = False
        for candidate in _smaller(history):
            left -= 1
            told = player.play(candidate)
            if told is not None:
                history, smaller = replace(candidate, tells=told), True
                break
            if left <= 0:
                break
    return history


def _smaller(history: History) -> Iterator[History]:
    for number in range(len(history.events)):
        if len(history.events) > 1:
            yield _without(history, number)
    for place in range(len(history.steps)):
        if len(history.steps) > 1:
            yield replace(history, steps=history.steps[:place] + history.steps[place + 1 :])
    for place, step in enumerate(history.steps):
        if step.event is not None and step.what != DELIVER:
            plainer = (*history.steps[:place], Step(DELIVER, step.event), *history.steps[place + 1 :])
            yield replace(history, steps=plainer)


def _without(history: History, number: int) -> History:
    steps = [step for step in history.steps if step.event != number]
    moved = [replace(step, event=step.event - 1) if step.event is not None and step.event > number else step
             for step in steps]  # fmt: skip
    return History(history.events[:number] + history.events[number + 1 :], tuple(moved))


def example_history(handler: Handler) -> list[Event]:
    """Events for a handler that wants these types: two of each, about two objects, and those that go with them."""
    with Workbench() as bench:
        found = []
        for pattern in handler.types:
            for event_type in _types(pattern):
                for number in (1, 2):
                    found.append(_example(bench, event_type, number))
        return found


def _example(bench: Workbench, event_type: str, number: int) -> Event:
    match about(event_type):
        case "customer":
            return bench.event(event_type, customer=f"C-{number}")
        case "subscription_id":
            return bench.event(event_type, subscription_id=f"S-{number}")
    return bench.event(event_type, order_id=f"A-{number}")


def _types(pattern: str) -> list[str]:
    if pattern == "*":
        return ["order.paid", "fulfilment.requested"]
    if pattern.endswith(".*"):
        return [
            one
            for one in known_types()
            if one.startswith(pattern[:-1]) and not one.endswith((".observed", ".unreadable"))
        ]
    return [pattern]


def as_test(
    handler: Function, history: History, options: Mapping[str, Any] | None = None, given: Given | None = None
) -> str:
    """The history as a test to paste into the plugin's own."""
    name = function_name(handler)
    more = f", options={dict(options)!r}" if options else ""
    more += f", given={function_name(given)}" if given is not None else ""
    theirs = sorted({(one.__module__, function_name(one)) for one in (handler, given) if one is not None})
    lines = [
        "from consumer.testing import Workbench, assert_history",
        *[f"from {module} import {function}" for module, function in theirs],
        "",
        "",
        f"def test_{name}_survives() -> None:",
        "    with Workbench() as bench:",
        "        events = [",
        *[f"            {_made(event)}," for event in history.events],
        "        ]",
        f"    steps = [{', '.join(repr(str(step)) for step in history.steps)}]",
        f"    assert_history({name}, events, steps{more})",
    ]
    return "\n".join(lines) + "\n"


def function_name(handler: Function | Given) -> str:
    """The name under which its module has it."""
    return str(getattr(handler, "__name__", "handler"))


def _made(event: Event) -> str:
    ids = {"order_id": event.order_id, "subscription_id": event.subscription_id, "customer": event.customer}
    given = "".join(f", {name}={value!r}" for name, value in ids.items() if value is not None)
    return f"bench.event({event.type!r}{given})"


def _step(text: str, count: int) -> Step:
    if text == LATE:
        return Step(LATE)
    what, _, number = text.rpartition(" ")
    if what not in MISHAPS or not number.isdigit() or int(number) >= count:
        raise UsageError(f"{text!r} is no step; steps are {', '.join(f'{one} N' for one in MISHAPS[:-1])}, {LATE!r}")
    return Step(what, int(number))
