"""LoopWatch: how late the event loop is, and what made it stand still.

A task measures how late it wakes up. A thread looks at the task's last heartbeat; when it is too old, the loop is
blocked *now*, and the thread can say where, which nothing on the loop could.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import structlog

from consumer.errors import ConsumerError, RoleSlow
from consumer.telemetry.metrics import Metrics

log = structlog.get_logger(__name__)
WINDOW = 40
SLOW_LAG_S, SLOW_FOR_S = 1.0, 20.0
"""A loop that has come so late each time, for so long, cannot keep up."""
PLACES_MAX = 4


@dataclass(frozen=True, kw_only=True)
class Blocked:
    """The loop stood still: for how long so far, in which function, in which task."""

    seconds: float
    at: str
    task: str | None


class LoopWatch:
    """Watch the running loop between `start` and `stop`; both may be called twice. `name_of`: what a task is called."""

    def __init__(
        self,
        metrics: Metrics | None = None,
        *,
        interval_s: float = 0.25,
        blocked_after_s: float = 1.0,
        on_blocked: Callable[[Blocked], None] | None = None,
        name_of: Callable[[asyncio.Task[Any]], str] = asyncio.Task.get_name,
    ) -> None:
        self._metrics = metrics
        self._interval_s = interval_s
        self._blocked_after_s = blocked_after_s
        self._on_blocked = on_blocked
        self._name_of = name_of
        self._lags: deque[float] = deque(maxlen=WINDOW)
        self._late_since: float | None = None
        self._heartbeat = time.monotonic()
        self._beats = 0
        self._stopped = threading.Event()
        self._task: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None

    @property
    def lag_s(self) -> float:
        """The worst lateness among the last heartbeats (about ten seconds), in seconds."""
        return max(self._lags, default=0.0)

    def slow(self) -> ConsumerError | None:
        """What to tell of a loop that comes late each time, as with too little of a processor; None of one that keeps
        up, also where it was held up once."""
        since = self._late_since
        if since is None or self._heartbeat - since < SLOW_FOR_S:
            return None
        return RoleSlow(f"its loop comes {self._lags[-1]:.1f} s late each time: {RoleSlow.__doc__}")

    @property
    def beats(self) -> int:
        """A number that goes up for as long as the loop is alive."""
        return self._beats

    def tell(self, on_blocked: Callable[[Blocked], None]) -> None:
        """Have `on_blocked` called, by the watching thread, each time the loop is found blocked."""
        self._on_blocked = on_blocked

    def start(self) -> None:
        """Begin, on the running loop."""
        if self._task is not None:
            return
        loop = asyncio.get_running_loop()
        self._heartbeat = time.monotonic()
        self._stopped.clear()
        self._task = loop.create_task(self._beat(), name="loop-watch")
        self._thread = threading.Thread(
            target=self._look, args=(loop, threading.get_ident()), name="loop-watch", daemon=True
        )
        self._thread.start()

    async def stop(self) -> None:
        """End both the task and the thread."""
        task, thread = self._task, self._thread
        self._task = self._thread = None
        self._stopped.set()
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if thread is not None:
            await asyncio.to_thread(thread.join, 5.0)

    async def _beat(self) -> None:
        try:
            while True:
                before = time.monotonic()
                await asyncio.sleep(self._interval_s)
                self._heartbeat = time.monotonic()
                self._beats += 1
                lag_s = max(0.0, self._heartbeat - before - self._interval_s)
                self._lags.append(lag_s)
                self._late_since = None if lag_s < SLOW_LAG_S else self._late_since or before
                if self._metrics is not None:
                    self._metrics.loop_lag.set(self.lag_s)
        finally:
            self._stopped.set()  # with its loop, too, where nobody calls `stop`

    def _look(self, loop: asyncio.AbstractEventLoop, loop_thread: int) -> None:
        reported = 0.0
        while not self._stopped.wait(self._interval_s):
            heartbeat = self._heartbeat
            age = time.monotonic() - heartbeat - self._interval_s
            if age < self._blocked_after_s or heartbeat == reported:
                continue
            reported = heartbeat
            task = asyncio.current_task(loop)
            name = self._name_of(task) if task is not None else None
            self._report(Blocked(seconds=age, at=where(sys._current_frames().get(loop_thread)), task=name))

    def _report(self, blocked: Blocked) -> None:
        if self._metrics is not None:
            self._metrics.loop_blocked.inc()
        log.warning("loop_blocked", seconds=round(blocked.seconds, 3), where=blocked.at, task=blocked.task)
        if self._on_blocked is not None:
            self._on_blocked(blocked)


def where(frame: FrameType | None) -> str:
    """What runs there, innermost first, one place per package: `urllib3.…:10 < plugin.handler:ship:7 < consumer.…`."""
    places: list[str] = []
    package = ""
    while frame is not None and len(places) < PLACES_MAX:
        module = str(frame.f_globals.get("__name__", "?"))
        top = module.partition(".")[0]
        if top != package and top not in sys.stdlib_module_names:
            places.append(f"{module}:{frame.f_code.co_qualname}:{frame.f_lineno}")
            package = top
        frame = frame.f_back
    return " < ".join(places) or "unknown"
