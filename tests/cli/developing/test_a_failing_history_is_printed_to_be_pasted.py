"""`handlers simulate` prints the smallest failing history as a test, and that test, pasted, fails for real."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest

from consumer.cli.developing import simulating
from consumer.cli.developing.simulating import simulated
from tests.support.desk import Desk
from tests.testing import right_handlers, wrong_handlers

MODULE = "tests.testing.wrong_handlers"


# case: H11
@pytest.mark.slow
def test_what_is_printed_is_a_test_that_fails(desk: Desk) -> None:
    done = desk.call("handlers", "simulate", MODULE, "--handler", "wrong:no-key", "--runs", "1000")
    assert done.returncode == 1, done.stderr
    told, _, code = done.stdout.partition("the smallest history, as a test:\n")
    assert told.startswith("wrong:no-key: fails\n")
    assert "wrong_handlers.py:" in told, "file and line"
    names: dict[str, Any] = {}
    exec(compile(textwrap.dedent(code), "pasted.py", "exec"), names)
    with pytest.raises(AssertionError, match="otherwise:"):
        names["test_no_key_survives"]()


# case: H11
@pytest.mark.slow
def test_how_many_processes_play_makes_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulating, "WORTH_IT", 1)
    alone, together = (
        simulated(wrong_handlers.last_row_wins, runs=40, seed=7, options={}, parts=parts) for parts in (1, 3)
    )
    assert alone is not None
    assert together is not None
    assert (together.steps, together.events) == (alone.steps, alone.events)
    assert simulated(right_handlers.put, runs=6, seed=3, options={}, parts=2) is None
