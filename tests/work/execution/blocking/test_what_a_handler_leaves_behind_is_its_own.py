"""What a handler's own code began and did not wait for belongs to the attempt: its end, and its failure. What hangs in
a thread when the attempt is over is counted, and takes no thread from anybody else."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from consumer.plugin import Context, Event, Handler
from consumer.work.execution import loop_thread
from consumer.work.execution.executor import Executor
from consumer.work.outcome import Failed, Outcome, Succeeded
from tests.support.ports import eventually
from tests.work.workshop import order_paid

NO_CONTEXT: Any = None
FILE = "/".join(Path(__file__).parts[-5:])
PATIENCE_S = 20.0
KEPT: list[asyncio.Future[None]] = []
"""What nobody waits for, and somebody has."""
Function = Callable[[Event, Context], Coroutine[Any, Any, None]]


def handler_of(function: Function, timeout_s: float = PATIENCE_S) -> Handler:
    return Handler(name="shop:ship", types=("*",), function=function, plugin="shop", timeout_s=timeout_s)


class Warehouse:
    """What the handlers talk to: it answers, or is down, when it is told to; which parcels it has."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.is_down = False
        self.parcels: list[str] = []
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def post(self) -> None:
        """As an async client does."""
        answered = asyncio.Event()
        self._waiting.append((asyncio.get_running_loop(), answered))
        if not self.answers.is_set():
            await answered.wait()
        self.take()

    def post_blocking(self) -> None:
        """As a blocking client does."""
        self.answers.wait(PATIENCE_S)
        self.take()

    def take(self) -> None:
        """It comes in."""
        if self.is_down:
            raise ConnectionRefusedError("the warehouse is down")
        self.parcels.append("a parcel")

    def answer(self) -> None:
        """From now on."""
        self.answers.set()
        for loop, answered in self._waiting:
            loop.call_soon_threadsafe(answered.set)


def behind(work: Coroutine[Any, Any, None]) -> None:
    asyncio.create_task(work)  # noqa: RUF006 - nobody waits for it: that is what is tried


async def as_a_task(warehouse: Warehouse) -> None:
    behind(warehouse.post())


async def gathered(warehouse: Warehouse) -> None:
    asyncio.gather(warehouse.post(), asyncio.sleep(0))


async def of_a_task(warehouse: Warehouse) -> None:
    async def further() -> None:
        await asyncio.sleep(0)
        behind(warehouse.post())

    behind(further())


async def in_a_thread(warehouse: Warehouse) -> None:
    asyncio.get_running_loop().run_in_executor(None, warehouse.post_blocking)


async def shielded(warehouse: Warehouse) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.shield(warehouse.post()), 0.001)


async def gathered_in_threads(warehouse: Warehouse) -> None:
    asyncio.gather(asyncio.get_running_loop().run_in_executor(None, warehouse.post_blocking))


async def gathered_twice(warehouse: Warehouse) -> None:
    asyncio.gather(asyncio.gather(warehouse.post()), asyncio.sleep(0))


async def gathered_without_errors(warehouse: Warehouse) -> None:
    asyncio.gather(warehouse.post(), return_exceptions=True)


async def shielded_and_kept(warehouse: Warehouse) -> None:
    task = asyncio.create_task(warehouse.post())
    KEPT.append(asyncio.shield(task))


@pytest.fixture
async def executor() -> AsyncIterator[Executor]:
    made = Executor()
    yield made
    await made.pool.close()


async def run(executor: Executor, function: Function, timeout_s: float = PATIENCE_S, **options: Any) -> Outcome:
    handler = replace(handler_of(function, timeout_s), **options)
    return await executor.effect(handler, order_paid(1), lambda _: NO_CONTEXT)


# case: H2
@pytest.mark.parametrize("is_down", [False, True], ids=["answers", "down"])
@pytest.mark.parametrize(
    "leave",
    [
        as_a_task,
        gathered,
        of_a_task,
        in_a_thread,
        shielded,
        gathered_in_threads,
        gathered_twice,
        gathered_without_errors,
        shielded_and_kept,
    ],
)
async def test_what_it_left_behind_is_waited_for_and_its_failure_is_the_runs(
    executor: Executor, leave: Callable[[Warehouse], Awaitable[None]], is_down: bool
) -> None:
    warehouse, returned = Warehouse(), threading.Event()
    warehouse.is_down = is_down

    async def ship(event: Event, ctx: Context) -> None:
        await leave(warehouse)
        returned.set()

    running = asyncio.create_task(run(executor, ship))
    await eventually(returned.is_set)
    warehouse.answer()
    outcome = await running
    if not is_down:
        assert (outcome, warehouse.parcels) == (Succeeded(), ["a parcel"])
        return
    assert isinstance(outcome, Failed)
    assert (outcome.failure.reason, outcome.failure.unreachable) == (
        "ConnectionRefusedError: the warehouse is down",
        True,
    )
    assert str(outcome.trace).startswith(f"{FILE}:{Warehouse.take.__code__.co_firstlineno + 3} in Warehouse.take")


# case: H2
@pytest.mark.parametrize("looks", [False, True])
async def test_what_failed_before_it_returned_is_its_failure_unless_it_looked(executor: Executor, looks: bool) -> None:
    warehouse = Warehouse()
    warehouse.is_down = True
    warehouse.answer()

    async def ship(event: Event, ctx: Context) -> None:
        task = asyncio.create_task(warehouse.post())
        await asyncio.wait({task})
        if looks:
            assert isinstance(task.exception(), ConnectionRefusedError)

    outcome = await run(executor, ship)
    assert isinstance(outcome, Succeeded if looks else Failed)


async def in_a_sub_task(warehouse: Warehouse) -> object:
    return await asyncio.create_task(warehouse.post())


async def by_to_thread(warehouse: Warehouse) -> object:
    return await asyncio.to_thread(warehouse.post_blocking)


async def in_time(warehouse: Warehouse) -> object:
    return await asyncio.wait_for(asyncio.to_thread(warehouse.post_blocking), PATIENCE_S)


async def behind_a_shield(warehouse: Warehouse) -> object:
    return await asyncio.shield(asyncio.gather(warehouse.post()))


async def of_threads(warehouse: Warehouse) -> object:
    return await asyncio.gather(asyncio.get_running_loop().run_in_executor(None, warehouse.post_blocking))


async def as_results(warehouse: Warehouse) -> object:
    gathering = asyncio.gather(warehouse.post(), asyncio.to_thread(warehouse.post_blocking), return_exceptions=True)
    results = await asyncio.wait_for(gathering, PATIENCE_S)
    assert len(results) == 2
    raise results[0] or AssertionError("the warehouse answers")


async def one_by_one(warehouse: Warehouse) -> object:
    done, _ = await asyncio.wait({asyncio.create_task(warehouse.post()) for _ in range(2)})
    return [task.result() for task in done if task.exception() is None] or done.pop().result()


# case: H2
@pytest.mark.parametrize(
    "look", [in_a_sub_task, by_to_thread, in_time, behind_a_shield, of_threads, as_results, one_by_one]
)
async def test_a_failure_that_what_it_left_behind_saw_itself_is_none(
    executor: Executor, look: Callable[[Warehouse], Awaitable[object]]
) -> None:
    warehouse, returned, dealt_with = Warehouse(), threading.Event(), list[str]()
    warehouse.is_down = True

    async def ask() -> None:
        try:
            await look(warehouse)
        except ConnectionRefusedError:
            dealt_with.append("it is asked another day")

    async def ship(event: Event, ctx: Context) -> None:
        behind(ask())
        for _ in range(5):  # it asks before this returns
            await asyncio.sleep(0)
        returned.set()

    running = asyncio.create_task(run(executor, ship))
    await eventually(returned.is_set)
    warehouse.answer()
    assert (await running, dealt_with) == (Succeeded(), ["it is asked another day"])


# case: H2
async def test_a_gathering_that_failed_before_it_returned_is_its_failure(executor: Executor) -> None:
    warehouse = Warehouse()
    warehouse.is_down = True
    warehouse.answer()

    async def ship(event: Event, ctx: Context) -> None:
        task = asyncio.create_task(warehouse.post())
        asyncio.gather(task)
        await asyncio.wait({task})
        await asyncio.sleep(0)

    assert isinstance(await run(executor, ship), Failed)


async def test_what_it_cancelled_itself_is_no_failure(executor: Executor) -> None:
    warehouse = Warehouse()

    async def ship(event: Event, ctx: Context) -> None:
        first, other = asyncio.create_task(asyncio.sleep(0)), asyncio.create_task(warehouse.post())
        await asyncio.wait({first, other}, return_when=asyncio.FIRST_COMPLETED)
        other.cancel()

    assert await run(executor, ship) == Succeeded()


# case: H3
async def test_what_does_not_end_in_its_time_is_cancelled_and_named(executor: Executor) -> None:
    ended = threading.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def ship(event: Event, ctx: Context) -> None:
        behind(forever())

    outcome = await run(executor, ship, 0.5)
    assert isinstance(outcome, Failed)
    at = f"{FILE}:{behind.__code__.co_firstlineno + 1} in behind"
    assert outcome.failure.code == "handler_timeout"
    assert outcome.failure.reason == f"what the handler began and left behind, in {at}, did not finish in 0.5 s"
    assert (ended.is_set(), executor.abandoned) == (True, 0)


SDK = compile(
    "import asyncio\n"
    "def connect(work):\n"
    "    return asyncio.get_running_loop().create_task(work)\n",
    "/usr/lib/python3/site-packages/sdk/client.py",
    "exec",
)  # fmt: skip


def by_a_library(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    sdk = types.ModuleType("sdk.client")
    exec(SDK, vars(sdk))
    task: asyncio.Task[None] = sdk.connect(work)
    return task


def by_its_own_wish(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return asyncio.create_task(work, context=contextvars.Context())


# case: H2
@pytest.mark.parametrize("begin", [by_a_library, by_its_own_wish])
async def test_what_is_to_outlive_it_does(
    executor: Executor, begin: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
) -> None:
    kept: list[asyncio.Task[None]] = []
    beats = [0]

    async def keeps_alive() -> None:
        while True:
            beats[0] += 1
            await asyncio.sleep(0.001)

    async def ship(event: Event, ctx: Context) -> None:
        kept.append(begin(keeps_alive()))

    assert await run(executor, ship) == Succeeded()
    so_far = beats[0]
    await eventually(lambda: beats[0] > so_far + 2)
    assert (kept[0].done(), executor.abandoned) == (False, 0)


# --- threads ----------------------------------------------------------------------------------------------------


async def hangs_in(warehouse: Warehouse) -> None:
    await asyncio.to_thread(warehouse.post_blocking)


async def goes_on_without(warehouse: Warehouse) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.to_thread(warehouse.post_blocking), 0.1)


# case: H4
@pytest.mark.parametrize(
    ("hang", "timeout_s", "ends"), [(hangs_in, 0.5, Failed), (goes_on_without, PATIENCE_S, Succeeded)]
)
async def test_a_thread_that_outlives_its_attempt_is_counted_for_as_long(
    executor: Executor, hang: Callable[[Warehouse], Awaitable[None]], timeout_s: float, ends: type[Outcome]
) -> None:
    warehouse = Warehouse()

    async def ship(event: Event, ctx: Context) -> None:
        await hang(warehouse)

    try:
        with capture_logs() as logs:
            for _ in range(2):
                assert isinstance(await run(executor, ship, timeout_s), ends)
        assert executor.abandoned_by() == {"shop:ship": 2}
        assert [(line["event"], line["abandoned"], line["threads"]) for line in logs] == [
            ("handler_holds_threads", 1, 1),
            ("handler_holds_threads", 2, 1),
        ]
    finally:
        warehouse.answer()
    await eventually(lambda: executor.abandoned == 0)


# case: H4
async def test_threads_that_hang_keep_no_other_handler_from_one(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_thread, "THREADS", 4)
    monkeypatch.setattr(loop_thread, "HUNG_MOST", 2)
    warehouse, mailed = Warehouse(), list[str]()

    async def ship(event: Event, ctx: Context) -> None:
        await hangs_in(warehouse)

    async def mail(event: Event, ctx: Context) -> None:
        await asyncio.to_thread(mailed.append, event.id)

    try:
        for _ in range(6):
            assert isinstance(await run(executor, ship, 0.5), Failed)
        assert executor.abandoned == 6
        assert await run(executor, mail, name="shop:mail") == Succeeded()
    finally:
        warehouse.answer()
    assert mailed == ["evt_1"]
    await eventually(lambda: len(warehouse.parcels) == 6)
