"""A condition that lasts is said when it begins, at growing intervals while it lasts, and its end is known."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from consumer.errors import BrokerUnavailable
from consumer.retry import AGAIN_MAX_S, Lasting
from consumer.telemetry.logs import Condition


class Watch:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_an_hour_of_the_same_is_a_handful_of_lines() -> None:
    watch = Watch()
    lasting = Lasting(watch)
    said = []
    for second in range(3600):
        watch.now = float(second)
        if lasting.says("ledger_unavailable"):
            said.append(second)
    assert said == [0, 60, 180, 420, 900, 1860]
    assert lasting.for_s == 3599


def test_a_day_of_it_is_a_line_an_hour() -> None:
    watch = Watch()
    lasting = Lasting(watch)
    said = []
    for minute in range(24 * 60):
        watch.now = minute * 60.0
        if lasting.says("x"):
            said.append(watch.now)
    assert {later - sooner for sooner, later in zip(said[-10:], said[-9:], strict=False)} == {AGAIN_MAX_S}


def test_another_reason_is_said_at_once_and_lasts_since_the_first() -> None:
    watch = Watch()
    lasting = Lasting(watch)
    assert lasting.says("refused")
    watch.now = 10.0
    assert lasting.says("full")
    assert lasting.for_s == 10
    lasting.over()
    assert (lasting.code, lasting.for_s) == (None, 0)
    assert lasting.says("full")


def test_two_reasons_that_take_turns_are_no_news_each_time() -> None:
    watch = Watch()
    lasting = Lasting(watch)
    said = []
    for second in range(3600):
        watch.now = float(second)
        if lasting.says("refused" if second % 2 else "away"):
            said.append(second)
    assert said == [0, 1, 61, 181, 421, 901, 1861]
    assert lasting.times == 3600


def test_what_ends_by_nothing_more_coming_is_over_after_a_quiet_time() -> None:
    watch = Watch()
    flooded = Condition("hints_flooded", monotonic=watch, quiet_s=60)
    with capture_logs() as logs:
        assert flooded.lapse(), "it never began"
        for watch.now in (0.0, 50.0, 100.0):
            flooded.lasts("hints_flooded")
        watch.now = 159.0
        assert not flooded.lapse()
        watch.now = 160.0
        assert flooded.lapse()
        flooded.lasts("hints_flooded")
        watch.now = 900.0  # nobody asked meanwhile: its end is said at the latest when it begins anew
        flooded.lasts("hints_flooded", level="error")
    said = [(one["event"], one["log_level"], one["times"]) for one in logs]
    began, over = ("hints_flooded", "warning", 1), "hints_flooded_over"
    again = ("hints_flooded", "warning", 3)
    assert said == [began, again, (over, "info", 3), began, (over, "info", 1), ("hints_flooded", "error", 1)]


def test_a_code_alone_is_told_as_an_error_is() -> None:
    # case: B11
    watch = Watch()
    refused = Condition("cursors_refused", level="error", monotonic=watch, application="shop")
    with capture_logs() as logs:
        for watch.now in (0.0, 1.0, 59.0, 61.0, 62.0):
            refused.lasts("cursors_refused", pages=3)
        refused.over()
        refused.over()
    said = {"event": "cursors_refused", "log_level": "error", "code": "cursors_refused", "pages": 3}
    over = {"event": "cursors_refused_over", "log_level": "info", "was": "cursors_refused", "after_s": 62.0, "times": 5}
    lines = [{**said, "for_s": 0.0, "times": 1}, {**said, "for_s": 61.0, "times": 4}, over]
    assert logs == [{**line, "application": "shop"} for line in lines]


def test_an_error_tells_its_reason_too() -> None:
    with capture_logs() as logs:
        Condition("poll_failed").lasts(BrokerUnavailable("nobody listens"))
    assert [(one["code"], one["reason"]) for one in logs] == [(BrokerUnavailable.code, "nobody listens")]


def test_what_is_refused_while_it_is_tried_lasts_until_it_goes_through() -> None:
    unsealed = Condition("trail_not_sealed")
    with capture_logs() as logs:
        for _ in range(2):
            with unsealed.tried(BrokerUnavailable):
                raise BrokerUnavailable
        with unsealed.tried(BrokerUnavailable):
            pass
    assert [(line["event"], line.get("times")) for line in logs] == [
        ("trail_not_sealed", 1),
        ("trail_not_sealed_over", 2),
    ]


def test_what_is_not_to_be_waited_for_is_raised() -> None:
    unsealed = Condition("trail_not_sealed")
    with capture_logs() as logs, pytest.raises(KeyError), unsealed.tried(BrokerUnavailable):
        raise KeyError
    assert not logs
