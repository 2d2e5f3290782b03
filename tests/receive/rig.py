"""Rig: a real receiver on a free loopback port, with a real embedded broker or a recording one behind it."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from aiohttp import web
from standardwebhooks import Webhook

from consumer.broker import GroupReport
from consumer.broker.base import Broker, Message, Record, Subscription, TopicConfig, TopicReport
from consumer.broker.embedded.broker import EmbeddedBroker
from consumer.clock import Clock, DrivenClock
from consumer.events import Authenticity, Locators
from consumer.receive.authenticity import StandardWebhooks
from consumer.receive.decide import Endpoint
from consumer.receive.web import Limits, Receiver, receive_runner
from consumer.telemetry.metrics import Metrics

SECRET = "whsec_" + "aHVzaC1zZWNyZXQtb2YtdGhlLW1lcmNoYW50LTMyYg=="
NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
PRIVATE = "hush-ada@example.com"
BODY = orjson.dumps(
    {
        "id": "evt_1",
        "type": "order.paid",
        "created_at": "2026-03-01T11:59:58Z",
        "data": {"object": {"id": "ord_1", "order_id": "A-1", "customer_reference": PRIVATE}},
    }
)


@dataclass(frozen=True)
class Reply:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def code(self) -> str:
        """The refusal's code."""
        return str(orjson.loads(self.body)["code"])


class RecordingBroker:
    """A broker that keeps what is published, and answers as the test says."""

    def __init__(self) -> None:
        self.published: list[tuple[str, Message]] = []
        self.answer: Callable[[float], Awaitable[None]] | None = None

    def hold(self) -> tuple[asyncio.Event, asyncio.Event]:
        """Acknowledge nothing from now on until the second event is set; the first tells that something came."""
        came, release = asyncio.Event(), asyncio.Event()

        async def held(_: float) -> None:
            came.set()
            await release.wait()

        self.answer = held
        return came, release

    @property
    def identity(self) -> str | None:
        return None

    async def start(self) -> None: ...

    async def stop(self, timeout_s: float = 10.0) -> None: ...

    async def ensure_topics(self, topics: Iterable[TopicConfig]) -> None: ...

    async def look(self, topics: Iterable[TopicConfig]) -> Sequence[TopicReport]:
        return []

    async def publish(self, topic: str, message: Message, timeout_s: float = 5.0) -> None:
        if self.answer is not None:
            await self.answer(timeout_s)
        self.published.append((topic, message))

    async def publish_many(self, topic: str, messages: Sequence[Message], timeout_s: float = 30.0) -> None:
        for message in messages:
            await self.publish(topic, message, timeout_s)

    def subscribe(self, topics: Sequence[str], group: str, **_: Any) -> Subscription:
        raise NotImplementedError("nothing reads here")

    async def probe(self, topics: Iterable[str]) -> None: ...

    async def look_at_groups(self, groups: Mapping[str, str]) -> Sequence[GroupReport]:
        return ()

    async def check(self) -> bool:
        return True


@dataclass
class Rig:
    """A running receiver: its address, what lies behind it, and what it logged."""

    receiver: Receiver
    broker: Broker
    metrics: Metrics
    clock: DrivenClock
    logs: io.StringIO
    http: aiohttp.ClientSession
    port: int
    runner: web.ServerRunner
    groups: int = field(default=0)

    async def send(
        self,
        body: bytes = BODY,
        *,
        path: str = "/webhooks/default",
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """One request, as it is."""
        url = f"http://127.0.0.1:{self.port}{path}"
        sent = {"Content-Type": "application/json", **(headers or {})}
        async with self.http.request(method, url, data=io.BytesIO(body), headers=sent, allow_redirects=False) as answer:
            return Reply(answer.status, answer.headers, await answer.read())

    async def signed(self, body: bytes = BODY, *, age_s: float = 0, **more: Any) -> Reply:
        """One request with a valid signature of the library, `age_s` seconds old."""
        return await self.send(body, headers={**signature(body, self.clock, age_s), **more.pop("headers", {})}, **more)

    async def raw(self, data: bytes, *, answers: int = 1) -> bytes:
        """These bytes on a connection of their own; what comes back until so many answers have begun or it ends."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        got = b""
        try:
            async with asyncio.timeout(20):
                while got.count(b"HTTP/1.") < answers and (part := await reader.read(65536)):
                    got += part
        finally:
            writer.close()
        return got

    async def garbage(self, data: bytes) -> bytes:
        """The same for bytes that may be only half of a request: the line is closed when nothing comes for a while."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        got = b""
        try:
            async with asyncio.timeout(0.02):
                while part := await reader.read(65536):
                    got += part
        except (TimeoutError, ConnectionError):
            pass
        finally:
            writer.close()
        return got

    async def records(self, topic: str) -> list[Record]:
        """Everything that lies on a topic (`events` or `deliveries`) of the embedded broker."""
        self.groups += 1
        subscription = self.broker.subscribe([f"payments.{topic}"], f"look-{self.groups}")
        found: list[Record] = []
        await subscription.start()
        try:
            async with asyncio.timeout(20):
                while not subscription.assignment() or await self._unread(subscription, len(found)):
                    found += await subscription.poll(1000, 0.05)
        finally:
            await subscription.stop()
        return sorted(found, key=lambda record: record.published_at)

    async def _unread(self, subscription: Subscription, read: int) -> bool:
        return sum(lag.records for lag in (await subscription.lag()).values()) > read

    def count(self, outcome: str, application: str = "default") -> float:
        """How often an outcome was counted."""
        labels = {"application": application, "outcome": outcome}
        return self.metrics.registry.get_sample_value("consumer_receive_requests_total", labels) or 0.0


def signature(body: bytes, clock: Clock, age_s: float = 0, secret: str = SECRET) -> dict[str, str]:
    """The headers that the library `standardwebhooks` would send."""
    stamp = int(clock.now().timestamp() - age_s)
    signed = Webhook(secret).sign("msg_1", datetime.fromtimestamp(stamp, UTC), body.decode())
    return {"webhook-id": "msg_1", "webhook-timestamp": str(stamp), "webhook-signature": signed}


def endpoints() -> list[Endpoint]:
    """`default` with signatures, `hints` with `api`, `sandbox` with `none`, `odd` with locators of its own."""
    return [
        Endpoint(application="default", authenticity=Authenticity.SIGNATURE, signature=StandardWebhooks([SECRET])),
        Endpoint(application="hints"),
        Endpoint(application="sandbox", authenticity=Authenticity.NONE),
        Endpoint(application="odd", locators=Locators(id=("/envelope/n",), type=("/envelope/what",))),
    ]


def receiving(broker: Broker, limits: Limits) -> tuple[Receiver, Metrics, DrivenClock]:
    """A receiver of all applications."""
    metrics, clock = Metrics(), DrivenClock(NOW)
    receiver = Receiver(broker=broker, endpoints=endpoints(), clock=clock, metrics=metrics, limits=limits)
    return receiver, metrics, clock


@asynccontextmanager
async def running(broker: Broker, logs: io.StringIO, limits: Limits | None = None) -> AsyncIterator[Rig]:
    """A receiver on a free port until the block ends."""
    receiver, metrics, clock = receiving(broker, limits or Limits(body_timeout_s=5))
    runner = receive_runner(receiver)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession(auto_decompress=False) as http:
        port = int(runner.addresses[0][1])
        yield Rig(
            receiver=receiver,
            broker=broker,
            metrics=metrics,
            clock=clock,
            logs=logs,
            http=http,
            port=port,
            runner=runner,
        )
    await runner.cleanup()


@asynccontextmanager
async def embedded(path: Path) -> AsyncIterator[EmbeddedBroker]:
    """A started embedded broker with the topics of receiving."""
    broker = EmbeddedBroker(path / "log.db")
    await broker.start()
    await broker.ensure_topics(
        TopicConfig(name=f"payments.{name}", partitions=2, retention_s=None, max_record_bytes=1024 * 1024 + 65536)
        for name in ("events", "deliveries")
    )
    yield broker
    await broker.stop()
