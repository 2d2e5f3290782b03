"""What an event or a read mentions fills what is unknown, and what a verified event lets the next read show ends when
it has come, cannot come any more, or has not come for an hour."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from handlers.access.expectation import FIRST_WAIT, GIVE_UP_AFTER, expecting, next_read, seen
from handlers.access.facts import attached, mentioned
from handlers.access.subscription import Details, Subscription

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOUR, TICK = timedelta(hours=1), timedelta(microseconds=1)
FIELDS = ("price_id", "product_id", "session_id", "order_id")
SHOWN = ("cancel_at_period_end",)


# case: U29
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(
    ("known", "said", "source", "then"),
    [
        (None, "new", "payload", "new"),
        ("old", "new", "payload", "old"),
        ("old", None, "payload", "old"),
        (None, "new", "read", "new"),
        ("old", "new", "read", "new"),
        ("old", None, "read", "old"),
        (None, None, "read", None),
    ],
)
def test_a_payload_fills_what_is_unknown_and_a_read_replaces_it(
    field: str, known: str | None, said: str | None, source: str, then: str | None
) -> None:
    details: dict[str, Any] = {field: said}
    before: dict[str, Any] = {field: known}
    after: dict[str, Any] = {field: then}
    assert mentioned(Subscription(**before), Details(**details), source) == Subscription(**after)


@pytest.mark.parametrize(
    ("source", "at", "then"),
    [
        ("payload", NOW + HOUR, "old"),
        ("read", None, "old"),
        ("read", NOW, "old"),
        ("read", NOW - TICK, "old"),
        ("read", NOW + TICK, "new"),
        ("operator", None, "new"),
    ],
)
def test_whose_it_is_changes_by_a_better_word_or_a_later_one_of_the_same(
    source: str, at: datetime | None, then: str
) -> None:
    sub = Subscription(customer="old", customer_source="read", attached_at=NOW)
    after = attached(sub, "new", source, at)
    assert after == (sub if then == "old" else replace(sub, customer="new", customer_source=source, attached_at=at))
    assert attached(replace(sub, attached_at=None), "new", "read", NOW).customer == "new"
    nobodys = Subscription(customer_source="operator")
    assert attached(nobodys, "new", "payload").customer == "new", "a word of nobody's holds nothing"


# case: B18
@pytest.mark.parametrize(
    ("type_", "word"),
    [
        ("subscription.past_due", "past_due"),
        ("subscription.payment_failed", "past_due"),
        ("subscription.renewed", "renewed"),
        ("subscription.cancel_scheduled", "cancel"),
        ("subscription.cancel_withdrawn", "no_cancel"),
        ("subscription.created", None),
    ],
)
def test_an_event_lets_its_own_word_be_expected(type_: str, word: str | None) -> None:
    sub = Subscription(status="ACTIVE")
    expected = sub if word is None else replace(sub, awaits=word, awaits_at=NOW, awaits_since=NOW)
    assert expecting(sub, type_, NOW, NOW) == expected
    ended = Subscription(status="ENDED")
    assert expecting(ended, type_, NOW, NOW) == ended


@pytest.mark.parametrize(
    ("awaits_at", "said_at", "counts"),
    [
        (None, NOW - HOUR, False),
        (None, NOW - HOUR + TICK, True),
        (None, None, True),
        (NOW - TICK, NOW, True),
        (NOW, NOW, True),
        (NOW + TICK, NOW, False),
        (NOW + TICK, None, True),
    ],
)
def test_the_newest_word_counts_and_old_news_do_not(
    awaits_at: datetime | None, said_at: datetime | None, counts: bool
) -> None:
    assert timedelta(hours=1) == GIVE_UP_AFTER
    sub = Subscription(awaits="cancel", awaits_at=awaits_at, awaits_since=NOW - HOUR)
    after = expecting(sub, "subscription.renewed", NOW, said_at)
    assert after == (replace(sub, awaits="renewed", awaits_at=said_at, awaits_since=NOW) if counts else sub)


@pytest.mark.parametrize(
    ("awaits", "shows", "fields", "is_over"),
    [
        ("past_due", SHOWN, {"status": "PAST_DUE"}, True),
        ("past_due", SHOWN, {"status": "ACTIVE"}, False),
        ("past_due", SHOWN, {"status": "ENDED"}, True),
        ("renewed", SHOWN, {"status": "ACTIVE", "period_end": NOW + TICK}, True),
        ("renewed", SHOWN, {"status": "ACTIVE", "period_end": NOW}, False),
        ("renewed", SHOWN, {"status": "ACTIVE"}, True),
        ("renewed", SHOWN, {"status": "PAST_DUE", "period_end": NOW + TICK}, False),
        ("cancel", SHOWN, {"status": "ACTIVE", "cancel_at_period_end": True}, True),
        ("cancel", SHOWN, {"status": "ACTIVE"}, False),
        ("cancel", (), {"status": "ACTIVE"}, True),
        ("no_cancel", SHOWN, {"status": "ACTIVE"}, True),
        ("no_cancel", SHOWN, {"status": "ACTIVE", "cancel_at_period_end": True}, False),
        ("no_cancel", SHOWN, {"cancel_at_period_end": True, "merchant_cancel_requested": True}, True),
    ],
)
def test_what_was_awaited_ends_when_it_has_come_and_after_an_hour(
    awaits: str, shows: tuple[str, ...], fields: dict[str, Any], is_over: bool
) -> None:
    sub = Subscription(awaits=awaits, awaits_at=NOW, awaits_since=NOW, **fields)
    done = replace(sub, awaits=None, awaits_at=None, awaits_since=None)
    assert seen(sub, NOW + HOUR - TICK, shows) == (done if is_over else sub)
    assert seen(sub, NOW + HOUR, shows) == done
    assert seen(done, NOW + HOUR, shows) == done
    timeless = replace(sub, awaits_at=None)
    assert awaits != "renewed" or (seen(timeless, NOW, shows).awaits is None) == (timeless.status == "ACTIVE")


@pytest.mark.parametrize(("passed_s", "wait_s"), [(0, 10), (9, 10), (10, 10), (11, 11), (40, 40)])
def test_it_is_read_again_after_ten_seconds_and_then_after_as_long_as_was_waited(passed_s: int, wait_s: int) -> None:
    assert timedelta(seconds=10) == FIRST_WAIT
    at = NOW + timedelta(seconds=passed_s)
    assert next_read(Subscription(awaits="cancel", awaits_since=NOW), at) == at + timedelta(seconds=wait_s)
    assert next_read(Subscription(), at) is None
    assert next_read(Subscription(awaits="cancel"), at) is None
