"""The service says that it has no such subscription: nothing is granted unread, and nothing is taken away."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from consumer.errors import ConsumerError
from consumer.events import Trust
from handlers.access import facts
from handlers.access.subscription import Subscription
from handlers.access.tables import FINDINGS, SUBSCRIPTIONS
from tests.access.shop import Shop
from tests.support.handling.projections import START, said


@pytest.mark.parametrize(
    ("read", "denied", "version", "kept"),
    [(0, None, 1, 1), (5, None, 5, None), (5, None, 6, 6), (5, 7, 6, 7), (5, 7, 7, 7), (5, 7, 8, 8), (9, 7, 8, 7)],
)
def test_an_older_answer_that_there_is_none_overwrites_nothing_newer(
    read: int, denied: int | None, version: int, kept: int | None
) -> None:
    # case: A40, A47
    sub = Subscription(version=read, unreadable_version=denied)
    assert facts.unreadable(sub, version) == Subscription(version=read, unreadable_version=kept)


async def test_a_signed_test_event_that_looks_real_grants_nothing_and_is_shown(shop: Shop) -> None:
    # case: A47, G6
    await shop.happens("created")
    await shop.denies()
    await shop.pass_time(seconds=2)
    assert await shop.findings() == set(), "it may only be too new to be read"
    await shop.pass_time(days=30)
    assert shop.effects == []
    assert await shop.findings() == {("unreadable_subscription", "S1")}
    assert (await shop.row(FINDINGS))["detail"]["access"] == "withheld"


@pytest.mark.parametrize("trust", [Trust.SIGNED, Trust.READ])
async def test_without_a_provisional_grant_it_is_shown_all_the_same(
    shop_with: Callable[..., Shop], trust: Trust
) -> None:
    # case: A47, B28
    shop = shop_with(provisional_after=None)
    await shop.feed(said("subscription.created", "evt_1", id="S1", customer_reference="c1", trust=trust))
    await shop.denies()
    await shop.pass_time(seconds=29)
    assert await shop.findings() == set()
    await shop.pass_time(seconds=2)
    assert await shop.findings() == {("unreadable_subscription", "S1")}
    assert shop.effects == []


async def test_a_webhook_that_waited_in_the_log_is_asked_for_before_it_is_believed(shop: Shop) -> None:
    # case: A47
    event = shop.event("created")
    shop.now = START + timedelta(hours=1)
    await shop.feed(event)
    await shop.relay()
    await shop.denies()
    await shop.pass_time(minutes=1)
    assert shop.effects == []


async def test_one_that_was_too_new_to_be_read_is_granted_by_the_read(shop: Shop) -> None:
    # case: A1, A34
    await shop.happens("created")
    await shop.denies()
    await shop.pass_time(seconds=20)
    await shop.reads("ACTIVE")
    await shop.pass_time(days=1)
    assert shop.effects == ["granted default"]
    assert await shop.findings() == set()


async def test_no_answer_grants_as_before(shop: Shop) -> None:
    # case: A1, A34
    await shop.happens("created")
    await shop.pass_time(seconds=4)
    assert shop.effects == ["granted default"]


@pytest.mark.parametrize("status", ["provisional", "ACTIVE", "PAST_DUE"])
async def test_what_is_granted_stays_granted_and_is_shown(shop: Shop, status: str) -> None:
    # case: G7, A34, A53, B21
    if status == "provisional":
        await shop.happens("created")
        await shop.pass_time(seconds=4)
    else:
        await shop.reads(status)
    await shop.denies()
    await shop.pass_time(days=10)
    assert await shop.allowed()
    assert shop.effects == ["granted default"]
    assert await shop.findings() == {("unreadable_subscription", "S1")}
    assert (await shop.row(FINDINGS))["detail"]["access"] == "kept"
    await shop.reads("ACTIVE")
    assert await shop.findings() == set()
    assert shop.effects == ["granted default"]


async def test_an_older_read_that_comes_late_does_not_say_that_it_can_be_read_now(shop: Shop) -> None:
    # case: A40
    await shop.reads("ACTIVE", version=3)
    await shop.denies(version=5)
    await shop.reads("ACTIVE", version=4)
    assert await shop.findings() == {("unreadable_subscription", "S1")}
    await shop.denies(version=2)
    await shop.reads("ACTIVE", version=6)
    assert await shop.findings() == set()


async def test_a_charge_is_not_believed_while_it_cannot_be_read(shop: Shop) -> None:
    # case: A10, A41
    await shop.reads("ACTIVE")
    await shop.reads("PAST_DUE")
    await shop.pass_time(days=15)
    await shop.happens("renewed")
    await shop.denies()
    await shop.pass_time(minutes=1)
    assert shop.effects == ["granted default", "revoked default"]
    assert await shop.findings() == {("unreadable_subscription", "S1")}


async def test_an_end_that_cannot_be_read_is_an_end(shop: Shop) -> None:
    # case: A45, G7
    await shop.reads("ACTIVE")
    await shop.happens("ended", end_reason="MERCHANT_CANCELED")
    await shop.denies()
    assert shop.effects == ["granted default", "revoked default"]
    assert await shop.findings() == set()


@pytest.mark.parametrize("known_by", ["an event", "a read"])
async def test_the_finding_closes_with_the_subscription(shop: Shop, known_by: str) -> None:
    # case: A13, A16, G7
    if known_by == "an event":
        await shop.happens("created")
    else:
        await shop.reads("ACTIVE", version=1)
    await shop.denies(version=5)
    await shop.pass_time(minutes=1)
    assert await shop.findings() == {("unreadable_subscription", "S1")}
    await shop.happens("ended", end_reason="MERCHANT_CANCELED")
    assert await shop.findings() == set()
    row = await shop.row(FINDINGS)
    assert (row["closed_by"], row["closed_at"]) == ("system", shop.now)
    await shop.denies(version=7)
    await shop.pass_time(days=1)
    assert await shop.findings() == set(), "nobody misses what is over"
    assert not await shop.allowed()


@pytest.mark.parametrize("version", [4, 2])
async def test_an_end_that_an_older_read_shows_closes_it_too(shop: Shop, version: int) -> None:
    # case: A14, B20, A40
    await shop.reads("ACTIVE", version=3)
    await shop.denies(version=5)
    assert await shop.findings() == {("unreadable_subscription", "S1")}
    await shop.reads("ENDED", version=version, end_reason="MERCHANT_CANCELED")
    assert await shop.findings() == set()


async def test_no_such_subscription_says_nothing_of_one_nobody_spoke_of(shop: Shop) -> None:
    # case: G7
    await shop.denies()
    assert await shop.rows(SUBSCRIPTIONS) == []


async def test_the_service_cannot_say_so_by_a_webhook(shop: Shop) -> None:
    # case: G6
    with pytest.raises(ConsumerError, match="does not send"):
        await shop.feed(said("subscription.unreadable", "evt_1", id="S1", envelope={"data": {"version": 9}}))


@pytest.mark.parametrize("what", ["created", "ended", "renewed"])
async def test_an_event_that_names_no_subscription_is_shown(shop: Shop, what: str) -> None:
    """The service calls the field otherwise: it was ignored, and nobody was told that access follows nothing more."""
    # case: A47
    for number in (1, 2):
        await shop.feed(said(f"subscription.{what}", f"evt_{number}", subscription_ref="S1", trust=Trust.SIGNED))
    assert await shop.findings() == {("unidentified_subscription", f"subscription.{what}")}
    assert (await shop.row(FINDINGS))["detail"]["event_id"] == "evt_2"
    await shop.word("access.finding_closed", f"object:subscription.{what}", kind="unidentified_subscription", by="op")
    assert await shop.findings() == set()
    await shop.feed(said(f"subscription.{what}", "evt_3", subscription_ref="S1", trust=Trust.SIGNED))
    assert await shop.findings() == {("unidentified_subscription", f"subscription.{what}")}


async def test_a_marked_test_event_that_names_none_is_not(shop: Shop) -> None:
    # case: A47
    await shop.feed(said("subscription.created", "evt_1", test=True, trust=Trust.SIGNED))
    assert await shop.findings() == set()
