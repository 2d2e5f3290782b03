"""What a progress bar predicts."""

from __future__ import annotations

import os
import sys

import pytest

from consumer.cli.walking.progress import SAY_EVERY_S, ProgressBar, remaining_s, shown_duration
from consumer.clock import DrivenClock
from consumer.lists.progress import Progress


def test_the_budget_bounds_what_the_pace_promises() -> None:
    quarter = Progress(pages=10, listed=1000, published=0, share=0.25, eta_s=3.0)
    assert remaining_s(quarter, page_s=0.0) == 3.0
    assert remaining_s(quarter, page_s=1.0) == 30.0
    assert remaining_s(Progress(pages=1, listed=1, published=0), page_s=1.0) is None


def test_durations_are_read_by_people() -> None:
    assert [shown_duration(one) for one in (None, 0.2, 75, 3723)] == ["-:--", "0:01", "1:15", "1:02:03"]


def test_off_a_terminal_a_long_walk_says_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    clock = DrivenClock()
    with ProgressBar("shop", monotonic=clock.monotonic) as bar:
        for page in range(1, 101):
            clock.advance(0.5)
            bar.walked(Progress(pages=page, listed=page * 100, published=page, share=page / 200, eta_s=90.0))
        bar.say("a line of its own")
    found = capsys.readouterr()
    lines = found.err.splitlines()
    assert found.out == ""
    assert len(lines) == 50 / SAY_EVERY_S + 1
    assert lines[0] == "shop: 20 pages, 2000 listed, 20 to publish, 10 %, 1:30 left"
    assert lines[-1] == "shop: a line of its own"


def test_a_short_walk_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    clock = DrivenClock()
    with ProgressBar("shop", monotonic=clock.monotonic) as bar:
        clock.advance(SAY_EVERY_S / 2)
        bar.walked(Progress(pages=1, listed=1, published=0))
    assert capsys.readouterr().err == ""


def test_a_walk_goes_on_when_nobody_reads_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with `consumer replay apply … 2>&1 | head -1`: the plan was left half applied."""
    reads, writes = os.pipe()
    os.close(reads)
    clock = DrivenClock()
    with os.fdopen(writes, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        with ProgressBar("shop", monotonic=clock.monotonic) as bar:
            bar.say("nobody reads this")
            bar.say("nor this")
