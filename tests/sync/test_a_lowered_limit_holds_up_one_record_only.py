"""A record that the topic refuses while its limit is lowered waits alone: what else is read, proved or listed goes on.
It goes out when the limit is raised again. It is never given up: no quarantine has it. So it is with those of a
partition that takes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest
from structlog.testing import capture_logs

from consumer.broker import EmbeddedBroker, Message, TopicConfig
from consumer.broker.outcomes import Outcomes
from consumer.errors import BrokerUnavailable, PartitionAway, RecordRefused
from consumer.ledger.reading import quarantine
from consumer.sync.backfill.unread import Unread
from consumer.sync.health.status import with_unread
from tests.sync.backfilling import backfill
from tests.sync.confirming import hint, stages
from tests.sync.conftest import DELIVERIES, EVENTS, World
from tests.sync.reconciling import baselined, lists, reconcile, remembered, seen
from tests.sync.refreshing import answers, ask, paged, pending, refresh
from tests.sync.service import Json

NOTES = {f"note_{number}": "x" * 200 for number in range(100)}
"""None of them is long, and together they are longer than the topic takes."""


class Lowered(EmbeddedBroker):
    """It refuses records over `limit` bytes for now, as Kafka does after an operator has lowered max.message.bytes, and
    those with keys that are `away`, as it does while nobody leads their partition."""

    limit = 4096
    away: frozenset[bytes] = frozenset()

    async def publish_many(self, topic: str, messages: Sequence[Message], timeout_s: float = 30.0) -> None:
        """As a Broker does: what fits is durable, whatever becomes of its neighbours."""
        outcomes = Outcomes(messages)
        for place, one in enumerate(messages):
            if one.size_bytes > self.limit:
                outcomes.settle(place, RecordRefused())
            elif one.key in self.away:
                outcomes.settle(place, PartitionAway())
        for places in outcomes.chunks([0] * len(messages), len(messages), 0):
            await super().publish_many(topic, [messages[place] for place in places], timeout_s)
            for place in places:
                outcomes.settle(place, None)
        outcomes.check()


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Lowered]:
    found = Lowered(tmp_path / "log.db")
    await found.start()
    await found.ensure_topics(
        TopicConfig(name=name, partitions=4, retention_s=None, max_record_bytes=2**21) for name in (DELIVERIES, EVENTS)
    )
    yield found
    await found.stop()


def raise_limit(world: World) -> None:
    cast(Lowered, world.broker).limit = 2**21


def away(world: World, *keys: bytes) -> None:
    """What has these keys lies in a partition that takes nothing now; the others take all."""
    raise_limit(world)
    cast(Lowered, world.broker).away = frozenset(keys)


def paid(number: int, **more: str) -> Json:
    return {"id": f"ord_{number}", "order_id": f"A{number}", "status": "PAID", **more}


async def reads_asked_for(world: World, count: int, large: int) -> None:
    """Of so many orders, of which one is larger than the topic takes now."""
    orders = [paid(number, **(NOTES if number == large else dict.fromkeys(NOTES, ""))) for number in range(count)]
    for order in orders:
        world.service.records[f"/v1/orders/lookup?{order['order_id']}"] = order
    world.service.lists["/v1/orders"] = paged(orders)
    for order in orders:
        await ask(world, "order", order["order_id"])


async def in_quarantine(world: World) -> int:
    async with world.database.reading() as session:
        return len(await quarantine.newest(session))


# case: I30, B22
@pytest.mark.parametrize("count", [3, 30], ids=["singly", "listed"])
async def test_a_read_is_put_off_and_all_others_are_answered_once(world: World, count: int) -> None:
    await reads_asked_for(world, count, large=1)
    stage = refresh(world)
    for _ in range(3):
        await stage.once()
    [left] = await pending(world)
    assert (left.object_id, left.attempts) == ("A1", 1)
    assert len({event.id for event in await answers(world)}) == count - 1, "each in one version"
    raise_limit(world)
    world.clock.advance((left.due_at - world.clock.now()).total_seconds())
    await stage.once()
    assert await pending(world) == []
    assert len({event.id for event in await answers(world)}) == count


# case: I30, B22
async def test_a_read_that_was_refused_for_long_is_answered_soon_after_the_limit_is_raised(world: World) -> None:
    """It was asked for ever more rarely: up to six hours later."""
    await reads_asked_for(world, 1, large=0)
    stage = refresh(world)
    for _ in range(2 * 60):
        await stage.once()
        world.clock.advance(60)
    raise_limit(world)
    for _ in range(16):
        await stage.once()
        world.clock.advance(60)
    assert await pending(world) == []


# case: I30, B18, F20
async def test_what_reconcile_cannot_publish_is_not_said_to_lack_its_id_and_goes_out_within_an_hour(
    world: World,
) -> None:
    await baselined(world)
    lists(world, orders=[{"id": "ord_8", "status": "PENDING"}, paid(1, **NOTES), paid(2)])
    world.service.records["/v1/orders/ord_8"] = {"id": "ord_8", "status": "PENDING"}
    stage = reconcile(world)
    with capture_logs() as logs:
        report = await stage.once()
    assert (report.unplaced, report.unplaced_ids) == (1, ["ord_8"])
    assert (report.too_large, report.too_large_paid, report.too_large_ids) == (1, 1, ["A1"])
    assert set(await seen(world)) == {("order:A2", "PAID")}
    [said] = [one for one in logs if one["event"] == "reconcile_found_unplaced"]
    assert (said["records"], said["paid"], said["too_large"], said["ids"]) == (2, 1, 1, ["ord_8", "A1"])
    assert (await remembered(world)).unplaced_paid == 1, "status says that nobody ships it"
    raise_limit(world)
    world.clock.advance(3600)
    await stage._step()
    assert set(await seen(world)) == {("order:A1", "PAID"), ("order:A2", "PAID")}
    assert (await remembered(world)).unplaced_paid == 0
    assert not stage._is_due(replace(await remembered(world), began=world.clock.now() - timedelta(hours=1)))


# case: I30, G7
async def test_a_webhook_is_proved_when_the_limit_is_raised_and_others_at_once(world: World) -> None:
    world.service.event(1, note="x" * 5000)
    world.service.event(2)
    await hint(world, ["evt_000001", "evt_000002"])
    stage, _ = stages(world)
    for _ in range(50):
        await stage.once()
        world.clock.advance(130)
    assert {event.id for event in await world.published()} == {"evt_000002"}
    assert await in_quarantine(world) == 0
    raise_limit(world)
    await stage.once()
    assert [event.id for event in await world.published()].count("evt_000001") == 1


# case: I30, B18
async def test_a_walk_goes_on_past_a_listed_event_and_the_next_ones_ask_again(world: World) -> None:
    listed = [world.service.event(number, note="x" * (5000 if number == 2 else 1)) for number in (3, 2, 1)]
    world.service.lists["/v1/events"] = lambda cursor, limit: {"items": listed, "next_cursor": None}
    stage = backfill(world)
    report = await stage.once()
    assert (report.listed, report.published, report.strange) == (3, 2, 0)
    for _ in range(5):
        world.clock.advance(86_400)
        with capture_logs() as lines:
            await stage.once()
        assert [line["event_id"] for line in lines if line["event"] == "event_too_large"] == ["evt_000002"]
    assert await in_quarantine(world) == 0
    assert [event.id for event in await world.published()].count("evt_000002") == 0
    async with world.database.reading() as session:
        held_up = with_unread((), await Unread.of(session, "default"))
    assert [(one.stage, one.code) for one in held_up] == [("backfill", BrokerUnavailable.code)], (
        "not the service's fault"
    )
    await world.work()
    raise_limit(world)
    listed.clear()
    await stage.once()
    assert {event.id for event in await world.published()} == {f"evt_00000{number}" for number in (1, 2, 3)}
    await world.work()
    await stage.once()
    assert await world.kept("unread") in (None, {"events": {}})


# case: G5, O9
@pytest.mark.parametrize("count", [3, 30], ids=["singly", "listed"])
async def test_a_partition_that_takes_nothing_holds_up_its_own_reads(world: World, count: int) -> None:
    """Its records failed all that were read with them, which were read and published again and again; read singly they
    ended each round at the first of them."""
    away(world, b"default/order:A1")
    await reads_asked_for(world, count, large=-1)
    stage = refresh(world)
    for _ in range(3):
        await stage.once()
    [left] = await pending(world)
    assert (left.object_id, left.attempts, left.code) == ("A1", 1, BrokerUnavailable.code)
    assert len(await answers(world)) == count - 1, "none twice"


# case: G5, O9, U30
async def test_that_there_is_no_such_order_is_told_when_its_partition_takes_records_again(world: World) -> None:
    """It counted as told: who asked waited for ever, or shipped a test event when its time was over."""
    away(world, b"default/order:A1")
    world.service.failing["/v1/orders/lookup?A1"] = 404
    world.service.records["/v1/orders/lookup?A2"] = paid(2)
    for name in ("A1", "A2"):
        await ask(world, "order", name)
    stage = refresh(world)
    await stage.once()
    assert [event.type for event in await answers(world)] == ["order.observed"]
    away(world)
    world.clock.advance(3600)
    await stage.once()
    assert sorted(event.type for event in await answers(world)) == ["order.observed", "order.unreadable"]


# case: G5, O9, I30
async def test_beside_a_record_that_is_too_large_a_partition_that_takes_nothing_is_tried_once(world: World) -> None:
    away(world, b"default/order:A1", b"default/order:A2")
    cast(Lowered, world.broker).limit = 4096
    await reads_asked_for(world, 30, large=0)
    stage = refresh(world)
    for _ in range(3):
        await stage.once()
    assert {row.object_id for row in await pending(world)} >= {"A0", "A1", "A2"}
    away(world)
    for _ in range(3):
        world.clock.advance(900)
        await stage.once()
    assert await pending(world) == []
    assert len({event.id for event in await answers(world)}) == 30


# case: G5, O9
async def test_a_partition_that_takes_nothing_holds_up_its_own_webhooks(world: World) -> None:
    away(world, b"default/order:A1")
    for number in (1, 2):
        world.service.event(number, order_id=f"A{number}")
    await hint(world, ["evt_000001", "evt_000002"])
    stage, _ = stages(world)
    for number in (3, 4):
        await stage.once()
        world.service.event(number, order_id=f"A{number}")
        await hint(world, [f"evt_00000{number}"])
        world.clock.advance(130)
    assert {event.id for event in await world.published()} == {"evt_000002", "evt_000003"}
    away(world)
    await stage.once()
    assert sorted(event.id for event in await world.published()) == [f"evt_00000{number}" for number in range(1, 5)]


# case: G5, O9
async def test_a_partition_that_takes_nothing_keeps_what_else_reconcile_finds_from_nobody(world: World) -> None:
    await baselined(world)
    away(world, b"default/order:A1")
    lists(world, orders=[paid(1), paid(2)])
    for _ in range(2):
        with pytest.raises(BrokerUnavailable):
            await reconcile(world).once()
    assert [event.key for event in await world.published()] == ["order:A2"]
    away(world)
    report = await reconcile(world).once()
    assert (report.published, report.too_large) == (1, 0)
    assert set(await seen(world)) == {("order:A1", "PAID"), ("order:A2", "PAID")}
