"""Loop call: one attempt on its way to the loop of its handler, and back with its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial

from consumer.plugin import Handler
from consumer.retry import Failure
from consumer.work.execution.loop_thread import LoopThread
from consumer.work.execution.matter import Matter
from consumer.work.outcome import Failed, Outcome, failed

Attempt = Callable[[LoopThread], Coroutine[object, object, Outcome]]
"""What is to be done, given the loop it is done on."""

CANCELLED = Failed(Failure("handler_crashed", "the handler was cancelled from elsewhere"), "cancelled")

DISPLACED = Failed(
    Failure("handler_displaced", "another handler blocked the loop it ran on; it starts anew", after_s=0.0), "displaced"
)
ENDED = Failed(Failure("handler_displaced", "the loop it ran on has ended", after_s=0.0), "displaced")
NOT_BEGUN = Failed(
    Failure("handler_displaced", "the loop it waited for was blocked for all of its time; it starts anew", after_s=1.0),
    "displaced",
)
"""It has a wait: where its time is short and its loop late, it would be tried again at once, without end."""


class LoopCall:
    """Settled once, with the first outcome there is: the handler's, or that it was displaced. `future` brings it; or
    None when the handler's time is over, and is another one then."""

    def __init__(
        self,
        handler: Handler,
        attempt: Attempt,
        asker: asyncio.AbstractEventLoop,
        is_home: Callable[[LoopThread, Handler], bool],
    ) -> None:
        self.handler = handler
        self.future: asyncio.Future[Outcome | None] = asker.create_future()
        self.loop: LoopThread | None = None
        self.has_begun = False
        self.failure: Failed | None = None
        """What it ended with, where something of it goes on: that is cancelled, and then it is settled."""
        self._attempt = attempt
        self._asker = asker
        self._is_home = is_home
        self._task: asyncio.Task[None] | None = None
        self._matter: Matter | None = None
        self._is_late = False
        self._is_over = False

    @property
    def is_running(self) -> bool:
        """Whether the handler still runs, or work of it in a thread."""
        return self.threads > 0 or (self._task is not None and not self._task.done())

    @property
    def threads(self) -> int:
        """How many threads it holds."""
        return 0 if self._matter is None else len(self._matter.threads)

    @property
    def stuck_at(self) -> str | None:
        """Where what it left behind was begun, if that took all of its time."""
        return None if self._matter is None else self._matter.stuck_at

    def send_to(self, loop: LoopThread, *, on_moved: Callable[[LoopCall], None]) -> None:
        """Have it started on `loop`; `on_moved` hears when the handler lives elsewhere by then."""
        self.loop = loop
        if not loop.call(self._begin, loop, on_moved):
            self.settle(ENDED)

    def settle(self, outcome: Outcome) -> None:
        """From the asker's loop: this is what came of it, unless that is known already."""
        if not self.future.done():
            self.future.set_result(outcome)

    def pass_limit(self) -> None:
        """From the asker's loop: its time is over, unless it is settled, or it was over already."""
        if not self.future.done() and not self._is_late:
            self._is_late = True
            waiting, self.future = self.future, self._asker.create_future()
            waiting.set_result(None)

    def cancel(self) -> None:
        """From the asker's loop: stop the handler, or never start it."""
        self._is_over = True
        if self.loop is not None:
            self.loop.call(self._cancel)

    def lose_threads(self) -> int:
        """From the asker's loop: the attempt is over, and what threads it holds are not to be reckoned with. Returns
        how many that are."""
        if (count := self.threads) and self.loop is not None:
            self.loop.call(self.loop.lose_threads, count)
        return count

    # --- on the handler's loop ---------------------------------------------------------------------------------

    def _begin(self, loop: LoopThread, on_moved: Callable[[LoopCall], None]) -> None:
        if self._is_over or self.future.done():
            return
        self._matter = Matter(f"handler:{self.handler.name}", self.handler.function)
        self._task = loop.create_task(self._enter(loop, self._matter), self._matter)
        self._task.add_done_callback(partial(self._done, self._matter, on_moved))

    async def _enter(self, loop: LoopThread, matter: Matter) -> None:
        """The attempt; nothing when it was over while this stood in line, or the handler was moved elsewhere. How it
        ended is told from here: what is called behind it waits for whoever blocks the loop next. Of one that came to
        nothing nothing goes on: the next attempt would run beside it."""
        if self._is_over or not self._is_home(loop, self.handler):
            return
        self.has_begun = True
        try:
            outcome = await self._attempt(loop)
        except asyncio.CancelledError:
            await matter.stop()
            raise
        if matter.left and matter.goes_on:
            if isinstance(outcome, Failed) and not self._is_over:
                self.failure = outcome
                self._tell(self.pass_limit)
            await matter.stop()
        self._tell(self.settle, outcome)

    def _cancel(self) -> None:
        if self._task is not None and self._matter is not None:
            self._matter.is_cut = True
            self._task.cancel()

    def _done(self, matter: Matter, on_moved: Callable[[LoopCall], None], task: asyncio.Task[None]) -> None:
        matter.end()
        if task.cancelled():
            self._tell(self.settle, CANCELLED)
        elif (error := task.exception()) is not None:
            self._tell(self.settle, failed(error))
        elif not self.has_begun and not self._is_over:
            self._tell(on_moved, self)

    def _tell(self, what: Callable[..., None], *arguments: object) -> None:
        try:
            self._asker.call_soon_threadsafe(what, *arguments)
        except RuntimeError:
            return  # the worker has gone; the run's claim ends by itself
