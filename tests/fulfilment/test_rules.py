"""The fulfilment rules, as a table: an order, a fact, the order afterwards."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from handlers.fulfilment import rules
from handlers.fulfilment.order import Hold, Matching, Order, Proof, Reading, Registration, decimal
from handlers.pointers import TEXT_MAX_CHARS, look, look_amount, look_text, marked_as_test
from tests.support.handling.projections import START, observed, said

LATER = START + timedelta(minutes=5)
KNOWN = Proof(event_id="drv_1", type="fulfilment.marked_paid", at=START)
EVENT = Proof(event_id="evt_1", type="order.paid", at=START, by_event=True)
SECOND = replace(EVENT, event_id="evt_2", at=LATER)
READ = Proof(event_id="obs_1", type="order.observed", at=LATER)
PAID = rules.paid(Order(), EVENT, "off")


def test_the_first_proof_pays_and_requests() -> None:
    # case: F1
    assert PAID.status == "PAID"
    assert PAID.requested_at == START
    assert PAID.proof_event_id == "evt_1"


def test_a_second_proof_of_any_kind_changes_nothing() -> None:
    # case: F2, F4, F18
    assert rules.paid(PAID, SECOND, "off") == PAID
    again = rules.observed(PAID, Reading(version=1, status="PAID"), READ, "off")
    assert again._replace(observed_version=0, observed_status=None) == PAID


@pytest.mark.parametrize("word", ["PENDING", "EXPIRED", "CANCELED", "SOMETHING_NEW", None])
def test_no_status_but_paid_is_proof(word: str | None) -> None:
    # case: F17, F34
    order = rules.observed(Order(), Reading(version=1, status=word), READ, "off")
    assert order.paid_at is None
    assert order.requested_at is None


@pytest.mark.parametrize("word", ["PENDING", "EXPIRED", "CANCELED", "SOMETHING_NEW", None])
def test_nothing_leaves_paid(word: str | None) -> None:
    # case: F9, F19, F31
    order = rules.observed(PAID, Reading(version=9, status=word), READ, "off")
    order = rules.expired(order, LATER)
    assert order.status == "PAID"
    assert order.requested_at == START
    assert order.expired_at is None


def test_expiry_is_shown_until_it_is_paid() -> None:
    # case: F8
    lapsed = rules.expired(Order(), START)
    assert lapsed.status == "EXPIRED"
    assert rules.paid(lapsed, SECOND, "off").status == "PAID"


def test_what_a_read_said_counts_more_than_the_hint_that_it_expired() -> None:
    # case: F15
    read = rules.observed(Order(), Reading(version=4, status="PENDING"), READ, "off")
    assert rules.expired(read, LATER).status == "PENDING"


def test_an_older_read_does_not_overwrite_a_newer_one() -> None:
    newer = rules.observed(Order(), Reading(version=5, status="EXPIRED"), READ, "off")
    assert rules.observed(newer, Reading(version=4, status="PENDING"), READ, "off").status == "EXPIRED"


def test_paid_in_an_older_read_is_proof_all_the_same() -> None:
    # case: F18
    newer = rules.observed(Order(), Reading(version=5, status="PENDING"), READ, "off")
    assert rules.observed(newer, Reading(version=4, status="PAID"), READ, "off").status == "PAID"


@pytest.mark.parametrize(
    ("matching", "order", "hold"),
    [
        ("off", Order(), None),
        ("on", Order(), Hold.UNMATCHED),
        ("on", Order(registered_at=START), None),
        ("on", Order(observed_version=3), Hold.UNMATCHED),
        ("read", Order(), Hold.UNCONFIRMED),
        ("read", Order(observed_version=3), None),
        ("read", Order(registered_at=START), None),
        ("auto", Order(), Hold.ASKED),
        ("auto", Order(unreadable_version=2), Hold.UNMATCHED),
        ("auto", Order(observed_version=3), None),
        ("auto", Order(observed_version=3, unreadable_version=4), None),
        ("auto", Order(registered_at=START), None),
        ("auto", Order(registered_at=START, unreadable_version=4), None),
    ],
)
def test_what_an_order_waits_for_that_only_a_signature_says_is_paid(
    matching: Matching, order: Order, hold: Hold | None
) -> None:
    # case: F20, F24
    held = rules.paid(order, EVENT, matching)
    assert held.paid_at == START
    assert held.hold is hold
    assert (held.requested_at is None) == (hold is not None)


@pytest.mark.parametrize("order", [Order(), Order(unreadable_version=2)])
def test_a_second_event_is_no_more_than_the_first_and_somebody_who_knows_is(order: Order) -> None:
    # case: F20, F24, F37
    held = rules.paid(order, EVENT, "auto")
    assert held.requested_at is None
    assert rules.paid(held, SECOND, "auto") == held
    assert rules.paid(order, KNOWN, "auto").requested_at == START
    assert rules.paid(held, KNOWN, "auto").requested_at == START


def test_an_order_the_service_does_not_have_waits_for_somebody_to_know_it() -> None:
    # case: F20, F24
    asked = rules.paid(Order(), EVENT, "auto")
    held = rules.unreadable(asked, 3, LATER, "auto")
    assert (held.hold, held.requested_at, held.paid_at) == (Hold.UNMATCHED, None, START)
    assert rules.unanswered(held, LATER, "auto") == held, "there was an answer"
    for freed in (
        rules.registered(held, Registration(session_id="s1"), LATER, "auto"),
        rules.observed(held, Reading(version=4, status="PENDING"), READ, "auto"),
        rules.released(held, LATER),
    ):
        assert (freed.requested_at, freed.hold) == (LATER, None)


def test_without_an_answer_the_signature_is_proof() -> None:
    # case: F1
    asked = rules.paid(Order(), EVENT, "auto")
    gone = rules.unanswered(asked, LATER, "auto")
    assert (gone.requested_at, gone.hold) == (LATER, None)
    assert rules.unanswered(Order(), LATER, "auto") == Order(), "nothing was paid"


def test_what_was_requested_stays_requested_whatever_cannot_be_read() -> None:
    # case: G4, G7
    for requested in (PAID, rules.paid(Order(registered_at=START), EVENT, "auto")):
        assert rules.unreadable(requested, 9, LATER, "auto") == requested._replace(unreadable_version=9)
        assert rules.unanswered(requested, LATER, "auto") == requested


@pytest.mark.parametrize(("matching", "goes"), [("off", True), ("auto", True), ("on", False), ("read", False)])
def test_a_setting_that_changed_meanwhile_counts(matching: Matching, goes: bool) -> None:
    # case: F20
    asked = rules.paid(Order(), EVENT, "auto")
    assert (rules.unanswered(asked, LATER, matching).requested_at is not None) is goes


def test_registering_lets_a_parked_order_go_once() -> None:
    # case: F20
    parked = rules.paid(Order(), EVENT, "on")
    let_go = rules.registered(parked, Registration(session_id="s1"), LATER, "on")
    assert let_go.requested_at == LATER
    assert let_go.hold is None
    assert rules.registered(let_go, Registration(session_id="s2"), LATER + timedelta(1), "on").requested_at == LATER


@pytest.mark.parametrize(
    ("expected", "said", "differ"),
    [
        ("10", "10.000000", False),
        ("10.50", "10.5", False),
        ("0.1", "0.10", False),
        ("10", "10.000001", True),
        ("10", None, False),
        (None, "10", False),
        (None, "ten", False),
        ("10", "1E+1", True),
        ("10", "ten", True),
        ("10", "NaN", True),
        ("10", "Infinity", True),
        ("10", " 10", True),
        ("10", "", True),
        ("10", "1_0", True),
        ("10", "(number) 10", True),
        ("NaN", "10", True),
    ],
)
def test_amounts_are_compared_as_decimals(expected: str | None, said: str | None, differ: bool) -> None:
    # case: F21
    order = rules.paid(Order(expected_amount=expected, registered_at=START), EVENT, "off", amount=said)
    assert rules.amounts_differ(order) is differ
    assert order.hold is (Hold.AMOUNT if differ else None)


def test_an_operator_releases_whatever_held_it() -> None:
    # case: F21
    held = rules.paid(Order(expected_amount="10"), EVENT, "off", amount="9")
    assert rules.released(held, LATER).requested_at == LATER
    assert rules.released(Order(), LATER) == Order(), "an unpaid order is not released"
    assert rules.released(PAID, LATER) == PAID


def test_unfulfillable_is_for_paid_orders_only() -> None:
    # case: F33
    assert rules.unfulfillable(PAID, LATER).unfulfillable_at == LATER
    assert rules.unfulfillable(Order(), LATER) == Order()
    assert rules.unfulfillable(PAID, LATER).requested_at == START


def test_an_event_fills_only_what_is_unknown() -> None:
    known = Order(customer="c1")
    assert rules.mentioned(known, customer="c2", service_order_id="so1") == Order(customer="c1", service_order_id="so1")


@pytest.mark.parametrize("text", ["Infinity", "NaN", "", "ten", "1,5", "1e3", "1.", ".5", "+1", " 1", "1\n", "٣", None])
def test_what_is_no_plain_decimal_is_none(text: str | None) -> None:
    assert decimal(text) is None


def test_an_older_answer_that_there_is_none_does_not_overwrite_a_newer_one() -> None:
    # case: F24, U30
    newer = rules.unreadable(Order(), 5, START, "auto")
    assert rules.unreadable(newer, 3, LATER, "auto").unreadable_version == 5
    read = rules.observed(newer, Reading(version=7, status="PENDING"), READ, "auto")
    assert not rules.unreadable(read, 6, LATER, "auto").is_unreadable


def test_a_second_event_judges_no_hold_anew() -> None:
    # case: F4, F20
    held = rules.paid(Order(), EVENT, "on")
    again = rules.paid(held, SECOND, "off")
    assert (again.hold, again.requested_at) == (Hold.UNMATCHED, None)


def test_the_newest_read_is_what_is_shown_and_leaves_what_it_does_not_say() -> None:
    # case: F18
    said = Reading(version=5, status="PENDING", amount="10", service_order_id="so1", customer="c1")
    first = rules.observed(Order(), said, READ, "off")
    assert (first.amount, first.service_order_id, first.customer) == ("10", "so1", "c1")
    silent = rules.observed(first, Reading(version=6, status="EXPIRED"), READ, "off")
    assert silent == first._replace(observed_version=6, observed_status="EXPIRED")
    other = Reading(version=7, status="PENDING", amount="12", service_order_id="so2", customer="c2")
    newest = rules.observed(silent, other, READ, "off")
    assert (newest.amount, newest.service_order_id, newest.customer) == ("12", "so2", "c1")
    same = Reading(version=7, status="CANCELED", amount="99")
    assert rules.observed(newest, same, READ, "off") == newest, "the same version says nothing new"


def test_a_read_answers_an_older_denial_and_no_newer_one() -> None:
    # case: F24, U30
    denied = rules.unreadable(Order(), 5, START, "auto")
    assert rules.observed(denied, Reading(version=4, status="PENDING"), READ, "auto").unreadable_version == 5
    assert rules.observed(denied, Reading(version=5, status="PENDING"), READ, "auto").unreadable_version is None
    assert rules.observed(denied, Reading(version=6, status="PENDING"), READ, "auto").unreadable_version is None
    assert rules.unreadable(Order(observed_version=5), 5, START, "auto").unreadable_version is None


def test_the_first_word_on_the_amount_of_an_event_stays() -> None:
    # case: F21
    assert rules.paid(Order(amount="10"), EVENT, "off", amount="12").amount == "10"
    assert rules.paid(Order(), EVENT, "off", amount="12").amount == "12"
    assert rules.mentioned(Order(), customer="c1", service_order_id=None) == Order(customer="c1")
    known = Order(service_order_id="so1")
    assert rules.mentioned(known, customer=None, service_order_id="so2") == known


def test_the_earliest_expiry_is_shown() -> None:
    # case: F8
    assert rules.expired(rules.expired(Order(), LATER), START).expired_at == START
    assert rules.expired(rules.expired(Order(), START), LATER).expired_at == START


def test_a_registration_keeps_when_the_first_came_and_the_customer() -> None:
    # case: F20, F21
    first = Registration(session_id="s1", customer="c1", expected_amount="10")
    known = rules.registered(Order(), first, START, "off")
    expected = Order(registered_at=START, session_id="s1", customer="c1", expected_amount="10")
    assert known == expected
    second = rules.registered(known, Registration(session_id="s2"), LATER, "off")
    assert second == expected._replace(session_id="s2", expected_amount=None)
    third = rules.registered(second, Registration(session_id="s3", customer="c2"), LATER, "off")
    assert (third.customer, third.requested_at) == ("c2", None)


def test_one_that_cannot_be_delivered_waits_for_nothing_and_is_not_requested() -> None:
    # case: F33
    held = rules.paid(Order(), EVENT, "on")
    gone = rules.unfulfillable(held, START)
    assert (gone.hold, gone.unfulfillable_at, gone.requested_at) == (None, START, None)
    assert rules.unfulfillable(gone, LATER) == gone
    assert rules.registered(gone, Registration(session_id="s1"), LATER, "on").requested_at is None
    let_go = rules.released(gone, LATER)
    assert (let_go.requested_at, let_go.hold) == (LATER, None)


def test_a_read_of_any_kind_lets_go_what_waited_for_it() -> None:
    # case: F20
    held = rules.paid(Order(), EVENT, "read")
    assert held.hold is Hold.UNCONFIRMED
    shown = rules.observed(held, Reading(version=1, status="PENDING"), READ, "read")
    assert (shown.requested_at, shown.hold) == (LATER, None)
    assert rules.observed(held, Reading(version=1, status="PAID"), READ, "read").requested_at == LATER
    proved = rules.paid(Order(), KNOWN, "on")
    assert (proved.hold, proved.requested_at) == (Hold.UNMATCHED, None), "somebody who knows is not a registration"


# --- what is looked up ------------------------------------------------------------------------------------------


LONGEST = "x" * TEXT_MAX_CHARS


@pytest.mark.parametrize(
    ("value", "text", "amount"),
    [
        ("A1", "A1", "A1"),
        ("", None, ""),
        (LONGEST, LONGEST, LONGEST),
        (LONGEST + "y", None, LONGEST),
        (7, "7", "(number) 7"),
        (12.5, "12.5", "(number) 12.5"),
        (True, None, "(bool)"),
        (None, None, None),
        ({"id": 1}, None, "(dict)"),
        (["A1"], None, "(list)"),
    ],
)
def test_numbers_are_texts_too_and_an_amount_that_is_none_is_told_apart(
    value: Any, text: str | None, amount: str | None
) -> None:
    # case: F21, U29
    event = said("order.paid", "evt_1", field=value)
    assert (look_text(event, ("/field",)), look_amount(event, ("/field",))) == (text, amount)


def test_the_first_place_that_says_it_counts() -> None:
    event = said("order.paid", "evt_1", first={"id": "1"}, second="2", empty="")
    assert look_text(event, ("/nothing", "/empty", "/first", "/second")) == "2"
    assert look(event, ("/nothing", "/first", "/second")) == {"id": "1"}
    assert look(event, ("/nothing",)) is None


def test_of_a_read_its_record_is_looked_at() -> None:
    read = observed("order:A1", 1, {"status": "PAID"})
    assert look_text(read, ("/status",)) == "PAID"


@pytest.mark.parametrize(
    ("value", "is_test"), [(False, True), (True, False), (None, False), ("false", False), (0, False)]
)
def test_only_the_very_value_marks_a_test(value: Any, is_test: bool) -> None:
    # case: F24, A47
    event = said("order.paid", "evt_1", livemode=value)
    assert marked_as_test(event, ("/data/object/livemode=false",)) is is_test
    assert marked_as_test(event, ("/data/object/livemode=true",)) is (value is True)
    assert not marked_as_test(event, ())
