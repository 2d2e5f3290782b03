"""Subscriptions: renewals, failures, cancels."""

from __future__ import annotations

import pytest

from consumer.sandbox import Engine, PageRefusal, Refusal
from consumer.sandbox.engine.records import PaymentStatus, SubscriptionStatus
from consumer.sandbox.engine.views import subscription_view
from tests.sandbox.support import DAY_S, Api, again, create, make_engine, subscribe, types

ACTIVE, PAST_DUE, ENDED = SubscriptionStatus.ACTIVE, SubscriptionStatus.PAST_DUE, SubscriptionStatus.ENDED
STARTED = ["subscription.created", "checkout.session.completed"]


def view(engine: Engine, one: object) -> dict[str, object]:
    found = engine.subscriptions.any(one.id)  # type: ignore[attr-defined]  # any record with an id
    return subscription_view(found, engine.assumptions.text("status_after_second_failure"))


async def test_subscribing_makes_an_active_subscription_and_no_order(api: Api) -> None:
    # case: X32
    session = await api.create(
        mode="subscription", amount=None, description=None, price_id="svc_price_monthly", customer_reference="c"
    )
    assert session["order"] is None
    assert session["description"] == "Sandbox access"
    shown = await api.control(f"/sessions/{session['id']}/pay")
    read = (await api.get(f"/v1/subscriptions/{shown['subscription_id']}")).json
    assert (read["status"], read["end_reason"], read["cancel_at_period_end"]) == ("ACTIVE", None, False)
    assert await api.items("/v1/orders") == []
    seen = {event["type"] for event in await api.items("/v1/events")}
    assert "subscription.created" in seen
    assert not any(name.startswith("order.") for name in seen)


def test_confirmed_is_no_subscription_yet(engine: Engine) -> None:
    # case: X32
    session = create(engine, mode="subscription", price_id="svc_price_monthly")
    engine.payments.pay(session, until="confirmed")
    assert list(engine.world.subscriptions) == []
    assert types(engine) == []


@pytest.mark.parametrize(
    ("switch", "expected"),
    [
        ("session", ["checkout.session.expired"]),
        ("none", []),
        ("session_and_order", ["checkout.session.expired", "order.expired"]),
    ],
)
def test_events_of_an_expired_subscription_session_are_a_switch(switch: str, expected: list[str]) -> None:
    # case: X32
    engine = make_engine(subscription_session_events=switch)
    create(engine, mode="subscription", price_id="svc_price_monthly")
    engine.advance(1831)
    assert types(engine) == expected


@pytest.mark.parametrize(("price_id", "days"), [("svc_price_monthly", 30), ("svc_price_yearly", 365)])
def test_it_renews_at_the_end_of_each_period(engine: Engine, price_id: str, days: int) -> None:
    # case: X33
    subscription = subscribe(engine, price_id)
    engine.advance(days * DAY_S - 1)
    assert types(engine) == STARTED
    engine.advance(1)
    assert types(engine) == [*STARTED, "subscription.renewed"]
    engine.advance(days * DAY_S)
    assert types(engine).count("subscription.renewed") == 2
    renewed = again(engine, subscription)
    assert renewed.status is ACTIVE
    assert (renewed.period_start - renewed.started_at).days == 2 * days


def test_automatic_renewal_can_be_switched_off() -> None:
    # case: X33
    engine = make_engine(auto_renew=False)
    subscription = subscribe(engine)
    engine.advance(40 * DAY_S)
    assert types(engine) == STARTED
    engine.subscriptions.renew(again(engine, subscription))
    assert types(engine)[-1] == "subscription.renewed"


def test_the_first_counted_failure_is_past_due_with_two_events(engine: Engine) -> None:
    # case: X34
    subscription = subscribe(engine)
    engine.subscriptions.fail(subscription)
    assert again(engine, subscription).status is PAST_DUE
    assert types(engine)[2:] == ["subscription.payment_failed", "subscription.past_due"]


@pytest.mark.parametrize("word", ["PAST_DUE", "UNPAID"])
def test_the_second_and_third_failure_send_payment_failed_only(word: str) -> None:
    # case: X35
    engine = make_engine(status_after_second_failure=word)
    subscription = subscribe(engine)
    engine.subscriptions.fail(subscription)
    assert view(engine, subscription)["status"] == "PAST_DUE"
    for _ in range(2):
        engine.subscriptions.fail(again(engine, subscription))
        assert view(engine, subscription)["status"] == word
    assert types(engine)[4:] == ["subscription.payment_failed"] * 2


@pytest.mark.parametrize(("resets", "failures_to_end"), [(True, 4), (False, 3)])
def test_a_successful_retry_makes_it_active_again(resets: bool, failures_to_end: int) -> None:
    # case: X36
    engine = make_engine(failure_count_resets=resets)
    subscription = subscribe(engine)
    engine.subscriptions.fail(subscription)
    engine.subscriptions.renew(again(engine, subscription))
    assert again(engine, subscription).status is ACTIVE
    assert types(engine)[-1] == "subscription.renewed"
    for number in range(failures_to_end):
        assert again(engine, subscription).status is not ENDED, number
        engine.subscriptions.fail(again(engine, subscription))
    assert again(engine, subscription).status is ENDED


@pytest.mark.parametrize("fourth", [True, False])
def test_the_fourth_failure_ends_it(fourth: bool) -> None:
    # case: X37
    engine = make_engine(fourth_payment_failed=fourth)
    subscription = subscribe(engine)
    for _ in range(4):
        engine.subscriptions.fail(again(engine, subscription))
    ended = again(engine, subscription)
    assert (ended.status, ended.end_reason) == (ENDED, "PAYMENT_FAILED")
    assert types(engine)[-1] == "subscription.ended"
    assert types(engine).count("subscription.payment_failed") == (4 if fourth else 3)
    assert types(engine).count("subscription.past_due") == 1


def test_automatic_failures_are_retried_until_the_end(engine: Engine) -> None:
    # case: X34, X37
    subscription = subscribe(engine)
    engine.subscriptions.set_charge(subscription, "fail")
    engine.advance(30 * DAY_S)
    assert again(engine, subscription).status is PAST_DUE
    engine.advance(3 * DAY_S)
    assert again(engine, subscription).end_reason == "PAYMENT_FAILED"


def test_an_uncounted_failure_changes_and_sends_nothing(engine: Engine) -> None:
    # case: X34
    subscription = subscribe(engine)
    engine.subscriptions.set_charge(subscription, "uncounted")
    engine.advance(30.5 * DAY_S)
    assert (again(engine, subscription).status, types(engine)) == (ACTIVE, STARTED)
    engine.subscriptions.set_charge(again(engine, subscription), "ok")
    engine.advance(DAY_S)
    assert types(engine) == [*STARTED, "subscription.renewed"]


def test_a_payer_cancel_ends_with_the_period(engine: Engine) -> None:
    # case: X38
    subscription = subscribe(engine)
    engine.subscriptions.payer_cancel(subscription)
    shown = view(engine, subscription)
    assert (shown["status"], shown["cancel_at_period_end"], shown["cancel_reason"]) == (
        "ACTIVE", True, "PAYER_CANCELED",
    )  # fmt: skip
    engine.advance(30 * DAY_S)
    shown = view(engine, subscription)
    assert (shown["status"], shown["end_reason"]) == ("ENDED", "PAYER_CANCELED")
    assert types(engine)[2:] == ["subscription.cancel_scheduled", "subscription.ended"]


@pytest.mark.parametrize("by", ["payer", "merchant"])
def test_no_period_is_charged_that_begins_at_the_scheduled_end(engine: Engine, by: str) -> None:
    # case: X38, X40
    subscription = subscribe(engine)
    cancelled = (
        engine.subscriptions.payer_cancel(subscription)
        if by == "payer"
        else engine.subscriptions.cancel(subscription, "period_end")
    )
    with pytest.raises(Refusal) as refused:
        engine.subscriptions.renew(cancelled)
    assert refused.value.problem_code == "conflict"
    assert again(engine, subscription) == cancelled
    assert types(engine)[2:] == ["subscription.cancel_scheduled"]


def test_a_retry_still_pays_the_period_at_whose_end_it_ends(engine: Engine) -> None:
    # case: X36, X38
    subscription = subscribe(engine)
    engine.assumptions.set({"auto_renew": False})
    engine.advance(31 * DAY_S)
    engine.subscriptions.fail(again(engine, subscription))
    cancelled = engine.subscriptions.payer_cancel(again(engine, subscription))
    renewed = engine.subscriptions.renew(cancelled)
    assert (renewed.status, renewed.period_end) == (ACTIVE, cancelled.end_at)


def test_a_withdrawn_cancel_goes_on(engine: Engine) -> None:
    # case: X38
    subscription = subscribe(engine)
    engine.subscriptions.payer_cancel(subscription)
    engine.subscriptions.payer_withdraw(again(engine, subscription))
    shown = view(engine, subscription)
    assert (shown["status"], shown["cancel_at_period_end"], shown["cancel_reason"]) == ("ACTIVE", False, None)
    engine.advance(30 * DAY_S)
    assert types(engine)[2:] == [
        "subscription.cancel_scheduled", "subscription.cancel_withdrawn", "subscription.renewed",
    ]  # fmt: skip


def test_past_due_can_be_cancelled_by_the_payer_too(engine: Engine) -> None:
    # case: X38
    subscription = subscribe(engine)
    engine.subscriptions.set_charge(subscription, "skip")
    engine.advance(31 * DAY_S)
    engine.subscriptions.fail(again(engine, subscription))
    engine.subscriptions.payer_cancel(again(engine, subscription))
    assert view(engine, subscription)["status"] == "PAST_DUE"
    engine.advance(29 * DAY_S)
    assert view(engine, subscription)["end_reason"] == "PAYER_CANCELED"


def test_a_merchant_cancel_now_ends_at_once_and_a_charge_in_flight_still_lands(engine: Engine) -> None:
    # case: X39
    subscription = subscribe(engine)
    engine.subscriptions.cancel(subscription, "now")
    ended = again(engine, subscription)
    assert (ended.status, ended.end_reason) == (ENDED, "MERCHANT_CANCELED")
    engine.subscriptions.renew(ended)
    assert types(engine)[2:] == ["subscription.ended", "subscription.renewed"]
    assert again(engine, subscription).status is ENDED
    with pytest.raises(Refusal, match="subscription_already_ended"):
        engine.subscriptions.renew(again(engine, subscription))
    engine.advance(40 * DAY_S)
    assert types(engine)[-1] == "subscription.renewed"
    assert types(engine).count("subscription.renewed") == 1


def test_a_merchant_cancel_at_period_end_alone(engine: Engine) -> None:
    # case: X40
    subscription = subscribe(engine)
    engine.subscriptions.cancel(subscription, "period_end")
    shown = view(engine, subscription)
    assert (shown["cancel_at_period_end"], shown["cancel_reason"], shown["merchant_cancel_requested"]) == (
        True, "MERCHANT_CANCELED", True,
    )  # fmt: skip
    engine.subscriptions.cancel(again(engine, subscription), "period_end")
    engine.advance(30 * DAY_S)
    assert view(engine, subscription)["end_reason"] == "MERCHANT_CANCELED"
    assert types(engine)[2:] == ["subscription.cancel_scheduled", "subscription.ended"]


def test_a_merchant_cancel_after_the_payers_sends_no_second_event(engine: Engine) -> None:
    # case: X40
    subscription = subscribe(engine)
    engine.subscriptions.payer_cancel(subscription)
    engine.subscriptions.cancel(again(engine, subscription), "period_end")
    shown = view(engine, subscription)
    assert (shown["cancel_at_period_end"], shown["cancel_reason"], shown["merchant_cancel_requested"]) == (
        True, "PAYER_CANCELED", True,
    )  # fmt: skip
    assert types(engine)[2:] == ["subscription.cancel_scheduled"]
    engine.advance(30 * DAY_S)
    assert view(engine, subscription)["end_reason"] == "PAYER_CANCELED"


@pytest.mark.parametrize("sent", [True, False])
@pytest.mark.parametrize("reason", ["MERCHANT_CANCELED", "PAYER_CANCELED"])
def test_a_withdrawal_leaves_the_merchant_cancel_standing(sent: bool, reason: str) -> None:
    # case: X41
    engine = make_engine(withdraw_event_when_merchant_stands=sent, end_reason_when_merchant_stands=reason)
    subscription = subscribe(engine)
    engine.subscriptions.payer_cancel(subscription)
    engine.subscriptions.cancel(again(engine, subscription), "period_end")
    engine.subscriptions.payer_withdraw(again(engine, subscription))
    shown = view(engine, subscription)
    assert (shown["cancel_at_period_end"], shown["merchant_cancel_requested"]) == (True, True)
    assert ("subscription.cancel_withdrawn" in types(engine)) is sent
    engine.advance(30 * DAY_S)
    shown = view(engine, subscription)
    assert (shown["status"], shown["end_reason"]) == ("ENDED", reason)


def test_the_portal_offers_no_cancel_while_the_merchants_is_pending(engine: Engine) -> None:
    # case: X40
    subscription = subscribe(engine)
    engine.subscriptions.cancel(subscription, "period_end")
    with pytest.raises(Refusal, match="no cancel of its own"):
        engine.subscriptions.payer_cancel(again(engine, subscription))


@pytest.mark.parametrize("sent", [True, False])
def test_resubscribing_ends_the_old_subscription(sent: bool) -> None:
    # case: X42
    engine = make_engine(ended_on_resubscribe=sent)
    first = subscribe(engine, customer_reference="c")
    second = subscribe(engine, customer_reference="c")
    old = again(engine, first)
    assert (old.status, old.end_reason) == (ENDED, "PAYER_CANCELED")
    assert again(engine, second).status is ACTIVE
    assert ("subscription.ended" in types(engine)) is sent


def test_other_customers_and_other_prices_are_left_alone(engine: Engine) -> None:
    # case: X42
    first = subscribe(engine, customer_reference="c")
    subscribe(engine, customer_reference="d")
    subscribe(engine, "svc_price_yearly", customer_reference="c")
    assert again(engine, first).status is ACTIVE


def test_after_a_merchant_cancel_the_wallet_waits_for_solana(engine: Engine) -> None:
    # case: X43
    subscription = subscribe(engine, customer_reference="c")
    engine.subscriptions.cancel(subscription, "now")
    session = create(engine, mode="subscription", price_id="svc_price_monthly", customer_reference="c")
    for build in (engine.payments.build, engine.payments.pay):
        with pytest.raises(PageRefusal) as refused:
            build(session)
        assert refused.value.problem_code == "wallet_still_subscribed"
    with pytest.raises(Refusal, match="has not ended"):
        engine.subscriptions.reclaim_rent(again(engine, subscription))
    engine.subscriptions.cancel_on_solana(again(engine, subscription))
    with pytest.raises(Refusal, match="has not ended"):
        engine.subscriptions.reclaim_rent(again(engine, subscription))
    engine.advance(30 * DAY_S)
    engine.subscriptions.reclaim_rent(again(engine, subscription))
    assert subscribe(engine, customer_reference="c").status is ACTIVE
    assert again(engine, subscription).status is ENDED


async def test_a_cancel_needs_at_and_a_live_subscription(api: Api) -> None:
    # case: X44
    session = await api.create(mode="subscription", amount=None, description=None, price_id="svc_price_monthly")
    one = (await api.control(f"/sessions/{session['id']}/pay"))["subscription_id"]
    path = f"/v1/subscriptions/{one}/cancel"
    for wrong in ({}, {"at": "later"}, {"at": None}, {"at": 1}):
        reply = await api.post(path, wrong)
        assert (reply.status, reply.code, reply.json["field"]) == (400, "validation_failed", "at")
    assert (await api.post(path, {"at": "now"})).json["status"] == "ENDED"
    reply = await api.post(path, {"at": "now"})
    assert (reply.status, reply.code) == (409, "subscription_already_ended")


def test_a_missed_period_is_never_billed(engine: Engine) -> None:
    # case: X48
    subscription = subscribe(engine)
    engine.subscriptions.set_charge(subscription, "skip")
    engine.advance(95 * DAY_S)
    assert types(engine) == STARTED
    engine.subscriptions.set_charge(again(engine, subscription), "ok")
    engine.advance(30 * DAY_S)
    renewed = again(engine, subscription)
    assert types(engine).count("subscription.renewed") == 1
    assert (renewed.period_start - renewed.started_at).days == 120
    paid = [p for p in engine.world.payments if p.status is PaymentStatus.SUCCEEDED]
    assert len(paid) == 2, "the first period and one renewal; the three missed ones are not charged"
