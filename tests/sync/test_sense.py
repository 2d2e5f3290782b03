"""Sense: silence and gaps are noticed, said once, cured, and over when they are over."""

from __future__ import annotations

from datetime import timedelta

from consumer.events import Event, Source, Trust
from consumer.ledger import events
from consumer.sync.backfill import Backfill, BackfillPolicy
from consumer.sync.sense import Condition, after_walk, condition
from tests.sync.conftest import SteppedClock, World

NOW = SteppedClock().now()


def test_events_without_any_webhook_over_several_walks_are_silence() -> None:
    # case: O1
    found = Condition()
    found = after_walk(found, recovered=50, gap=False, last_webhook_at=None, now=NOW)
    assert found.silent_since is None, "one walk may have come before the webhooks"
    found = after_walk(found, recovered=1, gap=False, last_webhook_at=None, now=NOW)
    assert found.silent_since == NOW
    later = after_walk(found, recovered=5, gap=False, last_webhook_at=None, now=NOW + timedelta(hours=1))
    assert later.silent_since == NOW


def test_a_quiet_service_is_no_silence() -> None:
    # case: O1
    found = Condition()
    for _ in range(100):
        found = after_walk(found, recovered=0, gap=False, last_webhook_at=None, now=NOW)
    assert found.silent_since is None


def test_some_lost_webhooks_are_no_silence_and_the_first_heard_ends_it() -> None:
    # case: O1
    found = Condition(silent_since=NOW, recovered=9, walks=3)
    found = after_walk(found, recovered=2, gap=False, last_webhook_at=NOW, now=NOW)
    assert (found.silent_since, found.recovered) == (None, 0)
    for number in range(1, 20):
        heard = NOW + timedelta(seconds=number)
        found = after_walk(found, recovered=2, gap=False, last_webhook_at=heard, now=heard)
        assert found.silent_since is None


def test_a_condition_survives_its_storage() -> None:
    # case: B10
    full = Condition(silent_since=NOW, gap_at=NOW, last_webhook_at=NOW, recovered=3, walks=2)
    assert Condition.load(full.dump()) == full
    assert Condition.load(None) == Condition()


async def test_silent_webhooks_make_backfill_walk_more_often_until_one_is_heard(world: World) -> None:
    # case: O1, S7
    numbers = iter(range(1, 100))
    listed: list[dict[str, object]] = []

    def more(count: int) -> None:
        listed.extend(world.service.event(next(numbers)) for _ in range(count))

    world.service.lists["/v1/events"] = lambda cursor, limit: {"items": listed[::-1], "next_cursor": None}
    policy = BackfillPolicy(interval_s=60, silent_interval_s=10)
    stage = Backfill(
        world.reader, world.database, world.outlet, clock=world.clock, token=lambda: 1, figures=world.figures,
        policy=policy,
    )  # fmt: skip
    for _ in range(3):
        more(2)
        await stage.once()
    assert stage.interval_s == 10
    assert world.figures.value("webhooks_silent", "default") == 1
    async with world.database.reading() as session:
        assert (await condition(session, "default")).silent_since is not None

    heard = Event(
        application="default", id="evt_heard", type="order.paid", key="order:A", trust=Trust.SIGNED,
        source=Source.WEBHOOK, raw=b"{}", received_at=world.clock.now(),
    )  # fmt: skip
    async with world.database.transaction() as session:
        await events.record(session, [heard], world.clock.now())
    await stage.once()
    assert stage.interval_s == 60
    assert world.figures.value("webhooks_silent", "default") == 0
