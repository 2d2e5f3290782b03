"""Watchdog: ends a transactional handler that blocks the worker's event loop (case H4).

Nothing on a loop can end what blocks it, but a timer of the kernel can. It is wound up for as long as the loop turns;
when it runs out, its signal interrupts whatever the main thread does (Python code, a sleep, a socket, a lock, a
regular expression), and if that is a handler's doing, an error is raised there. The transaction rolls back, and the
loop turns again.

A handler that keeps the error to itself is hit again. If that does not help either, or the signal does not get
through (C code that does not look for signals), a thread notices and the process gives up: it pauses the handler in
the ledger and ends, so that the next process does not end up in the same place (`app/give_up.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import monotonic
from types import FrameType

import structlog

from consumer.telemetry.loop_watch import where
from consumer.work.execution.handler_call import HandlerCall, call_at, is_inside, wants_care
from consumer.work.execution.loop_pool import TASK_PREFIX, Harm

CUTOFF_S = 5.0
WIND_EVERY_S = 0.25
AGAIN_S = 0.25
CAREFUL_HITS = 8
GIVE_UP_AFTER_S = 5.0

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Suspicion:
    """The call that was on the loop when the timer ran out, and the beat of the loop at that time."""

    call: HandlerCall
    beat: int
    hits: int = 0


class Watchdog:
    """A handler may block the loop for `limit_s` seconds; 0 turns it off.

    `on_cut` hears on the loop, afterwards, who was cut off. `give_up` (handler, reason) is called by a thread when the
    loop stays blocked for another `give_up_after_s`; it does not return. Without it, that is logged, once.
    """

    def __init__(
        self,
        limit_s: float = CUTOFF_S,
        *,
        on_cut: Callable[[Harm], None],
        give_up: Callable[[str, str], None] | None = None,
        give_up_after_s: float = GIVE_UP_AFTER_S,
    ) -> None:
        self._limit_s = limit_s
        self._on_cut = on_cut
        self._give_up = give_up
        self._give_up_after_s = give_up_after_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._beat = 0
        self._beat_at = monotonic()
        self._suspicion: Suspicion | None = None
        self._over = threading.Event()

    @asynccontextmanager
    async def guarding(self) -> AsyncIterator[None]:
        """Guard the running loop, if it is the main thread's and nobody else uses the timer; else do nothing."""
        if not self._limit_s or not _is_free():
            if self._limit_s:
                _log.info("cutoff_not_available", because="not the main thread, or SIGALRM is in use")
            yield
            return
        self._loop = asyncio.get_running_loop()
        self._over.clear()
        before = signal.signal(signal.SIGALRM, self._alarm)
        self._wind()
        winding = asyncio.create_task(self._keep_winding(), name="work:watchdog")
        thread = threading.Thread(target=self._look, args=(self._loop,), name="watchdog", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            winding.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await winding
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    async def _keep_winding(self) -> None:
        while True:
            self._wind()
            await asyncio.sleep(WIND_EVERY_S)

    def _wind(self) -> None:
        self._beat += 1
        self._beat_at = monotonic()
        signal.setitimer(signal.ITIMER_REAL, self._limit_s, AGAIN_S)

    # --- in the signal handler, on top of whatever it interrupted: no locks, no logging ------------------------

    def _alarm(self, _: int, frame: FrameType | None) -> None:
        call = call_at(frame)
        if call is None or frame is None:
            return
        blocked_s = monotonic() - max(call.began, self._beat_at)
        if blocked_s < self._limit_s:
            return
        last = self._suspicion
        if last is None or last.call is not call or last.beat != self._beat:
            # Not yet: after a process was stopped or starved, the loop gets a moment to show that it turns.
            self._suspicion = Suspicion(call, self._beat)
            return
        self._suspicion = Suspicion(call, self._beat, last.hits + 1)
        if wants_care(frame) and last.hits < CAREFUL_HITS:
            return
        cut = call.cut(frame, blocked_s)
        if call.cuts == 1 and self._loop is not None:
            self._loop.call_soon_threadsafe(self._told, Harm(handler=call.handler, seconds=blocked_s, at=call.at))
        raise cut

    def _told(self, harm: Harm) -> None:
        _log.error("handler_cut_off", handler=harm.handler, seconds=round(harm.seconds, 3), where=harm.at)
        self._on_cut(harm)

    # --- in the thread -----------------------------------------------------------------------------------------

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Counts its own looks at an unchanged beat: a process that stood still as a whole is not blamed on anybody."""
        beat, looks, main = self._beat, 0, threading.main_thread().ident or 0
        while not self._over.wait(AGAIN_S):
            if self._beat != beat:
                beat, looks = self._beat, 0
                continue
            looks += 1
            if looks * AGAIN_S >= self._limit_s:
                # The timer's signal may be taken by any thread, and then does not end what the main thread waits in.
                signal.pthread_kill(main, signal.SIGALRM)
            # Once per standstill, should giving up be nobody's business here.
            if looks == round((self._limit_s + self._give_up_after_s) / AGAIN_S):
                self._despair(loop, looks * AGAIN_S)

    def _despair(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        name = self._suspect(loop, frame)
        if name is None:
            return  # the worker's own code; liveness ends the process
        reason = f"blocked the worker for {seconds:.0f} s and could not be cut off, in {where(frame)}"
        _log.critical("handler_cannot_be_cut_off", handler=name, seconds=seconds, where=where(frame))
        if self._give_up is not None:
            self._give_up(name, reason)

    def _suspect(self, loop: asyncio.AbstractEventLoop, frame: FrameType | None) -> str | None:
        task = asyncio.current_task(loop)
        name = task.get_name() if task is not None else ""
        if frame is not None and name.startswith(TASK_PREFIX) and is_inside(frame, ""):
            return name.removeprefix(TASK_PREFIX)
        last = self._suspicion  # a task that the handler started
        return last.call.handler if last is not None and last.beat == self._beat else None


def _is_free() -> bool:
    return (
        threading.current_thread() is threading.main_thread()
        and hasattr(signal, "setitimer")
        and signal.getsignal(signal.SIGALRM) in (signal.SIG_DFL, signal.SIG_IGN)
        and signal.getitimer(signal.ITIMER_REAL)[0] == 0
    )
