"""Hints: nothing on topic `deliveries` is lost, and nothing claimed gets further than a hint."""

from __future__ import annotations

import tracemalloc

import orjson
from structlog.testing import capture_logs

from consumer.broker import Message, Partition
from consumer.events import Delivery
from consumer.ledger import log_memory
from consumer.ledger.reading import hints, quarantine
from consumer.reason import Reason
from consumer.sync.confirm.hints import BODIES_MAX_BYTES, HintConsumer, in_parts
from tests.sync.conftest import DELIVERIES, World, delivery, read_all

MIB = 1024 * 1024


def hint_consumer(world: World, *, max_hints: int = 1000, batch: int = 500) -> HintConsumer:
    return HintConsumer(
        world.broker,
        world.database,
        topic=DELIVERIES,
        applications={"default"},
        clock=world.clock,
        metrics=world.metrics,
        max_hints=max_hints,
        batch=batch,
    )


async def taken_in(world: World, *, max_hints: int = 1000, batch: int = 500) -> int:
    stage = hint_consumer(world, max_hints=max_hints, batch=batch)
    total = 0
    try:
        while not total:
            total += await stage.once()
        while more := await stage.once(timeout_s=0.05):
            total += more
    finally:
        await stage.close()
    return total


async def reasons(world: World) -> list[str]:
    async with world.database.reading() as session:
        return sorted(row.reason for row in await quarantine.newest(session))


async def waiting(world: World) -> int:
    async with world.database.reading() as session:
        return await hints.count(session)


async def test_deliveries_become_hints_and_what_has_a_problem_is_quarantined(world: World) -> None:
    # case: I10, I17
    await world.deliver(
        delivery(orjson.dumps({"id": "evt_1", "type": "order.paid"}), 1, event_id="evt_1"),
        delivery(b"not json", 2, problem=Reason.NOT_JSON),
        delivery(b"{}", 3),
    )
    await taken_in(world)
    assert await waiting(world) == 1
    assert await reasons(world) == ["no_event_id", "not_json"]
    assert await world.published() == []
    async with world.database.reading() as session:
        [kept] = [one for one in await quarantine.newest(session) if one.reason == "not_json"]
        row = await quarantine.get(session, kept.id)
    assert row is not None
    assert (row.raw, row.delivery_id) == (b"not json", "dlv_2")


async def test_a_topic_that_lost_its_end_is_told(world: World) -> None:
    # case: O7, G5
    stage = hint_consumer(world)
    await stage.once(timeout_s=0.05)
    membership = stage._subscription._membership  # type: ignore[union-attr]  # it has joined; of a Subscription, too
    with capture_logs() as said:
        await membership.replaced([Partition(DELIVERIES, 1)])
    await stage.close()
    [line] = said
    assert (line["event"], line["log_level"], line["partitions"]) == ("log_replaced", "error", [1])
    async with world.database.reading() as session:
        memory = await log_memory.load(session, DELIVERIES)
    assert (memory.replaced_at, memory.owes) == (world.clock.now(), True)


async def test_the_same_delivery_again_changes_nothing(world: World) -> None:
    # case: I21
    again = delivery(orjson.dumps({"id": "evt_1", "type": "order.paid"}), 1, event_id="evt_1")
    refused = delivery(b"x", 2, problem=Reason.NOT_JSON)
    await world.deliver(again, refused, again, refused)
    await taken_in(world)
    assert (await waiting(world), await reasons(world)) == (1, ["not_json"])


async def test_after_a_crash_before_the_commit_the_batch_comes_again(world: World) -> None:
    # case: G5
    await world.deliver(delivery(orjson.dumps({"id": "evt_1", "type": "order.paid"}), 1, event_id="evt_1"))

    stage = hint_consumer(world)
    subscription = await stage._joined()
    while not (records := await subscription.poll(10, 1.0)):
        pass
    await stage._store(records, world.clock.now())
    await stage.close()  # as a crash: stored, not committed

    assert await taken_in(world) == 1
    assert await waiting(world) == 1


async def test_a_flood_is_bounded_and_what_is_over_the_bound_is_kept_raw(world: World) -> None:
    # case: I15
    await world.deliver(*(delivery(b'{"id":"evt_%d"}' % n, n, event_id=f"evt_{n}") for n in range(30)))
    assert await taken_in(world, max_hints=10, batch=10) == 30
    assert await waiting(world) == 10
    assert await reasons(world) == ["flooded"] * 20


async def test_a_record_that_is_no_delivery_is_quarantined_and_does_not_stop_the_rest(world: World) -> None:
    # case: I10
    await world.broker.publish(DELIVERIES, Message(key=b"default/x", value=b"garbage"))
    await world.deliver(delivery(b'{"id":"evt_1"}', 1, event_id="evt_1"))
    await taken_in(world)
    assert (await waiting(world), await reasons(world)) == (1, ["not_a_delivery"])


def zeros(number: int) -> Delivery:
    return delivery(b'{"id":"evt_%d","pad":"%b"}' % (number, b"0" * MIB), number, event_id=f"evt_{number}")


async def test_megabytes_of_zeros_are_in_memory_a_few_at_a_time(world: World) -> None:
    # case: I12, I22
    await world.deliver(*(zeros(number) for number in range(30)))
    records = await read_all(world.broker, DELIVERIES)
    parts = [sum(len(one.raw) for one in part.hints) for part in in_parts(records, {"default"})]
    assert sum(parts) > 30 * MIB
    assert max(parts) < BODIES_MAX_BYTES + 2 * MIB
    assert await taken_in(world) == 30
    assert await waiting(world) == 30
    small = [delivery(b'{"id":"evt_%d"}' % number, number, event_id=f"evt_{number}") for number in range(30)]
    tracemalloc.start()
    async with world.database.reading() as session:
        differing = await hints.differing(session, small)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert differing == small
    assert most < 8 * MIB
