"""The watchdog cuts off a handler that blocks the worker's loop, nobody else, and gives up when that does not help. The
signals are made by hand here; real ones are in `test_a_blocking_transaction_is_cut_off.py`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from structlog.testing import capture_logs

from consumer.work.execution import watchdog
from consumer.work.execution.handler_call import Calling, Cut, HandlerCall, entered
from consumer.work.execution.loop_pool import Harm
from consumer.work.execution.watchdog import AGAIN_S, CAREFUL_HITS, Suspicion, Watchdog
from tests.work.execution.test_only_a_handlers_own_code_is_cut_off import HANDLER, here

LIMIT_S = 1.0


class Signals:
    """The kernel's timer and its signal, as the watchdog asks for them."""

    SIGALRM, ITIMER_REAL = 14, 0
    SIG_DFL: object = "default"
    SIG_IGN: object = "ignored"

    def __init__(self, handler: object = SIG_DFL, left_s: float = 0.0) -> None:
        self.handler: object = handler
        self.timers: list[tuple[float, ...]] = []
        self.killed: list[tuple[int, int]] = []
        self._left_s = left_s

    def getsignal(self, _: int) -> object:
        """As signal does."""
        return self.handler

    def signal(self, number: int, handler: object) -> object:
        """As signal does."""
        assert number == self.SIGALRM
        before, self.handler = self.handler, handler
        return before

    def setitimer(self, _: int, *seconds: float) -> None:
        """As signal does."""
        self.timers.append(seconds)

    def getitimer(self, _: int) -> tuple[float, float]:
        """As signal does."""
        return (self._left_s, 0.0)

    def pthread_kill(self, thread: int, number: int) -> None:
        """As signal does."""
        self.killed.append((thread, number))


class Scene:
    """A watchdog, what it heard, and the time it reads."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, signals: Signals | None = None, limit_s: float = LIMIT_S
    ) -> None:
        self.signals, self.now = signals or Signals(), 100.0
        self.told: list[Harm] = []
        self.given_up: list[tuple[str, str]] = []
        monkeypatch.setattr(watchdog, "signal", self.signals)
        monkeypatch.setattr(watchdog, "monotonic", lambda: self.now)
        self.dog = Watchdog(
            limit_s, on_cut=self.told.append, give_up=lambda *said: self.given_up.append(said), give_up_after_s=1.0
        )

    def alarm(self, frame: FrameType | None = None) -> Cut | None:
        """The timer ran out; what that raised."""
        try:
            self.dog._alarm(self.signals.SIGALRM, frame)
        except Cut as cut:
            return cut
        return None

    async def called(self, act: Callable[[], object]) -> HandlerCall:
        """Do it as the handler's doing, which began now."""

        async def function() -> None:
            act()

        with Calling(HANDLER) as call:
            call.began = self.now
            await entered(function)
        return call


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


# --- the timer --------------------------------------------------------------------------------------------------


async def test_it_is_wound_up_while_the_loop_turns_and_all_is_put_back_at_the_end(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case: H4
    monkeypatch.setattr(watchdog, "WIND_EVERY_S", 0)
    scene.dog._over.set()
    before = {one for one in threading.enumerate() if one.name == "watchdog"}
    async with scene.dog.guarding():
        assert scene.signals.handler == scene.dog._alarm
        assert not scene.dog._over.is_set()
        (thread,) = {one for one in threading.enumerate() if one.name == "watchdog"} - before
        beat, scene.now = scene.dog._beat, 101.0
        for _ in range(3):
            await asyncio.sleep(0)
        assert scene.dog._beat >= beat + 2
        assert scene.dog._beat_at == 101.0
        assert set(scene.signals.timers) == {(LIMIT_S, AGAIN_S)}
    assert scene.signals.getsignal(14) == Signals.SIG_DFL
    assert scene.signals.timers[-1] == (0,)
    thread.join(5)
    assert not thread.is_alive()
    assert not [one for one in asyncio.all_tasks() if one.get_name() == "work:watchdog"]


async def test_turned_off_it_takes_nothing_and_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, limit_s=0)
    with capture_logs() as logs:
        async with scene.dog.guarding():
            assert scene.signals.handler == Signals.SIG_DFL
    assert (logs, scene.signals.timers) == ([], [])


@pytest.mark.parametrize(
    ("signals", "is_free"),
    [
        (Signals(), True),
        (Signals(Signals.SIG_IGN), True),
        (Signals(handler=print), False),
        (Signals(left_s=0.5), False),
    ],
    ids=["default", "ignored", "handled", "running"],
)
async def test_a_timer_that_somebody_uses_is_left_alone_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, signals: Signals, is_free: bool
) -> None:
    # case: H4
    scene = Scene(monkeypatch, signals)
    with capture_logs() as logs:
        async with scene.dog.guarding():
            assert bool(scene.signals.timers) is is_free
    assert [line["event"] for line in logs] == ([] if is_free else ["cutoff_not_available"])


def test_only_the_main_thread_has_one(scene: Scene) -> None:
    found: list[bool] = [watchdog._is_free()]
    thread = threading.Thread(target=lambda: found.append(watchdog._is_free()))
    thread.start()
    thread.join()
    assert found == [True, False]


# --- the alarm --------------------------------------------------------------------------------------------------


async def test_it_is_cut_off_at_the_second_alarm_and_the_loop_hears_of_it_once(scene: Scene) -> None:
    # case: H4
    cuts: list[Cut | None] = []
    scene.dog._loop = asyncio.get_running_loop()

    def blocks() -> None:
        scene.now += 2.0
        cuts.extend(scene.alarm(here()) for _ in range(3))

    call = await scene.called(blocks)
    assert [cut is not None for cut in cuts] == [False, True, True]
    assert (call.cuts, call.blocked_s) == (2, 2.0)
    assert scene.told == []
    await asyncio.sleep(0)
    assert scene.told == [Harm(handler="x:y", seconds=2.0, at=call.at)]
    assert "test_the_watchdog_cuts_off_who_blocks" in call.at


async def test_what_is_not_a_handlers_or_not_blocked_for_so_long_is_let_alone(scene: Scene) -> None:
    # case: H4
    def is_quick() -> None:
        scene.now += LIMIT_S - 0.01
        assert scene.alarm(here()) is None
        assert scene.alarm(here()) is None
        assert scene.dog._suspicion is None
        assert scene.alarm(None) is None
        scene.now += 0.01
        assert scene.alarm(here()) is None
        assert scene.alarm(here()) is not None

    assert scene.alarm(here()) is None
    await scene.called(is_quick)


async def test_time_counts_from_the_last_beat_of_the_loop(scene: Scene) -> None:
    def blocks() -> None:
        scene.now += 5.0
        scene.dog._wind()
        scene.now += LIMIT_S - 0.01
        assert [scene.alarm(here()) for _ in range(2)] == [None, None]

    await scene.called(blocks)


async def test_a_loop_that_turned_or_another_call_is_suspected_anew(scene: Scene) -> None:
    def blocks() -> None:
        scene.now += 2.0
        assert scene.alarm(here()) is None

    await scene.called(blocks)
    await scene.called(blocks)  # another call at the same beat

    def turned() -> None:
        blocks()
        scene.dog._beat += 1
        assert scene.alarm(here()) is None
        assert scene.alarm(here()) is not None

    await scene.called(turned)


async def test_what_holds_locks_is_spared_some_alarms_and_then_cut_off_too(scene: Scene) -> None:
    cuts: list[Cut | None] = []
    careful: dict[str, Any] = {"__name__": "sqlalchemy.made", "alarm": scene.alarm, "cuts": cuts}
    exec("import sys\ndef act():\n    cuts.append(alarm(sys._getframe()))", careful)

    def blocks() -> None:
        scene.now += 2.0
        for _ in range(2 + CAREFUL_HITS):
            careful["act"]()

    await scene.called(blocks)
    assert [cut is None for cut in cuts] == [True] * (1 + CAREFUL_HITS) + [False]


# --- giving up --------------------------------------------------------------------------------------------------


class Looks:
    """The end of the watching thread: so many looks, with what happens before each."""

    def __init__(self, dog: Watchdog, count: int, turns_before: int = 0) -> None:
        self.seen, self._dog, self._count, self._turns_before = 0, dog, count, turns_before

    def wait(self, seconds: float) -> bool:
        """As an Event does."""
        assert seconds == AGAIN_S
        self.seen += 1
        self._dog._beat += self.seen == self._turns_before
        return self.seen > self._count


async def looked(scene: Scene, count: int, *, task: str, turns_before: int = 0, is_handlers: bool = True) -> None:
    """The thread's looks, while this code blocks the loop in a task of that name."""
    current = asyncio.current_task()
    assert current is not None
    name = current.get_name()
    scene.dog._over = Looks(scene.dog, count, turns_before)  # type: ignore[assignment]  # what the thread asks of it
    current.set_name(task)
    try:
        if is_handlers:
            await scene.called(lambda: scene.dog._look(asyncio.get_running_loop()))
        else:
            scene.dog._look(asyncio.get_running_loop())
    finally:
        current.set_name(name)


# LIMIT_S is 4 looks, giving up is 4 more.
@pytest.mark.parametrize(("looks", "kills", "gives_up"), [(3, 0, 0), (4, 1, 0), (7, 4, 0), (8, 5, 1), (20, 17, 1)])
async def test_the_thread_sends_the_signal_again_and_gives_up_once(
    scene: Scene, looks: int, kills: int, gives_up: int
) -> None:
    # case: H4
    await looked(scene, looks, task="handler:shop:ship")
    assert scene.signals.killed == [(threading.main_thread().ident, Signals.SIGALRM)] * kills
    assert [name for name, _ in scene.given_up] == ["shop:ship"] * gives_up
    assert all(
        said.startswith("blocked the worker for 2 s and could not be cut off, in ") for _, said in scene.given_up
    )


async def test_a_beat_in_between_starts_the_count_anew(scene: Scene) -> None:
    await looked(scene, 8, task="handler:shop:ship", turns_before=5)
    assert scene.given_up == []
    assert len(scene.signals.killed) == 1
    await looked(scene, 13, task="handler:shop:ship", turns_before=5)
    assert len(scene.given_up) == 1


async def test_the_workers_own_code_is_nobodys_fault(scene: Scene) -> None:
    with capture_logs() as logs:
        await looked(scene, 8, task="handler:shop:ship", is_handlers=False)
        await looked(scene, 8, task="work:relay")
        assert (scene.given_up, logs) == ([], [])
        call = HandlerCall("shop:child", "shop", 0.0)
        scene.dog._suspicion = Suspicion(call, scene.dog._beat + 1)
        await looked(scene, 8, task="work:relay")
        assert (scene.given_up, logs) == ([], [])
        scene.dog._suspicion = Suspicion(call, scene.dog._beat)
        await looked(scene, 8, task="work:relay")
    assert [name for name, _ in scene.given_up] == ["shop:child"]
    assert [(line["event"], line["handler"], line["seconds"]) for line in logs] == [
        ("handler_cannot_be_cut_off", "shop:child", 2.0)
    ]
