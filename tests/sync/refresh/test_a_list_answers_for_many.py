"""A list that answers for many: one order that it shows tells how full a record is; a page that was read says that the
service answers; and after a walk that did not pay, the list rests."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from consumer.sync.refresh.policy import RefreshPolicy
from consumer.sync.refresh.schedule import URGENT
from tests.sync.conftest import World
from tests.sync.reconciling import listing, order
from tests.sync.refreshing import answers, ask, pending, refresh

MANY = 60


# case: B22
async def test_where_no_order_was_found_singly_one_that_is_listed_is_read_so(world: World) -> None:
    for number in range(MANY):
        await ask(world, "order", f"A-{number}")
    listed = [order(number, "PAID") for number in range(10, MANY)]
    world.service.lists["/v1/orders"] = listing(listed)
    for one in listed:
        world.service.records[f"/v1/orders/lookup?{one['order_id']}"] = one
    await refresh(world).once()
    lookups = [path for path in world.service.calls if path.startswith("/v1/orders/lookup")]
    found = [path for path in lookups if path in world.service.records]
    assert len(found) == 1, "the page answers for the others"
    assert {event.key for event in await answers(world)} >= {f"order:A-{number}" for number in range(10, MANY)}
    assert {row.object_id for row in await pending(world)} == {f"A-{number}" for number in range(10)}


# case: G7
async def test_after_a_page_nobody_asks_whether_the_service_answers(world: World) -> None:
    for number in range(MANY):
        await ask(world, "subscription", f"sub_{number}")
    shown = [{"id": f"sub_{number}", "status": "ACTIVE"} for number in range(1, MANY)]
    world.service.lists["/v1/subscriptions"] = listing(shown)
    for one in shown:
        world.service.records[f"/v1/subscriptions/{one['id']}"] = one
    stage = refresh(world)
    for _ in range(30):
        await stage.once()
        world.clock.advance(5)
    assert world.service.calls["/v1/subscriptions/sub_0"] >= 1
    assert "subscription.unreadable" in {event.type for event in await answers(world)}
    assert world.service.calls["/v1/application"] == 0


@pytest.mark.parametrize(
    ("barren", "has_paid_off", "rests"),
    [(0, False, 0), (1, False, 1), (5, False, 5), (0, True, 0), (1, True, 1), (5, True, 1)],
)
def test_a_list_rests_as_long_as_its_walk_was_barren_or_once_where_it_has_paid_off(
    world: World, barren: int, has_paid_off: bool, rests: int
) -> None:
    # case: B23
    world.clock.advance(100)
    lists = refresh(world)._lists["order"]
    walk: Any = SimpleNamespace(barren=barren, has_paid_off=has_paid_off, began=world.clock.now())
    lists._end(walk)
    assert lists._newest_only_until == 100 + rests * RefreshPolicy().newest_every_s


# case: B22
@pytest.mark.parametrize(
    ("since_other", "first"), [(0, "subscriptions"), (URGENT - 1, "subscriptions"), (URGENT, "orders")]
)
async def test_the_list_of_subscriptions_comes_first_and_every_fifth_time_the_others(
    world: World, since_other: int, first: str
) -> None:
    for number in range(MANY):
        await ask(world, "subscription", f"sub_{number}")
        await ask(world, "order", f"A-{number}")
    world.service.lists["/v1/orders"] = listing([order(number) for number in range(MANY)])
    world.service.lists["/v1/subscriptions"] = listing(
        [{"id": f"sub_{one}", "status": "ACTIVE"} for one in range(MANY)]
    )
    stage = refresh(world)
    stage._quota.since_other = since_other
    await stage.once()
    lists = [path for path in world.service.calls if path in ("/v1/orders", "/v1/subscriptions")]
    assert lists[0] == f"/v1/{first}"
    assert len(lists) == 2, "the other has its page in the same round"


async def test_it_runs_until_it_is_told_to_stop(world: World) -> None:
    stop = asyncio.Event()
    stop.set()
    await refresh(world).run(stop)
