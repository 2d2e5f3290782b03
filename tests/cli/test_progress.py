"""What a progress bar predicts."""

from __future__ import annotations

from consumer.cli.progress import remaining_s, shown_duration
from consumer.sync.report import Progress


def test_the_budget_bounds_what_the_pace_promises() -> None:
    quarter = Progress(pages=10, listed=1000, published=0, share=0.25, eta_s=3.0)
    assert remaining_s(quarter, page_s=0.0) == 3.0
    assert remaining_s(quarter, page_s=1.0) == 30.0
    assert remaining_s(Progress(pages=1, listed=1, published=0), page_s=1.0) is None


def test_durations_are_read_by_people() -> None:
    assert [shown_duration(one) for one in (None, 0.2, 75, 3723)] == ["-:--", "0:01", "1:15", "1:02:03"]
