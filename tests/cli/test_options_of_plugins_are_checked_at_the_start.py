"""A wrong option of a plugin stops `work` at its start, not every paid order after eight attempts."""

from __future__ import annotations

import json

import pytest

from consumer.app.options import option_problems
from consumer.work.registry import load_registry
from tests.cli.conftest import Run

PLUGIN = "CONSUMER_HANDLER_OPTIONS"


def test_every_problem_is_told_by_its_place_and_without_its_value() -> None:
    options: dict[str, dict[str, object]] = {
        "access": {"past_due": "grace:3x-hush", "past_due_by_price": {"svc_price_1": "hush"}, "brak": None},
        "fulfilmnt": {"matching": "on"},
    }
    problems = option_problems(load_registry(), options)
    assert [line.partition(": ")[0] for line in problems] == [
        f"{PLUGIN}.fulfilmnt",
        f"{PLUGIN}.access.past_due",
        f"{PLUGIN}.access.past_due_by_price.svc_price_1",
        f"{PLUGIN}.access.brak",
    ]
    assert "hush" not in "".join(problems)


def test_what_fits_is_no_problem_even_for_a_plugin_that_is_not_allowed_here() -> None:
    options = {"access": {"past_due": "keep"}, "fulfilment": {"matching": "on"}}
    assert option_problems(load_registry(), options) == []
    assert option_problems(load_registry(["fulfilment"]), options) == []


# case: S11
@pytest.mark.slow
def test_work_does_not_start_and_check_tells_it_too(consumer: Run) -> None:
    consumer("db", "upgrade")
    given = {PLUGIN: json.dumps({"fulfilment": {"matchin": "on"}}), "CONSUMER_INTERNAL_PORT": "0"}
    started = consumer("work", **given)
    assert started.returncode == 2
    assert started.stderr == f"error[settings_invalid]: {PLUGIN}.fulfilment.matchin: there is no such setting\n"
    checked = consumer("handlers", "check", "--json", **given)
    assert checked.returncode == 1
    [problem] = json.loads(checked.stdout)["problems"]
    assert problem["plugin"] == f"{PLUGIN}.fulfilment.matchin"
