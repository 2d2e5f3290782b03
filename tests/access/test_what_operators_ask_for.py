"""What operators say and ask for: done wholly, a batch at a time, and written down."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from consumer.errors import ConsumerError
from handlers.access import handler
from handlers.access.decisions import CUSTOMER_DUE
from handlers.access.tables import AccessFinding
from tests.access.shop import Shop
from tests.support.handling.projections import own, unreadable


async def test_a_finding_closed_by_hand_is_written_down_once_with_who_and_why(shop: Shop) -> None:
    # case: A35
    await shop.reads("PAUSED")
    for by in ("ann", "ben"):
        await shop.word("access.finding_closed", "object:S1", kind="unknown_status", by=by, reason="known")
    closed = [(note.subject, note.before, note.after) for note in shop.notes if note.action == "finding.closed"]
    assert closed == [("object:S1", {"kind": "unknown_status"}, {"by": "ann", "reason": "known"})]


@pytest.mark.parametrize("customers", [0, 1, 2, 3, 5])
async def test_everybody_is_decided_anew_once_however_many_batches(
    shop: Shop, customers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case: A32
    monkeypatch.setattr(handler, "BATCH", 2)
    names = [f"cus_{number}" for number in range(customers)]
    for name in names:
        await shop.reads("ACTIVE", f"S_{name}", customer_reference=name)
    await shop.word("access.recheck", "object:access", by="op")
    await shop.relay()
    assert sorted(one.key for one in shop.of_type(CUSTOMER_DUE)) == [f"customer:{name}" for name in names]


async def test_a_brake_that_nobody_waits_for_is_closed_by_its_release(shop: Shop) -> None:
    # case: B31
    async with shop.database.transaction() as session:
        session.add(AccessFinding(application="default", kind="brake", subject="default", opened_at=shop.now))
    await shop.word("access.brake_released", "object:access", by="op", after="cus_1")
    assert await shop.findings() == {("brake", "default")}, "the rest of a batch closes nothing"
    await shop.word("access.brake_released", "object:access", by="op")
    assert await shop.findings() == set()


async def test_a_checkout_registered_later_is_found_by_its_order_alone(shop: Shop) -> None:
    # case: A37
    await shop.reads("ACTIVE", customer_reference=None, order_id="O1")
    await shop.reads("ACTIVE", "S2", customer_reference=None)
    await shop.registers("s1", customer="cus_shop", order="O1")
    assert await shop.allowed(customer="cus_shop")
    assert await shop.findings() == {("unresolved_subscriber", "S2")}


async def test_an_answer_that_there_is_none_needs_a_version(shop: Shop) -> None:
    # case: G7
    answer = unreadable("subscription:S1", 5, at=shop.now)
    with pytest.raises(ConsumerError, match="needs a subscription and a version"):
        await shop.feed(own(answer.type, answer.key, {"kind": "subscription", "id": "S1"}, id_=answer.id))


async def test_the_timer_of_one_that_ended_meanwhile_shows_nothing(shop_with: Callable[..., Shop]) -> None:
    # case: A47, A16
    shop = shop_with(provisional_after=timedelta(seconds=40))
    await shop.happens("created")
    await shop.denies()
    await shop.pass_time(seconds=20)
    await shop.happens("ended", end_reason="MERCHANT_CANCELED")
    await shop.pass_time(minutes=5)
    assert await shop.findings() == set()


@pytest.mark.parametrize(("hours", "status"), [(-1, "ACTIVE"), (1, "PAST_DUE")])
async def test_a_charge_was_heard_of_when_its_timer_was_due_where_that_does_not_say(
    shop_with: Callable[..., Shop], hours: int, status: str
) -> None:
    # case: A10, A41
    shop = shop_with(provisional_after=None)
    due = shop.now + timedelta(hours=3)
    shop.now = due + timedelta(hours=hours)
    await shop.reads("PAST_DUE")
    await shop.word("access.subscription_due", "subscription:S1", why="provisional", due=due.isoformat())
    assert (await shop.subscription())["status"] == status
