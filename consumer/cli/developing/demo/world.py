"""World: the sandbox and all roles of the consumer in one process, and how to look at them from outside."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote

import aiohttp
from pydantic import SecretStr
from standardwebhooks import Webhook

from consumer.app import App, log_parts
from consumer.app.sync_parts import sync_policy
from consumer.cli.developing.demo import shop
from consumer.cli.developing.dev import SandboxTime, build_everything
from consumer.console.invariants.check import Check as Accounts
from consumer.console.invariants.report import Report
from consumer.console.invariants.service import FreshWalk
from consumer.events import Authenticity
from consumer.ledger import health
from consumer.ledger.handling import runs
from consumer.ledger.tables import RunStatus
from consumer.lists.bookmark import Bookmark
from consumer.sandbox import Sandbox, SandboxConfig
from consumer.sandbox.engine.records import Event as SandboxEvent
from consumer.sandbox.webhooks.envelopes import body_bytes, envelope
from consumer.settings import ApplicationSettings, Role, load_settings
from consumer.sync.api import ApplicationApi
from consumer.sync.publisher import EventPublisher
from consumer.sync.reconcile.lists import ServiceLists
from consumer.sync.role import ApplicationSync
from consumer.telemetry.logs import configure_logging
from consumer.telemetry.metrics import Metrics

PATIENCE_S = 20.0
LOOK_EVERY_S = 0.05


@dataclass(frozen=True)
class Check:
    """One outcome: what it should be, and what was found from outside."""

    what: str
    expected: Any
    found: Any

    @property
    def good(self) -> bool:
        """Whether it is as expected."""
        return bool(self.expected == self.found)

    def shown(self) -> str:
        """One line for people."""
        mark = "ok  " if self.good else "FAIL"
        return f"  {mark} {self.what}: expected {self.expected}, found {self.found}"

    def document(self) -> dict[str, Any]:
        """The same for a program."""
        return {"what": self.what, "expected": self.expected, "found": self.found, "good": self.good}


class World:
    """What a scenario holds in its hands."""

    def __init__(
        self, sandbox: Sandbox, app: App, http: aiohttp.ClientSession, book: shop.Book, secret_file: Path
    ) -> None:
        self._secret_file = secret_file
        self.sandbox = sandbox
        self.book = book
        self._app = app
        self._http = http

    @property
    def addresses(self) -> Mapping[str, str | None]:
        """Where everything listens."""
        return {
            "sandbox": self.sandbox.base_url,
            "webhooks": f"{self._app.public_url}/webhooks/default",
            "internal": self._app.internal_url,
        }

    # --- acting from outside -----------------------------------------------------------------------------------

    async def send(self, body: bytes, headers: Mapping[str, str]) -> int:
        """A webhook request as anybody could send it; its status."""
        address = f"{self._app.public_url}/webhooks/default"
        async with self._http.post(
            address, data=body, headers={"Content-Type": "application/json", **headers}
        ) as answer:
            return answer.status

    async def deliver(self, event: SandboxEvent, *, times: int = 1) -> list[int]:
        """Deliver an event of the service by hand, signed; the statuses."""
        body = body_bytes(envelope(self.sandbox.engine, event))
        event_id = event.id.rpartition("/")[2]
        at = self._app.clock.now()
        secret = self.sandbox.config.webhook_secrets[0]
        headers = {
            "webhook-id": event_id,
            "webhook-timestamp": str(int(at.timestamp())),
            "webhook-signature": Webhook(secret).sign(event_id, at, body.decode()),
        }
        return [await self.send(body, headers) for _ in range(times)]

    def rotate_secret(self, secret: str) -> None:
        """The merchant puts the new API secret into its file; nothing is restarted (case S4)."""
        self._secret_file.write_text(secret)

    def events(self, object_id: str) -> dict[str, SandboxEvent]:
        """The service's events about an object, by type; the newest of each."""
        found = (event for event in self.sandbox.engine.world.events if event.object_id == object_id)
        return {event.type: event for event in sorted(found, key=lambda event: event.seq)}

    # --- looking from outside ----------------------------------------------------------------------------------

    async def get(self, path: str) -> dict[str, Any]:
        """An answer of the query API; `{}` for 404."""
        async with self._http.get(f"{self._app.internal_url}{path}") as answer:
            return {} if answer.status == 404 else await answer.json()

    async def order(self, order_id: str) -> str:
        """Fulfilment of an order as the query API tells it: none, requested, fulfilled, failed."""
        return str((await self.get(f"/api/orders/{quote(order_id, safe='')}")).get("fulfilment", "none"))

    async def fulfilment_of(self, order_id: str) -> tuple[str, int]:
        """Fulfilment of an order as the query API tells it, and how many parcels left."""
        return await self.order(order_id), self.book.shipments(order_id)

    async def effects_of(self, events: list[dict[str, str]]) -> int:
        """How many effects these events of the service had, by the ledger."""
        async with self._app.database.reading() as session:
            found = [await runs.of_event(session, "default", event["id"]) for event in events]
        return sum(
            row.status == RunStatus.SUCCEEDED and row.handler.startswith("demo:") for rows in found for row in rows
        )

    @property
    def metrics(self) -> Metrics:
        """The consumer's own numbers."""
        return self._app.metrics

    async def account(self) -> Report:
        """Every micro-USDC that the service shows, explained: reconciled first, then held against a fresh walk."""
        database, clock, settings = self._app.database, self._app.clock, self._app.settings
        client = (await self._app.payments())["default"]
        api = ApplicationApi(application="default", client=client, locators=self._app.locators["default"])
        publisher = EventPublisher(self._app.broker, log_parts.topic(settings, "events"))
        sync = ApplicationSync(api, database, publisher, clock=clock, holder="account", policy=sync_policy(settings))
        await sync.reconcile_once()
        await self.quiet()
        service = FreshWalk(database, {"default": ServiceLists(sync.app)})
        return await Accounts(database, service, settings.handler_options, clock.now()).run("default")

    async def has_walked(self) -> bool:
        """Whether the service's events were walked to their end at least once."""
        async with self._app.database.reading() as session:
            state = await Bookmark.of(session, "default")
        return state.walked_at is not None

    async def access(self, customer: str) -> bool:
        """Whether the query API lets a customer in."""
        return bool((await self.get(f"/api/customers/{quote(customer, safe='')}/access")).get("allowed", False))

    async def subscription(self, subscription_id: str) -> str:
        """A subscription's status as the query API tells it."""
        return str((await self.get(f"/api/subscriptions/{quote(subscription_id, safe='')}")).get("status", "unknown"))

    async def expect(self, what: str, expected: Any, look: Callable[[], Awaitable[Any]]) -> Check:
        """Look until the outcome is as expected, for a bounded time, and once more when all is quiet."""
        found = await look()
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        while found != expected and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(LOOK_EVERY_S)
            found = await look()
        await self.quiet()
        return Check(what, expected, await look())

    async def quiet(self) -> None:
        """Wait until nothing is under way: no delivery, record, run, derived event, hint or read; bounded."""
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        while asyncio.get_running_loop().time() < deadline:
            if await self.sandbox.settled() and await self._is_quiet():
                return
            await asyncio.sleep(LOOK_EVERY_S)

    async def _is_quiet(self) -> bool:
        worker = self._app.worker
        if worker is None or not worker.polls or any(lag.records for lag in (await worker.lag()).values()):
            return False
        async with self._app.database.reading() as session:
            figures = await health.figures(session, self._app.clock.now())
        return not (figures.oldest_due_at or figures.outbox_waiting or figures.hints or figures.reads_due)


async def open_world(
    stack: AsyncExitStack,
    folder: Path,
    *,
    assumptions: Mapping[str, Any] | None = None,
    settings_more: Mapping[str, str] | None = None,
) -> World:
    """Start everything on free ports of the loopback, in a folder of its own.

    `assumptions`: how the service behaves where its documentation is silent. `settings_more`: other settings, by name.
    """
    configure_logging("error", "auto")
    assumed = {"signature_time": "sandbox", **(assumptions or {})}
    sandbox = await stack.enter_async_context(Sandbox(SandboxConfig(seed=1, assumptions=assumed)))
    environ = {
        "CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{folder}/consumer.db",
        "CONSUMER_BROKER_URL": f"embedded:{folder}/log.db",
        "CONSUMER_PORT": "0",
        "CONSUMER_INTERNAL_PORT": "0",
        "CONSUMER_SYNC_INTERVAL_S": "1",
        **(settings_more or {}),
    }
    settings = load_settings(environ, Role.DEMO)
    secret_file = folder / "app-secret"
    secret_file.write_text(sandbox.config.app_secret)
    application = ApplicationSettings(
        name="default",
        base_url=sandbox.base_url,
        app_id=sandbox.config.app_id,
        app_secrets=(),
        secret_file=secret_file,
        authenticity=Authenticity.SIGNATURE,
        webhook_secrets=tuple(SecretStr(secret) for secret in sandbox.config.webhook_secrets),
    )
    settings = settings.model_copy(update={"applications": (application,)})
    book = shop.book
    plugins: dict[str, ModuleType] = {"demo": shop}
    app = await stack.enter_async_context(App(settings, clock=SandboxTime(sandbox.engine.clock), plugins=plugins))
    await build_everything(app, clock=sandbox.engine.clock)
    sandbox.set_webhook_url(f"{app.public_url}/webhooks/default")
    await _until_ready(app)
    http = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)))
    return World(sandbox, app, http, book, secret_file)


async def _until_ready(app: App) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await app.ready():  # noqa: ASYNC110 - readiness is asked for, nobody announces it
            await asyncio.sleep(LOOK_EVERY_S)


__all__ = ["Check", "World", "open_world"]
