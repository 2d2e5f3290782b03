"""However often an event comes, each handler succeeds on it once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from consumer.broker import Broker
from consumer.events import Source, Trust
from consumer.ledger import Database
from consumer.ledger.reading import heard, quarantine
from consumer.plugin import Context, Event, handles
from tests.support.ports import eventually
from tests.work.workshop import AT, Workshop, order_paid


# case: F2, G2, I21, H1
async def test_the_same_event_five_times_is_one_run_per_handler(database: Database, broker: Broker) -> None:
    effects: list[str] = []

    @handles("order.paid")
    async def ship(event: Event, ctx: Context) -> None:
        effects.append(ctx.idempotency_key)

    shop = Workshop(database, broker, [ship])
    await shop.publish(*[order_paid(1)] * 5, order_paid(2))
    async with shop.working():
        await eventually(lambda: len(effects) == 2)
        await shop.publish(order_paid(1), order_paid(3))
        await eventually(lambda: len(effects) == 3)
    assert await shop.statuses() == ["succeeded"] * 3
    assert len(set(effects)) == 3


# case: O1
async def test_a_webhook_that_comes_after_the_list_told_its_event_is_noted_as_heard(
    database: Database, broker: Broker
) -> None:
    async def noted(application: str = "default") -> datetime | None:
        async with database.reading() as session:
            return await heard.last(session, application)

    def came(number: int, *, at: timedelta) -> Event:
        return replace(order_paid(number), received_at=AT + at)

    def listed(number: int) -> Event:
        return replace(order_paid(number), source=Source.BACKFILL, trust=Trust.READ)

    @handles("order.paid")
    async def ship(event: Event, ctx: Context) -> None:
        """Nothing."""

    shop = Workshop(database, broker, [ship])
    await shop.publish(came(1, at=timedelta()), listed(1))
    async with shop.working():
        await eventually(lambda: shop.all_succeeded(1))
        assert await noted() is None, "the webhook came first: the event is recorded as its own"
        await shop.publish(listed(2), came(2, at=timedelta(minutes=1)))  # of one key: in one batch, most likely
        await eventually(lambda: noted_at(noted, AT + timedelta(minutes=1)))
        await shop.publish(came(2, at=timedelta(minutes=5)))
        await eventually(lambda: noted_at(noted, AT + timedelta(minutes=5)))
        await shop.publish(came(2, at=timedelta(minutes=3)), listed(3))
        await eventually(lambda: shop.all_succeeded(3))
        assert await noted() == AT + timedelta(minutes=5), "an older one changes nothing"
        ahead = datetime.now(UTC) + timedelta(days=1)
        await shop.publish(replace(order_paid(3), received_at=ahead), listed(4))
        await eventually(lambda: shop.all_succeeded(4))
        at = await noted()
        assert at is not None
        assert AT + timedelta(minutes=5) < at < ahead, "never in the future, whatever the clock that received it"
    assert await noted("another") is None


async def noted_at(noted: Callable[[], Awaitable[datetime | None]], at: datetime) -> bool:
    return await noted() == at


# case: F3, G2
async def test_two_workers_that_get_the_same_event_at_once_make_one_effect(database: Database, broker: Broker) -> None:
    effects: list[str] = []
    shop = Workshop(database, broker, [])

    @handles("order.paid", transactional=True)
    async def project(event: Event, ctx: Context) -> None:
        ctx.emit("shop.requested", event.key, {}, once="order")

    @handles("shop.requested")
    async def ship(event: Event, ctx: Context) -> None:
        effects.append(event.key)

    shop.functions = [project, ship]
    # The same events under many keys of the log: they land on several partitions, so both workers hold some.
    for number in range(30):
        await shop.publish(order_paid(number, f"order-{number}"))
    async with shop.working(), shop.working():
        for number in range(30):
            await shop.publish(order_paid(number, f"order-{number}"))
        await eventually(lambda: len(effects) >= 30, within_s=20)
    assert sorted(effects) == sorted(f"order:order-{number}" for number in range(30))


# case: G8, F25, U20
async def test_the_same_id_in_two_applications_is_two_events(database: Database, broker: Broker) -> None:
    seen: list[str] = []

    @handles("order.paid")
    async def ship(event: Event, ctx: Context) -> None:
        seen.append(ctx.application)

    shop = Workshop(database, broker, [ship], applications=("default", "second"))
    await shop.publish(order_paid(1), order_paid(1, application="second"))
    async with shop.working():
        await eventually(lambda: len(seen) == 2)
    assert sorted(seen) == ["default", "second"]


# case: I16
async def test_another_signed_body_of_a_known_event_is_kept_and_changes_nothing(
    database: Database, broker: Broker
) -> None:
    @handles("order.*")
    async def ship(event: Event, ctx: Context) -> None:
        """Nothing to do."""

    shop = Workshop(database, broker, [ship])
    other = replace(order_paid(1), raw=b'{"id":"evt_1","type":"order.paid","data":{"object":{"order_id":"another"}}}')
    await shop.publish(order_paid(1), order_paid(2))
    async with shop.working():
        await eventually(lambda: shop.all_succeeded(2))
        await shop.publish(other, order_paid(1), other, order_paid(3))
        await eventually(lambda: shop.all_succeeded(3))
    async with database.reading() as session:
        [kept] = await quarantine.other_bodies(session, "default", ["evt_1"], 10)
    assert kept.raw == other.raw
