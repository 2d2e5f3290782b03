"""An attempt on its way to its handler's loop: cancelled there it never begins, cancelled while it runs it stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from consumer.plugin import Context, Event, declared, handles
from consumer.work.execution.loop_call import CANCELLED, DISPLACED, ENDED, LoopCall
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

    def create_task(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """As a LoopThread does."""
        return asyncio.get_running_loop().create_task(work, name=name)

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
