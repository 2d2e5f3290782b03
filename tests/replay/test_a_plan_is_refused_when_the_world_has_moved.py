"""Like a saved Terraform plan, but it says what changed: gone, new, and effects that differ."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import orjson
import pytest
from sqlalchemy import text

from consumer.broker import Broker
from consumer.errors import PlanInProgress, PlanMoved, PlanOver, PlanRefused, PlanTooOld
from consumer.events import Delivery, Event, Locators, Source, Trust, build_event
from consumer.ledger import Database
from consumer.ledger.handling import events
from consumer.ledger.plans import plans
from consumer.ledger.plans.tables import PlanRow
from consumer.ledger.reading import observations, quarantine
from consumer.ledger.reading.observations import Observed
from consumer.plugin import Context, handles
from consumer.reason import Reason
from consumer.replay.plan import Planner
from tests.replay.stage import Shop, all_relayed, tables
from tests.support.ports import eventually
from tests.work.workshop import AT, order_paid


# case: R3, R16
async def test_the_items_that_differ_are_named(database: Database, broker: Broker) -> None:
    shop = Shop(database, broker, broken={"mail"})
    work = shop.workshop()
    await work.publish(order_paid(1), order_paid(2))
    async with work.working():
        await eventually(lambda: work.count("shop:mail", "dead", 2))
        await eventually(lambda: work.count("shop:ship", "succeeded", 2))
        plan = await shop.replaying().plan()
        shop.broken.clear()
        one = await shop.replaying().plan(event="evt_1")
        assert (await shop.replaying().apply(one)).is_as_planned

        await eventually(lambda: all_relayed(database))
        before, acted = await tables(database), list(shop.keys)
        with pytest.raises(PlanMoved) as moved:
            await shop.replaying().apply(plan)
        (gone,) = moved.value.differences
        assert (gone["event_id"], gone["handler"]) == ("evt_1", "shop:mail")
        assert "not to be done any more" in gone["what"]
        with pytest.raises(PlanTooOld):
            await shop.replaying().apply(plan, max_age=timedelta(0))
        assert (await tables(database), shop.keys) == (before, acted), "nothing was done"
        with pytest.raises(PlanOver):
            await shop.replaying().apply(one)


# case: R3
async def test_effects_that_would_differ_are_named(database: Database, broker: Broker) -> None:
    shop = Shop(database, broker, broken={"book"})
    work = shop.workshop()
    await work.publish(order_paid(1, "order-1"))
    async with work.working():
        await eventually(lambda: work.count("shop:book", "dead", 1))
        shop.broken.clear()
        plan = await shop.replaying().plan()
        shop.broken.add("book")
        with pytest.raises(PlanMoved) as moved:
            await shop.replaying().apply(plan)
        (differs,) = moved.value.differences
        assert "no more: parcel.requested" in differs["what"]
        assert "new: dead" in differs["what"]


# case: R3, R5
@pytest.mark.parametrize("renews_keys", [True, False])
async def test_what_another_plan_renewed_meanwhile_has_moved(
    database: Database, broker: Broker, renews_keys: bool
) -> None:
    """Two operators see the same parcel lost: the second one's plan sends no third, and calls under no key unseen."""
    shop = Shop(database, broker)
    work = shop.workshop()
    await work.publish(order_paid(1))
    async with work.working():
        await eventually(lambda: work.all_succeeded(3))
        replaying = shop.replaying()
        mine = await replaying.plan(handler="shop:mail", forced=True, reason="lost", renews_keys=True)
        other = await replaying.plan(handler="shop:mail", forced=True, reason="lost", renews_keys=renews_keys)
        assert (await replaying.apply(mine)).is_as_planned
        before = list(shop.keys)
        with pytest.raises(PlanMoved) as moved:
            await replaying.apply(other)
        [differs] = moved.value.differences
        [called] = mine["effects"]["shop:mail"]["idempotency_keys"]
        assert called in differs["what"]
        assert shop.keys == before
        again = await replaying.plan(handler="shop:mail", forced=True, reason="this one, too", renews_keys=True)
        assert (await replaying.apply(again)).is_as_planned, "who has seen it may"


# case: R15
async def test_a_second_operator_is_refused(database: Database, broker: Broker) -> None:
    shop = Shop(database, broker, broken={"mail"})
    work = shop.workshop()
    await work.publish(order_paid(1), order_paid(2))
    async with work.working():
        await eventually(lambda: work.count("shop:mail", "dead", 2))
        shop.broken.clear()
        mine = await shop.replaying().plan(event="evt_1")
        other = await shop.replaying().plan(event="evt_2")
        async with database.transaction() as session:  # as a killed `apply` leaves it
            assert await plans.begin(session, mine["id"], by="ann", reason="mine", now=work.clock.now())
        with pytest.raises(PlanInProgress, match=f"plan {mine['id']} was begun"):
            await shop.replaying().apply(other)
        async with database.transaction() as session:
            left = await plans.cancel(session, mine["id"], by="bob", reason="enough", now=work.clock.now())
        assert left == 1
        with pytest.raises(PlanOver):
            await shop.replaying().apply(mine)
        assert (await shop.replaying().apply(other)).is_as_planned
        assert shop.sent()["mail"] == 1, "what was cancelled was not done"


# case: R15
@pytest.mark.parametrize("is_killed", [False, True])
async def test_who_began_while_the_first_one_still_looked_is_not_got_in_the_way_of(
    database: Database, broker: Broker, monkeypatch: pytest.MonkeyPatch, *, is_killed: bool
) -> None:
    """To look again at a large plan takes longer than a lease lasts."""
    shop = Shop(database, broker, broken={"mail"})
    work = shop.workshop()
    await work.publish(order_paid(1), order_paid(2))
    look_again = Planner.look_again

    async def for_long(self: Planner, row: PlanRow, max_age: timedelta) -> list[dict[str, str]]:
        async with database.transaction() as session:
            if is_killed:
                await plans.begin(session, other["id"], by="bob", reason="his", now=work.clock.now())
            else:
                await session.execute(
                    text("UPDATE leases SET holder = 'bob/1', token = token + 1 WHERE role = 'replay'")
                )
        return await look_again(self, row, max_age)

    async with work.working():
        await eventually(lambda: work.count("shop:mail", "dead", 2))
        shop.broken.clear()
        mine, other = [await shop.replaying().plan(event=name) for name in ("evt_1", "evt_2")]
        monkeypatch.setattr(Planner, "look_again", for_long)
        with pytest.raises(PlanInProgress):
            await shop.replaying().apply(mine)
        assert (await shop.replaying().row(mine)).status == "planned"
    assert shop.sent()["mail"] == 0


# case: R9
async def test_what_was_never_proved_is_refused(sqlite_ledger: Database, broker: Broker) -> None:
    shop = Shop(sqlite_ledger, broker)
    delivery = Delivery(application="default", id="d1", raw=b"{}", received_at=AT, event_id="evt_forged")
    async with sqlite_ledger.transaction() as session:
        await quarantine.put(session, [(delivery, Reason.NOT_CONFIRMED)], AT)
    with pytest.raises(PlanRefused):
        await shop.replaying().plan(event="evt_forged")
    async with sqlite_ledger.transaction() as session:  # the service has confirmed it after all
        await events.record(session, [order_paid("forged")], AT)
    assert (await shop.replaying().plan(event="evt_forged", handler="shop:mail"))["actions"] == {"start": 1}


# case: R9, F24
@pytest.mark.parametrize("mark", [{"test": True}, {"livemode": False}, {"type": "webhook.test"}], ids=str)
async def test_a_test_event_is_left_out(sqlite_ledger: Database, broker: Broker, mark: dict[str, Any]) -> None:
    """It says so of itself; unless the service shows the order that it is about."""

    def marked(number: int) -> Event:
        body = {"id": f"evt_{number}", "type": "order.paid", "data": {"object": {"order_id": "order-1"}}} | mark
        return build_event(
            orjson.dumps(body), Locators(), application="default", trust=Trust.SIGNED, source=Source.WEBHOOK,
            received_at=AT,
        )  # fmt: skip

    @handles("*", attempts=1, name="shop:all")
    async def everything(event: Event, ctx: Context) -> None:
        raise ValueError("broken")

    shop = Shop(sqlite_ledger, broker, more=[everything])
    work = shop.workshop()
    await work.publish(marked(1), order_paid(2))
    async with work.working():
        await eventually(lambda: work.count("shop:all", "dead", 2))
    plan = await shop.replaying().plan(type="order.*" if "type" not in mark else None, handler="shop:all")
    assert (plan["actions"]["retry"], plan["refused"]) == (1, {"test": 1})
    with pytest.raises(PlanRefused):
        await shop.replaying().plan(event="evt_1")
    if "type" in mark:
        return
    async with sqlite_ledger.transaction() as session:
        seen = Observed(
            application="default", kind="order", object_id="order-1", version=1, digest="d", read_at=AT, state="PAID"
        )
        await observations.keep(session, [seen])
    assert (await shop.replaying().plan(event="evt_1"))["refused"] == {}, "it verifies now"
