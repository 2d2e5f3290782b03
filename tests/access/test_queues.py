"""What cannot be settled by itself waits in a queue, and is settled from the current state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from consumer.errors import ConsumerError
from consumer.events import Source
from handlers.access import handler
from handlers.access.decisions import CUSTOMER_DUE
from handlers.access.links import link
from handlers.access.tables import ENTITLEMENTS, FINDINGS, SOURCES
from tests.access.shop import CUSTOMER, Shop
from tests.support.handling.projections import START, observed, own, said

NOBODY: dict[str, Any] = {"customer_reference": None}
LINKS: list[dict[str, Any]] = [{"checkout_session_id": "s1"}, {"order_id": "O1"}, {"checkout_session": {"id": "s1"}}]


async def test_an_unresolved_subscriber_waits_and_is_attached_from_the_current_state(shop: Shop) -> None:
    # case: A36
    await shop.happens("created", **NOBODY)
    await shop.reads("ACTIVE", **NOBODY)
    assert await shop.findings() == {("unresolved_subscriber", "S1")}
    [unresolved] = shop.of_type("access.unresolved")
    assert unresolved.key == "subscription:S1"
    assert shop.effects == []
    await shop.reads("PAST_DUE", **NOBODY)
    await shop.word("access.customer_attached", "subscription:S1", customer="cus_7", by="op")
    assert await shop.findings() == set()
    assert await shop.reasons(customer="cus_7") == ["grace:S1"]
    assert shop.effects == ["granted default"]


@pytest.mark.parametrize("session", ["checkout_session", "session"])
async def test_a_session_inside_the_record_says_whose_it_is(shop: Shop, session: str) -> None:
    # case: A36, U10
    shown: dict[str, Any] = {session: {"id": "s1", "customer_reference": "cus_7"}}
    await shop.reads("ACTIVE", **NOBODY, **shown)
    assert await shop.findings() == set()
    assert await shop.allowed(customer="cus_7")


async def test_a_read_of_its_session_says_whose_it_is(shop: Shop) -> None:
    # case: A36, U10
    await shop.happens("created", **NOBODY)
    assert not [one for one in await shop.asked() if one[0] == "session"], "no session is known yet"
    await shop.reads("ACTIVE", checkout_session_id="s1", **NOBODY)
    assert ("session", "s1") in await shop.asked()
    assert await shop.findings() == {("unresolved_subscriber", "S1")}
    await shop.shows_session("s1", customer_reference="cus_7")
    await shop.shows_session("s1", customer_reference="cus_7")
    assert shop.effects == ["granted default"]
    assert await shop.findings() == set()
    assert (await shop.subscription())["customer_source"] == "session"
    assert await shop.allowed(customer="cus_7")


@pytest.mark.parametrize(
    "record", [{"customer_reference": "cus_7"}, {"customer": {"reference": "cus_7"}},
               {"metadata": {"customer_reference": "cus_7"}}]
)  # fmt: skip
async def test_a_session_names_its_customer_here_or_there(shop: Shop, record: dict[str, Any]) -> None:
    # case: A36, U10
    await shop.reads("ACTIVE", checkout_session_id="s1", **NOBODY)
    await shop.shows_session("s1", **record)
    assert await shop.allowed(customer="cus_7")


async def test_where_a_session_names_its_customer_is_a_setting(shop_with: Callable[..., Shop]) -> None:
    # case: A36, U10
    shop = shop_with(session_customer=["/buyer/id"])
    await shop.reads("ACTIVE", checkout_session_id="s1", **NOBODY)
    await shop.shows_session("s1", buyer={"id": "cus_7"}, customer_reference="another")
    assert await shop.allowed(customer="cus_7")


async def test_a_session_is_asked_for_when_no_read_of_the_subscription_comes(shop: Shop) -> None:
    # case: A1, A36
    await shop.happens("created", checkout_session_id="s1", **NOBODY)
    await shop.pass_time(seconds=5)
    assert ("session", "s1") in await shop.asked()
    await shop.shows_session("s1", customer_reference="cus_7")
    assert await shop.allowed(customer="cus_7")


async def test_a_session_that_names_nobody_leaves_it_waiting(shop: Shop) -> None:
    # case: A36, U10
    await shop.reads("ACTIVE", checkout_session_id="s1", **NOBODY)
    await shop.shows_session("s1", status="COMPLETED")
    assert await shop.findings() == {("unresolved_subscriber", "S1")}
    assert shop.effects == []
    await shop.shows_session("s2", customer_reference="cus_9")
    assert await shop.findings() == {("unresolved_subscriber", "S1")}, "another session's customer is not its"


async def test_a_session_is_asked_for_once_and_again_when_it_is_another_one(shop: Shop) -> None:
    # case: A36, B23
    await shop.happens("created", checkout_session_id="s1", **NOBODY)
    assert ("session", "s1") not in await shop.asked(), "its own record may say it"
    await shop.reads("ACTIVE", checkout_session_id="s1", **NOBODY)
    assert ("session", "s1") in await shop.asked()
    await shop.forget_reads()
    for status in ("ACTIVE", "PAST_DUE", "ACTIVE"):
        await shop.reads(status, checkout_session_id="s1", **NOBODY)
        await shop.happens("renewed", checkout_session_id="s1", **NOBODY)
    assert not [one for one in await shop.asked() if one[0] == "session"], "not with each event"
    await shop.shows_session("s1", customer_reference="cus_7")
    await shop.reads("ACTIVE", checkout_session_id="s2", **NOBODY)
    assert ("session", "s2") in await shop.asked()


async def test_no_session_is_asked_for_without_need(shop: Shop) -> None:
    # case: A36, B23: none is known; the record says whose it is; it has ended; the session was read before
    await shop.reads("ACTIVE", "S1", **NOBODY)
    await shop.reads("ACTIVE", "S2", checkout_session_id="s2")
    await shop.happens("ended", "S3", checkout_session_id="s3", end_reason="PAYMENT_FAILED", **NOBODY)
    await shop.happens("created", "S4", checkout_session_id="s4", **NOBODY)
    await shop.shows_session("s4", customer_reference="cus_4")
    await shop.reads("ACTIVE", "S4", checkout_session_id="s4", **NOBODY)
    assert await shop.allowed(customer="cus_4")
    assert not [one for one in await shop.asked() if one[0] == "session"]


@pytest.mark.parametrize("how", ["the lease", "a recheck"])
async def test_who_waits_is_asked_for_again(shop: Shop, how: str) -> None:
    # case: A36: the session was not there yet, or named nobody; so may those of before this was asked for
    await shop.reads("ACTIVE", checkout_session_id="s1", **NOBODY)
    await shop.reads("ACTIVE", "S2", checkout_session_id="s2")
    await shop.forget_reads()
    if how == "the lease":
        await shop.pass_time(days=8)
    else:
        await shop.word("access.recheck", "object:access")
        await shop.relay()
    asked = await shop.asked()
    assert [one for one in asked if one[0] == "session"] == [("session", "s1")]
    assert ("subscription", "S1") in asked, "its own record may say it by now"


BETTER = {
    "payload": "cus_event",
    "read": "cus_read",
    "order": "cus_order",
    "checkout": "cus_shop",
    "operator": "cus_op",
}


@pytest.mark.parametrize("better", BETTER)
@pytest.mark.parametrize("session_first", [True, False])
async def test_a_better_word_counts_more_than_the_session(shop: Shop, better: str, *, session_first: bool) -> None:
    # case: A36, A37, U10
    wanted = BETTER[better]
    await shop.reads("ACTIVE", checkout_session_id="s1", order_id="O1", **NOBODY)
    if session_first:
        await shop.shows_session("s1", customer_reference="cus_7")
        assert await shop.allowed(customer="cus_7")
    match better:
        case "payload":
            await shop.happens("renewed", customer_reference=wanted)
        case "read":
            await shop.reads("ACTIVE", checkout_session_id="s1", order_id="O1", customer_reference=wanted)
        case "operator":
            await shop.word("access.customer_attached", "subscription:S1", customer=wanted)
        case _:
            await shop.registers("s1" if better == "checkout" else "s9", customer=wanted)
    if not session_first:
        await shop.shows_session("s1", customer_reference="cus_7")
    assert (await shop.subscription())["customer"] == wanted
    assert await shop.allowed(customer=wanted)
    assert not await shop.allowed(customer="cus_7")


@pytest.mark.parametrize("session_first", [True, False])
async def test_a_resolver_counts_more_than_the_session(shop: Shop, *, session_first: bool) -> None:
    """He is asked at the same time as the service: whoever answers first, it ends the same."""
    # case: A36, U10
    await shop.reads("ACTIVE", checkout_session_id="s1", **NOBODY)
    for is_session in (session_first, not session_first):
        if is_session:
            await shop.shows_session("s1", customer_reference="cus_7")
        else:
            await shop.word("access.customer_attached", "subscription:S1", customer="cus_r", source="resolver")
    assert await shop.allowed(customer="cus_r")
    assert not await shop.allowed(customer="cus_7")


async def test_a_later_read_of_the_session_corrects_an_earlier_one(shop: Shop) -> None:
    # case: A36, A40
    await shop.reads("ACTIVE", checkout_session_id="s1", **NOBODY)
    first = shop.session("s1", customer_reference="cus_old")
    shop.now += timedelta(minutes=1)
    await shop.shows_session("s1", customer_reference="cus_new")
    await shop.feed(first)
    assert (await shop.subscription())["customer"] == "cus_new"
    assert shop.effects == ["granted default"]


async def test_the_service_cannot_say_our_own_word_about_a_session(shop: Shop) -> None:
    # case: A36
    forged = said("session.observed", "evt_1", envelope={"data": {"record": {"customer_reference": "cus_7"}}})
    with pytest.raises(ConsumerError):
        await shop.feed(forged)


async def test_attaching_an_ended_subscription_grants_nothing(shop: Shop) -> None:
    # case: A36
    await shop.reads("ACTIVE", **NOBODY)
    await shop.happens("ended", end_reason="PAYMENT_FAILED", **NOBODY)
    await shop.word("access.customer_attached", "subscription:S1", customer="cus_7")
    assert shop.effects == []
    assert not await shop.allowed(customer="cus_7")


async def test_a_resolver_plugin_attaches_too(shop: Shop) -> None:
    # case: A36
    await shop.reads("ACTIVE", **NOBODY)
    await shop.word("access.customer_attached", "subscription:S1", customer="cus_7", source="resolver")
    assert (await shop.subscription())["customer_source"] == "resolver"
    assert await shop.allowed(customer="cus_7")


@pytest.mark.parametrize(
    "linked_by", [{"checkout_session_id": "s1"}, {"order_id": "O1"}, {"checkout_session": {"id": "s1"}}]
)
async def test_a_registered_checkout_says_whose_it_is(shop: Shop, linked_by: dict[str, Any]) -> None:
    # case: A36, A37
    await shop.registers("s1", customer="cus_shop")
    await shop.reads("ACTIVE", **NOBODY, **linked_by)
    assert (await shop.subscription())["customer"] == "cus_shop"
    assert await shop.allowed(customer="cus_shop")


async def test_a_link_that_arrives_later_grants_once(shop: Shop) -> None:
    # case: A37
    await shop.happens("created", checkout_session_id="s1", **NOBODY)
    await shop.reads("ACTIVE", checkout_session_id="s1", **NOBODY)
    assert await shop.findings() == {("unresolved_subscriber", "S1")}
    await shop.registers("s1", customer="cus_shop")
    await shop.registers("s1", customer="cus_shop")
    assert shop.effects == ["granted default"]
    assert await shop.findings() == set()


async def test_what_the_merchant_registered_counts_more_than_a_payload(shop: Shop) -> None:
    # case: A37
    await shop.reads("ACTIVE", checkout_session_id="s1", customer_reference="from the record")
    assert await shop.allowed(customer="from the record")
    await shop.registers("s1", customer="cus_shop")
    assert not await shop.allowed(customer="from the record")
    assert await shop.allowed(customer="cus_shop")
    await shop.reads("ACTIVE", checkout_session_id="s1", customer_reference="from the record")
    assert await shop.allowed(customer="cus_shop")


async def test_an_unmapped_price_waits_until_it_is_mapped(shop_with: Callable[..., Shop]) -> None:
    # case: A32
    shop = shop_with(entitlements={"other": ["pro"]})
    await shop.reads("ACTIVE")
    assert await shop.findings() == {("unmapped_price", "S1")}
    assert (await shop.row(FINDINGS))["detail"]["price_id"] == "svc_price_monthly"
    assert shop.effects == []
    await shop.pass_time(hours=3)
    assert shop.effects == []
    shop.options = {"entitlements": {"svc_price_monthly": ["pro"]}}
    await shop.pass_time(hours=1, minutes=1)
    assert shop.effects == ["granted pro"]
    assert await shop.findings() == set()
    timers = len(shop.of_type("access.subscription_due"))
    await shop.pass_time(hours=12)
    assert len(shop.of_type("access.subscription_due")) == timers, "the retries stop"


async def test_a_recheck_does_not_wait_for_the_timer(shop_with: Callable[..., Shop]) -> None:
    # case: A32
    shop = shop_with(entitlements={"other": ["pro"]})
    await shop.reads("ACTIVE", "S1")
    await shop.reads("ACTIVE", "S2", customer_reference="cus_2", price_id="other")
    shop.options = {"entitlements": {"svc_price_monthly": ["pro"], "other": ["pro", "chat"]}}
    await shop.word("access.recheck", "object:access", by="op")
    await shop.relay()
    assert sorted(shop.effects) == ["granted chat", "granted pro", "granted pro"]
    assert await shop.findings() == set()


async def test_rechecks_add_no_chain_of_looks_of_their_own(shop_with: Callable[..., Shop]) -> None:
    """Each added one for every subscription that waited, an event an hour, for as long as it did."""
    # case: A32
    shop = shop_with(entitlements={"other": ["pro"]})
    await shop.reads("ACTIVE")
    for _ in range(3):
        await shop.pass_time(minutes=7)
        await shop.word("access.recheck", "object:access")
        await shop.relay()
    await shop.pass_time(hours=6)
    timers = len(shop.of_type("access.subscription_due"))
    await shop.pass_time(hours=6)
    assert len(shop.of_type("access.subscription_due")) - timers == 6, "one an hour"
    shop.options = {"entitlements": {"svc_price_monthly": ["pro"]}}
    await shop.pass_time(hours=1, minutes=1)
    assert shop.effects == ["granted pro"]


async def test_a_mapping_that_vanished_takes_nothing_away(shop_with: Callable[..., Shop]) -> None:
    # case: A32, G7
    shop = shop_with(entitlements={"svc_price_monthly": ["pro"]})
    await shop.reads("ACTIVE")
    shop.options = {"entitlements": {}}
    await shop.word("access.recheck", "object:access")
    await shop.relay()
    assert await shop.allowed("pro")
    assert shop.effects == ["granted pro"]


@pytest.mark.parametrize("seen_by", ["recheck", "renewal"])
async def test_a_mapping_that_vanished_under_a_subscriber_is_shown(
    shop_with: Callable[..., Shop], seen_by: str
) -> None:
    # case: A32
    shop = shop_with(entitlements={"svc_price_monthly": ["pro"]})
    await shop.reads("ACTIVE")
    shop.options = {"entitlements": {"other": ["pro"]}}
    if seen_by == "recheck":
        await shop.word("access.recheck", "object:access")
        await shop.relay()
    else:
        await shop.happens("renewed")
        await shop.reads("ACTIVE")
    assert await shop.findings() == {("unmapped_price", "S1")}
    timers = len(shop.of_type("access.subscription_due"))
    await shop.happens("renewed")
    await shop.reads("ACTIVE")
    assert len(shop.of_type("access.subscription_due")) == timers, "it is looked at already"
    shop.options = {"entitlements": {"svc_price_monthly": ["pro"]}}
    await shop.pass_time(hours=2)
    assert await shop.findings() == set()
    assert shop.effects == ["granted pro"]


async def test_a_hold_and_its_end(shop: Shop) -> None:
    # case: A42
    await shop.reads("ACTIVE")
    hold = await shop.word("access.held", f"customer:{CUSTOMER}", by="op", reason="chargeback talk")
    assert shop.effects == ["granted default", "revoked default"]
    await shop.happens("renewed")
    await shop.reads("ACTIVE", current_period_end=(shop.now + timedelta(days=30)).isoformat())
    assert not await shop.allowed(), "no subscription event clears a hold"
    await shop.word("access.hold_lifted", f"customer:{CUSTOMER}", id=hold.id, by="op")
    assert await shop.allowed()
    assert shop.effects == ["granted default", "revoked default", "granted default"]
    assert (await shop.row(SOURCES))["by"] == "op"


async def test_a_complimentary_grant_outlives_the_subscription_and_ends_by_its_timer(shop: Shop) -> None:
    # case: A42
    until = (shop.now + timedelta(days=5)).isoformat()
    await shop.word("access.complimentary_granted", f"customer:{CUSTOMER}", entitlement="default", until=until, by="op")
    assert shop.effects == ["granted default"]
    await shop.reads("ACTIVE")
    await shop.happens("ended", end_reason="PAYMENT_FAILED")
    assert await shop.allowed()
    await shop.pass_time(days=6)
    assert shop.effects == ["granted default", "revoked default"]


async def test_a_gift_until_no_time_is_refused(shop: Shop) -> None:
    # case: A42
    with pytest.raises(ConsumerError, match="until"):
        await shop.word("access.complimentary_granted", f"customer:{CUSTOMER}", entitlement="default", until="tomorrow")
    assert not await shop.rows(SOURCES)


@pytest.mark.parametrize("entitlement", ["", 7])
async def test_a_gift_of_what_has_no_name_is_refused(shop: Shop, entitlement: object) -> None:
    # case: A42
    with pytest.raises(ConsumerError, match="entitlement"):
        await shop.word("access.complimentary_granted", f"customer:{CUSTOMER}", entitlement=entitlement)
    assert not await shop.rows(SOURCES)


async def test_a_complimentary_grant_can_be_ended(shop: Shop) -> None:
    # case: A42
    gift = await shop.word("access.complimentary_granted", f"customer:{CUSTOMER}", entitlement="default")
    await shop.word("access.hold_lifted", f"customer:{CUSTOMER}", id=gift.id)
    assert await shop.allowed(), "a gift is not a hold"
    await shop.word("access.complimentary_ended", f"customer:{CUSTOMER}", id=gift.id)
    assert shop.effects == ["granted default", "revoked default"]


async def many(shop: Shop, count: int) -> list[str]:
    """So many customers with a subscription each."""
    subs = [f"S{number:02}" for number in range(count)]
    for sub in subs:
        await shop.reads("ACTIVE", sub, customer_reference=f"cus_{sub}")
    return subs


async def test_reads_that_would_revoke_too_many_stop_and_ask(shop: Shop) -> None:
    # case: B31, B32
    subs = await many(shop, 9)
    for sub in subs:
        await shop.reads("ENDED", sub, customer_reference=f"cus_{sub}", end_reason="PAYMENT_FAILED")
    await shop.pass_time(minutes=1)
    assert shop.effects.count("revoked default") == 5
    assert ("brake", "default") in await shop.findings()
    assert len(await shop.rows(ENTITLEMENTS, allowed=True, braked=True)) == 4
    await shop.pass_time(hours=5)
    assert shop.effects.count("revoked default") == 5, "time alone releases nothing"
    await shop.word("access.brake_released", "object:access", by="op", reason="looked at it")
    await shop.relay()
    assert shop.effects.count("revoked default") == 9
    assert await shop.findings() == set()
    assert await shop.rows(ENTITLEMENTS, braked=True) == []


async def test_without_a_brake_nothing_is_stopped(shop_with: Callable[..., Shop]) -> None:
    # case: B31
    shop = shop_with(brake=None)
    for sub in await many(shop, 9):
        await shop.reads("ENDED", sub, customer_reference=f"cus_{sub}", end_reason="PAYMENT_FAILED")
    await shop.pass_time(minutes=1)
    assert shop.effects.count("revoked default") == 9
    assert await shop.findings() == set()


async def test_what_was_stopped_is_released_a_batch_at_a_time_and_each_once(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case: B31
    monkeypatch.setattr(handler, "BATCH", 2)
    for sub in await many(shop, 9):
        await shop.reads("ENDED", sub, customer_reference=f"cus_{sub}", end_reason="PAYMENT_FAILED")
    await shop.pass_time(minutes=1)
    await shop.word("access.brake_released", "object:access", by="op", reason="looked at it")
    await shop.relay()
    assert shop.effects.count("revoked default") == 9
    released = [event.key for event in shop.of_type(CUSTOMER_DUE) if event.data.get("released")]
    assert sorted(released) == [f"customer:cus_S{number:02}" for number in (5, 6, 7, 8)]


async def test_a_braked_revocation_is_forgotten_when_a_read_allows_again(shop_with: Callable[..., Shop]) -> None:
    # case: B31
    shop = shop_with(brake={"minimum": 0, "share": 0}, past_due="revoke")
    await shop.reads("ACTIVE")
    await shop.reads("PAST_DUE")
    assert await shop.allowed()
    await shop.reads("ACTIVE")
    [row] = await shop.rows(ENTITLEMENTS)
    assert (row["allowed"], row["braked"]) == (True, False)
    assert shop.effects == ["granted default"]


async def test_ends_that_the_service_announced_are_never_braked(shop: Shop) -> None:
    # case: B31, A21
    subs = await many(shop, 9)
    for sub in subs:
        await shop.happens("ended", sub, customer_reference=f"cus_{sub}", end_reason="MERCHANT_CANCELED")
    assert shop.effects.count("revoked default") == 9


async def test_an_end_of_long_ago_that_only_a_read_showed_brakes_nothing(shop_with: Callable[..., Shop]) -> None:
    # case: B31
    shop = shop_with(brake={"minimum": 1, "share": 0})
    for sub in await many(shop, 2):
        mine: dict[str, Any] = {"customer_reference": f"cus_{sub}"}
        await shop.reads("ENDED", sub, end_reason="PAYMENT_FAILED", **mine)
        await shop.pass_time(hours=2)
        await shop.reads("ACTIVE", f"{sub}b", current_period_end=(shop.now + timedelta(days=30)).isoformat(), **mine)
    for sub in ("S00b", "S01b"):
        await shop.happens("ended", sub, end_reason="PAYER_CANCELED", customer_reference=f"cus_{sub[:3]}")
    await shop.pass_time(minutes=11)
    assert await shop.rows(ENTITLEMENTS, allowed=True) == [], "a timer ends them, an event had told of it"
    assert await shop.findings() == set()


async def test_events_that_lay_for_hours_announce_what_is_read_now(shop_with: Callable[..., Shop]) -> None:
    # case: B31
    shop = shop_with(past_due="revoke", brake={"minimum": 1, "share": 0})
    subs = await many(shop, 3)
    told = [shop.event("past_due", sub, customer_reference=f"cus_{sub}") for sub in subs]
    shop.now += timedelta(hours=2)
    await shop.feed(*told)
    await shop.relay()
    for sub in subs:
        await shop.reads("PAST_DUE", sub, customer_reference=f"cus_{sub}")
    assert await shop.findings() == set()
    assert await shop.rows(ENTITLEMENTS, allowed=True) == []


@pytest.mark.parametrize("when", ["before the list", "after it", "after it, once it lay in the log"])
@pytest.mark.parametrize("what", ["created", "renewed"])
async def test_old_events_announce_nothing_that_a_wrong_list_shows(
    shop_with: Callable[..., Shop], what: str, when: str
) -> None:
    # case: B31
    shop = shop_with(brake={"minimum": 1, "share": 0})
    shop.now += timedelta(days=20)
    subs = await many(shop, 3)
    long_ago = [shop.event(what, sub, at=START, customer_reference=f"cus_{sub}") for sub in subs]
    brought = [replace(one, source=Source.BACKFILL, received_at=shop.now + timedelta(days=1)) for one in long_ago]
    shop.now += timedelta(days=1)
    if when == "before the list":
        await shop.feed(*brought)
    for sub in subs:
        began = (shop.now - timedelta(days=13, hours=23)).isoformat()
        await shop.reads("PAST_DUE", sub, customer_reference=f"cus_{sub}", past_due_since=began)
    shop.now += timedelta(minutes=10 if when == "after it, once it lay in the log" else 0)
    if when != "before the list":
        await shop.feed(*brought)
    await shop.pass_time(hours=1)
    assert shop.effects.count("revoked default") == 1
    assert ("brake", "default") in await shop.findings()


async def test_an_event_that_a_walk_was_quicker_than_announces_what_it_showed(shop_with: Callable[..., Shop]) -> None:
    # case: B31, U30
    shop = shop_with(brake={"minimum": 1, "share": 0}, past_due="grace:1h")
    subs = await many(shop, 3)
    failed = [shop.event("past_due", sub, customer_reference=f"cus_{sub}") for sub in subs]
    await shop.pass_time(minutes=9)
    for sub in subs:  # a read that lags, by a clock that is ahead of the service's
        await shop.reads("ACTIVE", sub, customer_reference=f"cus_{sub}")
    for sub in subs:
        await shop.reads("PAST_DUE", sub, customer_reference=f"cus_{sub}")
    await shop.feed(*(replace(one, received_at=shop.now) for one in failed))
    await shop.pass_time(hours=2)
    assert shop.effects.count("revoked default") == 3
    assert await shop.findings() == set()


async def test_reads_that_an_event_announced_are_not_braked(shop_with: Callable[..., Shop]) -> None:
    # case: B31
    shop = shop_with(past_due="revoke")
    subs = await many(shop, 9)
    for sub in subs:
        await shop.happens("past_due", sub, customer_reference=f"cus_{sub}")
        await shop.reads("PAST_DUE", sub, customer_reference=f"cus_{sub}")
    assert shop.effects.count("revoked default") == 9


async def test_the_brake_forgets_after_its_window(shop: Shop) -> None:
    # case: B31
    subs = await many(shop, 9)
    for sub in subs:
        await shop.pass_time(minutes=20)
        await shop.reads("ENDED", sub, customer_reference=f"cus_{sub}", end_reason="PAYMENT_FAILED")
    await shop.pass_time(minutes=1)
    assert shop.effects.count("revoked default") == 9


async def test_the_brakes_window_is_over_when_it_ends(shop_with: Callable[..., Shop]) -> None:
    # case: B31
    shop = shop_with(brake={"minimum": 1, "share": 0}, past_due="revoke")
    for sub in ("S1", "S2", "S3"):
        await shop.reads("ACTIVE", sub, customer_reference=f"cus_{sub}")
    await shop.reads("PAST_DUE", "S1", customer_reference="cus_S1")
    await shop.pass_time(minutes=60)
    await shop.reads("PAST_DUE", "S2", customer_reference="cus_S2")
    assert await shop.findings() == set(), "a window of its own"
    await shop.pass_time(minutes=59)
    await shop.reads("PAST_DUE", "S3", customer_reference="cus_S3")
    assert ("brake", "default") in await shop.findings(), "the second in the new one"


async def test_a_large_shop_may_lose_its_share(shop_with: Callable[..., Shop]) -> None:
    # case: B31
    shop = shop_with(brake={"minimum": 1, "share": 0.5})
    subs = await many(shop, 8)
    for sub in subs:
        await shop.reads("ENDED", sub, customer_reference=f"cus_{sub}", end_reason="PAYMENT_FAILED")
    await shop.pass_time(minutes=1)
    assert shop.effects.count("revoked default") == 3, "half of what is still there: 4 of 8, 3 of 7, 3 of 6, 2 of 5"


@pytest.mark.parametrize(
    ("type_", "key"),
    [("access.held", "object:x"), ("access.customer_attached", "customer:c"), ("access.customer_due", "object:x"),
     ("access.subscription_due", "object:x"), ("access.finding_closed", "customer:c")],
)  # fmt: skip
async def test_a_word_about_nobody_is_refused(shop: Shop, type_: str, key: str) -> None:
    with pytest.raises(ConsumerError):
        await shop.word(type_, key, customer="c")


@pytest.mark.parametrize(
    ("key", "data"),
    [("object:x", {"due": "2026-01-01T00:00:00+00:00"}), ("subscription:S1", {}), ("subscription:S1", {"due": "soon"})],
)
async def test_a_timer_without_its_subscription_or_its_time_is_refused(
    shop: Shop, key: str, data: dict[str, str]
) -> None:
    with pytest.raises(ConsumerError):
        await shop.word("access.subscription_due", key, why="unread", **data)


@pytest.mark.parametrize("data", [{}, {"customer": ""}, {"customer": 7}])
async def test_attaching_nobody_is_refused(shop: Shop, data: dict[str, Any]) -> None:
    with pytest.raises(ConsumerError):
        await shop.word("access.customer_attached", "subscription:S1", by="op", reason="asked", **data)


async def test_a_finding_an_operator_closed_stays_closed(shop: Shop) -> None:
    # case: A35
    await shop.reads("PAUSED")
    await shop.word("access.finding_closed", "object:S1", kind="unknown_status", by="op", reason="known")
    assert await shop.findings() == set()
    await shop.reads("PAUSED")
    assert await shop.findings() == set()


async def test_the_brake_that_stops_again_asks_again(shop: Shop) -> None:
    # case: B31
    subs = await many(shop, 20)

    async def end(some: list[str]) -> None:
        for sub in some:
            await shop.reads("ENDED", sub, customer_reference=f"cus_{sub}", end_reason="PAYMENT_FAILED")
        await shop.pass_time(minutes=1)

    await end(subs[:8])
    await shop.word("access.brake_released", "object:access", by="op", reason="looked at it")
    await shop.relay()
    assert await shop.findings() == set()
    await end(subs[8:12])
    assert ("brake", "default") in await shop.findings()
    assert len(await shop.rows(ENTITLEMENTS, braked=True)) == 4
    await shop.word("access.finding_closed", "object:default", kind="brake", by="op", reason="later")
    await end(subs[12:13])
    assert ("brake", "default") in await shop.findings(), "another occasion"


async def test_the_brakes_finding_closes_with_the_last_that_waited(shop_with: Callable[..., Shop]) -> None:
    # case: B31
    shop = shop_with(brake={"minimum": 0, "share": 0}, past_due="revoke")
    for sub in ("S1", "S2"):
        await shop.reads("ACTIVE", sub, customer_reference=f"cus_{sub}")
        await shop.reads("PAST_DUE", sub, customer_reference=f"cus_{sub}")
    await shop.reads("ACTIVE", "S1", customer_reference="cus_S1")
    assert await shop.findings() == {("brake", "default")}
    await shop.reads("ACTIVE", "S2", customer_reference="cus_S2")
    assert await shop.findings() == set()


@pytest.mark.parametrize("source", ["operator", "resolver"])
async def test_who_attached_wrongly_corrects_himself(shop: Shop, source: str) -> None:
    # case: A36
    await shop.reads("ACTIVE", **NOBODY)
    words = []
    for customer in ("wrong", "right"):
        shop.now += timedelta(seconds=1)
        about = {"customer": customer, "source": source, "by": "op"}
        words.append(await shop.word("access.customer_attached", "subscription:S1", **about))
    assert (await shop.subscription())["customer"] == "right"
    assert (await shop.allowed(customer="wrong"), await shop.allowed(customer="right")) == (False, True)
    announced = len(shop.effects)
    for word in words:
        await shop.force(word)
    assert (await shop.subscription())["customer"] == "right", "the same words again are no news"
    assert len(shop.effects) == announced


@pytest.mark.parametrize("linked", [{"checkout_session_id": "s1"}, {"checkout_session_id": "s1", "order_id": "O1"}])
async def test_a_session_registered_again_corrects_whose_it_is(shop: Shop, linked: dict[str, Any]) -> None:
    # case: A37
    await shop.registers("s1", customer="wrong")
    await shop.reads("ACTIVE", **NOBODY, **linked)
    shop.now += timedelta(seconds=1)
    await shop.registers("s1", customer="right")
    assert (await shop.subscription())["customer"] == "right"
    shop.now += timedelta(seconds=1)
    await shop.registers("s2", customer="another")
    assert (await shop.subscription())["customer"] == "right", "another session of the same order is another checkout"


async def test_a_registration_that_was_missed_is_found_by_the_next_fact(shop: Shop) -> None:
    # case: A37
    await shop.reads("ACTIVE", checkout_session_id="s1", **NOBODY)
    async with shop.database.transaction() as session:  # in the same moment: its event saw no subscription to attach
        await link(session, "default", "s1", "O1", "cus_shop", shop.now)
    assert await shop.findings() == {("unresolved_subscriber", "S1")}
    await shop.reads("ACTIVE", checkout_session_id="s1", **NOBODY)
    assert await shop.allowed(customer="cus_shop")
    assert await shop.findings() == set()


async def test_an_older_registration_told_again_does_not_replace_a_newer_link(shop: Shop) -> None:
    # case: A37, G10
    old = own("checkout.registered", "order:O1", {"session_id": "s1", "order_id": "O1", "customer": "old"}, at=shop.now)
    await shop.feed(old)
    shop.now += timedelta(seconds=1)
    await shop.registers("s1", customer="new")
    await shop.force(old)
    await shop.reads("ACTIVE", checkout_session_id="s1", **NOBODY)
    assert (await shop.subscription())["customer"] == "new"


async def test_attaching_after_the_end_settles_the_queue(shop: Shop) -> None:
    # case: A36
    await shop.reads("ACTIVE", **NOBODY)
    await shop.happens("ended", end_reason="PAYMENT_FAILED", **NOBODY)
    assert await shop.findings() == {("unresolved_subscriber", "S1")}
    await shop.word("access.customer_attached", "subscription:S1", customer="cus_7")
    assert await shop.findings() == set()


async def test_what_is_said_in_one_application_says_nothing_in_another(shop: Shop) -> None:
    # case: G8, A42, A36
    key, elsewhere = f"customer:{CUSTOMER}", "other"
    hold = own("access.held", key, {"by": "op"}, at=shop.now, application=elsewhere)
    gift = own(
        "access.complimentary_granted", key, {"by": "op", "entitlement": "vip"}, application=elsewhere, id_="drv_2"
    )
    checkout = {"session_id": "s1", "order_id": "O1", "customer": "somebody else"}
    linked = own("checkout.registered", "order:O1", checkout, at=shop.now, application=elsewhere)
    record = {"status": "ACTIVE", "customer_reference": CUSTOMER}
    theirs = observed("subscription:S9", 900, record, application=elsewhere)
    await shop.feed(hold, gift, linked, theirs)
    await shop.reads("ACTIVE", checkout_session_id="s1")
    row = await shop.row(ENTITLEMENTS, application="default")
    assert (row["customer"], row["entitlement"], row["reasons"]) == (CUSTOMER, "default", ["active:S1"])
    assert {row["application"] for row in await shop.rows(ENTITLEMENTS, entitlement="vip")} == {elsewhere}
    await shop.word("access.hold_lifted", key, id=hold.id)
    rows = await shop.rows(SOURCES, id=hold.id)
    assert [row["ended_at"] for row in rows] == [None], "lifted by its own application only"
