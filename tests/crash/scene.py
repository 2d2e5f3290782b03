"""A scene: orders and what is said about them on a log, a ledger, a shop's file; and the proof of how it ended."""

from __future__ import annotations

import asyncio
import signal
from collections import defaultdict
from collections.abc import Mapping
from itertools import groupby
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import orjson
from sqlalchemy import text

from consumer.app import log_parts
from consumer.broker import Broker, Message
from consumer.events import Delivery, Event, Locators, Source, Trust, build_event
from consumer.ledger import Database
from consumer.ledger.engine import schema
from consumer.settings import Role, load_settings
from consumer.wire import pack_delivery
from tests.crash.points import Point
from tests.crash.process import role_process
from tests.crash.shop import FILE, STEADY
from tests.support.load import SECRET
from tests.support.ports import eventually
from tests.work.workshop import AT, message

ORDERS = 4
SAYINGS = 3
BATCH = 5


class Scene:
    """What one test holds in its hands: `environ` is that of the processes, `database` the test's own view."""

    def __init__(self, folder: Path, *, broker_url: str, database_url: str, topic_prefix: str = "payments") -> None:
        self._shop = folder / "shop.jsonl"
        self.environ = {
            "CONSUMER_BROKER_URL": broker_url,
            "CONSUMER_DATABASE_URL": database_url,
            "CONSUMER_TOPIC_PREFIX": topic_prefix,
            "CONSUMER_AUTHENTICITY": "signature",
            "CONSUMER_WEBHOOK_SECRETS": SECRET,
            "CONSUMER_WORK_BATCH": str(BATCH),
            "CONSUMER_LOG_LEVEL": "error",
            "CONSUMER_HANDLER_OPTIONS": '{"fulfilment": {"read_within_s": 0.3}}',
            FILE: str(self._shop),
        }
        self.database = Database(database_url)
        # Nobody answers whether there are such orders, so each that only a signature vouches for has a timer.
        self._timers = ORDERS

    def smoothly(self) -> None:
        """No first try fails, nobody is asked about orders, and each thing said is a batch: what follows from it is
        taken with it."""
        options = '{"fulfilment": {"matching": "off"}}'
        self.environ |= {STEADY: "yes", "CONSUMER_WORK_BATCH": "1", "CONSUMER_HANDLER_OPTIONS": options}
        self._timers = 0

    async def prepare(self, broker: Broker, *, as_deliveries: bool = False) -> None:
        """The schema, the topics, and everything that is said, once: as checked events, or as deliveries that nobody
        can verify."""
        await schema.upgrade(self.database)
        settings = load_settings(self.environ, Role.WORK)
        await broker.start()
        try:
            await broker.ensure_topics(log_parts.topics(settings))
            if as_deliveries:
                self._timers = 0  # nobody is asked about orders; this is about how a hint becomes an event
                await broker.publish_many(
                    log_parts.topic(settings, "deliveries"), [_delivered(one) for one in sayings()]
                )
            else:
                await broker.publish_many(log_parts.topic(settings, "events"), [message(one) for one in sayings()])
        finally:
            await broker.stop()

    async def dies(self, *points: Point, role: Role = Role.WORK) -> None:
        """One process after the other, each until it dies at its point; one that never gets there fails the test."""
        for point in points:
            process = role_process(role, self.environ, point)
            await _ended(process, within_s=30, what=f"it dies at: {point}")
            assert process.exitcode == -signal.SIGKILL, f"{point}: exit code {process.exitcode}"

    async def recovers(self, *roles: Role) -> None:
        """Processes (a worker, unless told otherwise) to which nothing happens, until everything is done; then they
        stop cleanly."""
        processes = [role_process(role, self.environ, None) for role in roles or (Role.WORK,)]
        try:
            await eventually(self._everything_done, within_s=25, every_s=0.05, what="everything is worked off")
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                await _ended(process, within_s=30, what="it stops")
        assert [process.exitcode for process in processes] == [0] * len(processes)

    async def _everything_done(self) -> bool:
        async with self.database.reading() as session:
            open_runs = await session.scalar(text("SELECT count(*) FROM runs WHERE status <> 'succeeded'"))
            unpublished = await session.scalar(text("SELECT count(*) FROM outbox WHERE published_at IS NULL"))
            recorded = await session.scalar(text("SELECT count(*) FROM events"))
            hints = await session.scalar(text("SELECT count(*) FROM hints"))
        assert (open_runs, unpublished, hints, recorded) == (0, 0, 0, ORDERS * (SAYINGS + 2) + self._timers)
        return True

    # --- proof -------------------------------------------------------------------------------------------------

    async def prove(self, *, in_order: bool = True) -> None:
        """Nothing is lost, nothing is done twice, and (for what came in order) nothing has overtaken."""
        await self._prove_tables()
        acts = [orjson.loads(line) for line in self._shop.read_text().splitlines()]
        orders = {f"order-{number}" for number in range(ORDERS)}
        for handler in ("ship", "tell"):
            keys: dict[str, set[str]] = defaultdict(set)
            for act in acts:
                if act["handler"] == handler:
                    keys[act["order"]].add(act["key"])
            assert {order: len(found) for order, found in keys.items()} == dict.fromkeys(orders, 1), handler
        for number in range(ORDERS if in_order else 0):
            said = [act["event"] for act in acts if (act["handler"], act["order"]) == ("log", f"order-{number}")]
            once = [event for event, _ in groupby(said)]
            assert once == [f"evt_{number}_{step}" for step in range(SAYINGS)], "repeated at most where it stood"

    async def _prove_tables(self) -> None:
        counts = {
            "paid": "events WHERE type = 'order.paid'",
            "noted": "events WHERE type = 'order.noted'",
            "requested": "events WHERE type = 'fulfilment.requested'",
            "counted": "events WHERE type = 'parcel.counted'",
            "timers": "events WHERE type = 'fulfilment.read_due'",
            "emitted": "outbox",
            "orders": "fulfilment_order WHERE paid_at IS NOT NULL",
            "runs": "runs",
            "not succeeded": "runs WHERE status <> 'succeeded' OR blocking OR claimed_by IS NOT NULL",
            "quarantined": "quarantine",
        }
        async with self.database.reading() as session:
            found = {name: await session.scalar(text(f"SELECT count(*) FROM {what}")) for name, what in counts.items()}
        assert found == {
            "paid": ORDERS,
            "noted": ORDERS * (SAYINGS - 1),
            "requested": ORDERS,
            "counted": ORDERS,
            "timers": self._timers,
            "emitted": 2 * ORDERS + self._timers,
            "orders": ORDERS,
            # order.paid: the built-in, log, count; order.noted: log; the two derived events: ship, tell; the timers
            "runs": ORDERS * (3 + (SAYINGS - 1) + 2) + self._timers,
            "not succeeded": 0,
            "quarantined": 0,
        }


def sayings() -> list[Event]:
    """Of each order first that it is paid, then two more things; the orders take turns."""
    return [
        _said(f"evt_{number}_{step}", "order.paid" if step == 0 else "order.noted", f"order-{number}")
        for step in range(SAYINGS)
        for number in range(ORDERS)
    ]


def _said(event_id: str, event_type: str, order: str) -> Event:
    body: Mapping[str, object] = {
        "id": event_id,
        "type": event_type,
        "data": {"object": {"id": f"ord_{order}", "order_id": order, "status": "PAID", "amount": "25.00"}},
    }
    return build_event(
        orjson.dumps(body), Locators(), application="default", trust=Trust.SIGNED, source=Source.WEBHOOK, received_at=AT
    )


def _delivered(event: Event) -> Message:
    delivery = Delivery(
        application="default",
        id=f"dlv_{event.id}",
        raw=event.raw,
        received_at=AT,
        headers={"user-agent": "service/1"},
        event_id=event.id,
    )
    packed = pack_delivery(delivery, Locators())
    return Message(key=packed.key, value=packed.value, headers=packed.headers)


async def _ended(process: ForkServerProcess, *, within_s: float, what: str) -> None:
    try:
        await asyncio.to_thread(process.join, within_s)
        assert process.exitcode is not None, f"not within {within_s} s: {what}"
    finally:
        if process.exitcode is None:
            process.kill()
            await asyncio.to_thread(process.join, 10)
