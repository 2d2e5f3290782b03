"""Between two subscriptions of one customer nobody loses access; whose it is, is the record's own word."""

from __future__ import annotations

from datetime import timedelta

import pytest

from consumer.ledger import Database
from handlers.access.tables import SUBSCRIPTIONS
from tests.access.shop import Shop
from tests.support.handling.projections import own


def told(shop: Shop) -> list[str]:
    return [one.type for one in shop.of_type("access.granted", "access.revoked")]


@pytest.mark.parametrize("reason", ["PAYMENT_FAILED", "MERCHANT_CANCELED", "PAYER_CANCELED"])
async def test_an_end_settles_while_another_subscription_is_unread(database: Database, reason: str) -> None:
    # case: A27, A25
    shop = Shop(database)
    await shop.reads("ACTIVE", "S1")
    await shop.happens("created", "S2")
    await shop.happens("ended", "S1", end_reason=reason)
    await shop.reads("ENDED", "S1", end_reason=reason)
    assert told(shop) == ["access.granted"]
    await shop.reads("ACTIVE", "S2")
    await shop.pass_time(hours=1)
    assert told(shop) == ["access.granted"]


@pytest.mark.parametrize("read", [True, False])
async def test_an_unread_subscription_that_is_none_keeps_nothing_for_long(database: Database, read: bool) -> None:
    # case: A27, A47
    shop = Shop(database, provisional_after=None)
    await shop.reads("ACTIVE", "S1")
    await shop.happens("created", "S2")
    await shop.happens("ended", "S1", end_reason="PAYMENT_FAILED")
    assert told(shop) == ["access.granted"]
    if read:
        await shop.reads("ENDED", "S2", end_reason="PAYMENT_FAILED")
        await shop.relay()
    else:
        await shop.pass_time(minutes=11)
    assert told(shop) == ["access.granted", "access.revoked"]


async def test_an_unread_subscription_gives_back_nothing_that_was_taken(database: Database) -> None:
    # case: A3, A27
    shop = Shop(database, provisional_after=None)
    await shop.reads("ACTIVE", "S1")
    await shop.happens("ended", "S1", end_reason="PAYMENT_FAILED")
    assert told(shop) == ["access.granted", "access.revoked"]
    await shop.happens("created", "S2")
    await shop.pass_time(minutes=20)
    assert told(shop) == ["access.granted", "access.revoked"]


async def test_a_link_by_order_never_beats_the_records_own_customer(database: Database) -> None:
    # case: A37
    shop = Shop(database)
    data = {"session_id": "cs_other", "order_id": "A1", "customer": "alice"}
    await shop.feed(own("checkout.registered", "order:A1", data, at=shop.now))
    await shop.reads("ACTIVE", "S1", customer_reference="bob", order_id="A1", checkout_session_id="cs_bob")
    assert (await shop.row(SUBSCRIPTIONS))["customer"] == "bob"
    await shop.reads("ACTIVE", "S2", customer_reference=None, order_id="A1", checkout_session_id="cs_3")
    assert (await shop.row(SUBSCRIPTIONS, subscription_id="S2"))["customer"] == "alice"
    later = {**data, "session_id": "cs_third", "customer": "carol"}
    await shop.feed(own("checkout.registered", "order:A1", later, at=shop.now + timedelta(seconds=1)))
    assert (await shop.row(SUBSCRIPTIONS, subscription_id="S1"))["customer"] == "bob"


async def test_grace_counts_from_when_past_due_began(database: Database) -> None:
    # case: A8, A9, A43
    shop = Shop(database, past_due="grace:14d")
    await shop.reads("ACTIVE", "S1")
    began = shop.now + timedelta(days=1)
    shop.now += timedelta(days=6)  # an outage: the webhook was lost, backfill brings the event
    await shop.happens("past_due", "S1", at=began)
    await shop.reads("PAST_DUE", "S1")
    assert (await shop.row(SUBSCRIPTIONS))["past_due_since"] == began
    await shop.happens("payment_failed", "S1", at=began + timedelta(days=3))
    await shop.reads("PAST_DUE", "S1")
    assert (await shop.row(SUBSCRIPTIONS))["past_due_since"] == began


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (2, 0, 1), (0, 2, 1), (1, 0, 2)])
async def test_of_two_times_past_due_the_one_that_was_made_good_is_over(
    database: Database, order: tuple[int, ...], *, is_known: bool
) -> None:
    """Also where the first one was read, and an outage kept all that came after it, to the end of its grace."""
    # case: A10, G1, G3
    shop = Shop(database)
    await shop.reads("ACTIVE", "S1")
    first = shop.now + timedelta(days=30)
    if is_known:
        shop.now = first
        await shop.reads("PAST_DUE", "S1")
    await shop.pass_time(seconds=(first + timedelta(days=31) - shop.now).total_seconds())
    news = [("past_due", 0), ("renewed", 3), ("past_due", 30)]
    for number in order:
        what, days = news[number]
        await shop.happens(what, "S1", at=first + timedelta(days=days))
    await shop.reads("PAST_DUE", "S1")
    assert (await shop.row(SUBSCRIPTIONS))["past_due_since"] == first + timedelta(days=30)
    assert await shop.allowed()
