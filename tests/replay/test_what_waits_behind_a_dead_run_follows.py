"""A dead run keeps its key's later events parked: the plan says that they follow, or what they wait behind."""

from __future__ import annotations

import pytest

from consumer.broker import Broker
from consumer.ledger import Database
from consumer.plugin import Context, Event, handles
from consumer.replay import plan as planning
from tests.replay.stage import Shop
from tests.support.ports import eventually
from tests.work.workshop import order_paid


# case: R2, R10
async def test_parked_runs_follow_their_head(database: Database, broker: Broker) -> None:
    is_broken = True
    seen: list[str] = []

    @handles("order.paid", attempts=1, name="shop:log")
    async def log(event: Event, ctx: Context) -> None:
        if is_broken and event.id in ("evt_1", "evt_4"):
            raise ValueError("not this one")
        seen.append(event.id)

    shop = Shop(database, broker, more=[log])
    work = shop.workshop()
    await work.publish(
        *[order_paid(number, "order-1") for number in (1, 2, 3)], order_paid(4), order_paid(5, "order-4")
    )
    async with work.working():
        await eventually(lambda: work.count("shop:log", "dead", 2))
        await eventually(lambda: work.count("shop:log", "parked", 3))
        plan = await shop.replaying().plan(order="order-1")
        assert plan["actions"] == {"follow": 2, "retry": 1}
        assert plan["effects"]["shop:log"]["calls"] == 3
        is_broken = False
        assert (await shop.replaying().apply(plan)).is_as_planned
        await eventually(lambda: seen == ["evt_1", "evt_2", "evt_3"])
        assert await work.count("shop:log", "parked", 1), "the other order was not meant"


# case: R2
async def test_a_plan_with_all_that_follows_is_complete(
    database: Database, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many follow, as long as none is left out."""
    shop = Shop(database, broker, broken={"mail"})
    work = shop.workshop()
    await work.publish(*[order_paid(number, "order-1") for number in (1, 2, 3)])
    async with work.working():
        await eventually(lambda: work.count("shop:mail", "parked", 2))
    for most, followers, is_all in ((1, 1, False), (2, 2, True)):
        monkeypatch.setattr(planning, "ITEMS_MAX", most)
        plan = await shop.replaying().plan(handler="shop:mail", status="dead")
        assert (plan["actions"], plan["complete"]) == ({"follow": followers, "retry": 1}, is_all)
