"""The driven hour of the outage drill: every second has its events, and webhooks fail by the sandbox's own schedule."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from consumer.sandbox.engine.records import DeliveryStatus
from tests.chaos.hour import Hour, live_through
from tests.promises.deployment import deployment, embedded
from tests.support.ports import free_port

HOUR = Hour(seconds=20, per_s=10, subscription_every=20)


async def test_every_second_has_its_events_and_the_end_is_the_present(tmp_path: Path) -> None:
    async with deployment(tmp_path, **embedded(tmp_path), config=HOUR.config()) as found:
        began_at = found.sandbox.clock.now()
        passed = await live_through(found, HOUR, accepted=True, wait_s=0, say=lambda _: None)
        events = list(found.sandbox.engine.world.events)
        per_s = Counter(int((one.created_at - began_at).total_seconds()) for one in events)
        assert passed.events == len(events) == HOUR.events
        assert (passed.orders, passed.subscriptions) == (95, 5)
        assert len(per_s) >= HOUR.seconds / 2, "they are spread over the hour"
        assert HOUR.seconds <= (found.sandbox.clock.now() - began_at).total_seconds() < HOUR.seconds + 60


async def test_webhooks_to_one_who_is_away_are_tried_and_put_off_as_the_schedule_says(tmp_path: Path) -> None:
    async with deployment(tmp_path, **embedded(tmp_path), config=HOUR.config()) as found:
        found.sandbox.set_webhook_url(f"http://127.0.0.1:{free_port()}/webhooks")
        passed = await live_through(found, HOUR, accepted=False, wait_s=0.05, say=lambda _: None)
        deliveries = list(found.sandbox.engine.world.deliveries)
        assert {one.status for one in deliveries} == {DeliveryStatus.PENDING}
        tried = Counter(len(one.attempts) for one in deliveries)
        assert set(tried) <= {0, 1, 2}, "at once, and after 5 s"
        assert tried[2] >= HOUR.events / 2
        assert passed.attempts + passed.unsent >= sum(len(one.attempts) for one in deliveries)
        assert passed.attempts > 0, "some are really sent"
