"""Subscriptions through the handlers and a real ledger: access follows the service's state, each change once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from consumer.errors import ConsumerError
from consumer.events import Source, Trust
from handlers.access.policy import Policy
from handlers.access.tables import ENTITLEMENTS, FINDINGS, SUBSCRIPTIONS
from handlers.findings import as_seen
from tests.access.shop import CUSTOMER, Shop
from tests.support.handling.projections import READS, START, said


async def test_created_grants_once_when_the_read_confirms(shop: Shop) -> None:
    # case: A1, A2
    created = await shop.happens("created")
    assert shop.effects == [], "the read decides"
    assert await shop.asked() == {("subscription", "S1")}
    await shop.reads("ACTIVE")
    await shop.feed(created)
    await shop.force(created)
    await shop.pass_time(hours=1)
    assert shop.effects == ["granted default"]
    [granted] = shop.of_type("access.granted")
    assert granted.key == f"customer:{CUSTOMER}"
    assert granted.data["version"] == 1
    assert granted.data["before"] == {"allowed": False}


async def test_created_grants_provisionally_when_no_read_comes(shop: Shop) -> None:
    # case: A1, A34
    await shop.happens("created")
    await shop.pass_time(seconds=2)
    assert not await shop.allowed()
    await shop.pass_time(seconds=2)
    assert await shop.allowed()
    assert await shop.reasons() == ["provisional:S1"]
    assert await shop.asked() == {("subscription", "S1")}, "still to be read"
    await shop.reads("ACTIVE")
    assert await shop.reasons() == ["active:S1"]
    assert shop.effects == ["granted default"]


async def test_a_provisional_grant_can_be_switched_off(shop_with: Callable[..., Shop]) -> None:
    # case: A47
    shop = shop_with(provisional_after=None)
    await shop.happens("created")
    await shop.pass_time(days=1)
    assert shop.effects == []


async def test_an_event_marked_as_a_test_grants_nothing(shop: Shop) -> None:
    # case: A47
    await shop.happens("created", test=True)
    await shop.happens("ended", livemode=False)
    await shop.pass_time(days=1)
    assert await shop.rows(SUBSCRIPTIONS) == []
    assert shop.effects == []


async def test_the_first_period_needs_no_renewal(shop: Shop) -> None:
    # case: A4
    await shop.happens("created")
    await shop.reads("ACTIVE", current_period_end=(START + timedelta(days=30)).isoformat())
    await shop.pass_time(days=29)
    assert await shop.allowed()
    assert shop.effects == ["granted default"]


async def test_a_renewal_moves_the_period_by_the_read(shop: Shop) -> None:
    # case: A5
    await shop.reads("ACTIVE", current_period_end=(START + timedelta(days=30)).isoformat())
    await shop.happens("renewed")
    assert ("subscription", "S1") in await shop.asked()
    await shop.reads("ACTIVE", current_period_end=(START + timedelta(days=60)).isoformat())
    assert (await shop.subscription())["period_end"] == START + timedelta(days=60)
    assert shop.effects == ["granted default"]


async def test_renewed_before_created_grants_by_the_read_and_welcomes_once(shop: Shop) -> None:
    # case: A6
    await shop.happens("renewed")
    assert shop.effects == []
    await shop.reads("ACTIVE")
    await shop.happens("created")
    await shop.pass_time(minutes=1)
    assert shop.effects == ["granted default"]


@pytest.mark.parametrize(
    "hints", [["payment_failed", "past_due"], ["past_due", "payment_failed"], ["past_due"], ["payment_failed"], []]
)
async def test_past_due_starts_once_whichever_hint_arrives(shop: Shop, hints: list[str]) -> None:
    # case: A7
    await shop.reads("ACTIVE")
    for hint in hints:
        await shop.happens(hint)
        await shop.reads("PAST_DUE")
        shop.now += timedelta(minutes=1)
    await shop.reads("PAST_DUE")
    row = await shop.subscription()
    assert row["status"] == "PAST_DUE"
    assert row["past_due_since"] == (START if hints else shop.now)
    assert await shop.allowed()
    assert shop.effects == ["granted default"]


async def test_later_failures_do_not_move_the_grace(shop: Shop) -> None:
    # case: A9, A41
    await shop.reads("ACTIVE")
    await shop.reads("PAST_DUE")
    for _ in range(2):
        await shop.pass_time(days=4)
        await shop.happens("payment_failed")
        await shop.reads("PAST_DUE")
    assert (await shop.subscription())["past_due_since"] == START
    await shop.pass_time(days=5, hours=23)
    assert await shop.allowed()
    await shop.pass_time(hours=1)
    assert not await shop.allowed()
    assert shop.effects == ["granted default", "revoked default"]


async def test_failures_are_not_counted_the_state_is_what_a_read_says(shop: Shop) -> None:
    # case: U14, A9
    await shop.reads("ACTIVE")
    for _ in range(6):
        await shop.happens("payment_failed")
    for status in ("PAST_DUE", "ACTIVE"):
        await shop.reads(status)
        assert (await shop.subscription())["status"] == status
    assert shop.effects == ["granted default"]


async def test_the_grace_ends_by_the_timer_once_and_a_renewal_grants_again(shop: Shop) -> None:
    # case: A41, A10
    await shop.reads("ACTIVE")
    await shop.reads("PAST_DUE")
    row = await shop.row(ENTITLEMENTS)
    assert (row["until"], row["reasons"]) == (START + timedelta(days=14), ["grace:S1"])
    await shop.pass_time(days=30)
    assert shop.effects == ["granted default", "revoked default"]
    await shop.happens("renewed")
    await shop.reads("ACTIVE")
    assert shop.effects == ["granted default", "revoked default", "granted default"]


async def test_a_replayed_failure_that_a_read_showed_made_good_shortens_no_later_grace(shop: Shop) -> None:
    # case: R6, A9
    await shop.reads("ACTIVE")
    failed = await shop.happens("past_due")
    await shop.pass_time(days=1)
    await shop.reads("ACTIVE")  # its renewal was never heard of
    await shop.pass_time(days=40)
    await shop.reads("PAST_DUE")
    since = (await shop.subscription())["past_due_since"]
    await shop.force(failed)
    assert (await shop.subscription())["past_due_since"] == since
    await shop.pass_time(days=13)
    assert await shop.allowed(), "fourteen days from the failure that counts"


async def test_a_recovered_payment_clears_the_grace(shop: Shop) -> None:
    # case: A10
    await shop.reads("ACTIVE")
    await shop.reads("PAST_DUE")
    await shop.happens("renewed")
    await shop.reads("ACTIVE")
    row = await shop.subscription()
    assert (row["status"], row["past_due_since"]) == ("ACTIVE", None)
    await shop.pass_time(days=40)
    assert await shop.allowed()
    assert shop.effects == ["granted default"]


async def test_a_grace_does_not_end_while_a_charge_was_heard_and_no_read_comes(shop: Shop) -> None:
    # case: A10, A34, A41
    await shop.reads("ACTIVE")
    await shop.reads("PAST_DUE")
    await shop.pass_time(days=13, hours=23)
    await shop.feed(replace(shop.event("renewed"), trust=Trust.READ))
    charged = shop.now
    assert (await shop.row(ENTITLEMENTS))["until"] == charged + timedelta(days=14)
    await shop.pass_time(days=13, hours=23)
    assert shop.effects == ["granted default"], "who was charged goes on, whoever cannot read it"
    await shop.pass_time(hours=1)
    assert shop.effects == ["granted default", "revoked default"], "for one more grace, and no longer"


async def test_a_charge_that_lies_in_the_log_before_the_end_of_the_grace_is_heard_first(shop: Shop) -> None:
    # case: A10, A34, A41
    await shop.reads("ACTIVE")
    await shop.reads("PAST_DUE")
    charged = shop.event("renewed", at=shop.now + timedelta(days=13))
    shop.now += timedelta(days=14, hours=1)  # nobody worked
    await shop.feed(charged)
    await shop.pass_time(days=1)
    assert shop.effects == ["granted default"]


async def test_a_charge_and_then_a_real_failure_end_one_grace_after_that(shop: Shop) -> None:
    # case: A9, A10, A41
    await shop.reads("ACTIVE")
    await shop.reads("PAST_DUE")
    charged = replace(shop.event("renewed", at=shop.now + timedelta(days=3)), trust=Trust.READ)
    await shop.pass_time(days=3)
    await shop.feed(charged)
    await shop.pass_time(days=10)
    await shop.reads("PAST_DUE")
    for days in (6, 7):
        await shop.pass_time(days=days)
        await shop.force(charged)
        await shop.reads("PAST_DUE")
    assert shop.effects == ["granted default"]
    await shop.pass_time(days=1)
    assert shop.effects == ["granted default", "revoked default"], "the same charge told again prolongs nothing"


async def test_a_charge_of_before_the_failure_prolongs_no_grace(shop: Shop) -> None:
    # case: A9, A41
    await shop.reads("ACTIVE")
    await shop.pass_time(days=1)
    await shop.reads("PAST_DUE")
    await shop.pass_time(days=13)
    await shop.feed(replace(shop.event("renewed", at=START), trust=Trust.READ))
    await shop.pass_time(days=1)
    assert shop.effects == ["granted default", "revoked default"], "the charge was old news"


async def test_a_charge_of_a_time_to_come_prolongs_no_longer_than_one_of_now(shop: Shop) -> None:
    # case: A41, G1
    await shop.reads("ACTIVE")
    await shop.reads("PAST_DUE")
    charged = shop.event("renewed", at=shop.now + timedelta(days=3650))
    await shop.feed(replace(charged, received_at=shop.now, trust=Trust.READ))
    await shop.pass_time(days=15)
    assert shop.effects == ["granted default", "revoked default"]


@pytest.mark.parametrize("order", [["payment_failed", "ended"], ["ended", "payment_failed"], ["ended"]])
async def test_the_fourth_failure_revokes_once(shop: Shop, order: list[str]) -> None:
    # case: A13
    await shop.reads("ACTIVE")
    await shop.reads("PAST_DUE")
    for what in order:
        await shop.happens(what, **({"end_reason": "PAYMENT_FAILED"} if what == "ended" else {}))
    await shop.reads("ENDED", end_reason="PAYMENT_FAILED")
    row = await shop.subscription()
    assert (row["status"], row["end_reason"]) == ("ENDED", "PAYMENT_FAILED")
    assert shop.effects == ["granted default", "revoked default"]


async def test_a_lost_end_is_found_by_the_lease(shop: Shop) -> None:
    # case: A14, A30, A51, U25
    period_end = START + timedelta(days=30)
    await shop.reads("ACTIVE", current_period_end=period_end.isoformat(), cancel_at_period_end=True)
    await shop.forget_reads()
    await shop.pass_time(days=30)
    assert await shop.asked() == set()
    assert await shop.allowed()
    await shop.pass_time(hours=2)
    assert await shop.asked() == {("subscription", "S1")}, "nobody revokes by the clock: it is read"
    assert await shop.allowed()
    await shop.reads("ENDED", end_reason="PAYER_CANCELED", ended_at=period_end.isoformat())
    assert await shop.allowed(), "an end that only a read shows settles for seconds"
    await shop.pass_time(seconds=6)
    assert shop.effects == ["granted default", "revoked default"]


async def test_a_passed_renewal_without_an_event_keeps_access(shop: Shop) -> None:
    # case: A30, A48
    await shop.reads("ACTIVE", current_period_end=(START + timedelta(days=30)).isoformat())
    await shop.pass_time(days=45)
    assert await shop.allowed()
    await shop.reads("ACTIVE", current_period_end=(START + timedelta(days=60)).isoformat())
    await shop.happens("renewed")
    assert shop.effects == ["granted default"]


async def test_the_lease_without_a_known_period_reads_every_week(shop: Shop) -> None:
    # case: A14
    await shop.reads("ACTIVE")
    await shop.forget_reads()
    await shop.pass_time(days=6)
    assert await shop.asked() == set()
    await shop.pass_time(days=2)
    assert await shop.asked() == {("subscription", "S1")}
    await shop.forget_reads()
    await shop.pass_time(days=8)
    assert await shop.asked() == {("subscription", "S1")}, "a read that was lost does not end the chain"


async def test_a_payers_cancel_keeps_access_until_the_end(shop: Shop) -> None:
    # case: A15
    period_end = START + timedelta(days=30)
    shown: dict[str, Any] = {"current_period_end": period_end.isoformat()}
    await shop.reads("ACTIVE", **shown)
    await shop.happens("cancel_scheduled")
    await shop.reads("ACTIVE", cancel_at_period_end=True, cancel_reason="PAYER_CANCELED", **shown)
    assert await shop.reasons() == ["ending:S1"]
    shop.now = period_end
    await shop.happens("ended", end_reason="PAYER_CANCELED")
    assert shop.effects == ["granted default", "revoked default"], "an end on time settles nothing"


async def test_ended_before_cancel_scheduled_stays_ended(shop: Shop) -> None:
    # case: A16, A24
    await shop.reads("ACTIVE", cancel_at_period_end=True, current_period_end=shop.now.isoformat())
    await shop.happens("ended", end_reason="PAYER_CANCELED")
    await shop.forget_reads()
    for late in ("cancel_scheduled", "created", "past_due", "payment_failed", "cancel_withdrawn"):
        await shop.happens(late)
    await shop.reads("ACTIVE")
    assert (await shop.subscription())["status"] == "ENDED"
    assert shop.effects == ["granted default", "revoked default"]


async def test_a_withdrawn_cancel_clears_the_flag_by_the_read(shop: Shop) -> None:
    # case: A17
    await shop.reads("ACTIVE", cancel_at_period_end=True)
    await shop.happens("cancel_withdrawn")
    assert await shop.reasons() == ["ending:S1"], "the payload alone does not say so"
    await shop.reads("ACTIVE", cancel_at_period_end=False)
    assert await shop.reasons() == ["active:S1"]
    assert shop.effects == ["granted default"]


async def test_a_merchants_cancel_stands_when_the_payer_withdraws(shop: Shop) -> None:
    # case: A19, A20, A52
    scheduled: dict[str, Any] = {"cancel_at_period_end": True, "cancel_reason": "PAYER_CANCELED"}
    await shop.reads("ACTIVE", **scheduled, merchant_cancel_requested=True)
    row = await shop.subscription()
    assert (row["cancel_at_period_end"], row["cancel_reason"]) == (True, "PAYER_CANCELED")
    assert row["merchant_cancel_requested"]
    await shop.happens("cancel_withdrawn")
    await shop.reads("ACTIVE", cancel_at_period_end=False, merchant_cancel_requested=True)
    assert await shop.reasons() == ["ending:S1"]
    assert shop.effects == ["granted default"], "no second welcome"


async def test_a_merchants_cancel_now_revokes_at_once(shop: Shop) -> None:
    # case: A21, A29, A44
    await shop.reads("PAST_DUE")
    await shop.happens("ended", end_reason="MERCHANT_CANCELED")
    assert shop.effects == ["granted default", "revoked default"]
    assert (await shop.subscription())["end_reason"] == "MERCHANT_CANCELED"
    assert await shop.reasons() == ["ended:S1:MERCHANT_CANCELED"]


@pytest.mark.parametrize("first", ["ended", "renewed"])
async def test_a_charge_after_the_end_is_flagged_and_grants_nothing(shop: Shop, first: str) -> None:
    # case: A22
    await shop.reads("ACTIVE")
    ended = shop.event("ended", end_reason="MERCHANT_CANCELED", at=START + timedelta(seconds=10))
    renewed = shop.event("renewed", at=START + timedelta(seconds=11))
    await shop.feed(*([ended, renewed] if first == "ended" else [renewed, ended]))
    await shop.reads("ENDED", end_reason="MERCHANT_CANCELED")
    assert await shop.findings() == {("charged_after_end", "S1")}
    assert shop.effects == ["granted default", "revoked default"]
    assert not await shop.allowed()


async def test_a_renewal_before_the_end_that_arrives_late_is_not_flagged(shop: Shop) -> None:
    # case: A22, A24
    await shop.reads("ACTIVE")
    await shop.feed(shop.event("ended", end_reason="MERCHANT_CANCELED", at=START + timedelta(seconds=10)))
    await shop.feed(shop.event("renewed", at=START + timedelta(seconds=9)))
    assert await shop.findings() == set()
    assert not (await shop.subscription())["charged_after_end"]


async def test_the_end_without_a_reason_does_not_wait_for_it(shop: Shop) -> None:
    # case: A45
    await shop.reads("ACTIVE", cancel_at_period_end=True)
    await shop.happens("ended")
    assert shop.effects == ["granted default", "revoked default"]
    assert ("subscription", "S1") in await shop.asked()
    await shop.reads("ENDED", end_reason="MERCHANT_CANCELED")
    assert (await shop.subscription())["end_reason"] == "MERCHANT_CANCELED"
    assert shop.effects == ["granted default", "revoked default"]


async def test_an_unexplained_end_settles_for_seconds_and_no_read_is_waited_for(shop: Shop) -> None:
    # case: A45, A25
    await shop.reads("ACTIVE")
    await shop.happens("ended")
    assert await shop.reasons() == ["settling:S1"]
    await shop.pass_time(seconds=6)
    assert shop.effects == ["granted default", "revoked default"]


async def test_a_reason_that_arrives_while_settling_decides_at_once(shop: Shop) -> None:
    # case: A45, A21
    await shop.reads("ACTIVE")
    await shop.happens("ended")
    await shop.reads("ENDED", end_reason="MERCHANT_CANCELED")
    await shop.relay()
    assert shop.effects == ["granted default", "revoked default"]


@pytest.mark.parametrize("past_due", ["revoke", "grace:1d"])
@pytest.mark.parametrize("told", ["payer", "read", "unexplained"])
async def test_the_end_of_one_whose_grace_was_over_grants_nothing(
    shop_with: Callable[..., Shop], past_due: str, told: str
) -> None:
    # case: A8, A13, A25, A41
    shop = shop_with(past_due=past_due)
    await shop.reads("ACTIVE")
    await shop.happens("past_due")
    await shop.reads("PAST_DUE")
    await shop.pass_time(days=2)
    assert shop.effects == ["granted default", "revoked default"]
    match told:
        case "payer":
            await shop.happens("ended", end_reason="PAYER_CANCELED")
        case "read":
            await shop.reads("ENDED", end_reason="PAYMENT_FAILED")
        case _:
            await shop.happens("ended")
    await shop.pass_time(days=1)
    assert shop.effects == ["granted default", "revoked default"], "what settles goes on, it does not come back"


async def test_ended_before_created_never_grants(shop: Shop) -> None:
    # case: A24, G4
    await shop.happens("ended", end_reason="PAYER_CANCELED")
    await shop.happens("created")
    await shop.pass_time(days=1)
    assert shop.effects == []
    assert (await shop.subscription())["status"] == "ENDED"


@pytest.mark.parametrize("first", ["created", "ended"])
async def test_a_resubscription_never_drops_access(shop: Shop, first: str) -> None:
    # case: A25
    period_end = (START + timedelta(days=30)).isoformat()
    await shop.reads("ACTIVE", "S1", current_period_end=period_end)
    await shop.pass_time(days=10)
    ended = shop.event("ended", "S1", end_reason="PAYER_CANCELED")
    created = shop.event("created", "S2")
    for event in [created, ended] if first == "created" else [ended, created]:
        await shop.feed(event)
        assert await shop.allowed()
        await shop.pass_time(seconds=2)
    await shop.reads("ACTIVE", "S2")
    await shop.reads("ENDED", "S1", end_reason="PAYER_CANCELED", ended_at=shop.now.isoformat())
    await shop.pass_time(days=1)
    assert await shop.allowed()
    assert shop.effects == ["granted default"]
    assert await shop.reasons() == ["active:S2"]


async def test_an_early_end_without_a_successor_revokes_when_it_has_settled(shop: Shop) -> None:
    # case: A25
    await shop.reads("ACTIVE", current_period_end=(START + timedelta(days=30)).isoformat())
    await shop.happens("ended", end_reason="PAYER_CANCELED")
    await shop.pass_time(minutes=9)
    assert await shop.allowed()
    await shop.pass_time(minutes=2)
    assert shop.effects == ["granted default", "revoked default"]


async def test_a_new_subscription_has_the_others_read(shop: Shop) -> None:
    # case: A26, U15
    await shop.reads("ACTIVE", "S1")
    await shop.reads("ACTIVE", "S9", customer_reference="someone else")
    await shop.forget_reads()
    await shop.reads("ACTIVE", "S2")
    assert await shop.asked() == {("subscription", "S1")}
    await shop.reads("ENDED", "S1", end_reason="PAYER_CANCELED")
    await shop.pass_time(days=1)
    assert await shop.reasons() == ["active:S2"]
    assert shop.effects.count("revoked default") == 0


async def test_one_of_two_subscriptions_ends(shop_with: Callable[..., Shop]) -> None:
    # case: A27
    shop = shop_with(entitlements={"basic": ["chat"], "plus": ["chat", "files"]})
    await shop.reads("ACTIVE", "S1", price_id="basic")
    await shop.reads("ACTIVE", "S2", price_id="plus")
    await shop.happens("ended", "S2", end_reason="PAYMENT_FAILED")
    assert shop.effects == ["granted chat", "granted files", "revoked files"]
    await shop.happens("ended", "S1", end_reason="PAYMENT_FAILED")
    assert shop.effects[3:] == ["revoked chat"]


async def test_a_failing_read_changes_nothing_and_stays_asked_for(shop: Shop) -> None:
    # case: A34, A53, G7
    await shop.reads("ACTIVE")
    await shop.happens("past_due")
    before = await shop.subscription()
    await shop.pass_time(days=3)
    after = await shop.subscription()
    assert {**after, "lease_until": None} == {**before, "lease_until": None}
    assert await shop.asked() == {("subscription", "S1")}
    assert shop.effects == ["granted default"]


async def test_unknown_words_of_a_read_change_nothing_and_are_shown(shop: Shop) -> None:
    # case: A35
    await shop.reads("ACTIVE")
    before = await shop.rows(SUBSCRIPTIONS)
    await shop.reads("PAUSED")
    assert await shop.rows(SUBSCRIPTIONS) == before
    assert await shop.findings() == {("unknown_status", "S1")}
    await shop.reads("ENDED", end_reason="SOMETHING_NEW")
    assert ("unknown_end_reason", "S1") in await shop.findings()
    assert (await shop.subscription())["status"] == "ENDED"


async def test_an_older_read_that_arrives_later_does_not_win(shop: Shop) -> None:
    # case: A40
    await shop.reads("PAST_DUE", version=5)
    await shop.reads("ACTIVE", version=4)
    assert (await shop.subscription())["status"] == "PAST_DUE"
    await shop.reads("ACTIVE", version=6)
    assert (await shop.subscription())["status"] == "ACTIVE"


async def test_ended_in_an_older_read_is_final_all_the_same(shop: Shop) -> None:
    # case: A40, G4
    await shop.reads("ACTIVE", version=5)
    await shop.reads("ENDED", version=4, end_reason="PAYMENT_FAILED")
    assert (await shop.subscription())["status"] == "ENDED"
    await shop.pass_time(seconds=6)
    assert shop.effects == ["granted default", "revoked default"]


async def test_an_event_cuts_short_what_a_read_left_settling(shop: Shop) -> None:
    # case: A21
    await shop.reads("ACTIVE")
    await shop.reads("ENDED", end_reason="MERCHANT_CANCELED")
    assert shop.effects == ["granted default"]
    await shop.happens("ended", end_reason="MERCHANT_CANCELED")
    assert shop.effects == ["granted default", "revoked default"]


async def test_a_walk_that_shows_the_end_before_the_successor_drops_nothing(shop: Shop) -> None:
    # case: A25, A26
    await shop.reads("ACTIVE", "S1")
    await shop.reads("ENDED", "S1", end_reason="MERCHANT_CANCELED")
    await shop.reads("ACTIVE", "S2")
    await shop.pass_time(minutes=1)
    assert shop.effects == ["granted default"]


@pytest.mark.parametrize("reason", ["MERCHANT_CANCELED", "PAYMENT_FAILED", "PAYER_CANCELED", None])
async def test_an_end_that_is_read_twice_before_the_successor_drops_nothing(shop: Shop, reason: str | None) -> None:
    # case: A25, A27 (found by the lives of the sandbox, shrunk)
    shown: dict[str, Any] = {"current_period_end": START.isoformat(), "cancel_at_period_end": True}
    await shop.reads("ACTIVE", "S1", **shown)
    await shop.reads("ENDED", "S1", end_reason=reason, **shown)
    await shop.reads("ENDED", "S1", end_reason=reason, **shown)
    await shop.reads("ACTIVE", "S2")
    await shop.pass_time(minutes=15)
    assert shop.effects == ["granted default"]


async def test_past_due_with_a_cancel_keeps_both(shop: Shop) -> None:
    # case: A43
    await shop.reads("PAST_DUE", cancel_at_period_end=True)
    row = await shop.subscription()
    assert (row["status"], row["cancel_at_period_end"]) == ("PAST_DUE", True)
    assert await shop.reasons() == ["grace:S1"]


async def test_the_same_ids_in_two_applications_are_two_worlds(shop: Shop) -> None:
    # case: G8
    await shop.reads("ACTIVE")
    other = said("subscription.ended", "evt_x", id="S1", application="other", customer_reference=CUSTOMER)
    await shop.feed(other)
    await shop.relay()
    assert await shop.rows(ENTITLEMENTS, application="default", allowed=True)
    assert (await shop.row(SUBSCRIPTIONS, application="other"))["status"] == "ENDED"
    assert shop.effects == ["granted default"]


async def test_a_claimed_event_is_refused(shop: Shop) -> None:
    # case: G6
    with pytest.raises(ConsumerError, match="not verified"):
        await shop.feed(said("subscription.created", "evt_1", id="S1", trust=Trust.CLAIMED))


async def test_a_forged_observation_is_refused(shop: Shop) -> None:
    # case: G6
    body = {"version": 9, "record": {"status": "ACTIVE", "customer_reference": CUSTOMER}}
    forged = said("subscription.observed", "evt_1", envelope={"data": body, "subscription_id": "S1"})
    with pytest.raises(ConsumerError, match="does not send"):
        await shop.feed(forged)
    assert shop.effects == []


async def test_every_change_is_noted_with_its_reasons(shop: Shop) -> None:
    # case: G12, A50
    await shop.reads("ACTIVE")
    actions = [(note.subject, note.action) for note in shop.notes]
    assert actions == [("subscription:S1", "subscription.changed"), (f"customer:{CUSTOMER}", "access.granted")]
    assert shop.notes[0].after["status"] == "ACTIVE"
    assert shop.notes[1].after["reasons"] == ["active:S1"]


async def test_a_past_due_customer_who_resubscribes_never_loses_access(shop: Shop) -> None:
    # case: A25
    await shop.reads("ACTIVE", "S1", current_period_end=(START + timedelta(days=30)).isoformat())
    await shop.pass_time(days=33)
    await shop.reads("PAST_DUE", "S1", current_period_end=(START + timedelta(days=30)).isoformat())
    await shop.happens("ended", "S1", end_reason="PAYER_CANCELED")
    assert await shop.reasons() == ["settling:S1"], "the period is over, but nobody had scheduled this end"
    await shop.happens("created", "S2")
    await shop.reads("ACTIVE", "S2")
    await shop.pass_time(days=1)
    assert shop.effects == ["granted default"]


async def test_the_end_itself_may_say_that_it_was_scheduled(shop: Shop) -> None:
    # case: A15
    await shop.reads("ACTIVE", current_period_end=(START + timedelta(days=30)).isoformat())
    shop.now += timedelta(days=30)
    await shop.happens("ended", end_reason="PAYER_CANCELED", cancel_reason="PAYER_CANCELED")
    assert shop.effects == ["granted default", "revoked default"]


async def test_a_list_item_that_lacks_fields_denies_nothing(shop: Shop) -> None:
    # case: B22
    await shop.reads("ACTIVE", cancel_at_period_end=True, cancel_reason="PAYER_CANCELED", product_id="prod")
    await shop.reads("ACTIVE", price_id=None)
    row = await shop.subscription()
    assert (row["cancel_at_period_end"], row["cancel_reason"]) == (True, "PAYER_CANCELED")
    assert (row["price_id"], row["product_id"]) == ("svc_price_monthly", "prod")
    await shop.reads("ACTIVE", cancel_at_period_end=False, cancel_reason=None)
    row = await shop.subscription()
    assert (row["cancel_at_period_end"], row["cancel_reason"]) == (False, None)


@pytest.mark.parametrize("source", [Source.BACKFILL, Source.REPLAY])
async def test_old_news_grants_nothing_provisionally(shop: Shop, source: Source) -> None:
    # case: A1, A24, G6
    long_ago = START - timedelta(days=400)
    await shop.feed(replace(shop.event("created", at=long_ago), source=source, received_at=START))
    await shop.pass_time(minutes=5)
    assert shop.effects == [], "it may have ended long ago; the read says"
    assert await shop.asked() == {("subscription", "S1")}
    await shop.feed(replace(shop.event("ended", at=long_ago + timedelta(days=30)), source=source, received_at=shop.now))
    await shop.pass_time(days=1)
    assert shop.effects == []


async def test_a_scheduled_end_that_came_early_is_a_resubscription_without_the_services_time(shop: Shop) -> None:
    # case: A25
    shown: dict[str, Any] = {"cancel_at_period_end": True, "cancel_reason": "PAYER_CANCELED"}
    await shop.reads("ACTIVE", current_period_end=(START + timedelta(days=30)).isoformat(), **shown)
    await shop.pass_time(days=10)
    await shop.feed(replace(shop.event("ended", end_reason="PAYER_CANCELED"), occurred_at=None))
    await shop.pass_time(minutes=1)
    await shop.reads("ACTIVE", "S2")
    await shop.pass_time(days=1)
    assert shop.effects == ["granted default"]


async def test_a_scheduled_end_on_time_revokes_at_once_without_the_services_time(shop: Shop) -> None:
    # case: A15
    await shop.reads("ACTIVE", current_period_end=START.isoformat(), cancel_at_period_end=True)
    await shop.feed(replace(shop.event("ended", end_reason="PAYER_CANCELED"), occurred_at=None))
    assert shop.effects == ["granted default", "revoked default"]


@pytest.mark.parametrize("reason", ["PAYER_CANCELED", None])
@pytest.mark.parametrize("succeeds", [True, False])
async def test_a_payers_scheduled_end_of_an_unknown_period_settles_for_seconds(
    shop: Shop, succeeds: bool, reason: str | None
) -> None:
    # case: A15, A25, A45
    await shop.reads("ACTIVE", cancel_at_period_end=True, cancel_reason="PAYER_CANCELED")
    await shop.happens("ended", end_reason=reason)
    assert await shop.allowed()
    if succeeds:
        await shop.reads("ACTIVE", "S2")
    await shop.pass_time(seconds=6)
    assert shop.effects == (["granted default"] if succeeds else ["granted default", "revoked default"])


async def test_a_read_that_lags_behind_the_end_is_read_again_until_it_agrees(shop: Shop) -> None:
    # case: A45, A24
    await shop.reads("ACTIVE", cancel_at_period_end=True)
    await shop.happens("ended")
    for _ in range(3):
        await shop.forget_reads()
        await shop.reads("ACTIVE")
        assert await shop.findings() == {("disagreement", "S1")}
        assert await shop.asked() == {("subscription", "S1")}
        shop.now += timedelta(hours=1)
    await shop.forget_reads()
    await shop.reads("ENDED", end_reason="MERCHANT_CANCELED")
    assert await shop.findings() == set()
    assert await shop.asked() == set()
    assert (await shop.subscription())["end_reason"] == "MERCHANT_CANCELED"
    assert shop.effects == ["granted default", "revoked default"]


async def test_the_waits_between_reads_that_deny_an_end_grow_up_to_a_day(shop: Shop) -> None:
    # case: A24
    await shop.reads("ACTIVE")
    await shop.happens("ended", end_reason="MERCHANT_CANCELED")
    waits = []
    for _ in range(16):
        await shop.reads("ACTIVE")
        [row] = await shop.rows(READS)
        waits.append(row["due_at"] - shop.now)
        shop.now = row["due_at"]
        await shop.forget_reads()
    assert waits[0] == timedelta(minutes=1)
    assert waits == sorted(waits)
    assert waits[-1] == timedelta(days=1)


async def test_a_read_that_denies_the_first_word_of_a_subscription_its_end_is_read_again_soon(shop: Shop) -> None:
    # case: A24
    await shop.happens("ended", end_reason="MERCHANT_CANCELED")
    await shop.forget_reads()
    await shop.reads("ACTIVE")
    [row] = await shop.rows(READS)
    assert row["due_at"] - shop.now == timedelta(minutes=1)


@pytest.mark.parametrize("by", ["event", "read"])
async def test_an_end_with_an_unknown_reason_is_an_end_whose_reason_is_not_guessed(shop: Shop, by: str) -> None:
    # case: A35, A45
    await shop.reads("ACTIVE")
    if by == "event":
        await shop.happens("ended", end_reason="SOMETHING_NEW")
    else:
        await shop.reads("ENDED", end_reason="SOMETHING_NEW")
    row = await shop.subscription()
    assert (row["status"], row["end_reason"]) == ("ENDED", None)
    assert await shop.findings() == {("unknown_end_reason", "S1")}
    assert (await shop.row(FINDINGS))["detail"] == {"end_reason": "SOMETHING_NEW"}
    assert await shop.allowed(), "it may be one half of a re-subscription, so it settles like an end without a reason"
    await shop.pass_time(seconds=6)
    assert shop.effects == ["granted default", "revoked default"]
    await shop.reads("ENDED", end_reason="PAYER_CANCELED")
    assert (await shop.subscription())["end_reason"] == "PAYER_CANCELED"
    assert await shop.findings() == set()


async def test_an_unknown_reason_does_not_overwrite_a_known_one(shop: Shop) -> None:
    # case: A35
    await shop.reads("ACTIVE")
    await shop.happens("ended", end_reason="MERCHANT_CANCELED")
    await shop.reads("ENDED", end_reason="SOMETHING_NEW")
    assert (await shop.subscription())["end_reason"] == "MERCHANT_CANCELED"
    assert await shop.findings() == {("unknown_end_reason", "S1")}


async def test_an_unknown_status_changes_nothing_is_shown_and_is_read_again(shop: Shop) -> None:
    # case: A35
    await shop.reads("ACTIVE")
    before = await shop.subscription()
    await shop.reads("PAUSED", end_reason="PAYER_CANCELED")
    assert await shop.subscription() == before
    assert await shop.findings() == {("unknown_status", "S1")}
    assert await shop.asked() == {("subscription", "S1")}
    assert shop.effects == ["granted default"]


async def test_a_word_that_is_known_again_closes_what_it_opened(shop: Shop) -> None:
    # case: A35
    await shop.reads("PAUSED")
    await shop.reads("ACTIVE")
    assert await shop.findings() == set()
    await shop.reads("ENDED", end_reason="SOMETHING_NEW")
    assert await shop.findings() == {("unknown_end_reason", "S1")}
    await shop.reads("ENDED", end_reason="PAYMENT_FAILED")
    assert await shop.findings() == set()


@pytest.mark.parametrize("first", ["ended", "renewed"])
async def test_a_charge_at_the_moment_of_the_end_is_flagged_in_either_order(shop: Shop, first: str) -> None:
    # case: A22, G1
    await shop.reads("ACTIVE")
    both = [shop.event("ended", end_reason="MERCHANT_CANCELED"), shop.event("renewed")]
    await shop.feed(*(both if first == "ended" else reversed(both)))
    assert await shop.findings() == {("charged_after_end", "S1")}


async def test_a_word_about_an_older_charge_than_is_shown_by_now_settles_none(shop: Shop) -> None:
    # case: A22
    await shop.reads("ACTIVE")
    await shop.happens("ended", end_reason="MERCHANT_CANCELED")
    await shop.happens("renewed")
    refunded = {"kind": "charged_after_end", "by": "op", "reason": "refunded"}
    (shown,) = await shop.rows(FINDINGS)
    await shop.pass_time(days=30)
    await shop.happens("renewed")
    seen = as_seen("charged_after_end", shown["detail"])
    await shop.word("access.finding_closed", "object:S1", **refunded, seen=seen)
    assert await shop.findings() == {("charged_after_end", "S1")}, "this charge was not given back"
    assert shop.notes[-1].action == "finding.left_open"
    (shown,) = await shop.rows(FINDINGS)
    seen = as_seen("charged_after_end", shown["detail"])
    await shop.word("access.finding_closed", "object:S1", **refunded, seen=seen)
    assert await shop.findings() == set()


async def test_a_further_charge_after_an_operator_settled_the_last_one_is_shown_again(shop: Shop) -> None:
    # case: A22
    await shop.reads("ACTIVE")
    await shop.happens("ended", end_reason="MERCHANT_CANCELED")
    await shop.happens("renewed")
    await shop.word("access.finding_closed", "object:S1", kind="charged_after_end", by="op", reason="refunded")
    assert await shop.findings() == set()
    await shop.happens("renewed", at=shop.now - timedelta(days=1))
    assert await shop.findings() == set(), "old news: of before the end"
    await shop.pass_time(days=30)
    await shop.happens("renewed")
    assert await shop.findings() == {("charged_after_end", "S1")}, "this one was not given back"
    assert not await shop.allowed()


async def test_a_charge_of_one_that_was_never_read_counts_when_no_read_comes(shop: Shop) -> None:
    """Its `subscription.created` may be lost for good, where nobody has API credentials."""
    # case: A6, A34
    await shop.happens("renewed")
    assert not await shop.allowed(), "a read says it better"
    await shop.pass_time(seconds=4)
    assert await shop.reasons() == ["provisional:S1"]
    await shop.denies("S2")
    await shop.happens("renewed", "S2", customer_reference="cus_2")
    await shop.denies("S2")
    await shop.pass_time(seconds=4)
    assert not await shop.allowed(customer="cus_2"), "a test event's (case A47)"


async def test_a_charge_while_past_due_counts_when_no_read_comes(shop: Shop) -> None:
    # case: A10, A34, A41
    await shop.reads("ACTIVE")
    await shop.reads("PAST_DUE")
    await shop.pass_time(days=3)
    await shop.happens("renewed")
    await shop.pass_time(seconds=4)
    assert await shop.reasons() == ["provisional:S1"]
    await shop.pass_time(days=30)
    assert shop.effects == ["granted default"], "the service charged; that it cannot be read takes nothing away"
    await shop.reads("PAST_DUE")
    await shop.pass_time(days=13)
    assert shop.effects == ["granted default"], "the charge made the first failure good: the next has its own grace"
    await shop.pass_time(days=1)
    assert shop.effects == ["granted default", "revoked default"]


async def test_a_charge_after_the_grace_grants_again_when_no_read_comes(shop: Shop) -> None:
    # case: A41, A34
    await shop.reads("ACTIVE")
    await shop.reads("PAST_DUE")
    await shop.pass_time(days=15)
    await shop.happens("renewed")
    assert not await shop.allowed(), "a read says it better"
    await shop.pass_time(seconds=4)
    assert shop.effects == ["granted default", "revoked default", "granted default"]


async def test_a_charge_before_the_failure_moves_no_grace(shop: Shop) -> None:
    # case: A9, A41
    await shop.reads("ACTIVE")
    await shop.reads("PAST_DUE")
    await shop.pass_time(days=15)
    await shop.happens("renewed", at=START - timedelta(days=1))
    await shop.reads("PAST_DUE")
    await shop.pass_time(minutes=1)
    assert shop.effects == ["granted default", "revoked default"], "the charge was old news"


async def test_a_read_that_does_not_show_the_charge_yet_keeps_nobody_out(shop: Shop) -> None:
    """It lags, or shows the next failure: neither takes back what was charged."""
    # case: A10, A41, U30
    await shop.reads("ACTIVE")
    await shop.reads("PAST_DUE")
    await shop.pass_time(days=15)
    await shop.happens("renewed")
    await shop.reads("PAST_DUE")
    assert await shop.allowed()
    await shop.reads("ACTIVE")
    await shop.pass_time(days=20)
    assert shop.effects == ["granted default", "revoked default", "granted default"]


async def test_an_unmarked_test_event_that_was_read_grants_nothing(shop: Shop) -> None:
    # case: A47, G6
    await shop.feed(replace(shop.event("created"), trust=Trust.READ))
    await shop.pass_time(days=1)
    assert shop.effects == [], "the event is listed, but there is no such subscription to be read"
    await shop.reads("ACTIVE")
    assert shop.effects == ["granted default"]


async def test_who_has_many_subscriptions_gets_what_each_of_them_gives(shop_with: Callable[..., Shop]) -> None:
    """Of a reseller's 200 were looked at: what the next one paid for was never given, and nothing said so."""
    # case: A27
    shop = shop_with(entitlements={"seat": ["seat"], "pro": ["pro"]})
    for number in range(201):
        await shop.reads("ACTIVE", f"S{number:03}", price_id="seat")
    await shop.reads("ACTIVE", "S999", price_id="pro")
    assert shop.effects == ["granted seat", "granted pro"]
    await shop.happens("created", "S999")
    await shop.reads("ENDED", "S999", price_id="pro")
    await shop.pass_time(hours=1)
    assert shop.effects[2:] == ["revoked pro"]


@pytest.mark.parametrize("name", ["", "x" * 101, "a\0b"])
def test_an_entitlement_that_cannot_be_stored_as_it_is_is_refused(name: str) -> None:
    """What stood was not found by its name, and each decision granted and revoked it anew."""
    with pytest.raises(ValueError, match="entitlements"):
        Policy(entitlements={"price": [name]})
