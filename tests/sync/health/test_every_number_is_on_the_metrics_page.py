"""What the stages count is on the metrics page, under a declared name and with its application."""

from __future__ import annotations

import re
from pathlib import Path

import consumer.sync
from consumer.sync.backfill.cutover import FirstWalk
from consumer.sync.backfill.stage import Backfill
from consumer.sync.health.gauges import FLAGS, TIMES, LeaderGauges
from consumer.telemetry.metrics import Metrics
from tests.support.ports import eventually
from tests.sync.conftest import World
from tests.sync.reconciling import listing
from tests.sync.test_a_dead_leader_is_replaced import role, running


def counted() -> set[str]:
    """The metrics that the stages name."""
    named = re.compile(r"metrics\.(\w+)\s*\.labels\(|_set\(\"(\w+)\"")
    sources = Path(consumer.sync.__file__).parent.rglob("*.py")
    return {first or other for path in sources for first, other in named.findall(path.read_text())}


def test_every_number_of_the_stages_has_a_declared_metric() -> None:
    # case: O6
    found, metrics = counted(), Metrics()
    assert {"webhooks_silent", "hints_taken", "drift", "held_up", "circuit_open", "bookmark_seconds"} <= found
    assert [name for name in found if not hasattr(metrics, name)] == []
    for name, *labels in (*FLAGS, *TIMES):
        getattr(metrics, name).labels("shop", *labels)  # raises where the labels are others


async def test_a_walk_shows_what_it_found_how_long_it_took_and_how_old_it_is(world: World) -> None:
    # case: B7, B11, B29, O6
    world.service.lists["/v1/events"] = listing([world.service.event(number) for number in range(3)])
    await Backfill(world.app, world.settlement()).once()
    world.clock.advance(90)
    text = world.metrics.render().decode()
    assert 'consumer_sync_events_total{application="default",result="recovered"} 3.0' in text
    assert 'consumer_sync_bookmark_age_seconds{application="default"} 90.0' in text
    assert 'consumer_sync_walk_seconds_count{walk="events"} 1.0' in text


async def test_who_leads_shows_it_and_what_holds_a_stage_up(world: World) -> None:
    # case: O6, B26
    world.service.failing["*"] = 503
    metrics = Metrics()
    async with running(role(world.api, world.broker, world.database, "one", metrics=metrics)):
        await eventually(
            lambda: 'consumer_sync_leader{lease="sync/default"} 1.0' in metrics.render().decode(), within_s=60
        )
        held_up = 'consumer_sync_held_up{application="default",stage="identity"} 1.0'
        await eventually(lambda: held_up in metrics.render().decode(), within_s=60)
    assert 'consumer_sync_leader{lease="sync/default"} 0.0' in metrics.render().decode()


async def test_a_gauge_that_nobody_knows_any_more_is_not_shown(world: World) -> None:
    # case: O6, B26
    gauges = LeaderGauges(world.app, FirstWalk(world.app))
    await gauges.take_up()
    assert 'consumer_sync_bookmark_age_seconds{application="default"}' in world.metrics.render().decode()
    gauges.drop()
    gauges.drop()
    assert "consumer_sync_bookmark_age_seconds{" not in world.metrics.render().decode()
    assert "consumer_sync_events_history{" not in world.metrics.render().decode()
    world.app.walked(world.clock.now())
    assert 'consumer_sync_bookmark_age_seconds{application="default"} 0.0' in world.metrics.render().decode()
