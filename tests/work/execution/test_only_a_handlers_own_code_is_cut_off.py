"""Handler call: whose code runs, which decides what may be cut off; and when a handler was cut off too often."""

from __future__ import annotations

import asyncio
import signal
import sys
from types import FrameType

import pytest

from consumer.events import Event
from consumer.ledger.tables import RunStatus
from consumer.plugin import Context, Handler
from consumer.work.execution.handler_call import Cut, HandlerCall, call_at, calling, entered, wants_care, was_cut
from consumer.work.execution.loop_pool import Harm
from consumer.work.execution.watchdog import Watchdog
from consumer.work.outcome import Failed, Succeeded
from consumer.work.pausing.rules import CALM, CUTS_MAX, PauseRules
from tests.work.workshop import order_paid


async def nothing(event: Event, ctx: Context) -> None:
    return None


HANDLER = Handler(name="x:y", types=("*",), function=nothing, version="v1")


def here() -> FrameType:
    return sys._getframe(1)


# case: H4
async def test_only_what_the_handler_called_is_its_own() -> None:
    seen: list[HandlerCall | None] = []
    frames: list[FrameType | None] = []

    async def look(_: Event, __: Context) -> None:
        seen.append(call_at(here()))
        frames.append(here().f_back)

    assert call_at(here()) is None
    with calling(HANDLER) as call:
        await entered(look, order_paid(1), None)  # type: ignore[arg-type]  # it does not look at it
        assert frames[0] is not None
        assert frames[0].f_code is entered.__code__
        assert call_at(frames[0]) is None  # the border itself is ours
    assert seen == [call]
    assert call_at(here()) is None


# case: H4
async def test_a_task_that_the_handler_started_is_its_own_too() -> None:
    async def child() -> HandlerCall | None:
        return call_at(here())

    with calling(HANDLER) as call:
        task = asyncio.create_task(child())
    assert await task is call
    assert await asyncio.create_task(child()) is None


def test_whoever_was_cut_off_has_failed_whatever_it_made_of_it() -> None:
    with calling(HANDLER) as call:
        assert call.outcome(Succeeded()) == Succeeded()
        assert isinstance(call.cut(here(), 5.0), Cut)
        outcome = call.outcome(Succeeded())
    assert isinstance(outcome, Failed)
    assert was_cut(outcome)
    assert outcome.failure.code == "handler_blocked"
    assert not outcome.failure.permanent
    assert "test_only_a_handlers_own_code_is_cut_off" in outcome.failure.reason


MODULES = [("sqlalchemy.engine.base", True), ("consumer.wire", True), ("logging", True), ("shop.orders", False)]


@pytest.mark.parametrize(("module", "expected"), MODULES)
def test_code_that_holds_locks_or_our_state_is_interrupted_last(module: str, expected: bool) -> None:
    found: dict[str, FrameType] = {}
    exec("import sys; found['frame'] = sys._getframe()", {"__name__": module, "found": found})
    assert wants_care(found["frame"]) is expected


# case: H4
async def test_where_the_timer_is_taken_nothing_is_touched() -> None:
    before = signal.getsignal(signal.SIGALRM)
    told: list[Harm] = []
    taken = signal.signal(signal.SIGALRM, lambda *_: None)
    try:
        mine = signal.getsignal(signal.SIGALRM)
        async with Watchdog(1.0, on_cut=told.append).guarding():
            assert signal.getsignal(signal.SIGALRM) is mine
        assert not told
    finally:
        signal.signal(signal.SIGALRM, taken)
    assert signal.getsignal(signal.SIGALRM) is before


@pytest.mark.parametrize(("calm", "expected"), [(0, True), (CALM - 1, True), (CALM, False)])
def test_the_third_cut_pauses_unless_long_calm_lies_between(calm: int, expected: bool) -> None:
    rules = PauseRules()
    for _ in range(CUTS_MAX - 1):
        assert rules.cut(HANDLER.name) is None
    for _ in range(calm):
        rules.saw(HANDLER, RunStatus.SUCCEEDED)
    reason = rules.cut(HANDLER.name)
    assert (reason is not None) is expected
    assert rules.cut(HANDLER.name) is None  # said once, or counted anew
