"""Drift: what a read shows against the last observation and the events in the ledger."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from consumer.ledger.reading.observation import ObjectKind, Observation, readable
from consumer.ledger.reading.observations import Observed
from consumer.sync.reconcile.drift import Drift, compare, weighs

READ_AT = datetime(2026, 1, 2, tzinfo=UTC)
BEFORE, AFTER = READ_AT - timedelta(hours=1), READ_AT + timedelta(hours=1)


def read(kind: ObjectKind, version: int, status: str, **more: Any) -> Observation:
    record = {"id": "svc_1", "status": status, **more}
    return Observation(
        application="default", kind=kind, object_id="X-1", version=version, read_at=READ_AT, record=record
    )


def last(kind: ObjectKind, status: str, **more: Any) -> Observed:
    return read(kind, 1, status, **more).observed


def test_an_older_read_never_counts_as_drift() -> None:
    # case: A40
    assert compare(read("subscription", 3, "ACTIVE"), read("subscription", 5, "ENDED").observed, {}) is Drift.NONE
    assert compare(read("subscription", 6, "ENDED"), read("subscription", 5, "ACTIVE").observed, {}) is Drift.CHANGED


@pytest.mark.parametrize(
    ("before", "now", "told", "drift", "weight"),
    [
        # case: B31
        ("PENDING", "PAID", ["order.paid"], Drift.TOLD, False),
        # case: B18
        ("PENDING", "PAID", [], Drift.CHANGED, True),
        ("EXPIRED", "PAID", ["order.expired"], Drift.CHANGED, True),
        # case: U12
        ("PENDING", "EXPIRED", ["order.expired"], Drift.TOLD, False),
        ("PENDING", "LAPSED", ["checkout.session.expired"], Drift.TOLD, False),
        ("PENDING", "CANCELED", ["checkout.session.canceled"], Drift.TOLD, False),
        ("EXPIRED", "PENDING", ["order.expired"], Drift.TOLD, False),
        ("PENDING", "EXPIRED", [], Drift.CHANGED, False),
        # case: F31
        ("PAID", "EXPIRED", ["order.paid", "order.expired"], Drift.CHANGED, True),
    ],
)
def test_another_state_of_an_order(before: str, now: str, told: list[str], drift: Drift, weight: bool) -> None:
    found, known = read("order", 2, now), last("order", before)
    assert compare(found, known, dict.fromkeys(told, BEFORE)) is drift
    assert weighs(found, known, drift) is weight


@pytest.mark.parametrize(
    ("status", "told", "drift", "weight"),
    [
        # case: B18, F18
        ("PAID", [], Drift.UNKNOWN, True),
        ("PAID", ["order.paid"], Drift.FIRST, False),
        ("PAID", ["checkout.session.canceled"], Drift.CHANGED, True),
        # case: B31
        ("PENDING", [], Drift.FIRST, False),
        ("EXPIRED", ["checkout.session.canceled"], Drift.FIRST, False),
    ],
)
def test_an_order_never_read_before(status: str, told: list[str], drift: Drift, weight: bool) -> None:
    found = read("order", 2, status)
    assert compare(found, None, dict.fromkeys(told, BEFORE)) is drift
    assert weighs(found, None, drift) is weight


@pytest.mark.parametrize(
    ("before", "now", "told", "at", "drift", "weight"),
    [
        # case: B20
        ("ACTIVE", "ENDED", [], BEFORE, Drift.CHANGED, True),
        ("ACTIVE", "ENDED", ["subscription.ended"], BEFORE, Drift.TOLD, False),
        ("ACTIVE", "PAST_DUE", ["subscription.past_due"], AFTER, Drift.TOLD, False),
        ("ACTIVE", "PAST_DUE", ["subscription.past_due"], BEFORE, Drift.CHANGED, True),
        ("PAST_DUE", "ACTIVE", ["subscription.renewed"], AFTER, Drift.TOLD, False),
        ("PAST_DUE", "ACTIVE", ["subscription.past_due"], AFTER, Drift.CHANGED, True),
        ("ENDED", "ACTIVE", ["subscription.renewed", "subscription.ended"], AFTER, Drift.CHANGED, True),
        ("ACTIVE", "PAUSED", ["subscription.renewed"], AFTER, Drift.CHANGED, True),
        # case: B19, B20
        (None, "ACTIVE", [], BEFORE, Drift.UNKNOWN, True),
        (None, "ENDED", [], BEFORE, Drift.FIRST, False),
        (None, "ACTIVE", ["subscription.created"], BEFORE, Drift.FIRST, False),
        (None, "ENDED", ["subscription.created"], BEFORE, Drift.CHANGED, True),
        (None, "ENDED", ["subscription.ended"], BEFORE, Drift.FIRST, False),
        (None, "PAST_DUE", ["subscription.created"], BEFORE, Drift.CHANGED, True),
    ],
)
def test_another_state_of_a_subscription(
    before: str | None, now: str, told: list[str], at: datetime, drift: Drift, weight: bool
) -> None:
    found, known = read("subscription", 2, now), None if before is None else last("subscription", before)
    assert compare(found, known, dict.fromkeys(told, at)) is drift
    assert weighs(found, known, drift) is weight


@pytest.mark.parametrize(
    ("more", "told", "drift"),
    [
        # case: B31
        ({"cancel_at_period_end": True}, ["subscription.cancel_scheduled"], Drift.TOLD),
        ({"cancel_at_period_end": True}, [], Drift.CHANGED),
        ({"merchant_cancel_requested": True}, [], Drift.DETAIL),
    ],
)
def test_a_cancel_that_is_scheduled_takes_no_access_away(more: dict[str, Any], told: list[str], drift: Drift) -> None:
    found, known = read("subscription", 2, "ACTIVE", **more), last("subscription", "ACTIVE")
    assert compare(found, known, dict.fromkeys(told, AFTER)) is drift
    assert not weighs(found, known, drift)


@pytest.mark.parametrize("before", [None, "PENDING"])
def test_no_event_ever_tells_of_a_payment_so_none_is_drift(before: str | None) -> None:
    # case: F38, U12
    found, known = read("payment", 2, "SUCCEEDED"), None if before is None else last("payment", before)
    assert compare(found, known, {}) is (Drift.FIRST if before is None else Drift.DETAIL)


def test_states_are_shown_in_words_that_people_read() -> None:
    # case: B31
    ended = {"end_reason": "MERCHANT_CANCELED", "cancel_at_period_end": False, "merchant_cancel_requested": True}
    before, now = last("subscription", "ACTIVE").state, last("subscription", "ENDED", **ended).state
    assert readable(before, now) == "ACTIVE"
    assert readable(now, before) == "ENDED, end_reason MERCHANT_CANCELED, merchant_cancel_requested"
    assert readable(last("order", "PAID").state) == "PAID"
    assert readable("") == "no status"
    assert readable("ENDED|PAYER_CANCELED|False||", "ENDED||True||") == "ENDED, end_reason PAYER_CANCELED"
