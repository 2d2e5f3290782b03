"""`decide` as a table: what one customer has, and the policy, give who may use what."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from handlers.access.ending import ended
from handlers.access.facts import charge_heard, hinted, observed, past_due_heard
from handlers.access.policy import Policy, duration
from handlers.access.rules import Decision, OperatorSource, decide
from handlers.access.subscription import ACTIVE, ENDED, PAST_DUE, Reading, Subscription
from tests.support.handling.projections import START

NOW = START + timedelta(days=10)
DAY = timedelta(days=1)


def sub(status: str | None, **fields: Any) -> Subscription:
    return Subscription(customer="c", price_id="p1", status=status, **fields)


def decided(*subs: Subscription, policy: Policy | None = None, **given: Any) -> dict[str, Decision]:
    numbered = {f"S{number}": one for number, one in enumerate(subs, start=1)}
    return decide(numbered, given.pop("grants", ()), given.pop("holds", ()), policy or Policy(), NOW, **given)


@pytest.mark.parametrize(
    ("one", "allowed", "until", "reason"),
    [
        (sub(ACTIVE), True, None, "active:S1"),
        (sub(ACTIVE, provisional=True), True, None, "provisional:S1"),
        (sub(ACTIVE, cancel_at_period_end=True), True, None, "ending:S1"),
        (sub(ACTIVE, merchant_cancel_requested=True), True, None, "ending:S1"),
        (sub(ACTIVE, period_end=START), True, None, "active:S1"),
        (sub(PAST_DUE, past_due_since=NOW - 13 * DAY), True, NOW + DAY, "grace:S1"),
        (sub(PAST_DUE, past_due_since=NOW - 14 * DAY), False, None, "grace_over:S1"),
        (sub(PAST_DUE, past_due_since=NOW - DAY, cancel_at_period_end=True), True, NOW + 13 * DAY, "grace:S1"),
        (sub(ENDED, end_reason="PAYMENT_FAILED"), False, None, "ended:S1:PAYMENT_FAILED"),
        (sub(ENDED), False, None, "ended:S1"),
        (sub(ENDED, settle_until=NOW + DAY), True, NOW + DAY, "settling:S1"),
        (sub(ENDED, settle_until=NOW), False, None, "ended:S1"),
    ],
)
def test_what_one_subscription_gives(one: Subscription, allowed: bool, until: Any, reason: str) -> None:
    # case: A1, A8, A20, A21, A30, A41, A43, A51
    decision = decided(one, standing=["default"])["default"]
    assert (decision.allowed, decision.until, decision.reasons) == (allowed, until, (reason,))


def test_an_end_that_settles_grants_nothing_anew() -> None:
    # case: A25, A41
    over = sub(ENDED, settle_until=NOW + DAY)
    assert decided(over)["default"] == Decision(allowed=False, until=None, reasons=("ended:S1",))
    policy = Policy(entitlements={"p1": ["pro", "chat"]})
    found = decided(over, policy=policy, standing=["chat"])
    assert {name: one.allowed for name, one in found.items()} == {"pro": False, "chat": True}


def test_a_subscription_nobody_has_read_says_nothing() -> None:
    # case: A3
    assert decided(sub(None)) == {}


@pytest.mark.parametrize(
    ("rule", "since", "allowed"),
    [("keep", START, True), ("revoke", NOW, False), ("grace:1h", NOW, True), ("grace:1h", NOW - DAY, False)],
)
def test_past_due_is_policy(rule: str, since: Any, allowed: bool) -> None:
    # case: A8
    assert decided(sub(PAST_DUE, past_due_since=since), policy=Policy(past_due=rule))["default"].allowed is allowed
    by_price = Policy(past_due="keep" if not allowed else "revoke", past_due_by_price={"p1": rule})
    assert decided(sub(PAST_DUE, past_due_since=since), policy=by_price)["default"].allowed is allowed


# case: A9, A10, A41
@pytest.mark.parametrize(
    ("since", "charged", "stands", "until"),
    [
        (NOW - 14 * DAY, NOW - DAY, True, NOW + 13 * DAY),
        (NOW - 14 * DAY, NOW - DAY, False, None),  # a grace that was over stays over: a read says it better
        (NOW - 28 * DAY, NOW - 14 * DAY, True, None),
        (NOW - DAY, NOW - 2 * DAY, True, NOW + 13 * DAY),
        (NOW - 14 * DAY, NOW - 15 * DAY, True, None),
        (NOW - 14 * DAY, None, True, None),
    ],
)
def test_what_stands_goes_on_for_a_grace_after_a_charge(since: Any, charged: Any, stands: bool, until: Any) -> None:
    one = sub(PAST_DUE, past_due_since=since, renewed_at=charged)
    decision = decided(one, standing=["default"] if stands else [])["default"]
    assert (decision.allowed, decision.until) == (until is not None, until)


def test_grants_of_one_entitlement_are_a_union() -> None:
    # case: A27
    decision = decided(sub(ENDED, end_reason="PAYER_CANCELED"), sub(ACTIVE))["default"]
    assert (decision.allowed, decision.reasons) == (True, ("active:S2",))
    both = decided(sub(PAST_DUE, past_due_since=NOW), sub(PAST_DUE, past_due_since=NOW - DAY))["default"]
    assert both.until == NOW + 14 * DAY
    assert both.next_check == NOW + 13 * DAY
    open_end = decided(sub(PAST_DUE, past_due_since=NOW), sub(ACTIVE))["default"]
    assert open_end.until is None


def test_entitlements_are_independent() -> None:
    # case: A27
    policy = Policy(entitlements={"p1": ["pro", "chat"], "p2": ["chat"]})
    ended = Subscription(price_id="p1", status=ENDED)
    found = decided(ended, Subscription(price_id="p2", status=ACTIVE), policy=policy)
    assert {name: one.allowed for name, one in found.items()} == {"pro": False, "chat": True}


def test_a_product_can_be_mapped_too() -> None:
    # case: A31, A33
    policy = Policy(entitlements={"prod_1": ["pro"]})
    found = decided(Subscription(price_id="svc_price_archived", product_id="prod_1", status=ACTIVE), policy=policy)
    assert found["pro"].allowed


def test_an_unmapped_price_neither_gives_nor_takes() -> None:
    # case: A32
    policy = Policy(entitlements={"p2": ["pro"]})
    assert decided(sub(ACTIVE), policy=policy, known=["pro"]) == {}
    gone = decided(sub(ENDED), policy=policy, known=["pro"])
    assert gone["pro"] == Decision(allowed=False, until=None, reasons=("no_source",))


def test_operator_sources_stand_beside_subscriptions() -> None:
    # case: A42
    gift = OperatorSource(id="g1", entitlement="default", until=NOW + DAY)
    found = decided(sub(ENDED), grants=[gift])["default"]
    assert (found.allowed, found.until, found.reasons) == (True, NOW + DAY, ("complimentary:g1",))
    hold = OperatorSource(id="h1", until=NOW + DAY)
    held = decided(sub(ACTIVE), grants=[gift], holds=[hold])["default"]
    assert (held.allowed, held.reasons, held.next_check) == (False, ("held:h1",), NOW + DAY)
    over = OperatorSource(id="h1", until=NOW)
    assert decided(sub(ACTIVE), holds=[over])["default"].allowed
    other = OperatorSource(id="h1", entitlement="pro")
    assert decided(sub(ACTIVE), holds=[other])["default"].allowed


def test_a_lapsed_gift_gives_nothing() -> None:
    # case: A42
    assert decided(grants=[OperatorSource(id="g1", entitlement="default", until=NOW)], known=["default"]) == {
        "default": Decision(allowed=False, until=None, reasons=("no_source",))
    }


@pytest.mark.parametrize("text", ["grace", "grace:", "grace:14", "14d", "always", "", None, "grace:-1d"])
def test_a_policy_that_cannot_be_read_is_refused(text: object) -> None:
    with pytest.raises(ValidationError):
        Policy.model_validate({"past_due": text})


def test_durations() -> None:
    assert duration("90s") == timedelta(seconds=90)
    assert duration("14d") == timedelta(days=14)


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(ValidationError):
        Policy.model_validate({"past_dew": "keep"})


def test_a_grant_by_hand_is_of_what_it_names_or_of_all() -> None:
    # case: A42
    policy = Policy(entitlements={"p1": ["films"], "p2": ["music", "books"]})
    one = decided(policy=policy, grants=[OperatorSource(id="g1", entitlement="music")])
    assert {name: decision.reasons for name, decision in one.items()} == {"music": ("complimentary:g1",)}
    every = decided(policy=policy, grants=[OperatorSource(id="g2")])
    assert sorted(every) == ["books", "films", "music"]
    assert {decision.reasons for decision in every.values()} == {("complimentary:g2",)}
    over = decided(policy=policy, grants=[OperatorSource(id="g3", entitlement="music", until=NOW)], known=["music"])
    assert (over["music"].allowed, over["music"].reasons) == (False, ("no_source",))


@pytest.mark.parametrize(
    ("unread", "stands"),
    [
        ({"hinted_at": NOW}, True),
        ({"hinted_at": NOW, "unreadable_version": 3}, False),  # the service has no such subscription
        ({}, False),  # never announced
        ({"hinted_at": NOW - timedelta(minutes=10)}, False),
        ({"hinted_at": NOW - timedelta(minutes=10) + timedelta(seconds=1)}, True),
    ],
)
def test_what_stands_goes_on_for_an_unread_subscription_only(unread: dict[str, Any], stands: bool) -> None:
    # case: A27, A47
    ended = sub(ENDED, end_reason="PAYMENT_FAILED")
    assert decided(ended, sub(None, **unread), standing=["default"])["default"].allowed is stands
    assert decided(ended, sub(None, **unread))["default"].allowed is False, "it gives back nothing"


def test_a_failure_at_the_instant_of_the_charge_was_made_good_by_it() -> None:
    one = sub(ACTIVE, renewed_at=NOW)
    assert past_due_heard(one, NOW) == one
    assert past_due_heard(one, NOW + DAY).past_due_since == NOW + DAY


def test_a_read_as_new_as_the_denial_shows_that_it_is_there() -> None:
    denied = sub(None, unreadable_version=5)
    assert observed(denied, Reading(version=5, read_at=NOW, status=ACTIVE), NOW, Policy()).unreadable_version is None
    assert observed(denied, Reading(version=4, read_at=NOW, status=ACTIVE), NOW, Policy()).unreadable_version == 5


# case: B31
@pytest.mark.parametrize(
    ("before", "after", "unannounced"),
    [
        ({"status": ACTIVE}, PAST_DUE, True),
        ({"status": ACTIVE, "hinted_at": NOW - timedelta(minutes=59)}, PAST_DUE, False),
        ({"status": ACTIVE, "hinted_at": NOW - timedelta(hours=1)}, PAST_DUE, True),
        ({"status": PAST_DUE, "unannounced": True, "hinted_at": NOW}, PAST_DUE, True),
        ({"status": PAST_DUE}, PAST_DUE, False),
        ({"status": PAST_DUE, "unannounced": True}, ACTIVE, False),
        ({"status": ACTIVE}, ACTIVE, False),
    ],
)
def test_what_got_worse_by_a_read_alone_is_unannounced_as_long_as_it_is_worse(
    before: dict[str, Any], after: str, unannounced: bool
) -> None:
    reading = Reading(version=9, read_at=NOW, status=after)
    assert observed(Subscription(**before), reading, NOW, Policy()).unannounced is unannounced


# case: B31
@pytest.mark.parametrize(
    ("said_at", "active_at", "is_news"),
    [
        (NOW - timedelta(minutes=59), NOW, True),  # reads lag, and clocks differ, by less than an hour
        (NOW - timedelta(hours=1), NOW, False),
        (NOW + DAY, NOW, True),
        (NOW - DAY, None, True),
        (None, NOW, True),
    ],
)
def test_what_a_read_has_long_shown_announces_nothing(said_at: Any, active_at: Any, is_news: bool) -> None:
    one = sub(PAST_DUE, active_at=active_at, unannounced=True)
    after = hinted(one, NOW, said_at)
    assert (after.hinted_at, after.unannounced) == ((NOW, False) if is_news else (None, True))


# case: B31
@pytest.mark.parametrize(
    ("before", "by_read", "unannounced"),
    [
        ({"status": ACTIVE}, True, True),
        ({"status": ACTIVE}, False, False),
        ({"status": ACTIVE, "hinted_at": NOW - timedelta(minutes=59)}, True, False),
        ({"status": ACTIVE, "hinted_at": NOW - timedelta(hours=1)}, True, True),
        ({"status": None}, True, False),
        ({"status": ENDED, "unannounced": True}, True, True),
        ({"status": ENDED, "unannounced": True}, False, False),
        ({"status": ENDED}, True, False),
    ],
)
def test_an_end_of_somebody_live_is_unannounced_where_a_read_alone_shows_it(
    before: dict[str, Any], by_read: bool, unannounced: bool
) -> None:
    after = ended(Subscription(**before), at=NOW, ended_at=NOW, reason=None, by_read=by_read, policy=Policy())
    assert after.unannounced is unannounced


@pytest.mark.parametrize("status", [PAST_DUE, None])
def test_a_read_as_old_as_the_newest_says_nothing_new_unless_it_says_ended(status: str | None) -> None:
    # case: A40
    one = sub(status, version=4, read_at=START)
    assert observed(one, Reading(version=4, read_at=NOW, status=ACTIVE), NOW, Policy()) == one
    end = observed(one, Reading(version=4, read_at=NOW, status=ENDED, ended_at=NOW), NOW, Policy())
    assert (end.status, end.read_at, end.ended_at) == (ENDED, START, NOW)


# case: A9, A10
@pytest.mark.parametrize(
    ("status", "since", "charged", "began", "then"),
    [
        (PAST_DUE, None, None, NOW, NOW),
        (PAST_DUE, NOW, None, NOW - DAY, NOW - DAY),
        (PAST_DUE, NOW - DAY, None, NOW, NOW - DAY),
        (PAST_DUE, NOW, NOW - 2 * DAY, NOW + DAY, NOW),
        (PAST_DUE, NOW - 3 * DAY, NOW - 2 * DAY, NOW, NOW),
        (PAST_DUE, NOW - 2 * DAY, NOW - 2 * DAY, NOW, NOW),
        (None, NOW, None, NOW + DAY, NOW + DAY),
        (None, NOW, None, NOW - DAY, NOW),
    ],
)
def test_grace_counts_from_the_first_failure_since_the_last_charge(
    status: str | None, since: Any, charged: Any, began: Any, then: Any
) -> None:
    one = sub(status, past_due_since=since, renewed_at=charged)
    assert past_due_heard(one, began).past_due_since == then


# case: A9, A10, G1
@pytest.mark.parametrize(
    ("since", "heard", "charged", "then"),
    [
        (NOW - 3 * DAY, NOW, NOW - 2 * DAY, NOW),  # newest first: the failure after the charge was heard before it
        (NOW - 2 * DAY, NOW, NOW - 2 * DAY, NOW),
        (NOW - 3 * DAY, NOW - 3 * DAY, NOW - 2 * DAY, NOW - 3 * DAY),  # a read says what it is now
        (NOW - 3 * DAY, NOW - 2 * DAY, NOW - 2 * DAY, NOW - 3 * DAY),
        (NOW - 3 * DAY, None, NOW - 2 * DAY, NOW - 3 * DAY),
        (NOW - DAY, NOW, NOW - 2 * DAY, NOW - DAY),  # old news
        (None, None, NOW, None),
        (None, NOW, NOW - 2 * DAY, None),  # a read that said ACTIVE had made it good
        (NOW - DAY, NOW - DAY, None, NOW - DAY),
    ],
)
def test_a_charge_leaves_the_start_of_a_later_failure(since: Any, heard: Any, charged: Any, then: Any) -> None:
    one = sub(PAST_DUE, past_due_since=since, past_due_heard_at=heard)
    assert charge_heard(one, charged).past_due_since == then


# case: A9, A10
@pytest.mark.parametrize(
    ("since", "charged", "shown", "then"),
    [
        (NOW - 3 * DAY, None, None, NOW - 3 * DAY),
        (NOW - 3 * DAY, NOW - 4 * DAY, None, NOW - 3 * DAY),
        (NOW - 3 * DAY, NOW - 3 * DAY, None, NOW),
        (NOW - 3 * DAY, NOW - 2 * DAY, None, NOW),
        (NOW - 3 * DAY, NOW - 2 * DAY, NOW - DAY, NOW - DAY),
        (NOW - 3 * DAY, NOW - 2 * DAY, NOW - 3 * DAY, NOW),
    ],
)
def test_a_read_starts_no_grace_before_the_last_charge(since: Any, charged: Any, shown: Any, then: Any) -> None:
    one = sub(PAST_DUE, past_due_since=since, renewed_at=charged)
    reading = Reading(version=9, read_at=NOW, status=PAST_DUE, past_due_since=shown)
    assert observed(one, reading, NOW, Policy()).past_due_since == then
