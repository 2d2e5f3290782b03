"""Confirm: an event is what the service says it is, and what it does not say never happens."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

import orjson
import pytest
from sqlalchemy import select

from consumer.clock import SystemClock
from consumer.errors import BrokerUnavailable
from consumer.events import Source, Trust
from consumer.ledger import Database
from consumer.ledger.handling import events
from consumer.ledger.reading import hints, quarantine
from consumer.ledger.tables import HintRow
from consumer.payments import CircuitOpen, PaymentsError
from consumer.sync.confirm.policy import ConfirmPolicy
from consumer.sync.confirm.stage import Confirm
from tests.sync.conftest import World, counted_by, delivery


@pytest.fixture
def sqlite_ledger(database: Database) -> Database:
    """Of each kind: hints and quarantine are kept by each in its own way."""
    return database


def confirm(world: World, batch: int = 200) -> Confirm:
    return Confirm(
        world.app,
        world.settlement(),
        policy=ConfirmPolicy(batch=batch),
    )


async def hint(world: World, event_id: str, raw: bytes | None = None, number: int = 1) -> None:
    raw = orjson.dumps({"id": event_id, "type": "order.paid"}) if raw is None else raw
    async with world.database.transaction() as session:
        await hints.keep(session, [delivery(raw, number, event_id=event_id)], world.clock.now())


async def waiting(world: World) -> int:
    async with world.database.reading() as session:
        return await hints.count(session)


async def quarantined(world: World) -> list[str]:
    async with world.database.reading() as session:
        return [row.reason for row in await quarantine.newest(session)]


async def test_a_hint_becomes_the_event_that_the_service_returns(world: World) -> None:
    # case: I15, I6
    record = world.service.event(1, order_id="A-1", id="ord_1")
    await hint(world, "evt_000001", number=7)
    assert await confirm(world).once() == 1
    [event] = await world.published()
    assert (event.id, event.type, event.key) == ("evt_000001", "order.paid", "order:A-1")
    assert (event.trust, event.source, event.delivery_id) == (Trust.READ, Source.WEBHOOK, "dlv_7")
    assert orjson.loads(event.raw) == record
    assert event.received_at == delivery(b"", 7).received_at
    assert event.traceparent == delivery(b"").traceparent
    assert await waiting(world) == 0
    assert counted_by(world.metrics, "confirmed", "default", "confirmed") == 1


async def test_an_event_that_the_ledger_has_costs_no_read(world: World) -> None:
    # case: B4
    world.service.event(1)
    await hint(world, "evt_000001")
    await confirm(world).once()
    await world.work()
    world.service.calls.clear()
    await hint(world, "evt_000001")
    assert await confirm(world).once() == 1
    assert world.service.calls.total() == 0
    assert len(await world.published()) == 1


async def test_a_forged_event_ends_in_quarantine_after_patience_and_never_in_the_ledger(world: World) -> None:
    # case: I15, I17, G6
    await hint(world, "evt_forged", raw=b'{"id":"evt_forged","type":"order.paid","secret":"x"}')
    stage = confirm(world)
    for _ in range(50):
        await stage.once()
        world.clock.advance(130)
    assert await waiting(world) == 0
    assert await quarantined(world) == ["not_confirmed"]
    assert await world.published() == []
    assert world.service.calls["/v1/events/evt_forged"] < 15
    async with world.database.reading() as session:
        assert await events.known(session, [("default", "evt_forged")]) == frozenset()


async def test_patience_is_counted_in_answers_not_in_time(world: World) -> None:
    # case: U30, G7
    await hint(world, "evt_000001")
    world.clock.advance(86_400)  # an outage: the hint is old before anybody asks
    stage = confirm(world)
    await stage.once()
    assert await quarantined(world) == []
    world.service.event(1)
    world.clock.advance(130)
    assert await stage.once() == 1
    assert len(await world.published()) == 1


async def test_an_id_that_was_forged_first_is_confirmed_when_it_becomes_real(world: World) -> None:
    # case: I17
    await hint(world, "evt_000001", raw=b'{"id":"evt_000001","type":"order.paid"}')
    stage = confirm(world)
    for _ in range(50):
        await stage.once()
        world.clock.advance(130)
    assert await quarantined(world) == ["not_confirmed"]
    world.service.event(1, order_id="A-1")
    await hint(world, "evt_000001", number=2)
    assert await stage.once() == 1
    assert [event.delivery_id for event in await world.published()] == ["dlv_2"]


async def test_the_fetched_record_wins_over_a_forged_body(world: World) -> None:
    # case: I16
    world.service.event(1, kind="order.expired", id="ord_1", order_id="A-1")
    forged = {"id": "evt_000001", "type": "order.paid", "data": {"object": {"id": "ord_9", "order_id": "B-9"}}}
    await hint(world, "evt_000001", raw=orjson.dumps(forged))
    await confirm(world).once()
    [event] = await world.published()
    assert (event.type, event.order_id) == ("order.expired", "A-1")
    assert counted_by(world.metrics, "mismatches", "default") == 1


async def test_a_forged_body_with_an_id_that_is_recorded_leaves_a_trace_and_costs_no_read(world: World) -> None:
    # case: I16
    for number in range(130):
        world.service.event(number, id=f"ord_{number}", order_id=f"A-{number}")
        await hint(world, f"evt_{number:06d}")
    stage = confirm(world)
    await stage.once()
    await world.work()
    world.service.calls.clear()
    for number in range(130):
        forged = {"id": f"evt_{number:06d}", "type": "order.paid", "data": {"object": {"id": "ord_x"}}}
        same = {"id": f"evt_{number:06d}", "type": "order.paid"}
        await hint(world, f"evt_{number:06d}", orjson.dumps(forged if number % 2 else same))
    assert await stage.once() == 130
    assert counted_by(world.metrics, "mismatches", "default") == 65
    assert world.service.calls.total() == 0
    assert await waiting(world) == 0


async def test_the_real_delivery_of_an_id_that_was_forged_does_not_wait_out_the_forgerys_delay(world: World) -> None:
    # case: I17, I15
    await hint(world, "evt_000001", raw=b'{"id":"evt_000001","type":"order.paid"}')
    stage = confirm(world)
    for _ in range(400):  # denied until the next look is two minutes away
        await stage.once()
        world.clock.advance(1)
    world.service.event(1, id="ord_1", order_id="A-1")
    await hint(world, "evt_000001", number=2)
    world.clock.advance(5)
    assert await stage.once() == 1
    assert [event.id for event in await world.published()] == ["evt_000001"]


async def test_an_id_that_is_forged_again_and_again_stays_cheap_and_is_not_given_up_sooner(world: World) -> None:
    # case: I15, I17, U30
    stage = confirm(world)
    for _ in range(300):
        await hint(world, "evt_forged")
        await stage.once()
        world.clock.advance(1)
    assert 40 <= world.service.calls["/v1/events/evt_forged"] <= 65, "a look each five seconds"
    assert (await quarantined(world), await waiting(world)) == ([], 1)
    for _ in range(1100):
        await stage.once()
        world.clock.advance(1)
    assert await quarantined(world) == ["not_confirmed"], "left alone, it goes as any other"


async def test_a_thin_body_is_no_mismatch(world: World) -> None:
    # case: I16, U28
    world.service.event(1, id="ord_1", order_id="A-1")
    await hint(world, "evt_000001", raw=b'{"id":"evt_000001"}')
    await confirm(world).once()
    assert counted_by(world.metrics, "mismatches", "default") == 0


@pytest.mark.parametrize("status", [401, 429, 503])
async def test_a_service_in_trouble_costs_no_patience(world: World, status: int) -> None:
    # case: S3, S5, G7
    world.service.event(1)
    await hint(world, "evt_000001")
    world.service.failing["*"] = status
    stage = confirm(world)
    for _ in range(30):
        with suppress(PaymentsError):
            await stage.once()
        world.clock.advance(40)
    assert (await waiting(world), await quarantined(world)) == (1, [])
    async with world.database.reading() as session:
        [attempts] = await session.scalars(select(HintRow.__table__.c.attempts))
    assert attempts == 0
    world.service.failing.clear()
    world.clock.advance(400)
    assert await stage.once() == 1, "it goes on by itself"
    assert len(await world.published()) == 1


async def test_refused_credentials_are_not_hammered(world: World) -> None:
    # case: S14, S5
    for number in range(100):
        await hint(world, f"evt_{number}")
    world.service.failing["*"] = 401
    stage = confirm(world)
    raised = 0
    for _ in range(60):  # ten minutes
        try:
            await stage.once()
        except (CircuitOpen, PaymentsError):
            raised += 1
        world.clock.advance(10)
    assert raised
    assert counted_by(world.metrics, "hints_waiting", "default") == 100, (
        "all that wait, due or not, also while nobody reads"
    )
    assert world.service.calls.total() <= 4 + 600 / 30  # what was under way, then a probe every 30 s


async def test_a_failing_broker_loses_nothing(world: World) -> None:
    # case: G5
    world.service.event(1)
    await hint(world, "evt_000001")
    stage = confirm(world)
    await world.broker.stop()
    with pytest.raises(BrokerUnavailable):
        await stage.once()
    assert await waiting(world) == 1
    await world.broker.start()
    assert await stage.once() == 1
    assert len(await world.published()) == 1


async def test_fresh_hints_are_asked_for_before_those_already_denied(world: World) -> None:
    # case: I15
    for number in range(10):
        await hint(world, f"evt_forged{number}")
    stage = confirm(world, batch=10)
    await stage.once()
    world.clock.advance(500)
    world.service.event(1)
    await hint(world, "evt_000001")
    assert await confirm(world, batch=1).once() == 1
    assert len(await world.published()) == 1


@pytest.mark.slow
async def test_a_stage_told_to_stop_ends_within_seconds_even_with_a_read_under_way(world: World) -> None:
    # case: I4
    world.service.event(1)
    world.service.gate = asyncio.Event()
    await hint(world, "evt_000001")
    stage = Confirm(replace(world.app, clock=SystemClock()), world.settlement())
    stop = asyncio.Event()
    running = asyncio.create_task(stage.run(stop))
    async with asyncio.timeout(5):
        await world.service.entered.wait()
    stop.set()
    async with asyncio.timeout(6):
        await running
    assert await waiting(world) == 1


async def test_an_event_that_no_topic_takes_ends_in_quarantine_and_holds_up_nothing(world: World) -> None:
    # case: U1, G3
    world.service.event(1, note="x" * (3 * 2**20))
    world.service.event(2)
    await hint(world, "evt_000001")
    await hint(world, "evt_000002", number=2)
    stage = confirm(world)
    for _ in range(15):
        await stage.once()
        world.clock.advance(130)
    assert [event.id for event in await world.published()] == ["evt_000002"]
    assert await quarantined(world) == ["too_large"]
    assert await waiting(world) == 0
