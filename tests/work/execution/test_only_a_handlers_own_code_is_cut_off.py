"""Handler call: whose code runs, which decides what may be cut off; and when a handler was cut off too often."""

from __future__ import annotations

import asyncio
import hashlib
import signal
import sys
from types import FrameType

import pytest

from consumer.events import Event
from consumer.ledger.tables import RunStatus
from consumer.plugin import Context, Handler
from consumer.retry import Failure
from consumer.work.execution.handler_call import (
    Calling,
    Cut,
    HandlerCall,
    call_at,
    current_call,
    entered,
    wants_care,
    was_cut,
)
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
    with Calling(HANDLER) as call:
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

    with Calling(HANDLER) as call:
        task = asyncio.create_task(child())
    assert await task is call
    assert await asyncio.create_task(child()) is None


def test_whoever_was_cut_off_has_failed_whatever_it_made_of_it() -> None:
    with Calling(HANDLER) as call:
        assert call.outcome(Succeeded()) == Succeeded()
        assert isinstance(call.cut(here(), 5.0), Cut)
        outcome = call.outcome(Succeeded())
    assert isinstance(outcome, Failed)
    assert was_cut(outcome)
    assert outcome.failure.code == "handler_blocked"
    assert not outcome.failure.permanent
    assert "test_only_a_handlers_own_code_is_cut_off" in outcome.failure.reason


async def test_of_many_cuts_the_first_is_told_and_its_kind_is_the_handlers_own_outermost_function() -> None:
    cuts: list[Cut] = []

    def inner(seconds: float) -> None:
        cuts.append(call.cut(here(), seconds))

    async def outer(_: Event, __: Context) -> None:
        began = current_call()
        assert began is not None
        assert getattr(began.work, "cr_code", None) is outer.__code__
        exec("inner(5.0)", {"__name__": "library.waits", "inner": inner})
        inner(9.0)

    with Calling(HANDLER) as call:
        await entered(outer, order_paid(1), None)  # type: ignore[arg-type]  # it does not look at it
    assert current_call() is None
    assert [str(cut) for cut in cuts] == [f"blocked the event loop for {seconds} s" for seconds in (5.0, 9.0)]
    assert (call.cuts, call.blocked_s, call.function) == (2, 5.0, nothing)
    assert " < library.waits:<module>:1 < " in call.at
    place = f"test_only_a_handlers_own_code_is_cut_off.py:{outer.__qualname__}"
    kind = hashlib.sha256(f"HandlerBlocked|{place}".encode()).hexdigest()[:16]
    reason = f"it blocked the worker's event loop for 5.0 s and was cut off in {call.at}"[:300]
    assert call.outcome(Succeeded()) == Failed(Failure("handler_blocked", reason), kind)
    call.at = "far " * 100
    outcome = call.outcome(Succeeded())
    assert isinstance(outcome, Failed)
    assert len(outcome.failure.reason) == 300


def test_what_is_cut_off_outside_of_its_package_is_of_no_place() -> None:
    call = HandlerCall("x:y", "no_such_package", 0.0)
    call.cut(here(), 1.0)
    assert call.fingerprint == hashlib.sha256(b"HandlerBlocked|").hexdigest()[:16]
    assert call_at(None) is None


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
