"""Handler call: a transactional handler's time on the worker's loop, and whose code it is that runs there now.

Asked from a signal handler, on whatever was interrupted: only what a handler called may be cut off, never the worker's
own code (a commit, a heartbeat of the group) that happens to run while the handler is under way.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from time import monotonic
from types import FrameType
from typing import Any, ParamSpec

from consumer.errors import HandlerCrashed, HandlerError
from consumer.plugin import Handler
from consumer.retry import Failure
from consumer.telemetry.loop_watch import where
from consumer.work.outcome import Failed, Outcome

P = ParamSpec("P")

_CAREFUL_WITH = frozenset({"asyncio", "consumer", "importlib", "logging", "sqlalchemy", "structlog"})
_current: ContextVar[HandlerCall | None] = ContextVar("handler_call", default=None)


class HandlerBlocked(HandlerError):
    """The handler blocked the worker's event loop and was cut off."""

    code = "handler_blocked"
    retryable = True


class Cut(BaseException):
    """Raised inside a handler that blocks the loop. Not an Exception, so that `except Exception` does not keep it."""


@dataclass(eq=False)
class HandlerCall:
    """One call of a handler. `package`: where its code lives; `cuts`: how often it was cut off, and what that hit.
    `function` is the author's, `work` its coroutine once it has begun."""

    handler: str
    package: str
    began: float
    cuts: int = 0
    blocked_s: float = 0.0
    at: str = ""
    fingerprint: str = ""
    function: Callable[..., Any] | None = None
    work: object = None

    def cut(self, frame: FrameType, blocked_s: float) -> Cut:
        """It is cut off here; the first place is the one that is told."""
        if not self.cuts:
            self.blocked_s = blocked_s
            self.at = where(frame)
            self.fingerprint = _fingerprint(frame, self.package)
        self.cuts += 1
        return Cut(f"blocked the event loop for {blocked_s:.1f} s")

    def outcome(self, outcome: Outcome) -> Outcome:
        """What the call ended with: whoever was cut off has failed, whatever it made of that."""
        if not self.cuts:
            return outcome
        reason = f"it blocked the worker's event loop for {self.blocked_s:.1f} s and was cut off in {self.at}"
        return Failed(Failure(HandlerBlocked.code, reason[:300]), self.fingerprint)


def was_cut(outcome: Outcome) -> bool:
    """Whether the handler blocked the loop."""
    return isinstance(outcome, Failed) and outcome.failure.code == HandlerBlocked.code


class Calling:
    """For the time of a call of the handler, in the task that makes it (and those that the handler starts)."""

    def __init__(self, handler: Handler) -> None:
        package = _package(handler.function.__module__ or "")
        self._call = HandlerCall(handler.name, package, monotonic(), function=handler.function)

    def __enter__(self) -> HandlerCall:
        self._token = _current.set(self._call)
        return self._call

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)


async def entered(function: Callable[P, Awaitable[object]], *given: P.args, **named: P.kwargs) -> object:
    """Call the handler. On the stack this frame is the border: what lies inside is the handler's doing."""
    work, call = function(*given, **named), _current.get()
    if call is not None:
        call.work = work
    return await work


def contain_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """From now on a task that a handler's call starts ends alone, whatever it raises: at SystemExit and
    KeyboardInterrupt asyncio ends the loop, and the worker with it."""
    if loop.get_task_factory() is None:
        loop.set_task_factory(_task)


def _task(loop: asyncio.AbstractEventLoop, work: Any, **named: Any) -> asyncio.Task[Any]:
    if current_call() is None:
        return asyncio.Task(work, loop=loop, **named)
    task = asyncio.Task(_contained(work), loop=loop, **named)
    task.add_done_callback(lambda _: work.close())  # one that was cancelled before it began is never awaited
    return task


async def _contained(work: Awaitable[object]) -> object:
    try:
        return await work
    except (SystemExit, KeyboardInterrupt) as error:
        raise HandlerCrashed(f"the handler raised {type(error).__name__}") from error


def current_call() -> HandlerCall | None:
    """The call of a transactional handler that this task belongs to, if any."""
    return _current.get()


def call_at(frame: FrameType | None) -> HandlerCall | None:
    """The call that the interrupted code belongs to; None when it is nobody's, or the worker's own."""
    call = _current.get()
    return call if call is not None and frame is not None and is_inside(frame, call.package) else None


def is_inside(frame: FrameType, package: str) -> bool:
    """Whether this is the handler's call, or a task it started: that has no border, but code of its package."""
    link: FrameType | None = frame
    has_own_code = False
    while link is not None:
        if link.f_code is entered.__code__:
            return link is not frame
        has_own_code = has_own_code or _package(link.f_globals.get("__name__", "")) == package
        link = link.f_back
    return has_own_code


def wants_care(frame: FrameType) -> bool:
    """Whether the innermost code is better not interrupted if it can be helped: it holds locks, or state of ours."""
    return _package(frame.f_globals.get("__name__", "")) in _CAREFUL_WITH


def _package(module: str) -> str:
    return module.partition(".")[0]


def _fingerprint(frame: FrameType, package: str) -> str:
    """By the outermost function of the handler's: what it called is another place each time."""
    link: FrameType | None = frame
    place = ""
    while link is not None and link.f_code is not entered.__code__:
        if _package(link.f_globals.get("__name__", "")) == package:
            place = f"{link.f_code.co_filename.rsplit('/', 1)[-1]}:{link.f_code.co_qualname}"
        link = link.f_back
    return hashlib.sha256(f"{HandlerBlocked.__qualname__}|{place}".encode()).hexdigest()[:16]
