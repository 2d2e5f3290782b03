"""Simulator: engine, clock, storage and sender as one object. What serves HTTP, and what plays stories, drives it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path
from typing import Any

from consumer.sandbox.assumptions import Assumptions
from consumer.sandbox.clock import SandboxClock
from consumer.sandbox.config import SandboxConfig
from consumer.sandbox.engine.engine import Engine
from consumer.sandbox.storage import Storage
from consumer.sandbox.webhooks.sender import Sender

ADVANCE_DELIVERY_BUDGET_S = 30.0
TICKER_MAX_WAIT_S = 1.0
TICKER_MIN_WAIT_S = 0.002

logger = logging.getLogger(__name__)


class Simulator:
    """The service without its HTTP face. `open` before use, `close` after it."""

    def __init__(self, config: SandboxConfig | None = None) -> None:
        self.config = config or SandboxConfig()
        self._ticker: asyncio.Task[None] | None = None
        self._due = asyncio.Event()
        self._advancing = asyncio.Lock()
        self._storage: Storage | None = None
        self._address: tuple[str, int] = (self.config.host, self.config.port)
        self._build()

    def _build(self) -> None:
        self.assumptions = Assumptions(self.config.assumptions)
        self.clock = SandboxClock(driven=self.config.driven, start=self.config.start)
        self.engine = Engine(self.config, self.clock, self.assumptions)
        self.engine.on_change = self._changed
        self.sender = Sender(self.engine)
        self.parcels: dict[str, dict[str, Any]] = {}

    # --- life --------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Begin sending, and let time pass. The state was loaded by `load`."""
        await self.sender.start()
        self._ticker = asyncio.create_task(self._tick(), name="sandbox-ticker")

    async def close(self) -> None:
        """Stop; the state is saved. Safe to call twice."""
        if self._ticker is not None:
            self._ticker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._ticker
            self._ticker = None
        await self.sender.stop()
        self.save()
        if self._storage is not None:
            self._storage.close()
            self._storage = None

    def load(self) -> None:
        """The state of the last run, or the seeded one. Raises StorageBroken."""
        if self.config.data_dir is None:
            self.engine.seed()
            return
        self._storage = Storage(Path(self.config.data_dir))
        if self._storage.load(self.engine):
            self.engine.restore()
            if self.config.webhook_url is not None:
                self.engine.applications.set_webhook(self.config.app_id, self.config.webhook_url)
        else:
            self.engine.seed()
        self.save()

    def save(self) -> None:
        """Write what changed, in one transaction, if the state is kept on disk."""
        if self._storage is not None:
            self._storage.save(self.engine)

    async def reset(self) -> None:
        """A fresh start: every record, fault, switch and clock as the sandbox was first started with."""
        async with self._advancing:
            await self.sender.stop()
            if self._storage is not None:
                self._storage.clear()
            self._build()
            self.engine.seed()
            self.save()
            await self.sender.start()

    # --- addresses ---------------------------------------------------------------------------------------------

    @property
    def base_url(self) -> str:
        """Where the API is served, without a slash at the end."""
        host, port = self._address
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def link(self, token: str) -> str:
        """The payment link of a session."""
        return f"{self.base_url}/checkout/{token}"

    def set_webhook_url(self, url: str | None) -> None:
        """The webhook endpoint of the seeded application."""
        self.engine.applications.set_webhook(self.config.app_id, url)

    # --- time and deliveries -----------------------------------------------------------------------------------

    async def advance(self, seconds: float) -> None:
        """Move the time; every timer on the way fires in order, and its webhooks are sent before the next one.

        Waiting for receivers is bounded in all by 30 s of real time; what is not answered by then goes on by itself.
        """
        async with self._advancing:
            loop = asyncio.get_running_loop()
            until = loop.time() + ADVANCE_DELIVERY_BUDGET_S
            target = self.engine.world.in_seconds(seconds)
            going_on = True
            while going_on:
                going_on = self.engine.advance_step(target)
                budget_s = until - loop.time()
                if budget_s > 0:
                    await self.sender.drained(budget_s)
            self.save()
            self._due.set()

    async def deliver_pending(self, timeout_s: float = 30.0) -> bool:
        """Attempt now whatever was never attempted, even if it is held back; False if `timeout_s` was too short."""
        return await self.sender.drained(timeout_s, force=True)

    async def settled(self, timeout_s: float = 30.0) -> bool:
        """Wait until every delivery was attempted; False if `timeout_s` was too short.

        A driven clock stands still, so there the deliveries held back by faults are attempted at once.
        """
        if self.config.driven:
            return await self.deliver_pending(timeout_s)
        return await self.sender.first_attempts(timeout_s)

    def _changed(self) -> None:
        self.sender.wake()
        self._due.set()

    async def _tick(self) -> None:
        """Fire timers as time passes. A driven clock never passes by itself, but may be moved from outside."""
        while True:
            self._due.clear()
            try:
                if not self._advancing.locked() and self.engine.run_due():
                    self.save()
                    self.sender.wake()
            except Exception:  # one bad timer must not stop the sandbox's time
                logger.exception("a timer failed inside the sandbox")
            # Not wait_for: on 3.11 it may swallow the cancellation that stops us.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._seconds_to_next()):
                    await self._due.wait()

    def _seconds_to_next(self) -> float:
        due_at = self.engine.next_due()
        if due_at is None or self.config.driven or self._advancing.locked():
            return TICKER_MAX_WAIT_S
        return min(TICKER_MAX_WAIT_S, max(TICKER_MIN_WAIT_S, (due_at - self.clock.now()).total_seconds()))
