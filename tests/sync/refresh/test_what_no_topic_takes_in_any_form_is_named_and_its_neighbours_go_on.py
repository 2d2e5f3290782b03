"""A record that the topic takes in no form: its read waits under that name, ever longer, it is said at once and again
when it lasts, its neighbours are answered, and it is too as soon as the topic takes it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from consumer.broker import EmbeddedBroker, TopicConfig
from consumer.errors import RecordTooLarge
from consumer.plugin import ReadKind
from tests.sync.conftest import EVENTS, World, counted_by
from tests.sync.refreshing import answers, ask, paged, pending, refresh
from tests.sync.service import Json

NOTES = {f"note_{number}": "x" * 200 for number in range(100)}
"""None of them is long, and together they are longer than the topic takes."""
HOURS = 12


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[EmbeddedBroker]:
    """Its topic is smaller than any that this project makes: somebody else has made it."""
    found = EmbeddedBroker(tmp_path / "log.db")
    await found.start()
    await found.ensure_topics([TopicConfig(name=EVENTS, partitions=4, retention_s=None, max_record_bytes=4096)])
    yield found
    await found.stop()


def paid(number: int, **more: Any) -> Json:
    return {"id": f"ord_{number}", "order_id": f"A{number}", "status": "PAID", **more}


def lookup(world: World, record: Json) -> str:
    path = f"/v1/orders/lookup?{record['order_id']}"
    world.service.records[path] = record
    return path


READS: dict[ReadKind, tuple[str, str, Json]] = {
    "order": ("A1", "/v1/orders/lookup?A1", paid(1, **NOTES)),
    "service_order": ("ord_1", "/v1/orders/ord_1", paid(1, **NOTES)),
    "session": ("cs_1", "/v1/checkout-sessions/cs_1", {"id": "cs_1", "order": paid(1, **NOTES)}),
    "subscription": ("sub_1", "/v1/subscriptions/sub_1", {"id": "sub_1", "status": "ACTIVE", **NOTES}),
}


# case: U1, U30
@pytest.mark.parametrize("kind", READS)
async def test_its_read_is_named_asked_for_ever_more_rarely_and_answered_in_the_end(
    world: World, kind: ReadKind
) -> None:
    object_id, path, record = deepcopy(READS[kind])
    world.service.records[path] = record
    lookup(world, paid(2))
    stage = refresh(world)
    await ask(world, kind, object_id)
    with capture_logs() as lines:
        for minute in range(HOURS * 60):
            if minute % 60 == 0:
                await ask(world, "order", "A2")
            await stage.once()
            world.clock.advance(60)
    [left] = await pending(world)
    assert (left.object_id, left.code) == (object_id, RecordTooLarge.code)
    assert world.service.calls[path] == left.attempts == counted_by(world.metrics, "reads_failed", "default")
    assert 8 <= left.attempts <= 10
    said = [(line["event"], line["log_level"], line.get("code")) for line in lines]
    events = 2 if kind == "session" else 1  # its own and its order's
    assert said.count(("event_too_large", "error", None)) == left.attempts * events
    assert said.count(("object_unreadable", "error", RecordTooLarge.code)) == 1
    assert [event.order_id for event in await answers(world)] == ["A2"] * HOURS

    for name in NOTES:
        del (record["order"] if kind == "session" else record)[name]
    world.clock.advance((left.due_at - world.clock.now()).total_seconds())
    await stage.once()
    assert await pending(world) == []
    assert len(await answers(world)) == HOURS + events


# case: U1, B22
async def test_a_page_that_shows_it_answers_for_all_others(world: World) -> None:
    orders = [paid(number, **(NOTES if number == 7 else dict.fromkeys(NOTES, ""))) for number in range(30)]
    paths = [lookup(world, order) for order in orders]
    world.service.lists["/v1/orders"] = paged(orders)
    for order in orders:
        await ask(world, "order", order["order_id"])
    await refresh(world).once()
    [left] = await pending(world)
    assert (left.object_id, left.code, left.attempts) == ("A7", RecordTooLarge.code, 1)
    assert len(await answers(world)) == 29
    assert sum(world.service.calls[path] for path in paths) == 1, "the first, which shows how full a record is"
