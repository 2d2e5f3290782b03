"""A wrong option of a plugin stops `work` at its start, not every paid order after eight attempts."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from consumer.app.options import option_problems
from consumer.app.root import App
from consumer.cli.developing.dev import build_everything
from consumer.errors import HandlerMisuse, SettingsError
from consumer.plugin import Context, Event, declared, handles
from consumer.plugin.options import options_for
from consumer.settings import Role, load_settings
from consumer.work.registry import Registry, load_registry
from tests.cli.conftest import Run
from tests.support.desk import Desk

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


def test_a_pointer_that_finds_nothing_and_a_time_without_end_are_refused() -> None:
    """`amount` without its slash failed each order's run, one after the other; 9999999d each run of who is past due."""
    options: dict[str, dict[str, object]] = {
        "access": {"past_due": "grace:9999999d", "settle": "9999999999d", "test_markers": ["/livemode"]},
        "fulfilment": {"amount": ["amount"], "payment": ["/a~2"], "lapse_read_delay_s": 1e300},
    }
    assert option_problems(load_registry(), options) == [
        f"{PLUGIN}.access.past_due: a duration is at most a hundred years",
        f"{PLUGIN}.access.settle: a duration is a number and one of s, m, h, d: 14d",
        f"{PLUGIN}.access.test_markers.0: must be a JSON pointer and =true or =false, like /test=true",
        f"{PLUGIN}.fulfilment.amount.0: must be a JSON pointer: it begins with '/', and '~' stands only before 0 or 1",
        f"{PLUGIN}.fulfilment.payment.0: must be a JSON pointer: it begins with '/', and '~' stands only before 0 or 1",
        f"{PLUGIN}.fulfilment.lapse_read_delay_s: input should be less than or equal to 86400",
    ]


WRONG: dict[str, dict[str, Any]] = {
    "access": {"entitlements": {"svc_price_monthly": "pro"}, "past_due": 5},
    "fulfilment": {"matching": "maybe"},
    "shop": {"any": "thing"},
}
TOLD = [f"{PLUGIN}.access.entitlements.svc_price_monthly", f"{PLUGIN}.access.past_due", f"{PLUGIN}.fulfilment.matching"]


# case: S11
def test_who_looks_is_told_also_of_a_built_in_that_is_left_out() -> None:
    problems = option_problems(Registry([], []), WRONG)
    assert sorted(line.partition(": ")[0] for line in problems) == [*TOLD, f"{PLUGIN}.shop"]


# case: S11
@pytest.mark.usefixtures("upgraded")
@pytest.mark.parametrize("words", [("explain", "customer", "x"), ("invariants",)], ids=" ".join)
def test_a_command_that_looks_names_each_problem(desk: Desk, words: tuple[str, ...]) -> None:
    told = desk.call(*words, CONSUMER_HANDLERS="fulfilment", **{PLUGIN: json.dumps({"access": WRONG["access"]})})
    assert told.returncode == 2
    assert sorted(line.split(": ")[1] for line in told.stderr.splitlines()) == TOLD[:2]


# case: S11
async def test_console_names_each_problem_of_the_built_in_plugins(environ: dict[str, str]) -> None:
    """It cannot judge the rest: a merchant's plugins may not be installed where it runs."""
    environ |= {PLUGIN: json.dumps(WRONG), "CONSUMER_INTERNAL_PORT": "0"}
    async with App(load_settings(environ, Role.CONSOLE)) as app:
        with pytest.raises(SettingsError) as refused:
            await app.internal(console=True)
    assert sorted(line.partition(": ")[0] for line in refused.value.problems) == TOLD


# case: S11
async def test_dev_names_each_problem_of_every_plugin(environ: dict[str, str]) -> None:
    environ |= {PLUGIN: json.dumps(WRONG), "CONSUMER_INTERNAL_PORT": "0", "CONSUMER_PORT": "0"}
    async with App(load_settings(environ, Role.DEV)) as app:
        with pytest.raises(SettingsError) as refused:
            await build_everything(app, clock=None)
    assert sorted(line.partition(": ")[0] for line in refused.value.problems) == [*TOLD, f"{PLUGIN}.shop"]


class Broken(BaseModel):
    """A plugin's own model, whose validator stumbles instead of refusing."""

    limit: int = 1

    @field_validator("limit")
    @classmethod
    def _odd(cls, value: int) -> int:
        raise OverflowError(f"hush {value}")


OPTIONS = Broken


@handles("order.paid", name="test:broken")
async def broken(event: Event, ctx: Context) -> None:
    """Nothing."""


def test_a_validator_that_breaks_is_a_problem_of_its_plugin_and_repeats_no_value() -> None:
    handler = declared(broken)
    assert handler is not None
    handler = replace(handler, plugin="warehouse")
    [problem] = option_problems(Registry([handler], []), {"warehouse": {"limit": 5}})
    assert problem == f"{PLUGIN}.warehouse: Broken breaks on these options (OverflowError)"
    with pytest.raises(HandlerMisuse, match="Broken breaks on these options: OverflowError") as refused:
        options_for(broken, {"limit": 5})
    assert "hush" not in str(refused.value)


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
