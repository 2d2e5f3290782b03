"""`dead list` counts each kind of failure over all that is dead, however few it shows, and says where it stopped."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from consumer.cli.repairing import dead as command
from consumer.ledger import Database
from consumer.ledger.handling import dead, events, runs
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
