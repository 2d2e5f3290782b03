"""A walk of a list that has caught up with those who ask waits for them where it is, so that a long list is read once
while they come on, and not from its first page again each time."""

from __future__ import annotations

import pytest

from consumer.ledger.reading import read_requests
from consumer.plugin import ReadRequest
from consumer.sync.refresh.policy import WAITS_S, RefreshPolicy
from consumer.sync.refresh.stage import Refresh
from tests.sync.conftest import World
from tests.sync.reconciling import order
from tests.sync.refreshing import answers, paged, pending
from tests.sync.service import Json

LONG = 3_000
AT_ONCE = 130  # a page and a part of one


def stage_of(world: World, listed: list[Json], *, pages: int) -> Refresh:
    """Refresh with room in the budget, and `pages` a round."""
    world.service.lists["/v1/orders"] = paged(listed)
    for one in listed:
        world.service.records[f"/v1/orders/lookup?{one['order_id']}"] = one
    policy = RefreshPolicy(pages=pages, burst=1_000, order_burst=1_000, order_per_s=50, per_s=50)
    return Refresh(world.app, world.publisher, policy=policy)


async def ask_for(world: World, numbers: range) -> None:
    requests = [ReadRequest(kind="order", object_id=f"A-{number}") for number in numbers]
    async with world.database.transaction() as session:
        await read_requests.ask(session, "default", requests, world.clock.now())


async def caught_up(world: World, stage: Refresh, known: int) -> None:
    """The workers come down the list and ask; what they ask for is read in between."""
    for number in range(0, known, AT_ONCE):
        await ask_for(world, range(number, number + AT_ONCE))
        for _ in range(3):
            await stage.once()
            world.clock.advance(0.5)


# case: B22, B23
@pytest.mark.parametrize("pages", [2, 20], ids=["what is due is read", "the next page shows nothing due"])
async def test_its_pages_are_read_as_often_as_the_workers_come_on(world: World, pages: int) -> None:
    stage = stage_of(world, [order(number, "PAID") for number in range(LONG)], pages=pages)
    await caught_up(world, stage, 2_080)
    assert len({event.order_id for event in await answers(world)}) == 2_080
    assert await pending(world) == []
    # Each time the newest page, two or three of those asked for, one beyond them. From the first page on it were 190.
    assert world.service.calls["/v1/orders"] <= 5 * 2_080 // AT_ONCE


async def test_nothing_is_left_behind_of_a_page_that_the_workers_are_just_coming_through(world: World) -> None:
    # case: B22, B23
    stage = stage_of(world, [order(number, "PAID") for number in range(LONG)], pages=1)
    for known in range(0, LONG, 75):
        await ask_for(world, range(known, known + 75))
        await stage.once()
        world.clock.advance(0.75)
    while await pending(world):
        await stage.once()
    # Each of thirty pages once or twice, and the newest each 3 s. With what was left behind it were 82.
    assert world.service.calls["/v1/orders"] <= 65


async def test_a_page_is_not_read_again_for_orders_that_nobody_has_paid(world: World) -> None:
    # case: B22
    listed = [order(number, "PENDING" if number % 2 else "PAID") for number in range(LONG)]
    stage = stage_of(world, listed, pages=20)
    for numbers in (range(0, 1_000, 2), range(1_000, LONG, 2)):
        await ask_for(world, numbers)
    while await pending(world):
        await stage.once()
    assert world.service.calls["/v1/orders"] <= LONG // 100 + 2


async def test_who_asks_for_the_newest_meanwhile_is_answered_first(world: World) -> None:
    # case: B23
    listed = [order(number, "PAID") for number in range(100, LONG)]
    stage = stage_of(world, listed, pages=20)
    for number in range(100, 1_140, AT_ONCE):
        await ask_for(world, range(number, number + AT_ONCE))
        await stage.once()
    listed[:0] = [order(number, "PAID") for number in range(100)]
    await ask_for(world, range(100))
    world.service.calls.clear()
    await stage.once()
    assert await pending(world) == []
    assert world.service.calls["/v1/orders"] <= 2


async def test_after_a_minute_a_walk_begins_at_the_first_page(world: World) -> None:
    # case: B23
    stage = stage_of(world, [order(number, "PAID") for number in range(LONG)], pages=20)
    await caught_up(world, stage, 1_040)
    for _ in range(2):
        world.clock.advance(WAITS_S)
        await stage.once()
    await ask_for(world, range(110, 290))
    world.service.calls.clear()
    await stage.once()
    assert await pending(world) == []
    assert world.service.calls["/v1/orders"] <= 4


async def test_where_all_was_answered_before_nobody_is_waited_for(world: World) -> None:
    # case: B22
    stage = stage_of(world, [order(number, "PAID") for number in range(LONG)], pages=20)
    for asked in (range(LONG), range(1_000)):
        await ask_for(world, asked)
        while await pending(world):
            await stage.once()
        await stage.once()
    await ask_for(world, range(300, 600))
    world.service.calls.clear()
    await stage.once()
    assert await pending(world) == []
    assert world.service.calls["/v1/orders"] <= 8, "the first three, the three that answer, and one more"
