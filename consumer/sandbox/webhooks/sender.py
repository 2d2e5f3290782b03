"""Sender: carries out the deliveries that are due - per application in order, as many at once as the faults say."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import aiohttp

from consumer.sandbox.engine import records as r
from consumer.sandbox.engine.engine import Engine
from consumer.sandbox.webhooks.envelopes import body_bytes, envelope
from consumer.sandbox.webhooks.signatures import signature_headers

MAX_ANSWER_BYTES = 65_536

logger = logging.getLogger(__name__)


class Sender:
    """Runs in the background from `start` to `stop`. Woken when an event was made or time moved.

    `sent` counts the attempts that were made.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.sent = 0
        self._wake = asyncio.Event()
        self._idle = asyncio.Condition()
        self._active: dict[str, tuple[str, asyncio.Task[None]]] = {}
        self._http: aiohttp.ClientSession | None = None
        self._loop_task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin sending."""
        self._http = aiohttp.ClientSession(
            headers={"User-Agent": "payments-sandbox-webhooks/1"}, trust_env=False, cookie_jar=aiohttp.DummyCookieJar()
        )
        self._loop_task = asyncio.create_task(self._run(), name="sandbox-sender")

    async def stop(self) -> None:
        """End at once; what was not answered stays pending."""
        tasks = [task for _, task in self._active.values()]
        if self._loop_task is not None:
            tasks.append(self._loop_task)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._active.clear()
        if self._http is not None:
            await self._http.close()

    def wake(self) -> None:
        """Look again: something may be due."""
        self._wake.set()

    async def drained(self, timeout_s: float, *, force: bool = False) -> bool:
        """Wait until nothing that is due (with `force`: nothing never attempted) is left; False after `timeout_s`."""
        if force:
            self._engine.deliveries.force()
        self.wake()
        try:
            async with asyncio.timeout(timeout_s), self._idle:
                await self._idle.wait_for(lambda: not self._active and not self._engine.deliveries.ready())
        except TimeoutError:
            return False
        return True

    async def first_attempts(self, timeout_s: float) -> bool:
        """Wait until every pending delivery was attempted at least once; False after `timeout_s`."""
        self.wake()
        deliveries = self._engine.deliveries
        try:
            async with asyncio.timeout(timeout_s), self._idle:
                await self._idle.wait_for(lambda: not self._active and not deliveries.untried())
        except TimeoutError:
            return False
        return True

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            self._start_ready()
            if not self._active:
                async with self._idle:
                    self._idle.notify_all()
            await self._wake.wait()

    def _start_ready(self) -> None:
        """Begin what is due, as many per application at once as the fault `parallel` says."""
        deliveries = self._engine.deliveries
        parallel = int(self._engine.faults.number("parallel"))
        for app_id in deliveries.ready():
            busy = sum(1 for busy_app, _ in self._active.values() if busy_app == app_id)
            while busy < parallel and (delivery := deliveries.take(app_id)) is not None:
                if delivery.id in self._active:
                    continue  # it was forced, and its own time came while it is on the way
                task = asyncio.create_task(self._deliver(delivery), name=f"deliver-{delivery.id}")
                self._active[delivery.id] = (app_id, task)
                busy += 1

    async def _deliver(self, delivery: r.Delivery) -> None:
        try:
            status, error = await self._attempt(delivery)
            self._engine.deliveries.record(delivery.id, status=status, error=error)
        except Exception as error:  # a delivery that cannot even be built must not stop the others
            logger.exception("delivery %s failed inside the sandbox", delivery.id)
            self._engine.deliveries.record(delivery.id, status=None, error=f"sandbox: {type(error).__name__}")
        finally:
            self._active.pop(delivery.id, None)
            self._wake.set()

    async def _attempt(self, delivery: r.Delivery) -> tuple[int | None, str | None]:
        """One request. The receiver's status, or why there was none."""
        engine = self._engine
        event = engine.world.events.get(delivery.event_id)
        application = engine.world.applications.get(delivery.app_id)
        if self._http is None or event is None or application is None:
            return None, "the event is gone"
        self.sent += 1
        body = body_bytes(envelope(engine, event, sent_id=delivery.sent_event_id))
        secrets = application.webhook_secrets
        if delivery.wrong_signature:
            secrets = ("whsec_" + base64.b64encode(engine.world.chance.randbytes(24)).decode(),)
        wall = engine.assumptions.text("signature_time") == "wall"
        headers = signature_headers(
            engine.assumptions.text("signature"),
            secrets,
            message_id=delivery.sent_event_id,
            at=datetime.now(UTC) if wall else engine.clock.now(),
            body=body,
        )
        sent = body[: len(body) // 2] if delivery.truncate else body
        timeout = aiohttp.ClientTimeout(total=engine.assumptions.number("delivery_timeout_s"))
        data = _slowly(sent, delivery.slow_s) if delivery.slow_s else sent
        if delivery.slow_s:
            headers["Content-Length"] = str(len(sent))
        try:
            async with self._http.post(
                delivery.url,
                data=data,
                headers={"Content-Type": "application/json", **headers},
                timeout=timeout,
                allow_redirects=False,
            ) as answer:
                with contextlib.suppress(aiohttp.ClientError):
                    await answer.content.read(MAX_ANSWER_BYTES)
                return answer.status, None
        except TimeoutError:
            return None, "timeout"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return None, type(error).__name__


async def _slowly(body: bytes, pause_s: float) -> AsyncIterator[bytes]:
    half = len(body) // 2
    yield body[:half]
    await asyncio.sleep(pause_s)
    yield body[half:]
