"""A client on a running sandbox with one driven clock for both."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import aiohttp
import orjson

from consumer.payments import Attempt, CheckoutSession, Credentials, PaymentsClient, Priority
from consumer.sandbox import DEFAULT_APP_ID, DEFAULT_APP_SECRET, Sandbox, SandboxConfig
from tests.payments.support import SESSION_FIELDS


class SandboxTime:
    """The sandbox's driven clock as the client's: who waits moves it, and every timer on the way fires."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._start = sandbox.clock.now()

    def now(self) -> datetime:
        return self._sandbox.clock.now()

    def monotonic(self) -> float:
        return (self.now() - self._start).total_seconds()

    async def sleep(self, seconds: float) -> None:
        await self._sandbox.advance(max(seconds, 0.0))


@dataclass
class Stage:
    """The sandbox, its control addresses, and clients of its applications."""

    sandbox: Sandbox
    client: PaymentsClient
    attempts: list[Attempt]
    _http: aiohttp.ClientSession

    async def control(self, path: str, **body: Any) -> dict[str, Any]:
        """One call of a control address."""
        async with self._http.post(f"{self.sandbox.base_url}/_sandbox{path}", json=body) as response:
            document: dict[str, Any] = await response.json()
            assert response.status < 300, document
            return document

    async def shown(self, path: str) -> dict[str, Any]:
        """What a control address shows."""
        async with self._http.get(f"{self.sandbox.base_url}/_sandbox{path}") as response:
            document: dict[str, Any] = await response.json()
            return document

    async def created(self, **change: Any) -> CheckoutSession:
        """A session with its link."""
        return await self.client.checkout_sessions.create_from({**SESSION_FIELDS, **change})

    async def subscribed(self, **change: Any) -> str:
        """The id of a new active subscription."""
        session = await self.created(
            mode="subscription", price_id="svc_price_monthly", amount=None, description=None, **change
        )
        await self.control(f"/sessions/{session.id}/pay")
        newest = (await self.client.subscriptions.list()).items[0]
        assert newest.id is not None
        return newest.id

    async def posted(self, path: str, fields: Mapping[str, Any]) -> Any:
        """A POST that our own checks do not see, so that the service's are met."""
        return await self.client._caller.write(path, path, operation=path, body=orjson.dumps(fields))

    @asynccontextmanager
    async def another(
        self,
        secrets: list[str],
        *,
        app_id: str = DEFAULT_APP_ID,
        priority: Priority = Priority.LIVE,
        on_attempt: Callable[[Attempt], None] | None = None,
    ) -> AsyncIterator[PaymentsClient]:
        """Another client of the same sandbox."""
        async with PaymentsClient(
            self.sandbox.base_url,
            Credentials(app_id, secrets),
            clock=SandboxTime(self.sandbox),
            priority=priority,
            on_attempt=on_attempt,
        ) as client:
            yield client


@asynccontextmanager
async def stage(*, limits: bool = False, **assumptions: Any) -> AsyncIterator[Stage]:
    """A sandbox with a driven clock, and a client of its seeded application."""
    config = SandboxConfig(driven=True, seed=1, limits=limits, assumptions=assumptions)
    attempts: list[Attempt] = []
    async with Sandbox(config) as sandbox, aiohttp.ClientSession() as http:
        client = PaymentsClient(
            sandbox.base_url,
            Credentials(DEFAULT_APP_ID, [DEFAULT_APP_SECRET]),
            clock=SandboxTime(sandbox),
            on_attempt=attempts.append,
        )
        async with client:
            yield Stage(sandbox, client, attempts, http)
