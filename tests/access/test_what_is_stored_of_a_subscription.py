"""A fact is stored with what follows from it: whose it is, which others are read, and what an operator sees."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from handlers.access.policy import Policy
from handlers.access.records import reading_of
from handlers.access.store import SUBSCRIPTION_DUE
from tests.access.shop import CUSTOMER, Shop
from tests.support.handling.projections import START, observed, own


async def test_a_registration_counts_when_a_read_shows_the_session_later(shop: Shop) -> None:
    # case: A37
    await shop.registers("s1", customer="cus_shop")
    await shop.happens("created")
    assert (await shop.subscription())["customer"] == CUSTOMER
    await shop.reads("ACTIVE", checkout_session_id="s1")
    assert (await shop.subscription())["customer"] == "cus_shop"


@pytest.mark.parametrize(("what", "is_asked"), [("created", False), ("ended", False), ("ACTIVE", True)])
async def test_only_a_live_one_has_its_customers_others_read(shop: Shop, what: str, is_asked: bool) -> None:
    # case: A26
    await shop.reads("ACTIVE", "S1")
    await shop.forget_reads()
    if what == "ACTIVE":
        await shop.reads(what, "S2")
    else:
        await shop.happens(what, "S2", end_reason="PAYMENT_FAILED" if what == "ended" else None)
    assert (("subscription", "S1") in await shop.asked()) is is_asked


async def test_an_unmapped_price_is_looked_at_again_after_its_wait(shop_with: Callable[..., Shop]) -> None:
    # case: A32
    shop = shop_with(entitlements={"other": ["pro"]}, unmapped_retry="10m", unmapped_retry_max="25m")
    await shop.reads("ACTIVE")
    await shop.pass_time(minutes=100)
    due = [one.not_before for one in shop.of_type(SUBSCRIPTION_DUE) if one.data["why"] == "unmapped"]
    passed = [one - START for one in due if one is not None]
    assert passed == [timedelta(minutes=minutes) for minutes in (10, 30, 55, 80, 105)]


async def test_an_unmapped_price_of_one_that_ended_is_nobodys_work(shop_with: Callable[..., Shop]) -> None:
    # case: A32
    shop = shop_with(entitlements={"other": ["pro"]})
    await shop.happens("ended", end_reason="PAYMENT_FAILED")
    await shop.reads("ENDED", end_reason="PAYMENT_FAILED")
    assert await shop.findings() == set()


def test_a_read_is_as_old_as_it_says_or_as_what_brought_it() -> None:
    # case: A40
    later, record = START + timedelta(hours=1), {"id": "S1", "status": "ACTIVE"}
    said = reading_of(observed("subscription:S1", 3, record, at=START), Policy())
    assert said is not None
    assert said.read_at == START
    data = {"kind": "subscription", "id": "S1", "version": 3, "record": record}
    for read_at, expected in ((START.isoformat(), START), (None, later)):
        event = own("subscription.observed", "subscription:S1", {**data, "read_at": read_at}, at=later, id_="obs_1")
        reading = reading_of(event, Policy())
        assert reading is not None
        assert reading.read_at == expected
