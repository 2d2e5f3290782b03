"""Loop: how a stage's step is repeated until it is told to stop, and what is said when steps fail."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import structlog

from consumer.clock import Clock, rest, until_tick
from consumer.errors import ConsumerError, code_of
from consumer.payments import AuthenticationError, CircuitOpen
from consumer.retry import Lasting, RetryPolicy

LOG = structlog.get_logger()

STOP_GRACE_S = 0.5
"""Enough to publish and note what was read. A walk takes longer than any grace: it is cut, and goes on from there."""
TOOK_MAX_S: Final = 30.0
# The first call with refused credentials fails with the one, those after it with the other.
REFUSED: Final = frozenset({AuthenticationError.code, CircuitOpen.code})
_BACKOFF = RetryPolicy(attempts=1000, first_s=1.0, factor=2.0, ceiling_s=10.0, jitter=0.0)


class StageFailure:
    """Says that something fails, now and then while it lasts, and once that it works again; counts the failures in
    between. `error`: the last one, `code`: its code; both None while all is well. `took_s`: how long the first failing
    step had tried, at most TOOK_MAX_S: who waits for an answer that does not come is held up from then on."""

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self.code: str | None = None
        self._lasting = Lasting()
        self.error: Exception | None = None
        self.times = 0
        self.took_s = 0.0

    def failed(self, error: Exception, took_s: float = 0.0) -> None:
        """A step failed after so long. Logged, with the error's fields, when its code is another than before: as an
        error where somebody has to do something about it (refused credentials, and what trying again does not mend).
        """
        self.took_s = self.took_s if self.times else min(took_s, TOOK_MAX_S)
        self.times += 1
        code = code_of(error)
        self.code, self.error = code, error
        if not self._lasting.says("refused" if code in REFUSED else code):
            return
        if isinstance(error, ConsumerError):
            say = LOG.warning if error.retryable and code not in REFUSED else LOG.error
            say("stage_held_up", stage=self._stage, code=code, reason=error.line(), for_s=self._lasting.for_s)
        else:
            LOG.error("stage_broke", stage=self._stage, code=code, exc_info=error)

    def well(self) -> None:
        """A step went through."""
        if self.code is not None:
            LOG.info("stage_held_up_over", stage=self._stage, was=self.code, failures=self.times)
        self.code = self.error = None
        self._lasting.over()
        self.times = 0

    def wait_s(self) -> float:
        """Seconds to wait after the failures so far."""
        return _BACKOFF.wait_s(max(1, self.times), 0)


class Stage(ABC):
    """Does its step again and again. `failure`: what holds it up."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._clock = clock
        self.failure = StageFailure(name)

    @abstractmethod
    async def _step(self) -> float:
        """Do it once; returns the seconds to wait before the next time. It may be cut anywhere."""

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`. A failing step never ends the stage: it is said once and tried again with growing waits. At
        `stop` a step under way gets STOP_GRACE_S seconds, then it is cancelled."""
        while not stop.is_set():
            began_s = self._clock.monotonic()
            try:
                wait_s = await _until(self._step, stop)
            except Exception as error:  # noqa: BLE001 - a stage outlives its step's failures, whatever they are
                self.failure.failed(error, self._clock.monotonic() - began_s)
                wait_s = self.failure.wait_s()
            else:
                if wait_s is None:
                    return
                self.failure.well()
                wait_s = until_tick(self._clock, wait_s)
            await self._rest(wait_s, stop)

    async def _rest(self, seconds: float, stop: asyncio.Event) -> None:
        await rest(self._clock, seconds, stop)


class WokenStage(Stage):
    """A stage that others of this process have work for: to set `wake` cuts the wait for the next step."""

    def __init__(self, name: str, clock: Clock) -> None:
        super().__init__(name, clock)
        self.wake = asyncio.Event()

    async def _rest(self, seconds: float, stop: asyncio.Event) -> None:
        await rest(self._clock, seconds, stop, self.wake)
        self.wake.clear()


async def _until(step: Callable[[], Coroutine[Any, Any, float]], stop: asyncio.Event) -> float | None:
    """The step's result; None when it was cut by `stop`."""
    work = asyncio.create_task(step())
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((work, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            await asyncio.wait((work,), timeout=STOP_GRACE_S)
        return work.result() if work.done() else None
    finally:
        await _ended([work, stopping])


async def together(*works: Coroutine[Any, Any, None]) -> None:
    """Do them side by side. The first that fails ends the others; its exception is raised when all are over."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        await _ended(tasks)


async def _ended(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
