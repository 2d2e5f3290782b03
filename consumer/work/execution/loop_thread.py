"""Loop thread: an event loop in a thread, with a watch on it and an HTTP session of its own.

A task that was made on it, and whatever tasks come of that (`asyncio.gather`, a TaskGroup), are one matter: when one of
them blocks the loop, the watch names the first.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import socket
import sys
import threading
import time
from asyncio.futures import _chain_future  # type: ignore[attr-defined]  # as asyncio.wrap_future does
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, ThreadPoolExecutor
from contextvars import Context, copy_context
from functools import partial
from typing import Any, TypeVar, TypeVarTuple

import aiohttp
import structlog

from consumer.plugin.http import open_session
from consumer.telemetry.loop_watch import Blocked, LoopWatch
from consumer.work.execution.matter import Begun, Descendant, Matter, Threads, current, descendant, first_task

THREADS, HUNG_MOST = 64, 32
"""For the handlers' `asyncio.to_thread`. When so many of them hang there are new ones, before nobody has any."""
ENDING_S = 1.0
LET_GO_S = 0.5
STOOD_STILL_S = 1.0
"""A timer that is so late was so because the whole process, or its loop, stood still."""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_log = structlog.get_logger(__name__)


class _Selector(selectors.DefaultSelector):
    """Counts the seconds of waits that took longer than they were to: the process was stopped, or starved. When what
    came in one of them came, nobody knows."""

    stood_still_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        began_s = time.monotonic()
        found = super().select(timeout)
        took_s = time.monotonic() - began_s
        if timeout is not None and took_s - max(0.0, timeout) > STOOD_STILL_S:
            self.stood_still_s += took_s
        return found


class _HandlerLoop(asyncio.SelectorEventLoop):
    """Names are looked up in threads of their own: a handler's calls that hang in `to_thread` keep no other from its
    request. While it stands still with its process its time does, too: what came meanwhile is taken, and not called
    late."""

    _default_executor: Executor  # asyncio's own

    def __init__(self) -> None:
        self._waits = _Selector()
        super().__init__(self._waits)
        self._threads = self._new_threads()
        self._lookups = ThreadPoolExecutor(thread_name_prefix="lookup")

    def time(self) -> float:
        return super().time() - self._waits.stood_still_s

    def renew_threads(self) -> None:
        """Fresh ones, as many as there were; those that come back end when there is nothing left for them."""
        hung, self._threads = self._threads, self._new_threads()
        hung.shutdown(wait=False)

    def _new_threads(self) -> Threads:
        threads = Threads(THREADS, "handler")
        self.set_default_executor(threads)
        return threads

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        if (matter := current()) is None:
            return super().run_in_executor(executor, func, *args)
        future = Begun[T](loop=self)
        future.matter = matter
        _chain_future((executor or self._default_executor).submit(func, *args), future)
        matter.began(future, sys._getframe(1))
        return future

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        look = partial(socket.getaddrinfo, host, port, **options)
        return await self.run_in_executor(self._lookups, look)

    def close(self) -> None:
        super().close()
        self._lookups.shutdown(wait=False)


class LoopThread:
    """Runs until `stop`. Whatever a handler does to it (sys.exit in a task it left behind), it goes on."""

    def __init__(
        self, name: str, *, on_blocked: Callable[[LoopThread, Blocked], None], blocked_after_s: float = 1.0
    ) -> None:
        self.name = name
        self._loop = _HandlerLoop()
        self._loop.set_task_factory(descendant)
        self._watch = LoopWatch(
            interval_s=min(0.25, blocked_after_s / 4),
            blocked_after_s=blocked_after_s,
            on_blocked=lambda found: on_blocked(self, found),
            name_of=_root_of,
        )
        self._thread = threading.Thread(target=self._run, name=name[:60], daemon=True)
        self._asked: deque[tuple[Context, Callable[..., None], tuple[object, ...]]] = deque()
        self._is_told = False
        self._hung = 0
        self._ending = False
        self._tasks: set[asyncio.Task[object]] = set()
        self._http: aiohttp.ClientSession | None = None

    @property
    def beats(self) -> int:
        """A number that goes up for as long as the loop is alive."""
        return self._watch.beats

    @property
    def http(self) -> aiohttp.ClientSession:
        """The session of this loop; ask on the loop only."""
        if self._http is None:
            self._http = open_session()
        return self._http

    def start(self) -> None:
        """Begin, in a thread of its own."""
        self._thread.start()
        self._loop.call_soon_threadsafe(self._watch.start)

    def call(self, what: Callable[..., None], *arguments: object) -> bool:
        """Have something called on the loop; False when it has ended. From another loop it is woken once for all that
        is asked of it in one round of that: to wake it takes a system call, and two threads then want to run."""
        if self._loop.is_closed():
            return False
        self._asked.append((copy_context(), what, arguments))
        if not self._is_told:
            self._is_told = True
            try:
                asyncio.get_running_loop().call_soon(self._wake)
            except RuntimeError:
                self._wake()  # from no loop
        return True

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # it has ended meanwhile, with all that was on it
            self._loop.call_soon_threadsafe(self._take_asked)

    def _take_asked(self) -> None:
        self._is_told = False  # first: what comes from now on wakes the loop again
        while self._asked:
            context, what, arguments = self._asked.popleft()
            self._loop.call_soon(what, *arguments, context=context)

    def create_task(self, work: Coroutine[object, object, T], matter: Matter) -> asyncio.Task[T]:
        """A task on the loop, of which what comes is `matter`; call on the loop only."""
        task = first_task(work, self._loop, matter)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def lose_threads(self, count: int) -> None:
        """So many of its threads hang in calls whose time is over; call on the loop only."""
        self._hung += count
        if self._hung >= HUNG_MOST:
            self._hung = 0
            self._loop.renew_threads()

    def give_up(self) -> None:
        """It does not come back: should it ever, it ends then."""
        self._ending = True
        self.call(self._loop.stop)

    async def stop(self, timeout_s: float) -> None:
        """End it: cancel what runs, close the session, join the thread, at most `timeout_s` seconds."""
        if not self._thread.is_alive():
            return
        done = threading.Event()
        self.call(lambda: self._end_soon(done))
        await asyncio.to_thread(done.wait, timeout_s)
        self._ending = True
        self.call(self._loop.stop)
        await asyncio.to_thread(self._thread.join, timeout_s)
        if self._thread.is_alive():
            _log.error("handler_loop_left_behind", loop=self.name)

    def _end_soon(self, done: threading.Event) -> None:
        ending = self._loop.create_task(self._end(), name="handler-loop:end")
        ending.add_done_callback(lambda _: done.set())

    async def _end(self) -> None:
        own = asyncio.current_task()
        await self._watch.stop()
        others = [task for task in asyncio.all_tasks() if task is not own]
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=ENDING_S)
        if self._http is not None:
            await self._http.close()

    def _run(self) -> None:
        while not self._ending:
            try:
                self._loop.run_forever()
            except BaseException as error:  # noqa: BLE001 - sys.exit() in a task that a handler left behind
                _log.exception("handler_loop_disturbed", loop=self.name, error=type(error).__name__)
        with contextlib.suppress(Exception):
            self._let_go()
        with contextlib.suppress(RuntimeError):
            self._loop.close()

    def _let_go(self) -> None:
        """What still runs gets a moment to end; what does not even then is left as it is, without a complaint."""
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        if left:
            self._loop.run_until_complete(asyncio.wait(left, timeout=LET_GO_S))
        for task in left:
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # as asyncio.gather itself does


def _root_of(task: asyncio.Task[Any]) -> str:
    matter = task.matter if isinstance(task, Descendant) else None
    return task.get_name() if matter is None else matter.name
