"""`dead list` counts each kind of failure over all that is dead, however few it shows, and says where it stopped."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from consumer.cli.repairing import dead as command
from consumer.ledger import Database
from consumer.ledger.handling import dead, events, runs
from consumer.ledger.plans import candidates
from consumer.ledger.tables import RunStatus
from tests.contract.ledger import facts
from tests.support.desk import Desk

KINDS = ("a" * 16, "a" * 16, "b" * 16, "a" * 16, "c" * 16)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Of the ledger that the test fills."""
    return {"CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/ledger.db", "CONSUMER_LOG_LEVEL": "error"}


@pytest.fixture
async def five_dead(sqlite_ledger: Database) -> None:
    numbers = range(1, len(KINDS) + 1)
    died = [facts.run(number, status=RunStatus.DEAD, blocking=False) for number in numbers]
    async with sqlite_ledger.transaction() as session:
        await events.record(session, [facts.event(number) for number in numbers], facts.NOW)
        await runs.add(
            session, [replace(one, fingerprint=kind) for one, kind in zip(died, KINDS, strict=True)], facts.NOW
        )


# case: R10
async def test_a_page_of_two_tells_of_all(desk: Desk, five_dead: None) -> None:
    found = await asyncio.to_thread(desk.ask, "dead", "list", "--limit", "2")
    assert (len(found["dead"]), found["total"], found["kinds"], found["counted_all"]) == (2, 5, 3, True)
    assert [(one["count"], one["looked_at"]) for one in found["groups"]] == [(3, 2)]
    told = (await asyncio.to_thread(desk.call, "dead", "list", "--limit", "2")).stdout
    assert "5 dead run(s), 3 kind(s) of failure\n3 x " in told
    assert "(the first 2)" in told
    assert "2 more kind(s) of failure" in told
    assert "3 more: these are the first 2 (--limit)" in told


async def test_a_count_that_stopped_says_so(desk: Desk, five_dead: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead, "COUNT_MAX", 4)
    monkeypatch.setattr(command, "COUNT_MAX", 4)
    found = await asyncio.to_thread(desk.ask, "dead", "list", "--limit", "2")
    assert (found["total"], found["counted_all"]) == (4, False)
    told = (await asyncio.to_thread(desk.call, "dead", "list", "--limit", "2")).stdout
    assert told.startswith("at least 4 dead run(s)")
    assert "\nat least 3 x " in told


# case: R10
async def test_one_dead_run_shows_whose_it_is_and_what_cures_it(desk: Desk, five_dead: None) -> None:
    told = (await asyncio.to_thread(desk.call, "dead", "list", "--fingerprint", "b" * 16)).stdout
    [one] = (await asyncio.to_thread(desk.ask, "dead", "list", "--fingerprint", "b" * 16))["dead"]
    assert told.startswith("1 dead run(s), 1 kind(s) of failure\n")
    assert one["key"] in told
    assert f"consumer dead redrive --handler {one['handler']} --fingerprint {'b' * 16} --reason …" in told
    each = (await asyncio.to_thread(desk.call, "dead", "list", "--each", "--fingerprint", "b" * 16)).stdout
    head, line = each.splitlines()
    assert (re.split(" {2,}", line)[head.split().index("about")], "redrive" in each) == (one["key"], False)


# case: R10, G8
async def test_of_several_shops_each_kind_says_whose_it_is_and_its_cure_keeps_to_the_one_that_was_asked_for(
    desk: Desk, five_dead: None, sqlite_ledger: Database
) -> None:
    assert "   of " not in (await asyncio.to_thread(desk.call, "dead", "list")).stdout, "there is only one"
    fars = [replace(facts.run(one, status=RunStatus.DEAD), application="far", fingerprint="a" * 16) for one in (1, 2)]
    async with sqlite_ledger.transaction() as session:
        await events.record(session, [facts.event(number, application="far") for number in (1, 2)], facts.NOW)
        await runs.add(session, fars, facts.NOW)
    told = (await asyncio.to_thread(desk.call, "dead", "list", "--fingerprint", "a" * 16)).stdout
    assert "\n   of default (3), far (2)\n" in told
    assert "--application" not in told
    told = (await asyncio.to_thread(desk.call, "dead", "list", "--application", "far")).stdout
    assert "\n   of far (2)\n" in told
    mark = f"--fingerprint {'a' * 16} --application far"
    assert f"consumer dead redrive --handler {facts.HANDLER} {mark} --reason …" in told


# case: R10
async def test_at_its_limit_it_says_that_more_is_left(desk: Desk, five_dead: None) -> None:
    words = ("--all", "--reason", "x", "--yes")
    told = (await asyncio.to_thread(desk.call, "dead", "discard", *words, "--limit", "1")).stdout
    assert told == "discard: 1 of 1 run(s)\nmore is left: this was as many as --limit says\n"
    done = [await asyncio.to_thread(desk.ask, "dead", "redrive", *words, "--limit", "2") for _ in range(2)]
    assert [(one["changed"], one["more"]) for one in done] == [(2, True), (2, False)]


# case: R12
async def test_what_died_anew_before_the_yes_is_left_alone_and_counted(
    desk: Desk, five_dead: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def another_death(*_: object, **__: object) -> None:
        with closing(sqlite3.connect(tmp_path / "ledger.db")) as ledger, ledger:
            ledger.execute(
                "UPDATE runs SET updated_at = '2030-01-01 00:00:00.000000' WHERE fingerprint = ?", KINDS[2:3]
            )

    monkeypatch.setattr(command, "consent", another_death)
    told = (await asyncio.to_thread(desk.call, "dead", "discard", "--all", "--reason", "x")).stdout
    assert told == (
        "discard: 4 of 5 run(s)\n1 left alone: no longer as they were shown, or not to discard; look again\n"
    )
    assert (await asyncio.to_thread(desk.ask, "dead", "list"))["total"] == 1


# case: R10
async def test_what_a_filter_leaves_out_is_dead_all_the_same(
    desk: Desk, five_dead: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for words in ((), ("--each",)):
        none = await asyncio.to_thread(desk.call, "dead", "list", "--until", "2000-01-01", *words)
        assert none.stdout == "no dead run fits (5 in all)\n"
        none = await asyncio.to_thread(desk.call, "dead", "list", "--discarded", *words)
        assert none.stdout == "nothing was discarded\n"
    monkeypatch.setattr(dead, "COUNT_MAX", 4)
    monkeypatch.setattr(command, "COUNT_MAX", 4)
    none = await asyncio.to_thread(desk.call, "dead", "list", "--until", "2000-01-01")
    assert none.stdout == "no dead run fits (at least 4 in all)\n"


# case: R12
async def test_a_fingerprint_that_was_redriven_is_no_slip_of_a_finger(desk: Desk, sqlite_ledger: Database) -> None:
    died = replace(facts.run(1, status=RunStatus.DEAD, blocking=False), fingerprint="d" * 16)
    async with sqlite_ledger.transaction() as session:
        await events.record(session, [facts.event(1)], facts.NOW)
        await runs.add(session, [died], facts.NOW)
        await dead.bury(session, [("default", facts.event(1).id, died.handler)], facts.NOW)
    words = ("dead", "redrive", "--fingerprint", "d" * 16, "--reason", "x", "--yes")
    assert (await asyncio.to_thread(desk.ask, *words))["changed"] == 1
    assert (await asyncio.to_thread(desk.call, *words)).stdout == "no run fits\n"


# case: R10, R14
async def test_of_many_runs_a_plan_says_that_not_all_it_leaves_alone_were_counted(
    desk: Desk, five_dead: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("dead", "redrive", "--all", "--reason", "x", "--yes", "--limit", "3")
    assert (await asyncio.to_thread(desk.ask, *words))["changed"] == 3
    monkeypatch.setattr(candidates, "COUNTED_MAX", 2)
    told = (await asyncio.to_thread(desk.call, "replay", "plan")).stdout
    assert "at least 2 other run(s) are left alone as they stand; not all were counted" in told
