"""A handler has its time and no more; what it returns, raises or ignores is its own outcome, and the worker's task is
as it was."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import uvloop
from structlog.testing import capture_logs

from consumer.ledger.tables import RunStatus
from consumer.plugin import Context, Event, Handler
from consumer.retry import Failure, RetryPolicy
from consumer.work.execution import executor as module
from consumer.work.execution.executor import CANCELS_MOST, Executor
from consumer.work.execution.handler_call import current_call
from consumer.work.execution.loop_call import NOT_BEGUN, LoopCall
from consumer.work.execution.loop_pool import LoopPool
from consumer.work.execution.loop_thread import LoopThread
from consumer.work.outcome import Failed, Outcome, Succeeded
from consumer.work.transition import transition_after
from tests.support.ports import eventually
from tests.work.execution.test_only_a_handlers_own_code_is_cut_off import here
from tests.work.workshop import order_paid

NO_CONTEXT: Any = Mock()
PATIENCE_S = 10.0
FILE = "/".join(Path(__file__).parts[-5:])


def handler_of(function: Callable[..., Awaitable[Any]], timeout_s: float = 30.0) -> Handler:
    return Handler(name="shop:ship", types=("*",), function=function, plugin="shop", timeout_s=timeout_s)  # type: ignore[arg-type]  # some return what they must not


async def outcome_of(function: Callable[..., Awaitable[Any]]) -> Outcome:
    """What a transactional handler ends with."""
    return await Executor().transactional(handler_of(function), order_paid(1), NO_CONTEXT)


def failure_of(outcome: Outcome) -> Failure:
    assert isinstance(outcome, Failed)
    return outcome.failure


async def waits(event: Event, ctx: Context) -> None:
    await asyncio.Event().wait()


async def returns(event: Event, ctx: Context) -> int:
    return 3


async def cancels(event: Event, ctx: Context) -> None:
    raise asyncio.CancelledError


async def gives_up(event: Event, ctx: Context) -> None:
    raise TimeoutError("its own")


# --- in the worker's transaction --------------------------------------------------------------------------------


@pytest.mark.parametrize(("own_s", "limit_s", "said"), [(0.01, None, "0.01"), (0.02, 9.0, "0.02"), (9.0, 0.03, "0.03")])
async def test_the_shorter_of_its_own_time_and_the_limit_ends_it(
    own_s: float, limit_s: float | None, said: str
) -> None:
    # case: H3
    outcome = await Executor().transactional(handler_of(waits, own_s), order_paid(1), NO_CONTEXT, limit_s=limit_s)
    assert failure_of(outcome) == Failure(
        "handler_timeout", f"the handler did not finish in {said} s", unreachable=True
    )
    assert isinstance(outcome, Failed)
    assert outcome.trace == f"{FILE}:{waits.__code__.co_firstlineno + 1} in waits"


async def test_what_it_makes_of_itself_is_its_outcome() -> None:
    # case: H3
    misuse = Failure("handler_misuse", "a handler returns None, this one returned int", permanent=True)
    assert failure_of(await outcome_of(returns)) == misuse
    assert failure_of(await outcome_of(cancels)).reason == module.CANCELLED
    own = Failure("handler_failed", "TimeoutError: its own", unreachable=True)
    assert failure_of(await outcome_of(gives_up)) == own


async def test_when_the_worker_stops_it_is_cancelled_with_it() -> None:
    task = asyncio.create_task(outcome_of(waits))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_task_has_the_handlers_name_meanwhile_and_its_own_again_afterwards() -> None:
    # case: H4
    names: list[str] = []
    task = asyncio.current_task()
    assert task is not None
    task.set_name("work:ingest")

    async def looks(event: Event, ctx: Context) -> None:
        names.append(task.get_name())

    assert await outcome_of(looks) == Succeeded()
    assert [*names, task.get_name()] == ["handler:shop:ship", "work:ingest"]


async def test_one_that_takes_many_gets_them_at_once_and_otherwise_its_function_does() -> None:
    got: list[object] = []

    async def together(batch: Sequence[tuple[Event, Context]]) -> None:
        got.append(("together", batch))

    async def one(batch: object) -> None:
        got.append(("one", batch))

    batch = [(order_paid(1), NO_CONTEXT)]
    handler = handler_of(one)
    assert await Executor().together(replace(handler, together=together), batch) == Succeeded()
    assert await Executor().together(handler, batch) == Succeeded()
    assert got == [("together", batch), ("one", batch)]
    outcome = await Executor().together(handler_of(waits), batch, limit_s=0.01)
    assert isinstance(outcome, Failed)


async def test_after_a_handler_was_cut_off_everything_else_on_the_loop_goes_first() -> None:
    # case: H4
    went: list[str] = []

    async def other() -> None:
        await asyncio.sleep(0)
        went.append("other")

    async def blocks(event: Event, ctx: Context) -> None:
        call = current_call()
        assert call is not None
        call.cut(here(), 5.0)
        tasks.append(asyncio.create_task(other()))

    tasks: list[asyncio.Task[None]] = []
    assert failure_of(await outcome_of(blocks)).code == "handler_blocked"
    assert went == ["other"]


class Keeps:
    """A transactional handler that keeps so many cancellations to itself, and then does as it is told (`ends`)."""

    def __init__(self, most: int, ends: Callable[..., Awaitable[Any]]) -> None:
        self.kept = 0
        self._most, self._ends = most, ends

    async def __call__(self, event: Event, ctx: Context) -> None:
        while self.kept < self._most:
            try:
                await asyncio.sleep(PATIENCE_S)
            except asyncio.CancelledError:
                self.kept += 1
            else:
                raise AssertionError("nobody cancelled it again")
        await self._ends(event, ctx)


class Deserted:
    """An executor, and whom it gave up, with which words."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "CANCEL_AGAIN_S", 0.02)
        self.given_up: list[tuple[str, str]] = []
        self.executor = Executor(give_up=lambda *said: self.given_up.append(said))

    async def outcome_of(self, keeps: Keeps, *, together: bool = False) -> Outcome:
        """What it ends with, alone or with many at once; this task is as it was."""

        async def ship(event: Event, ctx: Context) -> None:
            await keeps(event, ctx)

        async def many(batch: Sequence[tuple[Event, Context]]) -> None:
            await keeps(*batch[0])

        handler = handler_of(ship, 0.01)
        if together:
            outcome = await self.executor.together(replace(handler, together=many), [(order_paid(1), NO_CONTEXT)])
        else:
            outcome = await self.executor.transactional(handler, order_paid(1), NO_CONTEXT)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        await asyncio.sleep(0)
        return outcome


@pytest.fixture
def deserted(monkeypatch: pytest.MonkeyPatch) -> Deserted:
    return Deserted(monkeypatch)


async def ends(event: Event, ctx: Context) -> None:
    return None


# case: H3
@pytest.mark.parametrize("kept", [1, CANCELS_MOST])
@pytest.mark.parametrize("ending", [ends, waits, gives_up, cancels])
async def test_who_goes_on_when_its_time_is_over_has_timed_out_whatever_comes_of_it(
    deserted: Deserted, kept: int, ending: Callable[..., Awaitable[Any]]
) -> None:
    if ending is waits:
        kept -= 1  # so that it heeds the last one
    outcome = await deserted.outcome_of(Keeps(kept, ending))
    assert failure_of(outcome).reason == "the handler did not finish in 0.01 s"
    assert failure_of(outcome).code == "handler_timeout"
    assert deserted.given_up == []


# case: H4
@pytest.mark.parametrize("together", [False, True], ids=["one", "many"])
async def test_who_heeds_no_cancellation_is_given_up_once(deserted: Deserted, together: bool) -> None:
    place = f"{FILE}:{Keeps.__call__.__code__.co_firstlineno + 3} in Keeps.__call__"
    with capture_logs() as logs:
        outcome = await deserted.outcome_of(Keeps(CANCELS_MOST + 3, ends), together=together)
    assert failure_of(outcome).code == "handler_timeout"
    [(name, reason)] = deserted.given_up
    assert name == "shop:ship"
    assert reason == f"ignored for 0 s that its time was over and could not be cut off, in {place}"
    assert [(line["event"], line["handler"], line["where"]) for line in logs] == [
        ("handler_cannot_be_cut_off", "shop:ship", place)
    ]


async def test_where_giving_up_is_nobodys_business_that_is_said_and_the_cancelling_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # case: H4
    deserted = Deserted(monkeypatch)
    deserted.executor = Executor()
    with capture_logs() as logs:
        outcome = await deserted.outcome_of(Keeps(CANCELS_MOST + 3, waits))
    assert failure_of(outcome).code == "handler_timeout"
    assert [line["event"] for line in logs] == ["handler_cannot_be_cut_off"]


async def test_a_process_that_stood_still_blames_nobody(deserted: Deserted) -> None:
    # case: H4
    loop, stands_still_s = asyncio.get_running_loop(), module.CANCEL_AGAIN_S * (CANCELS_MOST + 5)
    began = loop.time()
    loop.call_later(0.015, time.sleep, stands_still_s)
    outcome = await deserted.outcome_of(Keeps(1, waits))
    assert loop.time() - began > stands_still_s
    assert (failure_of(outcome).code, deserted.given_up) == ("handler_timeout", [])


async def test_a_stop_goes_on_up_also_from_one_whose_time_is_over(deserted: Deserted) -> None:
    keeps = Keeps(3, waits)
    task = asyncio.create_task(deserted.outcome_of(keeps))
    await eventually(lambda: keeps.kept == 1, every_s=0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (task.cancelling(), deserted.given_up) == (1, [])


async def test_a_stop_that_it_keeps_to_itself_takes_none_of_its_limit_away(deserted: Deserted) -> None:
    # case: H4
    task = asyncio.create_task(deserted.outcome_of(Keeps(CANCELS_MOST + 3, waits)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [name for name, _ in deserted.given_up] == ["shop:ship"]


# --- on a loop of its own ---------------------------------------------------------------------------------------


class Deaf:
    """An effect handler that ignores its cancellation until it may end."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.ran = 0

    async def __call__(self, event: Event, ctx: Context) -> None:
        self.ran += 1
        while not self.may_end.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue


async def test_who_ignores_that_its_time_is_over_is_counted_for_as_long_as_it_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # case: H4
    monkeypatch.setattr(module, "CANCEL_GRACE_S", 0.05)
    monkeypatch.setattr(module, "ABANDONED_MAX", 2)
    deaf, executor = Deaf(), Executor()

    async def ship(event: Event, ctx: Context) -> None:
        await deaf(event, ctx)

    try:
        with capture_logs() as logs:
            for _ in range(3):
                outcome = await executor.effect(handler_of(ship, 0.3), order_paid(1), lambda _: NO_CONTEXT)
                assert failure_of(outcome).reason == "the handler did not finish in 0.3 s"
        assert (executor.abandoned, executor.abandoned_by()) == (2, {"shop:ship": 2})
        assert [(line["event"], line["abandoned"]) for line in logs] == [
            ("handler_ignores_cancellation", number) for number in (1, 2, 3)
        ]
        deaf.may_end.set()
        await eventually(lambda: executor.abandoned == 0)
        assert executor.pool._calls == set()
    finally:
        deaf.may_end.set()
        await executor.pool.close()


async def test_who_ends_when_told_to_is_late_and_not_counted() -> None:
    # case: H3
    executor, loops = Executor(), list[LoopThread]()

    def make(loop: LoopThread) -> Context:
        loops.append(loop)
        return NO_CONTEXT  # type: ignore[no-any-return]  # it does not look at it

    try:
        outcome = await executor.effect(handler_of(waits, 0.3), order_paid(1), make)
        assert failure_of(outcome).code == "handler_timeout"
        assert isinstance(outcome, Failed)
        assert outcome.trace == f"{FILE}:{waits.__code__.co_firstlineno} in waits"
        assert (executor.abandoned, [loop.name for loop in loops]) == (0, ["plugin:shop"])
    finally:
        await executor.pool.close()


class Queue(LoopPool):
    """Nothing that is begun here ever begins: its loop is blocked by another."""

    def _send(self, call: LoopCall) -> None:
        return None


async def test_who_never_began_is_not_late_and_not_counted_as_deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    # case: H4
    monkeypatch.setattr(module, "CANCEL_GRACE_S", 0.01)
    executor = Executor(Queue())
    with capture_logs() as logs:
        outcome = await executor.effect(handler_of(waits, 0.01), order_paid(1), lambda _: NO_CONTEXT)
    assert outcome is NOT_BEGUN
    assert (executor.abandoned, logs, executor.pool._calls) == (0, [], set())


async def test_who_stood_behind_one_that_blocks_is_not_called_loses_no_attempt_and_has_a_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # case: H4
    monkeypatch.setattr(module, "CANCEL_GRACE_S", 0.05)
    executor, blocking, goes_on = Executor(), threading.Event(), threading.Event()
    called: list[str] = []

    async def blocks(event: Event, ctx: Context) -> None:
        blocking.set()
        goes_on.wait(20)

    async def pays_out(event: Event, ctx: Context) -> None:
        called.append(event.id)

    only_once = replace(handler_of(pays_out, 0.05), name="shop:pays_out", retry=RetryPolicy(attempts=1))
    try:
        first = asyncio.create_task(executor.effect(handler_of(blocks), order_paid(0), lambda _: NO_CONTEXT))
        await eventually(blocking.is_set)
        outcome = await executor.effect(only_once, order_paid(1), lambda _: NO_CONTEXT)
        now = datetime.now(UTC)
        then = transition_after(only_once, outcome, used=0, now=now)
        assert (then.status, then.code, then.attempts) == (RunStatus.RETRYING, "handler_displaced", 0)
        assert then.next_at == now + timedelta(seconds=1)
        goes_on.set()
        assert await first == Succeeded()
        again = replace(only_once, timeout_s=30.0)
        assert await executor.effect(again, order_paid(2), lambda _: NO_CONTEXT) == Succeeded()
        assert (called, executor.abandoned) == ([order_paid(2).id], 0)
    finally:
        goes_on.set()
        await executor.pool.close()


async def test_who_ended_just_before_the_loop_was_blocked_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    # case: H4
    monkeypatch.setattr(module, "CANCEL_GRACE_S", 0.05)
    executor, ended, goes_on = Executor(), threading.Event(), threading.Event()

    async def ship(event: Event, ctx: Context) -> None:
        ended.set()

    async def blocks(event: Event, ctx: Context) -> None:
        assert ended.is_set()
        goes_on.wait(20)

    runs = [(handler_of(ship, 5), order_paid(0)), (replace(handler_of(blocks), name="shop:blocks"), order_paid(1))]
    try:
        first, second = [
            asyncio.create_task(executor.effect(handler, event, lambda _: NO_CONTEXT)) for handler, event in runs
        ]
        assert await first == Succeeded()
        assert not second.done()
        goes_on.set()
        assert await second == Succeeded()
    finally:
        goes_on.set()
        await executor.pool.close()


async def test_when_the_worker_stops_waiting_the_handler_is_stopped_too() -> None:
    # case: H4
    executor, ended = Executor(), threading.Event()
    began = threading.Event()

    async def ship(event: Event, ctx: Context) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    try:
        task = asyncio.create_task(executor.effect(handler_of(ship), order_paid(1), lambda _: NO_CONTEXT))
        await eventually(began.is_set)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(ended.is_set)
        assert executor.pool._calls == set()
    finally:
        await executor.pool.close()


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("begins", ["afterwards", "before"])
def test_who_blocks_the_workers_loop_takes_none_of_an_effects_time(
    loop: Callable[[], asyncio.AbstractEventLoop], begins: str
) -> None:
    # case: H4
    began = threading.Event()

    async def ship(event: Event, ctx: Context) -> None:
        began.set()
        await asyncio.sleep(0.01)

    async def play() -> Outcome:
        executor = Executor()
        try:
            await executor.effect(
                handler_of(ship), order_paid(0), lambda _: NO_CONTEXT
            )  # its loop is there from now on
            began.clear()
            task = asyncio.create_task(executor.effect(handler_of(ship, 0.2), order_paid(1), lambda _: NO_CONTEXT))
            if begins == "before":
                await eventually(began.is_set, every_s=0.001)
            asyncio.get_running_loop().call_soon(time.sleep, 0.5)
            return await task
        finally:
            await executor.pool.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(play()) == Succeeded()
