"""`--force`: the idempotency key is unchanged, so the other side swallows it; `--new-effect-key` makes a new one."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from sqlalchemy import text

from consumer.broker import Broker
from consumer.console.find import find
from consumer.errors import UsageError
from consumer.ledger import Database
from consumer.replay import plan as planning
from tests.replay.stage import Shop
from tests.support.ports import eventually
from tests.work.workshop import order_paid


# case: R5
async def test_the_key_is_the_same_unless_it_is_renewed(database: Database, broker: Broker) -> None:
    shop = Shop(database, broker)
    work = shop.workshop()
    await work.publish(order_paid(1))
    async with work.working():
        await eventually(lambda: work.all_succeeded(3))
        (key,) = [key for name, key in shop.keys if name == "mail"]
        replaying = shop.replaying()
        forced = await replaying.plan(handler="shop:mail", forced=True, reason="lost at the printer's")
        assert forced["actions"] == {"rerun": 1}
        assert (await replaying.apply(forced)).is_as_planned
        renewed = await replaying.plan(handler="shop:mail", forced=True, reason="once more", renews_keys=True)
        assert (await replaying.apply(renewed)).is_as_planned

        keys = [key for name, key in shop.keys if name == "mail"]
        assert keys[:2] == [key, key]
        assert keys[2:] == renewed["effects"]["shop:mail"]["idempotency_keys"] != [key]

        shop.broken.add("mail")
        dies = await replaying.plan(handler="shop:mail", forced=True, reason="again")
        await replaying.apply(dies)
        assert await work.count("shop:mail", "dead", 1)
        shop.broken.clear()
        assert (await replaying.apply(await replaying.plan())).is_as_planned
        assert shop.keys[-1] == ("mail", keys[2]), "a key that was renewed stays the run's key"
    async with database.reading() as session:
        for each in (key, keys[2]):
            assert [one.subject for one in await find(session, each)] == [("order", "order-1")]
        rows = await session.execute(text("SELECT action, reason, after FROM audit WHERE action = 'replay.planned'"))
        told = [(row.reason, orjson.loads(row.after)["forced"]) for row in rows]
    assert ("once more", True) in told


# case: R5
async def test_by_force_a_plan_is_of_all_or_none(
    database: Database, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was done by force fits as before: a second plan, for the rest, would do the same ones again."""
    shop = Shop(database, broker)
    work = shop.workshop()
    await work.publish(order_paid(1), order_paid(2))
    async with work.working():
        await eventually(lambda: work.all_succeeded(6))
    monkeypatch.setattr(planning, "ITEMS_MAX", 1)
    with pytest.raises(UsageError, match="narrow it"):
        await shop.replaying().plan(handler="shop:mail", forced=True, reason="all once more")
    one = await shop.replaying().plan(handler="shop:mail", forced=True, reason="this one", order="order-2")
    assert (one["actions"], one["complete"]) == ({"rerun": 1}, True)


# case: R2, R5
async def test_the_key_that_is_shown_is_the_one_that_is_called(database: Database, broker: Broker) -> None:
    """Of a run whose key an earlier plan renewed: whichever filter finds it, and also when it is dead."""
    shop = Shop(database, broker)
    work = shop.workshop()
    await work.publish(order_paid(1))
    async with work.working():
        await eventually(lambda: work.all_succeeded(3))
        replaying = shop.replaying()
        renewed = await replaying.plan(handler="shop:mail", forced=True, reason="once more", renews_keys=True)
        assert (await replaying.apply(renewed)).is_as_planned
        [key] = renewed["effects"]["shop:mail"]["idempotency_keys"]
        found_by: list[dict[str, Any]] = [{"handler": "shop:mail"}, {"order": "order-1"}, {"type": "order.paid"}]
        for filters in found_by:
            forced = await replaying.plan(**filters, forced=True, reason="again")
            assert forced["effects"]["shop:mail"]["idempotency_keys"] == [key], filters
            assert (await replaying.apply(forced)).is_as_planned
            assert [one for name, one in shop.keys if name == "mail"][-1] == key

        shop.broken.add("mail")
        await replaying.apply(await replaying.plan(handler="shop:mail", forced=True, reason="again"))
        shop.broken.clear()
        dead = await replaying.plan()
        assert dead["effects"]["shop:mail"]["idempotency_keys"] == [key]
        assert (await replaying.apply(dead)).is_as_planned
        assert shop.keys[-1] == ("mail", key)


# case: R6
async def test_a_projection_by_force_emits_nothing_twice(database: Database, broker: Broker) -> None:
    shop = Shop(database, broker)
    work = shop.workshop()
    await work.publish(order_paid(1))
    async with work.working():
        await eventually(lambda: work.all_succeeded(3))
        acted = list(shop.keys)
        forced = await shop.replaying().plan(handler="shop:book", forced=True, reason="to see")
        assert (forced["emits"], forced["effects"]["shop:book"]["calls"]) == ({}, 1)
        assert (await shop.replaying().apply(forced)).is_as_planned
        assert shop.keys == acted
