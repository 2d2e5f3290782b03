"""Silence: silence and gaps are noticed, said once, cured, and over when they are over."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
import structlog

from consumer.events import Event, Source, Trust
from consumer.ledger.handling import events
from consumer.ledger.reading import heard, hints
from consumer.sync.backfill.catch_up import CatchUp
from consumer.sync.backfill.policy import BackfillPolicy
from consumer.sync.backfill.silence import (
    WALK,
    DeliveryHealth,
    after_walk,
    note_gap,
    note_reconciled,
    note_walk,
)
from consumer.sync.backfill.stage import Backfill
from consumer.sync.confirm.stage import Confirm
from tests.sync.conftest import SteppedClock, World, counted_by, delivery

NOW = SteppedClock().now()


def walked(
    before: DeliveryHealth,
    found: Sequence[str] = (),
    *,
    recorded: Mapping[str, Source] | None = None,
    heard_at: datetime | None = None,
    now: datetime = NOW,
) -> DeliveryHealth:
    """After a walk that found these unannounced, when those of before are recorded as brought by the list."""
    recorded = dict.fromkeys(before.pending, Source.BACKFILL) if recorded is None else recorded
    return after_walk(
        before, recovered=found, recorded=recorded, gap=False, last_webhook_at=heard_at, now=now
    )  # fmt: skip


def test_events_without_any_webhook_over_several_walks_are_silence() -> None:
    # case: O1
    found = walked(DeliveryHealth(), [f"evt_{number}" for number in range(50)])
    assert (found.silent_since, len(found.pending)) == (None, 50), "their webhooks may wait for a worker"
    found = walked(found, ["evt_a"])
    assert found.silent_since is None, "one walk may have come before the webhooks"
    found = walked(found)
    assert found.silent_since == NOW
    later = walked(found, ["evt_b"], now=NOW + timedelta(hours=1))
    assert later.silent_since == NOW


def test_a_quiet_service_is_no_silence() -> None:
    # case: O1
    found = DeliveryHealth()
    for _ in range(100):
        found = walked(found)
    assert found.silent_since is None


def test_some_lost_webhooks_are_no_silence_and_the_first_heard_ends_it() -> None:
    # case: O1
    found = DeliveryHealth(silent_since=NOW, recovered=9, walks=3)
    found = walked(found, ["evt_1", "evt_2"], heard_at=NOW)
    assert (found.silent_since, found.recovered) == (None, 0)
    for number in range(1, 20):
        heard = NOW + timedelta(seconds=number)
        found = walked(found, [f"evt_{number}a", f"evt_{number}b"], heard_at=heard, now=heard)
        assert found.silent_since is None


def test_while_no_worker_records_nothing_is_judged_and_what_webhooks_brought_first_is_heard() -> None:
    # case: O1
    found = DeliveryHealth(silent_since=NOW)
    ids = [f"evt_{number:04}" for number in range(300)]
    for start in range(0, 300, 10):
        found = walked(found, ids[start : start + 10], recorded={})
    assert (found.silent_since, found.recovered, found.walks) == (NOW, 0, 0)
    assert found.pending == tuple(ids[-200:])
    one_heard = dict.fromkeys(found.pending, Source.BACKFILL) | {ids[-1]: Source.WEBHOOK}
    assert walked(found, recorded=one_heard) == DeliveryHealth()


MINUTE = timedelta(minutes=1)
HEARD = DeliveryHealth(silent_since=NOW, last_webhook_at=NOW, recovered=5, walks=4, pending=("evt_1", "evt_2"))


@pytest.mark.parametrize(
    ("heard_at", "recorded", "after"),
    [
        (NOW + MINUTE, {}, replace(HEARD, silent_since=None, last_webhook_at=NOW + MINUTE, recovered=0, walks=0)),
        (NOW, {}, HEARD),  # it was heard before
        (NOW - MINUTE, {}, HEARD),
        (None, {}, HEARD),
        (None, {"evt_1": Source.BACKFILL}, replace(HEARD, recovered=6, walks=5, pending=("evt_2",))),
        (
            NOW - MINUTE,
            {"evt_2": Source.WEBHOOK},
            replace(HEARD, silent_since=None, recovered=0, walks=0, pending=("evt_1",)),
        ),
    ],
    ids=["a newer one", "the same", "an older one", "none", "an event by the list", "an event by a webhook"],
)
def test_only_a_webhook_that_was_not_heard_before_ends_silence(
    heard_at: datetime | None, recorded: dict[str, Source], after: DeliveryHealth
) -> None:
    # case: O1
    assert walked(HEARD, recorded=recorded, heard_at=heard_at) == after


@pytest.mark.parametrize(
    ("recovered", "walks", "found", "silent"), [(2, 1, 1, True), (1, 1, 1, False), (2, 0, 1, False), (0, 1, 3, True)]
)
def test_silence_takes_three_events_in_two_walks(recovered: int, walks: int, found: int, silent: bool) -> None:
    # case: O1
    pending = tuple(f"evt_{number}" for number in range(found))
    before = DeliveryHealth(last_webhook_at=NOW - MINUTE, recovered=recovered, walks=walks, pending=pending)
    after = walked(before)
    assert (after.recovered, after.walks) == (recovered + found, walks + 1)
    assert after.silent_since == (NOW - MINUTE if silent else None), "since the last webhook"


def test_a_gap_stays_and_an_event_that_is_found_again_waits_once() -> None:
    # case: B13, O1
    found = after_walk(
        DeliveryHealth(pending=("evt_1", "evt_2")), recovered=["evt_2", "evt_3"], recorded={}, gap=True,
        last_webhook_at=None, now=NOW,
    )  # fmt: skip
    assert found == DeliveryHealth(gap_at=NOW, pending=("evt_1", "evt_2", "evt_3"))
    assert walked(found, recorded={}, now=NOW + MINUTE).gap_at == NOW


def test_a_condition_survives_its_storage() -> None:
    # case: B10
    full = DeliveryHealth(silent_since=NOW, gap_at=NOW, last_webhook_at=NOW, recovered=3, walks=2, pending=("evt_1",))
    assert DeliveryHealth.load(full.dump()) == full
    assert DeliveryHealth.load(None) == DeliveryHealth()


async def test_silent_webhooks_make_backfill_walk_more_often_until_one_is_heard(
    world: World, stream: io.StringIO
) -> None:
    # case: O1, S7
    numbers = iter(range(1, 100))
    listed: list[dict[str, object]] = []

    def more(count: int) -> None:
        listed.extend(world.service.event(next(numbers)) for _ in range(count))

    world.service.lists["/v1/events"] = lambda cursor, limit: {"items": listed[::-1], "next_cursor": None}
    policy = BackfillPolicy(interval_s=60, silent_interval_s=10)
    stage = Backfill(world.app, world.settlement(), policy=policy)
    for _ in range(3):
        more(2)
        await stage.once()
        await world.work()
    assert stage.interval_s == 10
    assert counted_by(world.metrics, "webhooks_silent", "default") == 1
    async with world.database.reading() as session:
        assert (await DeliveryHealth.of(session, "default")).silent_since is not None
    assert said(stream) == ["webhooks_silent"]
    await stage.once()
    assert said(stream) == ["webhooks_silent"]
    for seconds in (60, 60, 60):
        world.clock.advance(seconds)
        await stage.once()
    assert said(stream) == ["webhooks_silent"] * 3, "at growing intervals, as long as it lasts"
    stage = Backfill(world.app, world.settlement(), policy=policy)

    heard = Event(
        application="default", id="evt_heard", type="order.paid", key="order:A", trust=Trust.SIGNED,
        source=Source.WEBHOOK, raw=b"{}", received_at=world.clock.now(),
    )  # fmt: skip
    async with world.database.transaction() as session:
        await events.record(session, [heard], world.clock.now())
    await stage.once()
    assert stage.interval_s == 60
    assert counted_by(world.metrics, "webhooks_silent", "default") == 0
    await stage.once()
    told = "whoever takes over says that it lasts, and its end"
    assert said(stream) == ["webhooks_silent"] * 4 + ["webhooks_silent_over"], told


def said(stream: io.StringIO) -> list[str]:
    lines = [json.loads(line)["event"] for line in stream.getvalue().splitlines()]
    return [line for line in lines if line.startswith("webhooks_silent")]


async def test_webhooks_that_wait_for_a_worker_are_not_silent_and_silence_is_told_once_they_were_read(
    world: World,
) -> None:
    # case: O1
    numbers = iter(range(1, 100))
    listed: list[dict[str, object]] = []
    world.service.lists["/v1/events"] = lambda cursor, limit: {"items": listed[::-1], "next_cursor": None}
    stage = Backfill(world.app, world.settlement())

    async def walk(*, webhooks: bool) -> bool:
        """Two events, signed webhooks of which reach the log or do not; then a walk. Whether that is silence."""
        for _ in range(2):
            event = world.service.event(next(numbers))
            listed.append(event)
            if webhooks:
                await world.publisher.publish([signed(str(event["id"]), world)])
        world.clock.advance(60)
        await stage.once()
        return counted_by(world.metrics, "webhooks_silent", "default") == 1

    for _ in range(5):
        assert not await walk(webhooks=True), "the workers stand still, the webhooks wait in the log"
    await world.work()
    for _ in range(3):
        assert not await walk(webhooks=True), "the workers have caught up, and go on"
        await world.work()
    for _ in range(5):
        assert not await walk(webhooks=False), "the workers stand still: nobody can tell"
    await world.work()
    await walk(webhooks=False)
    await world.work()
    assert await walk(webhooks=False), "now it is known: nothing came but by the list"
    await world.work()
    await walk(webhooks=True)
    await world.work()
    assert not await walk(webhooks=True), "it is over by itself"


@pytest.mark.parametrize("authenticity", ["signature", "api"])
@pytest.mark.parametrize("late", [1, 5], ids=lambda walks: f"{walks} walks late")
async def test_webhooks_that_always_come_after_the_walk_found_their_events_are_not_silent(
    world: World, authenticity: str, late: int
) -> None:
    # case: O1
    listed: list[dict[str, object]] = []
    world.service.lists["/v1/events"] = lambda cursor, limit: {"items": listed[::-1], "next_cursor": None}
    stage = Backfill(world.app, world.settlement())
    confirm = Confirm(world.app, stage.settlement, catch_up=CatchUp(stage))

    async def arrive(event_id: str, number: int) -> None:
        """The event's webhook, as the authenticity has it."""
        if authenticity == "signature":
            await world.publisher.publish([signed(event_id, world)])
            return
        announced = replace(delivery(b"{}", number, event_id=event_id), received_at=world.clock.now())
        async with world.database.transaction() as session:
            await hints.keep(session, [announced], world.clock.now())
        assert await confirm.once() == 1, "the ledger has it already"

    for number in range(1, 20):
        listed += [world.service.event(2 * number), world.service.event(2 * number + 1)]
        await stage.once()
        await world.work()
        for event in listed[-2 * late - 2 : -2 * late] if number > late else []:
            await arrive(str(event["id"]), number)
        await world.work()
        if late == 1 or number > late + 1:  # later than walks can wait for, it is silence until the first one is there
            assert counted_by(world.metrics, "webhooks_silent", "default") == 0
        world.clock.advance(60)
    async with world.database.reading() as session:
        assert (await DeliveryHealth.of(session, "default")).last_webhook_at is not None
    assert all(event.source is Source.BACKFILL for event in await recorded(world)), "the walk was always quicker"

    for number in range(30, 34):
        listed += [world.service.event(2 * number), world.service.event(2 * number + 1)]
        await stage.once()
        await world.work()
        world.clock.advance(60)
    assert counted_by(world.metrics, "webhooks_silent", "default") == 1, "now none comes, late or not"
    await arrive(str(listed[-1]["id"]), 40)
    await world.work()
    await stage.once()
    assert counted_by(world.metrics, "webhooks_silent", "default") == 0, "the first late one ends it"


async def recorded(world: World) -> list[Event]:
    """Everything in the ledger."""
    async with world.database.reading() as session:
        return [events.to_event(row) for row in (await events.search(session, events.EventFilter())).rows]


def signed(event_id: str, world: World) -> Event:
    """What `serve` publishes for a webhook whose signature it checked."""
    return Event(
        application="default", id=event_id, type="order.paid", key=event_id, trust=Trust.SIGNED,
        source=Source.WEBHOOK, raw=b'{"id":"%s","type":"order.paid"}' % event_id.encode(),
        received_at=world.clock.now(),
    )  # fmt: skip


async def test_confirmed_hints_are_heard_although_no_worker_records_them_and_are_published_once(world: World) -> None:
    # case: O1, B4
    listed: list[dict[str, object]] = []
    world.service.lists["/v1/events"] = lambda cursor, limit: {"items": listed[::-1], "next_cursor": None}
    stage = Backfill(world.app, world.settlement())
    confirm = Confirm(world.app, stage.settlement, catch_up=CatchUp(stage))
    for number in range(1, 9):
        event = world.service.event(number)
        listed.append(event)
        announced = replace(delivery(b"{}", number, event_id=str(event["id"])), received_at=world.clock.now())
        async with world.database.transaction() as session:
            await hints.keep(session, [announced], world.clock.now())
        assert await confirm.once() == 1
        world.clock.advance(60)
        await stage.once()
        assert counted_by(world.metrics, "webhooks_silent", "default") == 0
    found = [event.id for event in await world.published()]
    assert sorted(found) == sorted({str(event["id"]) for event in listed}), "each once"
    async with world.database.reading() as session:
        assert (await DeliveryHealth.of(session, "default")).last_webhook_at is not None


async def noted(world: World, heard_at: datetime | None = None, found: Sequence[str] = ()) -> DeliveryHealth:
    """What is stored after a walk."""
    async with world.database.transaction() as session:
        now = world.clock.now()
        await note_walk(session, "default", recovered=found, gap=False, heard_at=heard_at, token=1, now=now)
    async with world.database.reading() as session:
        return await DeliveryHealth.of(session, "default")


@pytest.mark.parametrize(("ago", "known"), [(timedelta(hours=23), True), (timedelta(hours=25), False)])
async def test_the_first_walk_knows_the_webhooks_of_the_last_day(world: World, ago: timedelta, known: bool) -> None:
    # case: O1
    at = world.clock.now() - ago
    async with world.database.transaction() as session:
        await events.record(session, [replace(signed("evt_1", world), received_at=at)], world.clock.now())
    assert (await noted(world)).last_webhook_at == (at if known else None)


async def test_the_newest_webhook_counts_wherever_it_is_known_from(world: World) -> None:
    # case: O1
    now = world.clock.now()
    assert (await noted(world, now - 5 * MINUTE)).last_webhook_at == now - 5 * MINUTE
    async with world.database.transaction() as session:
        await heard.note(session, {"default": now - 4 * MINUTE})
    assert (await noted(world, now - 5 * MINUTE)).last_webhook_at == now - 4 * MINUTE
    async with world.database.transaction() as session:
        await events.record(session, [replace(signed("evt_1", world), received_at=now - 3 * MINUTE)], now)
    assert (await noted(world, now - 5 * MINUTE)).last_webhook_at == now - 3 * MINUTE


async def test_a_walk_that_changes_nothing_is_not_stored(world: World) -> None:
    # case: O1
    assert await noted(world) == DeliveryHealth()
    assert await world.kept(WALK) is None
    await noted(world, found=["evt_1"])
    assert await world.kept(WALK) is not None


async def test_a_gap_stands_from_when_one_was_found_last_until_a_later_walk_of_state_is_complete(world: World) -> None:
    # case: B13
    async def gap_at() -> datetime | None:
        async with world.database.reading() as session:
            return (await DeliveryHealth.of(session, "default")).gap_at

    with structlog.testing.capture_logs() as logs:
        for at, stands in ((NOW - MINUTE, NOW - MINUTE), (NOW, NOW), (NOW - MINUTE, NOW)):
            async with world.database.transaction() as session:
                await note_gap(session, "default", at=at, token=1)
            assert await gap_at() == stands
        async with world.database.transaction() as session:
            await note_reconciled(session, "default", began=NOW - MINUTE, token=1)
        assert await gap_at() == NOW, "that walk began before"
        assert logs == []
        for _ in range(2):
            async with world.database.transaction() as session:
                await note_reconciled(session, "default", began=NOW, token=1)
            assert await gap_at() is None
    assert logs == [{"event": "retention_gap_over", "log_level": "info", "application": "default"}]
