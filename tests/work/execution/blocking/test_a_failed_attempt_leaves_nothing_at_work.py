"""What the code of an effect handler began is cancelled when the attempt has failed, or its time is over: it would run
beside the next attempt, or beside the next event of its key. What does not heed that is counted."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from consumer.plugin import Context, Event, Handler, Reject
from consumer.work.execution import executor as module
from consumer.work.execution.executor import Executor
from consumer.work.outcome import Failed, Outcome, Succeeded
from tests.support.ports import eventually
from tests.work.workshop import order_paid

NO_CONTEXT: Any = None
PATIENCE_S = 20.0
SOON_S = 0.3
Function = Callable[[Event, Context], Coroutine[Any, Any, None]]


@pytest.fixture
async def executor() -> AsyncIterator[Executor]:
    made = Executor()
    yield made
    await made.pool.close()


async def run(executor: Executor, function: Function, timeout_s: float = PATIENCE_S) -> Outcome:
    handler = Handler(name="shop:ship", types=("*",), function=function, plugin="shop", timeout_s=timeout_s)
    return await executor.effect(handler, order_paid(1), lambda _: NO_CONTEXT)


class Flights:
    """Requests under way, and how many of them there were at once."""

    def __init__(self) -> None:
        self.now = self.most = 0

    async def post(self) -> None:
        """Nobody answers; one that is cancelled needs a moment to close."""
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            self.now -= 1


async def refused() -> None:
    raise Reject("the mail server refuses the address")


async def late() -> None:
    await asyncio.Event().wait()


async def late_and_deaf() -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await late()


ENDS = [
    (refused, PATIENCE_S, "rejected"),
    (late, SOON_S, "handler_timeout"),
    (late_and_deaf, SOON_S, "handler_timeout"),
]


# case: H3
@pytest.mark.parametrize(("end", "timeout_s", "code"), ENDS)
async def test_nothing_is_at_work_beside_the_next_attempt(
    executor: Executor, end: Callable[[], Coroutine[Any, Any, None]], timeout_s: float, code: str
) -> None:
    flights, kept = Flights(), list[asyncio.Task[None]]()

    async def ship(event: Event, ctx: Context) -> None:
        kept.extend(asyncio.create_task(flights.post()) for _ in range(2))
        await asyncio.sleep(0)
        await end()

    for _ in range(2):
        outcome = await run(executor, ship, timeout_s)
        assert isinstance(outcome, Failed)
        assert (outcome.failure.code, flights.now) == (code, 0)
    assert (flights.most, executor.abandoned) == (2, 0)


# case: H4
@pytest.mark.parametrize(("end", "timeout_s", "code"), ENDS[:2])
async def test_what_ignores_it_is_counted_and_the_attempt_is_over(
    executor: Executor,
    monkeypatch: pytest.MonkeyPatch,
    end: Callable[[], Coroutine[Any, Any, None]],
    timeout_s: float,
    code: str,
) -> None:
    monkeypatch.setattr(module, "CANCEL_GRACE_S", 0.1)
    released = threading.Event()

    async def deaf() -> None:
        while not released.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.001)

    async def ship(event: Event, ctx: Context) -> None:
        task = asyncio.create_task(deaf())
        await asyncio.sleep(0)
        await end()
        await task

    try:
        for count in (1, 2):
            outcome = await run(executor, ship, timeout_s)
            assert isinstance(outcome, Failed)
            assert (outcome.failure.code, executor.abandoned_by()) == (code, {"shop:ship": count})
    finally:
        released.set()
    await eventually(lambda: executor.abandoned == 0)


# case: H4
async def test_who_begins_anew_whenever_it_is_cancelled_is_counted_and_keeps_no_loop_busy(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CANCEL_GRACE_S", 0.1)
    begun, released = list[asyncio.Task[None]](), threading.Event()

    async def again() -> None:
        try:
            await eventually(released.is_set)
        except asyncio.CancelledError:
            begun.append(asyncio.create_task(again()))

    async def ship(event: Event, ctx: Context) -> None:
        begun.append(asyncio.create_task(again()))
        await asyncio.sleep(0)
        await refused()

    try:
        assert isinstance(await run(executor, ship), Failed)
        assert (len(begun), executor.abandoned) == (6, 1)
    finally:
        released.set()
    await eventually(lambda: executor.abandoned == 0)


# case: H3
async def test_a_worker_that_stops_does_not_wait_for_it(executor: Executor) -> None:
    flights = Flights()

    async def ship(event: Event, ctx: Context) -> None:
        task = asyncio.create_task(flights.post())
        await task

    running = asyncio.create_task(run(executor, ship))
    await eventually(lambda: flights.now == 1)
    running.cancel()
    await asyncio.wait({running})
    assert running.cancelled()
    await eventually(lambda: flights.now == 0)


async def awaited(token: asyncio.Future[str]) -> str:
    return await token


async def shielded(token: asyncio.Future[str]) -> str:
    return await asyncio.shield(token)


async def gathered(token: asyncio.Future[str]) -> str:
    return (await asyncio.gather(token))[0]


async def limited(token: asyncio.Future[str]) -> str:
    return await asyncio.wait_for(asyncio.shield(token), PATIENCE_S)


async def looked_at(token: asyncio.Future[str]) -> str:
    done, _ = await asyncio.wait({token})
    return done.pop().result()


async def of_a_group(token: asyncio.Future[str]) -> str:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(awaited(token))
    return task.result()


# case: H3
@pytest.mark.parametrize("wait", [awaited, shielded, gathered, limited, looked_at, of_a_group])
@pytest.mark.parametrize(("end", "timeout_s"), [(refused, PATIENCE_S), (late, SOON_S)])
@pytest.mark.parametrize("waits_too", [False, True])
async def test_what_another_call_waits_for_is_not_cancelled(
    executor: Executor,
    end: Callable[[], Coroutine[Any, Any, None]],
    timeout_s: float,
    wait: Callable[[asyncio.Future[str]], Coroutine[Any, Any, str]],
    waits_too: bool,
) -> None:
    """`waits_too`: so does what the failed one left behind, whose cancellation would be its."""
    asked, waited_for, answered = list[asyncio.Task[str]](), threading.Event(), threading.Event()

    async def answer() -> str:
        await eventually(answered.is_set)
        return "token"

    async def fetch() -> str:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(answer())
        return task.result()

    async def ship(event: Event, ctx: Context) -> None:
        asked.append(asyncio.create_task(fetch()))
        if waits_too:
            asked.append(asyncio.create_task(awaited(asked[0])))
        await eventually(waited_for.is_set)
        await end()

    async def mail(event: Event, ctx: Context) -> None:
        waiting = asyncio.create_task(wait(asked[0]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waited_for.set()
        assert await waiting == "token"

    failing = asyncio.create_task(run(executor, ship, timeout_s))
    await eventually(lambda: bool(asked))
    mailing = asyncio.create_task(run(executor, mail))
    try:
        assert isinstance(await failing, Failed)
        assert (mailing.done(), executor.abandoned) == (False, 0)
    finally:
        answered.set()
    assert await mailing == Succeeded()


# case: H2
async def test_what_is_to_outlive_its_handler_outlives_its_failure(executor: Executor) -> None:
    flights, kept = Flights(), list[asyncio.Task[None]]()

    async def ship(event: Event, ctx: Context) -> None:
        kept.append(asyncio.create_task(flights.post(), context=contextvars.Context()))
        await asyncio.sleep(0)
        await refused()

    assert isinstance(await run(executor, ship), Failed)
    assert (flights.now, kept[0].done(), executor.abandoned) == (1, False, 0)
