"""Loop: everything that a simulation runs, in one thread. Its time jumps to the next timer, so an hour costs what
happens in it. Each process is a part of it that can be stopped for a while, or killed between any two of its steps."""

from __future__ import annotations

import asyncio
import ctypes
import selectors
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from datetime import datetime, timedelta
from typing import Any, TypeVar

from consumer.clock import Clock
from consumer.work.execution.matter import Matter

Task = asyncio.Task[Any]
H = TypeVar("H", bound=asyncio.Handle)


class Process:
    """What belongs together and dies together: its tasks, and the files it has open."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_dead = False
        self.is_stopped = False
        self.stood_still = False
        self.context = copy_context()
        self.context.run(_here.set, self)
        self.tasks: list[Task] = []
        self.on_death: list[Callable[[], None]] = []
        self._due: list[_Step] = []

    def start(self, work: Coroutine[Any, Any, Any]) -> Task:
        """Have it done in this process."""
        return asyncio.get_running_loop().create_task(work, context=self.context)

    def kill(self) -> None:
        """It does not take another step, and nothing of it is tidied up; its files are closed as a kernel would."""
        assert not self.is_dead
        self.is_dead = True
        for close in self.on_death:
            close()
        _DEAD.extend(self.tasks)

    def stop(self) -> None:
        """It stands still, as one whose machine is paused: its clock goes on, and what it holds runs out."""
        self.is_stopped = self.stood_still = True

    def go_on(self) -> None:
        """It goes on where it stood."""
        self.is_stopped = False
        due, self._due = self._due, []
        for step in due:
            asyncio.get_running_loop().call_soon(step, context=step.context)

    def take(self, step: _Step) -> None:
        """One step of it; none when it is dead, or the step was cancelled, later when it is stopped."""
        if self.is_stopped:
            self._due.append(step)
        elif not self.is_dead and not step.is_cancelled:
            step.callback(*step.arguments)


class _Step:
    """What the loop was asked to call in a process. It may be cancelled while the process stands still, too."""

    handle: asyncio.Handle | None = None

    def __init__(self, process: Process, callback: Callable[..., object], arguments: Any, context: Context) -> None:
        self.process = process
        self.callback = callback
        self.arguments = arguments
        self.context = context

    @property
    def is_cancelled(self) -> bool:
        return self.handle is not None and self.handle.cancelled()

    def __call__(self) -> None:
        self.process.take(self)


_DEAD: list[Task] = []
"""Nobody collects them: a coroutine that is collected half way runs to its end, as if it had been cancelled."""
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_DEAD))  # not at the interpreter's end, either

_here: ContextVar[Process | None] = ContextVar("simulated_process", default=None)


def here() -> Process | None:
    """The process that is at work; None for the world around."""
    return _here.get()


class _Jump(selectors.DefaultSelector):
    """Waits for nobody: whatever would be waited for is a timer."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "nothing will ever happen again"
        self.now_s += max(0.0, timeout)
        return []


class SimulatedLoop(asyncio.SelectorEventLoop):
    """See the module."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)
        self.set_task_factory(_made)

    def time(self) -> float:
        """Seconds since it began."""
        return self._jump.now_s

    def _call_soon(self, callback: Any, args: Any, context: Context | None) -> asyncio.Handle:
        callback, args, context = _guarded(callback, args, context)
        handle: asyncio.Handle = super()._call_soon(callback, args, context)  # type: ignore[misc]  # asyncio's own
        return _held(callback, handle)

    def call_at(  # type: ignore[override]  # as asyncio's, whose types bind the arguments to the callback
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """A timer, as asyncio's; the dead hear none."""
        callback, args, context = _guarded(callback, args, context)
        return _held(callback, super().call_at(when, callback, *args, context=context))

    def _write_to_self(self) -> None:
        """There is nobody to be woken."""


def _guarded(callback: Any, args: Any, context: Context | None) -> tuple[Any, Any, Context]:
    context = context or copy_context()
    process = context.get(_here)
    if process is None or isinstance(callback, _Step):
        return callback, args, context
    return _Step(process, callback, args, context), (), context


def _held(callback: Any, handle: H) -> H:
    if isinstance(callback, _Step) and callback.handle is None:
        callback.handle = handle
    return handle


def _made(loop: asyncio.AbstractEventLoop, work: Any, **named: Any) -> Task:
    process = (named.get("context") or copy_context()).get(_here)
    task = asyncio.Task(work, loop=loop, **named)
    if process is not None:
        process.tasks = [one for one in process.tasks if not one.done()]
        process.tasks.append(task)
    return task


class SimulatedClock(Clock):
    """The loop's time, as everybody's."""

    def __init__(self, loop: asyncio.AbstractEventLoop, start: datetime) -> None:
        self._loop, self._start = loop, start

    def now(self) -> datetime:
        """See Clock."""
        return self._start + timedelta(seconds=self._loop.time())

    def monotonic(self) -> float:
        """See Clock."""
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        """See Clock."""
        await asyncio.sleep(seconds)


class SameLoop:
    """In the place of a handlers' loop in a thread (`work/execution/loop_thread.py`): this loop."""

    http = None

    def __init__(self, name: str, **_: Any) -> None:
        self.name = name
        self._tasks: set[Task] = set()
        self._is_over = False

    @property
    def beats(self) -> int:
        """A number that goes up."""
        return int(asyncio.get_running_loop().time() * 1000)

    def start(self) -> None:
        """It runs already."""

    def call(self, what: Callable[..., None], *arguments: object) -> bool:
        """Have it called soon."""
        if not self._is_over:
            asyncio.get_running_loop().call_soon(what, *arguments)
        return not self._is_over

    def create_task(self, work: Coroutine[Any, Any, Any], matter: Matter) -> Task:
        """A task."""
        task = asyncio.get_running_loop().create_task(work, name=matter.name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def give_up(self) -> None:
        """Nobody begins here any more."""
        self._is_over = True

    async def stop(self, timeout_s: float) -> None:
        """End what runs."""
        self._is_over = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
