"""Matter: all that came of one call of an effect handler on its loop: its tasks, and its work in threads.

What the author's code began, and left behind when the handler returned, is waited for: it may be the effect. What a
library began is the library's own: a connection's reader or a client's keepalive outlives many calls.

An error counts at which nobody looked. asyncio knows that of each future; `gather` and `shield` look for whoever waits
for theirs, so that one is asked instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from collections.abc import Callable, Container, Coroutine, Generator, Iterator
from concurrent.futures import Future as ThreadFuture
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, ContextVar
from functools import cached_property, partial
from types import BuiltinMethodType, CodeType, FrameType, FunctionType, MethodType
from typing import Any, TypeVar, cast

from consumer.work.place import Home, home_of, place_at

T = TypeVar("T")
Work = Coroutine[Any, Any, T] | Generator[Any, None, T]
"""What a loop may be given to make a task of."""

CANCELS_MOST = 5
"""Rounds: who begins something new whenever he is cancelled is let be in the end."""

_RELAYS = {
    code for one in (asyncio.gather, asyncio.shield) for code in one.__code__.co_consts if isinstance(code, CodeType)
}
"""Whose callbacks look at a future's error for another one, their `outer`."""

_matter: ContextVar[Matter | None] = ContextVar("matter", default=None)


class Matter:
    """One call. `name` is that of its first task; `function` the author's, by which his code is known; without it
    nothing is known as his. `threads`: its work in threads that has not ended, whoever began it."""

    def __init__(self, name: str, function: Callable[..., Any] | None = None) -> None:
        self.name = name
        self.threads: set[ThreadFuture[Any]] = set()
        self.left: dict[asyncio.Future[Any], tuple[CodeType, int]] = {}
        """What the author's code began and nobody has looked at yet, and where."""
        self.is_over = False
        self.is_cut = False
        """Its time is over, or the worker stops: nothing is waited for any more."""
        self.stuck_at: str | None = None
        self._is_late = False
        self._instead: set[asyncio.Future[Any]] = set()
        self._unseen: list[BaseException] = []
        self._function = function

    @cached_property
    def _home(self) -> Home | None:
        return None if self._function is None else home_of(self._function)

    def began(self, what: asyncio.Future[Any], frame: FrameType | None) -> None:
        """This was begun there; asyncio and we stand between."""
        while frame is not None and _is_between(frame):
            frame = frame.f_back
        if self.is_over or frame is None or self._home is None or not self._home.has(frame):
            return
        self.left[what] = (frame.f_code, frame.f_lineno)
        what.add_done_callback(self._ended)

    def asked(self, what: asyncio.Future[Any], error: BaseException, asker: FrameType) -> None:
        """It failed, and its error was asked for there. Where that is a relay, `outer` tells it to whoever waits."""
        outer = asker.f_locals.get("outer") if asker.f_code in _RELAYS else None
        if outer is None or what not in self.left:
            return
        hearing = {outer, *_awaiting(outer)}
        waiting = {one for one in hearing if isinstance(one, asyncio.Task)}
        self._instead |= hearing - waiting
        # An error that is a result of `gather` is nobody's who looks: behind the handler's end it is who waits by now.
        if not waiting and (outer.cancelled() or (self._is_late and asker.f_locals.get("return_exceptions"))):
            self._unseen.append(error)

    async def rest(self) -> BaseException | None:
        """Wait for what the author's code left behind. Returns the errors that nobody looked at, as a group. Cancelled,
        it says in `stuck_at` where the first of it was begun."""
        self._is_late = True
        while alive := [one for one in self.left if not one.done()]:
            try:
                await asyncio.wait(alive)
            except asyncio.CancelledError:
                self.stuck_at = str(place_at(*self.left[alive[0]]))
                raise
        ended = [one for one in (*self.left, *self._instead) if one.done() and not one.cancelled()]
        errors = [error for one in ended if one._log_traceback and (error := one.exception()) is not None]
        errors += self._unseen
        return BaseExceptionGroup("left behind", errors) if errors else None

    @property
    def goes_on(self) -> bool:
        """Whether something does that the author's code left behind, and that no other call waits for."""
        return bool(self._alive())

    async def stop(self) -> None:
        """The attempt came to nothing: cancel what the author's code left behind, once each, and wait for it, also when
        cancelled meanwhile. What another call waits for, too, is left to that."""
        cancelled: set[asyncio.Future[Any]] = set()
        for turn in itertools.count():
            if not (alive := self._alive()):
                return
            for one in alive - cancelled if turn < CANCELS_MOST else ():
                one.cancel()
            cancelled |= alive
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait(alive)

    def _alive(self) -> set[asyncio.Future[Any]]:
        """Without what is wanted elsewhere, and what waits for that: to cancel who waits cancels what he waits for."""
        alive = {one for one in self.left if not one.done()}
        wanted = {one for one in alive if self._is_wanted(one)}
        return alive - wanted - {waiting for one in wanted for waiting in _awaiting(one, self.left)}

    def _is_wanted(self, what: asyncio.Future[Any]) -> bool:
        return any(isinstance(one, asyncio.Task) and one not in self.left for one in _awaiting(what, self.left))

    def end(self) -> None:
        """The attempt is over: what begins from now on is nobody's."""
        self.is_over = True
        self.left.clear()
        self._instead.clear()

    def _ended(self, what: asyncio.Future[Any]) -> None:
        if what.cancelled() or not what._log_traceback:
            self.left.pop(what, None)


def current() -> Matter | None:
    """What the running code came of."""
    return _matter.get()


class Begun(asyncio.Future[T]):
    """A future on a loop of ours; `matter` is what it came of, which hears who asks for its error."""

    matter: Matter | None = None

    def exception(self) -> BaseException | None:
        """As any future's."""
        error = super().exception()
        if error is not None and self.matter is not None:
            self.matter.asked(self, error, sys._getframe(1))
        return error


class Descendant(Begun[T], asyncio.Task[T]):
    """A task on a loop of ours. What it is called itself is free."""

    def __init__(self, work: Work[T], **named: Any) -> None:
        self.matter = _matter.get()
        # A loop's task factory is declared for generators, too; from Python 3.14 on a task is not.
        super().__init__(cast(Coroutine[Any, Any, T], work), **named)


def first_task(work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop, matter: Matter) -> Descendant[T]:
    """The task that all the others come of."""
    before = _matter.set(matter)
    try:
        return Descendant(work, loop=loop, name=matter.name)
    finally:
        _matter.reset(before)


def descendant(
    loop: asyncio.AbstractEventLoop, work: Work[T], *, context: Context | None = None, **named: Any
) -> asyncio.Task[T]:
    """A loop's task factory. A task that is given an empty context is meant to outlive its call."""
    task = Descendant(work, loop=loop, context=context, **named)
    if task.matter is not None and (context is None or _matter in context):
        task.matter.began(task, sys._getframe(1))
    return task


class Threads(ThreadPoolExecutor):
    """Threads for `asyncio.to_thread`; what is under way in them is known to its matter."""

    def submit(self, function: Callable[..., T], /, *args: Any, **named: Any) -> ThreadFuture[T]:
        """As any executor's."""
        future, matter = super().submit(function, *args, **named), _matter.get()
        if matter is not None and not matter.is_over:
            matter.threads.add(future)
            future.add_done_callback(matter.threads.discard)
        return future


def _awaiting(what: asyncio.Future[Any], past: Container[asyncio.Future[Any]] = ()) -> Iterator[asyncio.Future[Any]]:
    """Tasks that wait for it, and futures that stand for it: what its callbacks hold, and what those of such a future
    hold, or of a task that is one of `past`."""
    at, seen = [what], {what}
    while at:
        for callback, _ in at.pop()._callbacks or ():
            for one in _held_by(callback):
                if isinstance(one, asyncio.Future) and one not in seen:
                    seen.add(one)
                    if one in past or not isinstance(one, asyncio.Task):
                        at.append(one)
                    yield one


def _held_by(callback: Any) -> Iterator[object]:
    """What it is to tell: a task (`await`, a TaskGroup), or a future (`gather`, `shield`, `wait`, `wait_for`)."""
    if isinstance(callback, partial):
        yield from callback.args
    elif isinstance(callback, FunctionType):
        with contextlib.suppress(ValueError):  # an empty cell
            yield from [cell.cell_contents for cell in callback.__closure__ or ()]
    elif isinstance(callback, MethodType | BuiltinMethodType):
        owner = callback.__self__
        if isinstance(owner, asyncio.TaskGroup):
            owner = owner._parent_task  # type: ignore[attr-defined]  # nobody else tells whose group it is
        yield owner


def _is_between(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__", ""))
    return module.startswith(("asyncio.", "consumer.work.execution."))
