"""Loop pool: effect handlers run on event loops in threads of their own, away from the worker's (case H4).

Every plugin has one, so that its handlers may share what is bound to a loop (a client, a pool). The worker's own
loop, with the group membership, the ledger and the relay, is never touched by what an effect handler does to its.

A handler that blocks its plugin's loop is named, and moves to a loop of its own before its next run. A loop that
does not come back is given up: who else was on it starts anew on a fresh one, and its thread is left behind.

Where the watch can name nobody (a callback has no task), a loop of a handler's own still tells whose doing it is. So
whoever was at work on a shared one that was lost like this gets a loop of its own: the next time tells.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from consumer.plugin import Handler
from consumer.telemetry.loop_watch import Blocked
from consumer.work.execution.loop_call import DISPLACED, Attempt, LoopCall
from consumer.work.execution.loop_thread import LoopThread

LOST_AFTER_S = 10.0
TASK_PREFIX = "handler:"

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class Harm:
    """What a handler did to the loop it ran on; `lost` counts the loops that it never gave back."""

    handler: str
    seconds: float
    at: str
    lost: int = 0


class LoopPool:
    """Where each effect handler runs. Used from the worker's loop only; closed at the end."""

    def __init__(
        self,
        *,
        on_harm: Callable[[Harm], None] = lambda _: None,
        blocked_after_s: float = 1.0,
        lost_after_s: float = LOST_AFTER_S,
    ) -> None:
        self._on_harm = on_harm
        self._blocked_after_s = blocked_after_s
        self._lost_after_s = lost_after_s
        self._plugins: dict[str, LoopThread] = {}
        self._own: dict[str, LoopThread] = {}
        self._calls: set[LoopCall] = set()
        self._lost: Counter[str | None] = Counter()
        self._given_up: list[LoopThread] = []  # kept: nobody complains of the session that one left open
        self._lock = threading.Lock()

    def begin(self, handler: Handler, attempt: Attempt) -> LoopCall:
        """Start an attempt where the handler belongs; `forget` it at the end. Call from a running loop. Raises what
        keeps the process from another loop or thread."""
        call = LoopCall(handler, attempt, asyncio.get_running_loop(), self._is_home)
        self._calls.add(call)
        try:
            self._send(call)
        except BaseException:
            self.forget(call)
            raise
        return call

    def forget(self, call: LoopCall) -> None:
        """The attempt is over for the caller, whatever the handler still does."""
        self._calls.discard(call)

    async def close(self, timeout_s: float = 5.0) -> None:
        """End every thread; one that is blocked is left behind (it ends with the process)."""
        everything = [*self._plugins.values(), *self._own.values()]
        self._plugins, self._own = {}, {}
        await asyncio.gather(*(loop.stop(timeout_s) for loop in everything))

    # --- where -------------------------------------------------------------------------------------------------

    def _send(self, call: LoopCall) -> None:
        home = self._home(call.handler)
        call.send_to(home, on_moved=self._send)

    def _home(self, handler: Handler) -> LoopThread:
        with self._lock:
            own = self._own.get(handler.name)
            if own is not None:
                return own
            shared = self._plugins.get(handler.plugin)
            if shared is None:
                shared = self._plugins[handler.plugin] = self._new(f"plugin:{handler.plugin}")
            return shared

    def _is_home(self, loop: LoopThread, handler: Handler) -> bool:
        """Asked on the loop itself, just before the handler would start."""
        with self._lock:
            own = self._own.get(handler.name)
            return loop is own if own is not None else loop is self._plugins.get(handler.plugin)

    def _new(self, name: str) -> LoopThread:
        main = asyncio.get_running_loop()

        def blocked(loop: LoopThread, found: Blocked) -> None:  # called by the watching thread
            if not main.is_closed():
                main.call_soon_threadsafe(self._blocked, loop, found)

        loop = LoopThread(name, on_blocked=blocked, blocked_after_s=self._blocked_after_s)
        loop.start()
        return loop

    # --- harm --------------------------------------------------------------------------------------------------

    def _blocked(self, loop: LoopThread, found: Blocked) -> None:
        if not self._is_current(loop):
            return
        task = found.task or ""
        name = task.removeprefix(TASK_PREFIX) if task.startswith(TASK_PREFIX) else None
        if name is not None:
            self._move(name, loop, found)
        asyncio.get_running_loop().call_later(self._lost_after_s, self._check, loop, name, found, loop.beats)

    def _move(self, name: str, loop: LoopThread, found: Blocked) -> None:
        _log.error("handler_blocks_its_loop", handler=name, seconds=round(found.seconds, 3), where=found.at)
        self._on_harm(Harm(handler=name, seconds=found.seconds, at=found.at))
        if loop is not self._own.get(name):
            with self._lock:
                self._own[name] = self._new(f"handler:{name}")
            _log.warning("handler_moved_to_its_own_loop", handler=name)

    def _is_current(self, loop: LoopThread) -> bool:
        return loop in self._plugins.values() or loop in self._own.values()

    def _check(self, loop: LoopThread, name: str | None, found: Blocked, beats: int) -> None:
        """Give the loop up when it has not moved since."""
        if loop.beats != beats or not self._is_current(loop):
            return
        name = name or next((owner for owner, own in self._own.items() if own is loop), None)
        self._lost[name] += 1
        running = [one for one in self._calls if one.loop is loop and not one.future.done()]
        self._leave(loop, {one.handler.name for one in running if one.has_begun} if name is None else {name})
        displaced = [one for one in running if one.handler.name != name]
        _log.error("handler_lost_its_loop", handler=name, where=found.at, lost=self._lost[name],
                   displaced=len(displaced))  # fmt: skip
        for call in displaced:
            call.settle(DISPLACED)
        if name is not None:
            seconds = found.seconds + self._lost_after_s
            self._on_harm(Harm(handler=name, seconds=seconds, at=found.at, lost=self._lost[name]))

    def _leave(self, loop: LoopThread, suspects: set[str]) -> None:
        """Nobody begins on this loop any more; each of the suspects has one of its own from now on."""
        with self._lock:
            self._plugins = {plugin: one for plugin, one in self._plugins.items() if one is not loop}
            for name in suspects:
                if self._own.get(name, loop) is loop:
                    self._own[name] = self._new(f"handler:{name}")
        loop.give_up()
        self._given_up.append(loop)
