"""Ids that we gave, as a customer or a merchant's other system may hold them: an idempotency key, also one that was
renewed, and the id of a delivery that was handled long ago."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy import update

from consumer.console import find as finding
from consumer.console.find import find
from consumer.errors import NotFound
from consumer.events import Event
from consumer.ledger import Database
from consumer.ledger.plans.tables import ItemStatus, PlanItemRow, PlanRow, PlanStatus
from consumer.ledger.tables import EventRow, RunRow
from consumer.plugin.emission import idempotency_key
from consumer.receive.decide import new_delivery_id
from tests.support.desk import Desk
from tests.support.handling.projections import START, Projections, said

SHIP = "shop:ship"
ORDER = ("order", "A-100")
DELIVERY = new_delivery_id(START.timestamp(), f"00-{'ab' * 16}-{'cd' * 8}-01")
KEYS = {plan: idempotency_key("default", "evt_1", SHIP, plan) for plan in (None, "rpl_1", "rpl_2")}


def run_of(event_id: str, seq: int, *, key_plan: str | None = None) -> RunRow:
    """What `shop:ship` did of an event."""
    return RunRow(
        event_id=event_id, application="default", handler=SHIP, seq=seq, key="order:A-100", status="succeeded",
        blocking=False, key_plan=key_plan, created_at=START, updated_at=START,
    )  # fmt: skip


def plan_of(number: int, *, renews_keys: bool) -> list[PlanRow | PlanItemRow]:
    """A plan that ran `shop:ship` again."""
    name = f"rpl_{number}"
    plan = PlanRow(
        id=name, number=number, status=PlanStatus.APPLIED, created_at=START, created_by="ann", filters=b"{}",
        forced=True, renews_keys=renews_keys, items=1, predicted=b"{}", digest="x",
    )  # fmt: skip
    item = PlanItemRow(
        plan=name, application="default", event_id="evt_1", handler=SHIP, seq=1, turn=1, key="order:A-100",
        action="rerun", status=ItemStatus.TAKEN, predicted="{}",
    )  # fmt: skip
    return [plan, item]


@pytest.fixture
async def shipped(database: Database) -> Database:
    """Order A-100 is paid, and shipped three times: the second and the third time under new keys."""
    paid = said("order.paid", "evt_1", order_id="A-100", amount="10", arrives=START + timedelta(seconds=3))
    await Projections(database, "handlers.fulfilment.handler", options={"matching": "off"}).feed(paid)
    async with database.transaction() as session:
        await session.execute(update(EventRow.__table__).values(delivery_id=DELIVERY))
        session.add_all([run_of("evt_1", 1, key_plan="rpl_2"), *plan_of(1, renews_keys=True)])
        session.add_all([*plan_of(2, renews_keys=True), *plan_of(3, renews_keys=False)])
    return database


# case: F30, R5
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (KEYS[None], f"idempotency key of {SHIP} for evt_1"),
        (KEYS["rpl_2"], f"idempotency key of {SHIP} for evt_1, renewed by rpl_2"),
        (KEYS["rpl_1"], f"idempotency key of {SHIP} for evt_1, renewed by rpl_1"),
        (DELIVERY, "delivery of order.paid"),
    ],
    ids=["key", "renewed", "renewed before", "delivery"],
)
async def test_it_is_found_and_explained(shipped: Database, database_url: str, name: str, kind: str) -> None:
    async with shipped.reading() as session:
        [found] = await find(session, name)
        assert (found.kind, found.subject, found.application) == (kind, ORDER, "default")
        assert await find(session, name, application="elsewhere") == []
        assert await find(session, name[:-1] + "x") == []
    desk = Desk({"CONSUMER_DATABASE_URL": database_url})
    told = await asyncio.to_thread(desk.ask, "explain", name)
    assert told["state"]["order_id"] == "A-100"
    told = await asyncio.to_thread(desk.ask, "find", name)
    assert [one["subject"] for one in told["found"]] == [list(ORDER)]


async def test_a_plan_that_renews_nothing_made_no_key(shipped: Database) -> None:
    async with shipped.reading() as session:
        assert await find(session, idempotency_key("default", "evt_1", SHIP, "rpl_3")) == []


async def test_that_not_all_keys_were_tried_is_said(
    shipped: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finding, "KEYS_MAX", 2)
    newer: list[Event] = [said("order.paid", f"evt_{number}", order_id="A-100") for number in (2, 3)]
    await Projections(shipped, "handlers.fulfilment.handler").feed(*newer)
    async with shipped.transaction() as session:
        session.add_all([run_of("evt_2", 2), run_of("evt_3", 3)])
    async with shipped.reading() as session:
        assert await find(session, idempotency_key("default", "evt_2", SHIP))
        assert await find(session, KEYS["rpl_2"]), "renewed ones are tried, whatever came since"
        with pytest.raises(NotFound, match="older ones were not tried"):
            await find(session, KEYS[None])
    desk = Desk({"CONSUMER_DATABASE_URL": database_url})
    for word in ("find", "explain"):
        told = await asyncio.to_thread(desk.ask, word, str(KEYS[None]), code=1)
        assert told.startswith("error[not_found]: no newer run has this key; older ones were not tried"), told


async def test_no_time_can_be_made_of_a_slip_in_a_delivery_id(shipped: Database) -> None:
    async with shipped.reading() as session:
        assert await find(session, "dlv_" + "f" * 32) == []
