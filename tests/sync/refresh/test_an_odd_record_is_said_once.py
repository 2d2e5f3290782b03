"""A record that nobody can keep is seen by every look: it is said once, and its end is said."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from structlog.testing import capture_logs

from consumer.ledger.reading.observation import Observation
from consumer.sync.refresh.odd_records import NAMED_MAX, OddRecords

LOOKS = 20


def payment(number: int, status: Any = "SUCCEEDED") -> Observation:
    """As a look at the newest finds it."""
    record = {"id": f"pay_{number}", "status": status}
    at = datetime(2026, 5, 1, tzinfo=UTC)
    return Observation(
        application="default", kind="payment", object_id=f"pay_{number}", version=1, read_at=at, record=record
    )


def odd(number: int) -> Observation:
    """It has what cannot be written down."""
    return payment(number, status={1, 2})


# case: B22
def test_until_it_can_be_kept() -> None:
    records = OddRecords()
    with capture_logs() as lines:
        assert not any(records.is_whole(odd(1)) for _ in range(LOOKS))
        assert records.is_whole(payment(2))
        assert all(records.is_whole(payment(1)) for _ in range(LOOKS))
    assert [(line["event"], line["log_level"], line["object_id"]) for line in lines] == [
        ("record_not_kept", "error", "pay_1"),
        ("record_not_kept_over", "info", "pay_1"),
    ]


def test_very_many_are_told_together() -> None:
    records = OddRecords()
    with capture_logs() as lines:
        for _ in range(LOOKS):
            for number in range(2 * NAMED_MAX):
                assert not records.is_whole(odd(number))
    words = [line["event"] for line in lines]
    assert (words.count("record_not_kept"), words.count("records_not_kept")) == (NAMED_MAX, 1)
