"""Executor: one handler on one event, or on many at once: perform, normalise. Nothing a handler does gets past it.

Effect handlers run on the loop of their plugin, in a thread, cut off at their time. Transactional handlers run in the
caller's transaction, on the caller's loop, so they are cut off in place. One that keeps its cancellation to itself is
cancelled again; when that does not help either, the process gives up, as for who cannot be cut off (`watchdog.py`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from decimal import localcontext
from typing import Any, Self

import structlog
from structlog.contextvars import bind_contextvars, clear_contextvars, get_contextvars

from consumer.errors import HandlerCrashed, HandlerMisuse, HandlerTimeout
from consumer.loan import lent
from consumer.plugin import Context, Event, Handler
from consumer.work.execution.handler_call import Calling, HandlerCall, contain_tasks, entered
from consumer.work.execution.loop_call import NOT_BEGUN, LoopCall
from consumer.work.execution.loop_pool import TASK_PREFIX, LoopPool
from consumer.work.execution.loop_thread import STOOD_STILL_S, LoopThread
from consumer.work.execution.matter import current
from consumer.work.outcome import Failed, Outcome, Succeeded, failed, type_name
from consumer.work.place import home_of, place_of_waiting

CANCEL_GRACE_S = 2.0
CANCEL_AGAIN_S = 1.0
CANCELS_MOST = 5
"""Of a transactional handler: who has heeded none of them when the next is due is given up."""
CANCELLED = (
    "the handler raised CancelledError: it waited for what was cancelled "
    "(a task that several calls share is begun with context=contextvars.Context())"
)
BREATH_S = 0.05
ABANDONED_MAX = 100

Make = Callable[[LoopThread], Context]
"""Makes the context on the loop where the handler runs."""

_log = structlog.get_logger(__name__)


class Executor:
    """Runs handlers. Keeps those that go on when their attempt is over in sight, so that they can be counted.

    `give_up` (handler, reason) is called for one that does so in the caller's transaction; it does not return. Without
    it, that is logged, once a call.
    """

    def __init__(self, pool: LoopPool | None = None, *, give_up: Callable[[str, str], None] | None = None) -> None:
        self.pool = pool or LoopPool()
        self._give_up = give_up
        self._abandoned: list[LoopCall] = []

    @property
    def abandoned(self) -> int:
        """How many attempts go on although they are over: they ignore that they were cancelled, or hold a thread."""
        return sum(self.abandoned_by().values())

    def abandoned_by(self) -> Counter[str]:
        """The same by handler."""
        self._abandoned = [call for call in self._abandoned if call.is_running]
        return Counter(call.handler.name for call in self._abandoned)

    async def effect(self, handler: Handler, event: Event, make: Make) -> Outcome:
        """Run an effect handler, at most `timeout_s` (and a short grace to end). One that stood in line for all of its
        time was not late: that costs it nothing. Of one that has failed, or whose time is over, what the author's code
        began is cancelled, and has the same grace."""

        async def attempt(loop: LoopThread) -> Outcome:
            outcome = await _guarded(handler, handler.function, _own(handler, event), make(loop))
            matter = current()
            if matter is None or not matter.left or matter.is_cut or isinstance(outcome, Failed):
                return outcome
            error = await matter.rest()
            return outcome if error is None else failed(error, home_of(handler.function), about=[event])

        call = self.pool.begin(handler, attempt)
        try:
            if (outcome := await _within(handler.timeout_s, call)) is not None:
                if call.threads:  # it gave a call in a thread up, and went on without
                    self._abandon(call)
                return outcome
            call.cancel()
            ended, _ = await asyncio.wait({call.future}, timeout=CANCEL_GRACE_S)
        except asyncio.CancelledError:
            call.cancel()
            raise
        finally:
            self.pool.forget(call)
        if not call.has_begun:
            return NOT_BEGUN
        if call.threads or (not ended and call.is_running):
            self._abandon(call)
        if call.failure is not None:
            return call.failure
        who = f"what the handler began and left behind, in {call.stuck_at}," if call.stuck_at else "the handler"
        late = HandlerTimeout(f"{who} did not finish in {handler.timeout_s:g} s")
        return failed(late, home_of(handler.function))

    async def transactional(
        self, handler: Handler, event: Event, ctx: Context, *, limit_s: float | None = None
    ) -> Outcome:
        """Run a transactional handler in the caller's transaction, at most `timeout_s` (or `limit_s`, if less)."""
        return await self._in_place(handler, limit_s, handler.function, _own(handler, event), ctx)

    async def together(
        self, handler: Handler, batch: Sequence[tuple[Event, Context]], *, limit_s: float | None = None
    ) -> Outcome:
        """The same for one that takes many at once. It fails as a whole."""
        given = [(_own(handler, event), ctx) for event, ctx in batch]
        return await self._in_place(handler, limit_s, handler.together or handler.function, given)

    async def _in_place(
        self, handler: Handler, limit_s: float | None, function: Callable[..., Awaitable[object]], *given: Any
    ) -> Outcome:
        contexts = [given[1]] if len(given) > 1 else [ctx for _, ctx in given[0]]
        allowed_s = handler.timeout_s if limit_s is None else min(handler.timeout_s, limit_s)
        contain_tasks(asyncio.get_running_loop())
        task = asyncio.current_task()
        name = task.get_name() if task is not None else ""
        if task is not None:
            task.set_name(TASK_PREFIX + handler.name)  # so that a blocked loop is blamed on the right one
        try:
            with Calling(handler) as call, lent(handler.name), _lines_of_its_own():
                limit = _Limit(allowed_s, lambda: self._despair(handler, call))
                outcome = call.outcome(await _in_time(handler, limit, function, *given))
            if call.cuts:
                # Everything else on the loop is late now: let it go first, the next handler may block it again.
                await asyncio.sleep(BREATH_S)
            return outcome
        finally:
            for ctx in contexts:
                ctx.end()
            if task is not None:
                task.set_name(name)

    def _despair(self, handler: Handler, call: HandlerCall) -> None:
        seconds, home = CANCELS_MOST * CANCEL_AGAIN_S, home_of(handler.function)
        at = str(place_of_waiting(call.work, home) or home.start)
        reason = f"ignored for {seconds:.0f} s that its time was over and could not be cut off, in {at}"
        _log.critical("handler_cannot_be_cut_off", handler=handler.name, seconds=seconds, where=at)
        if self._give_up is not None:
            self._give_up(handler.name, reason)

    def _abandon(self, call: LoopCall) -> None:
        count = self.abandoned + 1
        if threads := call.lose_threads():
            _log.error("handler_holds_threads", handler=call.handler.name, abandoned=count, threads=threads)
        else:
            _log.error("handler_ignores_cancellation", handler=call.handler.name, abandoned=count)
        if count <= ABANDONED_MAX:
            self._abandoned.append(call)


def _own(handler: Handler, event: Event) -> Event:
    """The event for this handler alone: its body is read anew, so what one does to it is no other's. The built-in ones
    do nothing to it, and share what was read."""
    return event if handler.is_built_in else event.unread()


@contextmanager
def _lines_of_its_own() -> Iterator[None]:
    """What a handler binds to its log lines stays on them: others follow in the same task."""
    before = copy_context()
    try:
        yield
    finally:
        if copy_context() != before and (bound := before.run(get_contextvars)) != get_contextvars():
            clear_contextvars()
            bind_contextvars(**bound)


async def _within(limit_s: float, call: LoopCall) -> Outcome | None:
    """What came of it, or None when its time is over. Whoever blocks the worker's loop meanwhile takes none of it, nor
    does a process that stood still: the time counts from when the handler's loop was told, one for which this loop was
    late is given once more, and what ended in the round in which it is over has ended."""
    await asyncio.sleep(0)
    limit = _CallLimit(limit_s, call)
    try:
        outcome = await call.future
    finally:
        limit.cancel()
    if outcome is None:
        await asyncio.sleep(0)
        outcome = call.future.result() if call.future.done() else None
    return outcome


class _CallLimit:
    """Tells a call when its time is over."""

    def __init__(self, limit_s: float, call: LoopCall) -> None:
        self._loop, self._limit_s, self._call = asyncio.get_running_loop(), limit_s, call
        self._give(limit_s)

    def cancel(self) -> None:
        """It has ended."""
        self._timer.cancel()

    def _give(self, seconds: float) -> None:
        self._due_s = self._loop.time() + seconds
        self._timer = self._loop.call_at(self._due_s, self._over)

    def _over(self) -> None:
        late_s = self._loop.time() - self._due_s
        if late_s > STOOD_STILL_S:
            self._give(min(late_s, self._limit_s))
        else:
            self._call.pass_limit()


class _Limit:
    """The time of a call in place. When it is over the task is cancelled, and again, since a handler may keep that to
    itself; `on_deaf` hears once of one that heeds none of it. What others cancel (the worker stops) stays theirs.

    It counts its own cancellations, not seconds: a process that stood still as a whole is not blamed on anybody.
    """

    def __init__(self, seconds: float, on_deaf: Callable[[], None]) -> None:
        self.seconds = seconds
        self._on_deaf = on_deaf
        self._cancels = 0

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("only what runs in a task can be cancelled")
        self._loop, self._task, self._cancelled_before = asyncio.get_running_loop(), task, task.cancelling()
        self._timer = self._loop.call_later(self.seconds, self._cancel)
        return self

    def __exit__(self, *raised: object) -> None:
        self._timer.cancel()
        for _ in range(self._cancels):
            self._task.uncancel()

    @property
    def is_over(self) -> bool:
        """Whether it was: who goes on after that has not finished in time, whatever comes of it."""
        return self._cancels > 0

    @property
    def is_all(self) -> bool:
        """Afterwards: whether it was over, and nobody else wants the task to end."""
        return self.is_over and self._task.cancelling() <= self._cancelled_before

    def _cancel(self) -> None:
        self._timer = self._loop.call_later(CANCEL_AGAIN_S, self._cancel)
        self._cancels += 1
        self._task.cancel()
        if self._cancels == CANCELS_MOST + 1:
            self._on_deaf()


async def _in_time(handler: Handler, limit: _Limit, function: Callable[..., Awaitable[object]], *given: Any) -> Outcome:
    came_by: BaseException | None = None
    try:
        with limit:
            outcome = await _guarded(handler, function, *given)
        if not limit.is_over:
            return outcome
    except asyncio.CancelledError as error:
        if not limit.is_all:
            raise
        came_by = error
    late = HandlerTimeout(f"the handler did not finish in {limit.seconds:g} s")
    return failed(late, home_of(handler.function), came_by=came_by)


async def _guarded(handler: Handler, function: Callable[..., Awaitable[object]], *given: Any) -> Outcome:
    try:
        with localcontext():  # how it reckons is its own
            result = await entered(function, *given)
    except asyncio.CancelledError:
        # Ours (time over, worker stops) goes on up; the handler's own invention is a failure like any other.
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return failed(HandlerCrashed(CANCELLED), home_of(handler.function))
    except BaseException as error:  # noqa: BLE001 - sys.exit() and the like must not end the worker
        about = [given[0]] if isinstance(given[0], Event) else [event for event, _ in given[0]]
        return failed(error, home_of(handler.function), about=about)
    if result is not None:
        misuse = HandlerMisuse(f"a handler returns None, this one returned {type_name(result)}")
        return failed(misuse, home_of(handler.function))
    return Succeeded()
