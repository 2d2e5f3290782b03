"""A loop that a handler blocks: the handler moves to one of its own, and a loop that never comes back is given up; who
else was on it begins anew, and the guard hears of both. The loops are made by hand here."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest
import uvloop
from structlog.testing import capture_logs

from consumer.plugin import Context, Event, Handler
from consumer.telemetry.loop_watch import Blocked
from consumer.work.execution import executor, loop_pool
from consumer.work.execution.executor import Executor
from consumer.work.execution.loop_call import CANCELLED, DISPLACED, LoopCall
from consumer.work.execution.loop_pool import Harm, LoopPool
from consumer.work.execution.loop_thread import LoopThread
from consumer.work.execution.matter import Matter
from consumer.work.outcome import Outcome, Succeeded
from tests.support.ports import eventually
from tests.work.workshop import order_paid

NO_CONTEXT: Any = None


async def nothing(event: Event, ctx: Context) -> None:
    return None


BLOCKS = Handler(name="shop:blocks", types=("*",), function=nothing, plugin="shop")
BESIDE = replace(BLOCKS, name="shop:beside")
ELSEWHERE = replace(BLOCKS, name="stall:other", plugin="stall")


class Loop:
    """A loop in a thread, as the pool sees one: it does nothing by itself."""

    made: list[Loop]

    def __init__(self, name: str, *, on_blocked: Callable[[object, Blocked], None], blocked_after_s: float) -> None:
        self.name, self.on_blocked, self.blocked_after_s = name, on_blocked, blocked_after_s
        self.beats, self.did = 7, list[str]()
        self.made.append(self)

    def start(self) -> None:
        """As a LoopThread does."""
        self.did.append("start")

    def give_up(self) -> None:
        """As a LoopThread does."""
        self.did.append("give_up")

    async def stop(self, timeout_s: float) -> None:
        """As a LoopThread does."""
        self.did.append(f"stop {timeout_s:g}")

    def call(self, what: Callable[..., None], *arguments: object) -> bool:
        """As a LoopThread does; nothing runs."""
        return True


LOST_AFTER_S = 0.01


class Scene:
    """A pool, the loops it made, what it told."""

    def __init__(self) -> None:
        self.loops = Loop.made
        self.harms: list[Harm] = []
        self.pool = LoopPool(on_harm=self.harms.append, blocked_after_s=0.5, lost_after_s=LOST_AFTER_S)

    def lives(self, handler: Handler) -> int:
        """On which of the loops its next attempt begins."""
        return self.loops.index(self.begin(handler).loop)  # type: ignore[arg-type]  # a stand-in

    def begin(self, handler: Handler) -> LoopCall:
        """An attempt of the handler is under way, where the handler lives."""

        async def attempt(_: LoopThread) -> Outcome:
            return Succeeded()

        return self.pool.begin(handler, attempt)

    async def blocked(self, number: int, task: str | None, *, comes_back: bool = False) -> None:
        """The watch of a loop found this; until the pool has looked again. Of two timers on one loop the earlier goes
        first, however busy the machine is."""
        loop = self.loops[number]
        loop.on_blocked(loop, Blocked(seconds=2.0, at="ship.py:3", task=task))
        await asyncio.sleep(0)
        loop.beats += comes_back
        await asyncio.sleep(2 * LOST_AFTER_S)

    def told(self) -> list[tuple[str, float, int]]:
        """Who did harm: how long, and how many loops were lost by now."""
        assert {one.at for one in self.harms} <= {"ship.py:3"}
        return [(one.handler, round(one.seconds, 3), one.lost) for one in self.harms]

    def names(self) -> list[str]:
        """The loops that were made."""
        return [loop.name for loop in self.loops]


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    Loop.made = []
    monkeypatch.setattr(loop_pool, "LoopThread", Loop)
    return Scene()


async def test_handlers_of_a_plugin_share_a_loop_until_the_pool_is_closed(scene: Scene) -> None:
    # case: H4
    assert [scene.lives(one) for one in (BLOCKS, BESIDE, ELSEWHERE)] == [0, 0, 1]
    assert scene.names() == ["plugin:shop", "plugin:stall"]
    assert [loop.blocked_after_s for loop in scene.loops] == [0.5, 0.5]
    await scene.pool.close(3)
    assert [loop.did for loop in scene.loops] == [["start", "stop 3"]] * 2
    scene.begin(BLOCKS)
    assert scene.names() == ["plugin:shop", "plugin:stall", "plugin:shop"]


async def test_who_blocks_moves_to_a_loop_of_its_own_and_the_others_stay(scene: Scene) -> None:
    # case: H4
    scene.begin(BLOCKS)
    await scene.blocked(0, "handler:shop:blocks", comes_back=True)
    assert scene.told() == [("shop:blocks", 2.0, 0)]
    assert scene.names() == ["plugin:shop", "handler:shop:blocks"]
    assert scene.lives(BLOCKS) == 1
    assert scene.lives(BESIDE) == 0
    is_home = scene.pool._is_home
    assert [is_home(loop, BLOCKS) for loop in scene.loops] == [False, True]  # type: ignore[arg-type]  # stand-ins
    assert [is_home(loop, BESIDE) for loop in scene.loops] == [True, False]  # type: ignore[arg-type]  # stand-ins
    await scene.blocked(1, "handler:shop:blocks", comes_back=True)
    assert len(scene.loops) == 2
    assert scene.told() == [("shop:blocks", 2.0, 0)] * 2
    await scene.pool.close(1)
    assert [loop.did for loop in scene.loops] == [["start", "stop 1"]] * 2


async def test_a_loop_that_does_not_come_back_is_given_up_and_who_was_on_it_begins_anew(scene: Scene) -> None:
    # case: H4
    blocks, beside, elsewhere, gone = [scene.begin(one) for one in (BLOCKS, BESIDE, ELSEWHERE, BESIDE)]
    scene.pool.forget(gone)
    await scene.blocked(0, "handler:shop:blocks")
    assert scene.told() == [("shop:blocks", 2.0, 0), ("shop:blocks", 2.01, 1)]
    assert scene.loops[0].did == ["start", "give_up"]
    assert beside.future.result() is DISPLACED
    assert [one.future.done() for one in (blocks, elsewhere, gone)] == [False, False, False]
    assert scene.lives(BESIDE) == 3
    assert scene.names() == ["plugin:shop", "plugin:stall", "handler:shop:blocks", "plugin:shop"]
    await scene.blocked(2, "handler:shop:blocks")
    assert scene.told()[2:] == [("shop:blocks", 2.0, 0), ("shop:blocks", 2.01, 2)]
    assert scene.lives(BLOCKS) == 4
    assert scene.lives(ELSEWHERE) == 1
    assert len(scene.loops) == 5


async def test_an_attempt_that_is_over_is_displaced_no_more(scene: Scene) -> None:
    over, beside = scene.begin(BESIDE), scene.begin(BESIDE)
    over.settle(Succeeded())
    with capture_logs() as said:
        await scene.blocked(0, "handler:shop:blocks")
    assert (over.future.result(), beside.future.result()) == (Succeeded(), DISPLACED)
    assert [line["displaced"] for line in said if line["event"] == "handler_lost_its_loop"] == [1]


async def test_an_attempt_whose_time_is_over_tells_so_and_then_how_it_ended(scene: Scene) -> None:
    # case: H4
    late, done = scene.begin(BLOCKS), scene.begin(BESIDE)
    waits = late.future
    done.settle(Succeeded())
    for one in (late, done):
        one.pass_limit()
    assert (waits.result(), late.future.done(), done.future.result()) == (None, False, Succeeded())
    late.settle(CANCELLED)
    assert late.future.result() == CANCELLED


@pytest.mark.parametrize("task", [None, "not-a-handlers"])
async def test_what_is_nobodys_task_and_comes_back_is_blamed_on_nobody(scene: Scene, task: str | None) -> None:
    scene.begin(BESIDE)
    await scene.blocked(0, task, comes_back=True)
    assert (scene.told(), scene.names(), scene.loops[0].did) == ([], ["plugin:shop"], ["start"])


@pytest.mark.parametrize("task", [None, "not-a-handlers"])
async def test_what_is_nobodys_task_and_does_not_come_back_is_told_by_the_loop_of_its_own_that_it_gets(
    scene: Scene, task: str | None
) -> None:
    # case: H4
    blocks, beside = scene.begin(BLOCKS), scene.begin(BESIDE)
    blocks.has_begun = True
    await scene.blocked(0, task)
    assert (scene.told(), scene.loops[0].did) == ([], ["start", "give_up"])
    assert [one.future.result() for one in (blocks, beside)] == [DISPLACED, DISPLACED]
    assert (scene.lives(BLOCKS), scene.lives(BESIDE)) == (1, 2)
    assert scene.names() == ["plugin:shop", "handler:shop:blocks", "plugin:shop"]
    await scene.blocked(1, task)
    assert scene.told() == [("shop:blocks", 2.01, 1)]
    assert (scene.lives(BLOCKS), scene.lives(BESIDE)) == (3, 2)


async def test_of_a_loop_that_was_given_up_nothing_more_is_heard(scene: Scene) -> None:
    scene.begin(BESIDE)
    await scene.blocked(0, "handler:shop:blocks")
    known = scene.told()
    await scene.blocked(0, "handler:shop:blocks")
    assert scene.told() == known


# --- a real one -------------------------------------------------------------------------------------------------


async def gathered(work: Coroutine[Any, Any, None]) -> None:
    await asyncio.gather(work, asyncio.sleep(0))


async def in_a_group(work: Coroutine[Any, Any, None]) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(work, name="of its own choice")


async def left_behind(work: Coroutine[Any, Any, None]) -> None:
    LEFT.append(asyncio.create_task(work))


async def of_a_callback(work: Coroutine[Any, Any, None]) -> None:
    asyncio.get_running_loop().call_soon(lambda: LEFT.append(asyncio.create_task(gathered(work))))


LEFT: list[asyncio.Task[None]] = []


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("child", [gathered, in_a_group, left_behind, of_a_callback])
async def test_a_child_that_blocks_is_its_handlers_doing_and_the_neighbours_go_on(
    monkeypatch: pytest.MonkeyPatch,
    child: Callable[[Coroutine[Any, Any, None]], Coroutine[Any, Any, None]],
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    # case: H4
    monkeypatch.setattr(asyncio, "new_event_loop", new_loop)
    monkeypatch.setattr(executor, "CANCEL_GRACE_S", 0.05)
    blocking, goes_on = threading.Event(), threading.Event()

    async def holds() -> None:
        blocking.set()
        goes_on.wait(20)

    async def blocks(event: Event, ctx: Context) -> None:
        await child(holds())

    async def run(handler: Handler) -> Outcome:
        while (outcome := await runs.effect(handler, order_paid(1), lambda _: NO_CONTEXT)) is DISPLACED:
            continue  # as its run does, at no cost
        return outcome

    harms: list[Harm] = []
    runs = Executor(LoopPool(on_harm=harms.append, blocked_after_s=0.4, lost_after_s=0.2))
    try:
        first = asyncio.create_task(run(replace(BLOCKS, function=blocks, timeout_s=0.5)))
        assert await asyncio.to_thread(blocking.wait, 10)
        assert await run(replace(BESIDE, timeout_s=10)) == Succeeded()
        await eventually(lambda: len(harms) == 2)
        assert [(one.handler, one.lost) for one in harms] == [("shop:blocks", 0), ("shop:blocks", 1)]
        await first
    finally:
        goes_on.set()
        LEFT.clear()
        await runs.pool.close(5)


async def test_what_a_handlers_children_are_called_stays_as_it_was() -> None:
    loop, seen = LoopThread("real", on_blocked=lambda *_: None, blocked_after_s=60.0), list[str]()
    done = threading.Event()

    async def parent() -> None:
        children = [asyncio.create_task(asyncio.sleep(0), name=name) for name in ("of its own choice", None)]
        seen.extend(child.get_name() for child in children)
        await asyncio.wait(children)
        done.set()

    def begin() -> None:
        loop.create_task(parent(), Matter("handler:shop:blocks"))

    loop.start()
    loop.call(begin)
    assert await asyncio.to_thread(done.wait, 10)
    await loop.stop(5)
    assert seen[0] == "of its own choice"
    assert seen[1].startswith(("Task-", "None")), "as Python 3.13.0 calls it where a loop makes its tasks itself"


async def test_a_real_loop_goes_on_after_an_exit_and_ends_with_all_that_was_on_it() -> None:
    loop, ended, seen = LoopThread("real", on_blocked=lambda *_: None, blocked_after_s=5.0), list[str](), list[object]()

    exiting: list[asyncio.Task[None]] = []

    async def exits() -> None:
        raise SystemExit(3)

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(f"cancelled, closed: {loop.http.closed}")

    def begin() -> None:
        exiting.append(loop.create_task(exits(), Matter("exits")))
        loop.create_task(waits(), Matter("waits"))
        seen.extend([loop.http, loop.http])

    loop.start()
    assert loop.call(begin)
    began = threading.Event()

    def behind_their_first_steps() -> None:
        loop.call(began.set)

    loop.call(behind_their_first_steps)
    assert await asyncio.to_thread(began.wait, 10)
    assert seen[0] is seen[1]
    await loop.stop(5)
    assert ended == ["cancelled, closed: False"]  # a handler may still want its session
    assert isinstance(exiting[0].exception(), SystemExit)
    assert seen[0].closed  # type: ignore[attr-defined]  # the session
    assert not loop.call(begin)
    await loop.stop(5)


async def test_a_real_loop_that_was_given_up_ends_what_still_runs_on_it_when_it_comes_back() -> None:
    loop, ended = LoopThread("given up", on_blocked=lambda *_: None, blocked_after_s=60.0), threading.Event()
    blocked, goes_on = threading.Event(), threading.Event()

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.set()
            raise

    def holds() -> None:
        goes_on.wait(20)

    def blocks() -> None:
        loop.create_task(waits(), Matter("waits"))
        loop.call(blocked.set)
        loop.call(holds)

    assert loop.beats == 0
    loop.start()
    (thread,) = [one for one in threading.enumerate() if one.name == "given up"]
    assert loop.call(blocks)
    assert await asyncio.to_thread(blocked.wait, 10)
    loop.give_up()
    assert not ended.is_set()
    goes_on.set()
    await asyncio.to_thread(thread.join, 10)
    assert (thread.is_alive(), ended.is_set()) == (False, True)
