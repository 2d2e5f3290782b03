"""Looks at what nobody tells of come together: an idle process wakes up at few moments, and none of them is late."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer import clock as module
from consumer.clock import DrivenClock, Pace, SharedClock, SystemClock, until_tick

MOMENTS_S = st.floats(0, 1e6)
SLIP_S = 1e-6


class Stopped(SystemClock):
    """A machine's clock that stands still, so many seconds after the start of the process."""

    def __init__(self, at_s: float) -> None:
        self.at_s = at_s

    def monotonic(self) -> float:
        """See Clock."""
        return module._STARTED_S + self.at_s


@given(at_s=MOMENTS_S, most_s=st.floats(0, 60))
def test_no_look_is_later_than_it_was_asked_for(at_s: float, most_s: float) -> None:
    wait_s = until_tick(Stopped(at_s), most_s)
    assert 0 <= wait_s <= most_s
    assert wait_s >= most_s - 1


@given(at_s=MOMENTS_S, most_s=st.sampled_from([1.0, 2.0, 5.0, 15.0]))
def test_looks_that_are_seconds_apart_fall_on_the_same_moments(at_s: float, most_s: float) -> None:
    clock = Stopped(at_s)
    ends = [at_s + until_tick(one, most_s) for one in (clock, SharedClock(clock))]
    assert [abs(end - round(end)) < SLIP_S for end in ends] == [True, True]


@pytest.mark.parametrize("at_s", [0.0, 0.3, 12.34])
def test_those_of_half_a_second_fall_on_them_and_between_them(at_s: float) -> None:
    clock = Stopped(at_s)
    pace = Pace(clock, first_s=0.25, most_s=0.5)
    clock.at_s += 60
    end = 2 * (clock.at_s + pace.wait_s)
    assert abs(end - round(end)) < SLIP_S


def test_a_clock_that_is_driven_is_taken_at_its_word() -> None:
    clock = DrivenClock()
    clock.advance(0.3)
    assert until_tick(clock, 1.0) == 1.0


def test_short_waits_stay_as_they_are() -> None:
    assert until_tick(Stopped(0.3), 0.2) == 0.2
