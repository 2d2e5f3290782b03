"""The consumer in one process beside an odd service: receiving, sync's stages and a worker, each in its turn, in driven
time. What any of them raises ends the test: no role stops."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final

from standardwebhooks import Webhook

from consumer.broker import EmbeddedBroker, Message
from consumer.broker.base import next_offsets
from consumer.events import Authenticity
from consumer.ledger import Database
from consumer.payments import Credentials, PaymentsClient
from consumer.receive.authenticity import StandardWebhooks
from consumer.receive.decide import Endpoint, decide
from consumer.sync.api import ApplicationApi
from consumer.sync.refresh.stage import Refresh
from consumer.wire import unpack_delivery
from tests.hostile.every_object.kept import Kept
from tests.hostile.every_object.objects import OddService, Told
from tests.hostile.texts import written
from tests.support.handling.live import Live
from tests.support.load import SECRET
from tests.support.loopback import LoopbackServer
from tests.sync.confirm.test_no_delivery_is_lost_on_its_way_to_a_hint import hint_consumer
from tests.sync.confirming import stages
from tests.sync.conftest import EVENTS, SteppedClock, World
from tests.sync.reconciling import baselined, reconcile

LIVE: Final = ("ACTIVE", "PAST_DUE")
ALL: Final = 1_000_000
ROUND_S, WALK_EVERY_S = 2.0, 10.0
ENDPOINTS: Final = {
    Authenticity.API: Endpoint(application="default"),
    Authenticity.SIGNATURE: Endpoint(
        application="default", authenticity=Authenticity.SIGNATURE, signature=StandardWebhooks([SECRET])
    ),
}


def signed(name: str, body: bytes, at: datetime) -> dict[str, str]:
    """The headers of a webhook, signed."""
    signature = Webhook(SECRET).sign(name, at, body.decode())
    return {"webhook-id": name, "webhook-timestamp": str(int(at.timestamp())), "webhook-signature": signature}


class Household:
    """All that takes part."""

    def __init__(self, world: World, live: Live, service: OddService) -> None:
        self.world, self.service, self.kept = world, service, Kept(world.database, service)
        self._live = live
        self._hints = hint_consumer(world, max_hints=ALL)
        self._confirm, self.backfill = stages(world)
        self._refresh = Refresh(world.app, world.publisher)
        self._walk_at = 0.0
        self._events = world.broker.subscribe((EVENTS,), "work")

    async def start(self) -> None:
        await self._events.start()
        await self.backfill.once()  # what happens from now on is no history
        await baselined(self.world)

    async def stop(self) -> None:
        await self._events.stop()
        await self._hints.close()

    async def webhook(self, one: Told, authenticity: Authenticity) -> int:
        """The service sends the event; how it was answered."""
        body, now = written(self.service.event(one)), self.world.clock.now()
        trace = f"00-{one.number + 1:032x}-2222222222222222-01"
        headers = signed(f"msg_{one.number}", body, now)
        topic, message, answer, _ = decide(ENDPOINTS[authenticity], body, headers, now, trace)
        if topic == "events":
            await self.world.broker.publish_many(EVENTS, [message])
        else:
            await self.world.deliver(unpack_delivery(message.key, message.value, message.headers))
        return answer.status

    async def round(self) -> None:
        """Every stage once, in its turn; some seconds pass."""
        await self._hints.once(0.001)
        await self._confirm.once()
        if self.world.clock.monotonic() >= self._walk_at:
            self._walk_at = self.world.clock.monotonic() + WALK_EVERY_S
            await self.backfill.once()
        await self._refresh.once()
        await self.work()
        self.world.clock.advance(ROUND_S)

    async def walk(self) -> int:
        """A walk of the service's lists; how many records it could not place."""
        report = await reconcile(self.world).once(max_changes=ALL)
        await self.work()
        return report.unplaced

    async def work(self) -> None:
        """What is on topic `events` is taken in, what is due is made up for."""
        self._live.clock.advance((self.world.clock.now() - self._live.clock.now()).total_seconds())
        while records := await self._events.poll(500, 0.001):
            await self._live.take(*(Message(key=one.key, value=one.value, headers=one.headers) for one in records))
            await self._events.commit(next_offsets(records))
        while await self._live.relay() + await self._live.make_up():
            pass


@asynccontextmanager
async def household(
    broker: EmbeddedBroker, database: Database, oddly: Collection[str], lists: Collection[str]
) -> AsyncIterator[Household]:
    """It, with nothing told yet."""
    service, clock = OddService(oddly, lists), SteppedClock()
    plugins: dict[str, dict[str, Any]] = {"fulfilment": {}, "access": {"brake": None}}
    live = Live(database, plugins, application="default")
    async with (
        LoopbackServer(service.answer, "") as server,
        PaymentsClient(server.url, Credentials("svc_app_test", ["svc_sk_live_test"]), clock=clock) as client,
    ):
        api = ApplicationApi(application="default", client=client)
        world = World(broker=broker, database=database, service=None, api=api, clock=clock)  # type: ignore[arg-type]  # no scripted service here
        found = Household(world, live, service)
        await found.start()
        try:
            yield found
        finally:
            await found.stop()
            await live.close()
