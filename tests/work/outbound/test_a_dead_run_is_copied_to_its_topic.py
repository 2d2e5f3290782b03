"""A dead run is copied to its topic with everything, and can be tried again or given up, and back (cases R10, R12)."""

from __future__ import annotations

from datetime import UTC, datetime

import orjson
from sqlalchemy import select

from consumer.broker import Broker
from consumer.broker.base import Record
from consumer.clock import SystemClock
from consumer.ledger import Database
from consumer.ledger.handling import dead
from consumer.ledger.handling.dead import DeadFilter
from consumer.ledger.tables import AuditRow
from consumer.plugin import Context, Event, handles
from consumer.work.outbound.dead_letters import DeadLetters
from tests.support.ports import eventually
from tests.work.workshop import TOPIC, Workshop, service_event

LETTERS = f"{TOPIC}.dead"


async def letters_on(broker: Broker, count: int) -> list[Record]:
    """The first `count` records of the topic of dead letters."""
    subscription = broker.subscribe([LETTERS], f"reader-{count}")
    await subscription.start()
    found: list[Record] = []

    async def enough() -> bool:
        found.extend(await subscription.poll(100, 0.1))
        return len(found) >= count

    try:
        await eventually(enough)
    finally:
        await subscription.stop()
    return found


# case: R10, R12, R14
async def test_its_letter_says_everything(database: Database, broker: Broker) -> None:
    @handles("order.paid", attempts=3, first_wait_s=0.01, name="test:broken")
    async def broken(event: Event, ctx: Context) -> None:
        raise ValueError(f"attempt {ctx.attempt} of a customer@example.com")

    shop = Workshop(database, broker, [broken])
    event = service_event("evt_1", "order.paid", "one")
    await shop.publish(event)
    async with shop.working():
        await eventually(lambda: shop.count("test:broken", "dead", 1))
        letter = (await letters_on(broker, 1))[0]
    headers = {name: value.decode() for name, value in letter.headers.items()}
    assert letter.value == event.raw
    assert letter.key == b"default/order:one"
    assert headers["dead_handler"] == "test:broken"
    assert headers["dead_reason"].startswith("3 attempts used: ValueError")
    assert "example.com" not in headers["dead_reason"]
    assert headers["dead_code_version"] == (await shop.runs())[0].code_version != ""
    history = orjson.loads(headers["dead_history"])
    assert [(one["number"], one["outcome"]) for one in history] == [(1, "retrying"), (2, "retrying"), (3, "dead")]
    assert {one["fingerprint"] for one in history} == {headers["dead_fingerprint"]}


# case: G5
async def test_a_letter_is_not_lost_between_dying_and_publishing(sqlite_ledger: Database, broker: Broker) -> None:
    """The worker ends before it is published: the next publisher finds it; after publishing it is not sent again."""

    @handles("order.paid", attempts=1, name="test:broken", transactional=True)
    async def broken(event: Event, ctx: Context) -> None:
        raise ValueError("no")

    shop = Workshop(sqlite_ledger, broker, [broken])
    shop.config = shop.config.__class__(topic=TOPIC, dead_topic="there.is.none", drain_s=1)
    await shop.publish(service_event("evt_1", "order.paid", "one"))
    async with shop.working():
        await eventually(lambda: shop.count("test:broken", "dead", 1))
    letters = DeadLetters(database=sqlite_ledger, broker=broker, topic=LETTERS, clock=SystemClock(), leads=lambda: True)
    assert await letters.once() == 1
    assert await letters.once() == 0
    assert len(await letters_on(broker, 1)) == 1


# case: R12
async def test_discarded_and_taken_back_and_tried_again(database: Database, broker: Broker) -> None:
    repaired, went = False, []

    @handles("order.paid", attempts=1, name="test:picky")
    async def picky(event: Event, ctx: Context) -> None:
        if event.id == "evt_0" and not repaired:
            raise ValueError("no")
        went.append((event.id, ctx.idempotency_key, ctx.attempt))

    shop = Workshop(database, broker, [picky])
    await shop.publish(*[service_event(f"evt_{number}", "order.paid", "one") for number in range(2)])
    async with shop.working():
        await eventually(lambda: shop.count("test:picky", "dead", 1))
        assert await shop.statuses() == ["dead", "parked"]

        # Given up: the next of its key goes.
        assert await act(database, dead.discard, DeadFilter(handler="test:picky")) == 1
        await eventually(lambda: shop.count("test:picky", "succeeded", 1))
        assert await shop.statuses() == ["skipped", "succeeded"]

        # Taken back: dead again, and what comes now waits behind it again.
        assert await act(database, dead.restore, DeadFilter(event_id="evt_0", discarded=True)) == 1
        await shop.publish(service_event("evt_2", "order.paid", "one"))
        await eventually(lambda: shop.count("test:picky", "parked", 1))
        row = (await shop.runs())[0]
        assert (row.status, row.code, row.blocking) == ("dead", "handler_failed", True)

        # Tried again, with the repair: it goes first, then what waited.
        repaired = True
        assert await act(database, dead.redrive, DeadFilter(order_id="one")) == 1
        await eventually(lambda: shop.all_succeeded(3))
    assert [event_id for event_id, _, _ in went] == ["evt_1", "evt_0", "evt_2"]
    assert went[1][2] == 1
    async with database.reading() as session:
        rows = (await session.execute(select(AuditRow).order_by(AuditRow.__table__.c.id))).scalars().all()
    said = [(row.action, row.subject, row.reason) for row in rows if row.action.startswith("dead.")]
    assert said == [(f"dead.{act}", "order:one", "because") for act in ("discard", "restore", "redrive")]


async def test_acting_twice_changes_nothing_more(sqlite_ledger: Database, broker: Broker) -> None:
    @handles("order.paid", attempts=1, name="test:broken")
    async def broken(event: Event, ctx: Context) -> None:
        raise ValueError("no")

    shop = Workshop(sqlite_ledger, broker, [broken])
    await shop.publish(service_event("evt_1", "order.paid", "one"))
    async with shop.working():
        await eventually(lambda: shop.count("test:broken", "dead", 1))
    async with sqlite_ledger.reading() as session:
        found = await dead.search(session, DeadFilter())
    now = datetime.now(UTC)
    async with sqlite_ledger.transaction() as session:
        assert await dead.discard(session, found, by="one", reason="because", now=now) == 1
        assert await dead.discard(session, found, by="other", reason="because", now=now) == 0
        assert await dead.redrive(session, found, by="other", reason="because", now=now) == 0


async def act(database: Database, what: object, wanted: DeadFilter) -> int:
    """Do it to what fits, as the command does."""
    assert callable(what)
    async with database.transaction() as session:
        found = await dead.search(session, wanted)
        done = await what(session, found, by="operator", reason="because", now=datetime.now(UTC))
    return int(done)
