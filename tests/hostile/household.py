"""The consumer in one process beside an odd service: receiving, sync's stages and a worker, each once a round, in driven
time. What any of them raises ends the test: no role stops."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final

from sqlalchemy import Table, func, select
from standardwebhooks import Webhook

from consumer.broker import EmbeddedBroker, Message
from consumer.broker.base import next_offsets
from consumer.document import parse
from consumer.errors import NotUnderstood
from consumer.events import identify
from consumer.ledger import Database
from consumer.ledger.tables import EventRow, HintRow, OutboxRow, QuarantineRow, RunRow
from consumer.payments import Credentials, PaymentsClient
from consumer.payments.models import dumped
from consumer.receive.authenticity import Authenticity, StandardWebhooks
from consumer.receive.decide import Endpoint, decide
from consumer.sync.backfill.page import LISTED
from consumer.sync.refresh.stage import Refresh
from consumer.wire import unpack_delivery
from handlers.access.tables import ENTITLEMENTS, SUBSCRIPTIONS
from handlers.fulfilment.tables import ORDERS
from tests.hostile.objects import OddService, Told
from tests.hostile.texts import written
from tests.support.handling.live import Live
from tests.support.load import SECRET
from tests.support.loopback import LoopbackServer
from tests.sync.confirm.test_no_delivery_is_lost_on_its_way_to_a_hint import hint_consumer
from tests.sync.confirming import stages
from tests.sync.conftest import EVENTS, LOCATORS, SteppedClock, World
from tests.sync.reconciling import baselined, reconcile

TRACE: Final = "00-11111111111111111111111111111111-2222222222222222-01"
LIVE: Final = ("ACTIVE", "PAST_DUE")
ALL: Final = 1_000_000
ENDPOINTS: Final = {
    Authenticity.API: Endpoint(application="default"),
    Authenticity.SIGNATURE: Endpoint(
        application="default", authenticity=Authenticity.SIGNATURE, signature=StandardWebhooks([SECRET])
    ),
}


class Household:
    """All that takes part. `seconds_of` says how long each plain thing took, in driven time."""

    def __init__(self, world: World, live: Live, service: OddService) -> None:
        self.world, self.service = world, service
        self._live = live
        self._hints = hint_consumer(world, max_hints=ALL)
        self._confirm, self.backfill = stages(world)
        self._refresh = Refresh(world.app, world.publisher)
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
        headers = {
            "webhook-id": f"msg_{one.number}",
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": Webhook(SECRET).sign(f"msg_{one.number}", now, body.decode()),
        }
        topic, message, answer, _ = decide(
            ENDPOINTS[authenticity], body, headers, now, TRACE[:3] + f"{one.number:032x}" + TRACE[35:]
        )
        if topic == "events":
            await self.world.broker.publish_many(EVENTS, [message])
        else:
            await self.world.deliver(unpack_delivery(message.key, message.value, message.headers))
        return answer.status

    async def round(self) -> None:
        """Every stage once; a second passes."""
        await self._hints.once(0.001)
        await self._confirm.once()
        await self.backfill.once()
        await self._refresh.once()
        await self.work()
        self.world.clock.advance(1)

    async def walk(self) -> tuple[int, int]:
        """A walk of the service's lists; how many records it saw, and how many of them it could not place."""
        report = await reconcile(self.world).once(max_changes=ALL)
        await self.work()
        return report.listed.total(), report.unplaced

    async def work(self) -> None:
        """What is on topic `events` is taken in, what is due is made up for."""
        self._live.clock.advance((self.world.clock.now() - self._live.clock.now()).total_seconds())
        while records := await self._events.poll(500, 0.001):
            await self._live.take(*(Message(key=one.key, value=one.value, headers=one.headers) for one in records))
            await self._events.commit(next_offsets(records))
        while await self._live.relay() + await self._live.make_up():
            pass

    async def lacking(self, told: Sequence[Told]) -> list[str]:
        """Those of which the consumer does not hold what the service's state says, by key."""
        requested = {row["order_id"] for row in await self.rows(ORDERS) if row["requested_at"]}
        subscriptions = {row["subscription_id"]: row for row in await self.rows(SUBSCRIPTIONS)}
        allowed = {row["customer"] for row in await self.rows(ENTITLEMENTS) if row["allowed"]}
        found = []
        for one in told:
            if one.subject == "order":
                found += [] if one.key in requested else [one.key]
                continue
            row = subscriptions.get(one.key, {"status": None, "customer": None})
            has = row["status"] == one.status and row["customer"] is not None
            found += [] if has and (one.status not in LIVE or row["customer"] in allowed) else [one.key]
        return found

    async def wrong(self) -> list[str]:
        """Customers who have access although none of their subscriptions is live, or have none although one is; orders
        that were requested more than once; runs that neither ended nor say why."""
        rows = await self.rows(SUBSCRIPTIONS)
        entitled = {row["customer"] for row in rows if row["status"] in LIVE}
        access = {row["customer"]: row["allowed"] for row in await self.rows(ENTITLEMENTS)}
        found = [f"access of {ascii(one)[:40]}" for one, has in access.items() if has is not (one in entitled)]
        asked = Counter(row["key"] for row in await self.rows(OutboxRow.__table__, type="fulfilment.requested"))
        found += [f"{key} requested {times} times" for key, times in asked.items() if times > 1]
        runs = await self.rows(RunRow.__table__)
        found += [
            f"{row['event_id']} {row['handler']} {row['status']}"
            for row in runs
            if row["status"] not in ("succeeded", "skipped") and (row["status"] != "dead" or not row["reason"])
        ]
        return found

    async def nameless(self, told: Sequence[Told]) -> list[int]:
        """Of which odd events nobody can say what became: they were neither taken in, nor wait to be confirmed, nor lie
        in quarantine with a reason. `told` were sent, or are listed."""
        taken = {row["id"] for row in await self.rows(EventRow.__table__)}
        taken |= {row["event_id"] for row in await self.rows(HintRow.__table__)}
        kept = {row["delivery_id"]: row["reason"] for row in await self.rows(QuarantineRow.__table__)}
        bodies = {sha256(row["raw"]).digest() for row in await self.rows(QuarantineRow.__table__) if row["reason"]}
        found = []
        for one in told:
            body = written(self.service.event(one))
            try:
                is_taken = identify(read := parse(body, tolerant=True), LOCATORS).id in taken
            except NotUnderstood:
                is_taken = LISTED + sha256(dumped(read)).hexdigest()[:40] in kept
            if not is_taken and sha256(body[:4096]).digest() not in bodies and sha256(body).digest() not in bodies:
                found.append(one.number)
        return found

    async def rows(self, table: Table, **where: Any) -> list[dict[str, Any]]:
        wanted = select(table).where(*[table.c[name] == value for name, value in where.items()])
        async with self.world.database.reading() as session:
            return [dict(row) for row in (await session.execute(wanted)).mappings()]

    async def count(self, table: Table, *which: Any) -> int:
        async with self.world.database.reading() as session:
            return int(await session.scalar(select(func.count()).select_from(table).where(*which)) or 0)


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
        from consumer.sync.api import ApplicationApi

        api = ApplicationApi(application="default", client=client)
        world = World(broker=broker, database=database, service=None, api=api, clock=clock)  # type: ignore[arg-type]  # no scripted service here
        found = Household(world, live, service)
        await found.start()
        try:
            yield found
        finally:
            await found.stop()
            await live.close()


def now() -> datetime:
    return datetime.now(UTC)
