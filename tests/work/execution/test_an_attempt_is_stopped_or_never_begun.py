"""An attempt on its way to its handler's loop: cancelled there it never begins, cancelled while it runs it stops."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from consumer.plugin import Context, Event, declared, handles
from consumer.work.execution.executor import _within
from consumer.work.execution.loop_call import CANCELLED, DISPLACED, ENDED, LoopCall
from consumer.work.execution.loop_thread import _HandlerLoop
from consumer.work.execution.matter import Matter
from consumer.work.outcome import Failed, Outcome, Succeeded


@handles("order.paid", name="test:any")
async def anything(event: Event, ctx: Context) -> None:
    """Nothing."""


class Line:
    """A loop that calls what it is asked to when it is told to."""

    def __init__(self, *, is_over: bool = False) -> None:
        self.waiting: list[tuple[Callable[..., None], tuple[object, ...]]] = []
        self._is_over = is_over

    def call(self, what: Callable[..., None], *arguments: object) -> bool:
        """As a LoopThread does."""
        self.waiting.append((what, arguments))
        return not self._is_over

    def create_task(self, work: Coroutine[Any, Any, Any], matter: Matter) -> asyncio.Task[Any]:
        """As a LoopThread does."""
        return asyncio.get_running_loop().create_task(work, name=matter.name)

    async def work_off(self) -> None:
        """Call what waits, and let it go as far as it goes by itself."""
        while self.waiting:
            what, arguments = self.waiting.pop(0)
            what(*arguments)
        for _ in range(5):
            await asyncio.sleep(0)


class Attempt:
    """An attempt that waits until it `may_end`."""

    def __init__(self, *, is_home: bool = True, line: Line | None = None) -> None:
        self.line, self.began, self.moved = line or Line(), 0, list[LoopCall]()
        self.may_end = asyncio.Event()
        handler = declared(anything)
        assert handler is not None
        self.call = LoopCall(handler, self._run, asyncio.get_running_loop(), lambda *_: is_home)
        self.call.send_to(self.line, on_moved=self.moved.append)  # type: ignore[arg-type]  # what is asked of a loop

    async def _run(self, _: object) -> Outcome:
        self.began += 1
        await self.may_end.wait()
        return Succeeded()


async def test_it_runs_and_its_outcome_is_the_answer() -> None:
    attempt = Attempt()
    assert not attempt.call.is_running
    assert not attempt.call.has_begun
    await attempt.line.work_off()
    assert (attempt.began, attempt.call.has_begun, attempt.call.is_running) == (1, True, True)
    attempt.may_end.set()
    await attempt.line.work_off()
    assert (attempt.call.future.result(), attempt.call.is_running) == (Succeeded(), False)


async def test_cancelled_before_it_begins_it_never_does() -> None:
    attempt = Attempt()
    attempt.call.cancel()
    await attempt.line.work_off()
    assert (attempt.began, attempt.call.is_running, attempt.call.future.done()) == (0, False, False)


async def test_cancelled_at_the_head_of_a_line_that_stands_still_it_never_begins() -> None:
    # case: H4
    attempt = Attempt()
    begin, arguments = attempt.line.waiting.pop()
    begin(*arguments)
    attempt.call.cancel()  # what it asks of the loop comes behind what was begun there
    await asyncio.sleep(0)
    assert (attempt.began, attempt.call.has_begun) == (0, False)
    await attempt.line.work_off()
    assert (attempt.began, attempt.call.future.done(), attempt.moved) == (0, False, [])


async def test_what_is_settled_before_it_begins_never_does_and_stays_settled() -> None:
    attempt = Attempt()
    attempt.call.settle(DISPLACED)
    await attempt.line.work_off()
    attempt.call.settle(Succeeded())
    assert (attempt.began, attempt.call.future.result()) == (0, DISPLACED)


async def test_cancelled_while_it_runs_it_stops() -> None:
    attempt = Attempt()
    await attempt.line.work_off()
    attempt.call.cancel()
    await attempt.line.work_off()
    assert (attempt.call.is_running, attempt.call.future.result()) == (False, CANCELLED)


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_where_the_handler_lives_elsewhere_by_then_who_moves_it_hears_of_it(is_cancelled: bool) -> None:
    attempt = Attempt(is_home=False)
    attempt.line.waiting, begin = [], attempt.line.waiting[0]
    begin[0](*begin[1])
    if is_cancelled:
        attempt.call._is_over = True
    await attempt.line.work_off()
    assert (attempt.began, attempt.call.has_begun) == (0, False)
    assert attempt.moved == ([] if is_cancelled else [attempt.call])


async def test_a_loop_that_has_ended_settles_it_at_once() -> None:
    assert Attempt(line=Line(is_over=True)).call.future.result() == ENDED


async def test_what_breaks_on_its_way_is_its_failure() -> None:
    async def breaks(_: object) -> Outcome:
        raise ValueError("nobody has thought of this")

    attempt = Attempt()
    attempt.call._attempt = breaks
    await attempt.line.work_off()
    found = attempt.call.future.result()
    assert isinstance(found, Failed)
    assert "nobody has thought of this" in (found.failure.reason or "")


class Stops:
    """Time that passes by itself, and while the process `stands_still`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._real, self.stood_s = time.monotonic, 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self._real() + self.stood_s)

    def stands_still(self, seconds: float, then: Callable[[], object]) -> None:
        """Soon, for so long; what comes meanwhile is there when it goes on."""

        def stop() -> None:
            self.stood_s += seconds
            then()

        threading.Timer(0.1, stop).start()


async def test_an_attempt_whose_process_stood_still_is_not_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer lay there when it went on, and was given up: it was called a second time."""
    one, stops = Attempt(), Stops(monkeypatch)
    await one.line.work_off()
    loop = asyncio.get_running_loop()
    working = asyncio.create_task(_within(5.0, one.call))
    await asyncio.sleep(0)
    stops.stands_still(30.0, lambda: loop.call_soon_threadsafe(loop.call_later, 0.2, one.may_end.set))
    while not one.may_end.is_set():
        await asyncio.sleep(0.01)
        await one.line.work_off()
    await one.line.work_off()
    assert await working == Succeeded()


def test_what_came_while_the_process_stood_still_is_taken_and_not_called_late(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, stops = _HandlerLoop(), Stops(monkeypatch)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)

    async def ask() -> bytes:
        stops.stands_still(30.0, lambda: theirs.send(b"shipped"))
        async with asyncio.timeout(5.0):
            return await loop.sock_recv(ours, 100)

    async def ask_in_vain() -> None:
        async with asyncio.timeout(0.05):
            await loop.sock_recv(ours, 100)

    try:
        assert loop.run_until_complete(ask()) == b"shipped"
        with pytest.raises(TimeoutError):
            loop.run_until_complete(ask_in_vain())
    finally:
        loop.close()
        ours.close()
        theirs.close()
