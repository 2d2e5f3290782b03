"""`handlers simulate` prints the smallest failing history as a test, and that test, pasted, fails for real."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from consumer.cli.developing import simulating
from consumer.cli.developing.authoring import ALONE
from consumer.cli.developing.simulating import simulated
from tests.plugin.conftest import on_the_path
from tests.support.desk import Desk
from tests.testing import right_handlers, test_assertions, wrong_handlers

__all__ = ["on_the_path"]

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


PLUGIN = """
from consumer.plugin import Context, Event, handles

@handles("fulfilment.requested", name="given:ship")
async def ship(event: Event, ctx: Context) -> None:
    order = await ctx.snapshot()
    if order is None:
        raise ValueError("it was not read")
    headers = {"Idempotency-Key": ctx.idempotency_key if order.status == "PAID" else str(ctx.attempt)}
    async with ctx.http.post("https://x.example", json={"status": order.status}, headers=headers) as answer:
        answer.raise_for_status()

def paid(workbench): show(workbench, "PAID")
def odd(workbench): show(workbench, "EXPIRED")

def show(workbench, status):
    for order_id in ("A-1", "A-2"):
        workbench.observe("order", order_id, {"status": status})

async def waits(workbench): ...
def breaks(workbench): workbench.fill(*{}["rows"])
unnamed = lambda workbench: None
"""


# case: H11
@pytest.mark.slow
def test_that_each_is_played_alone_is_said_where_there_are_several(on_the_path: Path, desk: Desk) -> None:
    """What two handlers do to one another is found by nobody here: an `open` that is tried again behind a `close`."""
    one = (
        "@handles('fulfilment.requested', name='alone:NAME')\nasync def NAME(event, ctx):\n"
        "    headers = {'Idempotency-Key': ctx.idempotency_key}\n"
        "    async with ctx.http.put('https://x.example/NAME', headers=headers) as answer:\n"
        "        answer.raise_for_status()\n"
    )
    source = "from consumer.plugin import handles\n" + "".join(one.replace("NAME", name) for name in ("a", "b"))
    (on_the_path / "alone_each.py").write_text(source)
    words = ("handlers", "simulate", "alone_each", "--runs", "1", "--processes", "1")
    assert desk.call(*words).stdout.splitlines()[2:] == [ALONE]
    assert len(desk.call(*words, "--handler", "alone:a").stdout.splitlines()) == 1


# case: H11
@pytest.mark.slow
def test_each_play_begins_with_what_is_given(on_the_path: Path, desk: Desk) -> None:
    (on_the_path / "given_first.py").write_text(PLUGIN)
    words = ("handlers", "simulate", "given_first", "--runs", "12", "--processes", "1")
    without = desk.call(*words)
    assert (without.returncode, "it was not read" in without.stdout) == (1, True), without.stderr
    well = desk.call(*words, "--given", "paid")
    assert (well.returncode, well.stdout) == (0, "given:ship: 12 histories, and each left what it should\n"), (
        well.stderr
    )
    failed = desk.call(*words, "--given", "given_first:odd")
    assert failed.returncode == 1, failed.stderr
    names: dict[str, Any] = {}
    exec(textwrap.dedent(failed.stdout.partition("as a test:\n")[2]), names)
    with pytest.raises(AssertionError, match="otherwise:"):
        names["test_ship_survives"]()


# case: H11
@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("nobody", "--given names no function like def stocked(workbench)"),
        ("waits", "--given names no function like def stocked(workbench)"),
        ("unnamed", "--given names no function like def stocked(workbench)"),
        ("no_such_module:x", "the module cannot be imported: ModuleNotFoundError"),
        ("breaks", "given_first.py:21)"),
    ],
)
def test_what_cannot_be_given_is_one_line(on_the_path: Path, desk: Desk, given: str, told: str) -> None:
    (on_the_path / "given_first.py").write_text(PLUGIN)
    done = desk.call("handlers", "simulate", "given_first", "--runs", "2", "--processes", "1", "--given", given)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert told in done.stderr


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
    reserve, stocked = test_assertions.reserve, test_assertions.stocked
    assert simulated(reserve, runs=6, seed=3, options={}, parts=2, given=stocked) is None
    assert simulated(reserve, runs=6, seed=3, options={}, parts=2) is not None
