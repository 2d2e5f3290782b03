"""Executor: one handler on one event: perform, normalise. Nothing a handler does gets past it.

Effect handlers run in a task of their own, cut off at their time. Transactional handlers run in the caller's
transaction, so they are cut off in place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from consumer.errors import HandlerCrashed, HandlerMisuse, HandlerTimeout
from consumer.plugin import Context, Event, Handler
from consumer.work.outcome import Outcome, Succeeded, failed

CANCEL_GRACE_S = 2.0
ABANDONED_MAX = 100

_log = structlog.get_logger(__name__)


class Executor:
    """Runs handlers. Keeps those that ignore their cancellation in sight, so that they can be counted."""

    def __init__(self) -> None:
        self._abandoned: set[asyncio.Task[Outcome]] = set()

    @property
    def abandoned(self) -> int:
        """How many handlers still run although their time is over and they were cancelled."""
        return len(self._abandoned)

    async def effect(self, handler: Handler, event: Event, ctx: Context) -> Outcome:
        """Run an effect handler, at most `timeout_s` (and a short grace to end)."""
        task = asyncio.create_task(_guarded(handler, event, ctx), name=f"handler:{handler.name}")
        try:
            done, _ = await asyncio.wait({task}, timeout=handler.timeout_s)
            if done:
                return _result(task)
            task.cancel()
            done, _ = await asyncio.wait({task}, timeout=CANCEL_GRACE_S)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not done:
            self._abandon(handler, task)
        return failed(HandlerTimeout(f"the handler did not finish in {handler.timeout_s:g} s"))

    async def transactional(self, handler: Handler, event: Event, ctx: Context) -> Outcome:
        """Run a transactional handler in the caller's transaction, at most `timeout_s`."""
        try:
            async with asyncio.timeout(handler.timeout_s) as limit:
                return await _guarded(handler, event, ctx)
        except TimeoutError:
            if not limit.expired():
                raise
            return failed(HandlerTimeout(f"the handler did not finish in {handler.timeout_s:g} s"))

    def _abandon(self, handler: Handler, task: asyncio.Task[Outcome]) -> None:
        _log.error("handler_ignores_cancellation", handler=handler.name, abandoned=len(self._abandoned) + 1)
        if len(self._abandoned) < ABANDONED_MAX:
            self._abandoned.add(task)
            task.add_done_callback(self._abandoned.discard)


async def _guarded(handler: Handler, event: Event, ctx: Context) -> Outcome:
    function: Callable[[Event, Context], Awaitable[object]] = handler.function
    try:
        result = await function(event, ctx)
    except asyncio.CancelledError:
        # Ours (time over, worker stops) goes on up; the handler's own invention is a failure like any other.
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return failed(HandlerCrashed("the handler raised CancelledError"))
    except BaseException as error:  # noqa: BLE001 - sys.exit() and the like must not end the worker
        return failed(error)
    if result is not None:
        return failed(HandlerMisuse(f"a handler returns None, this one returned {type(result).__name__}"))
    return Succeeded()


def _result(task: asyncio.Task[Outcome]) -> Outcome:
    return failed(HandlerCrashed("the handler was cancelled from elsewhere")) if task.cancelled() else task.result()
