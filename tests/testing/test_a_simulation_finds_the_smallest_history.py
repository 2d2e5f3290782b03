"""`simulate` finds what single tests do not play, and shrinks it to a test that fails when pasted."""

from __future__ import annotations

from typing import Any

import pytest

from consumer.testing import Workbench, assert_history
from consumer.testing.simulation import as_test, simulate
from tests.testing import right_handlers, wrong_handlers


# case: H11
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["no_key", "key_of_attempt", "last_row_wins", "swallows_the_outage", "swallows_429", "first_attempt_only"]
)
def test_the_smallest_history_fails_when_it_is_pasted(name: str) -> None:
    function = getattr(wrong_handlers, name)
    found = simulate(function, runs=200, seed=7)
    assert found is not None
    assert len(found.steps) <= 2
    names: dict[str, Any] = {}
    exec(compile(as_test(function, found), "pasted.py", "exec"), names)
    with pytest.raises(AssertionError, match="otherwise:"):
        names[f"test_{name}_survives"]()


# case: H11
@pytest.mark.slow
@pytest.mark.parametrize("name", ["ship", "ship_by_status", "two_calls", "keep", "put", "log"])
def test_a_right_handler_passes(name: str) -> None:
    assert simulate(getattr(right_handlers, name), runs=15, seed=3) is None


def test_a_history_is_played_as_it_is_written() -> None:
    with Workbench() as bench:
        events = [bench.event("fulfilment.requested", order_id="A-1")]
    steps = ["crash 0", "a day passes", "deliver 0"]
    assert_history(right_handlers.ship, events, steps)
    with pytest.raises(AssertionError, match="the outside was told something else"):
        assert_history(wrong_handlers.no_key, events, steps)
