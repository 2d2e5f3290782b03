"""A list that stopped at its limit says so, to people and in JSON."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from consumer.ledger import Database, audit
from consumer.ledger.handling import events
from consumer.ledger.plans import plans
from consumer.ledger.plans.plans import Decided
from tests.contract.ledger import facts
from tests.support.desk import Desk


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Of the ledger that the test fills."""
    return {"CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/ledger.db", "CONSUMER_LOG_LEVEL": "error"}


# case: R10
@pytest.mark.parametrize("words", [("events", "list"), ("audit", "list"), ("replay", "list")])
async def test_at_its_limit(desk: Desk, sqlite_ledger: Database, words: tuple[str, str]) -> None:
    async with sqlite_ledger.transaction() as session:
        await events.record(session, [facts.event(number) for number in (1, 2, 3)], facts.NOW)
        words_of = {"actor": "ada", "before": "{}", "after": "{}", "reason": "", "code_version": ""}
        about: dict[str, Any] = {"application": "default", "action": "told", "at": facts.NOW} | words_of
        notes = [audit.Noted(subject=f"order:{number}", **about) for number in (1, 2, 3)]
        await audit.add(session, notes)
        decided: dict[str, Any] = {"by": "ada", "reason": None, "filters": {}, "forced": False, "renews_keys": False}
        for number in (1, 2, 3):
            one = Decided(**decided, items=0, predicted={}, digest="")
            await plans.create(session, f"rpl_{number}", one, facts.NOW)
    for limit, is_said in (("2", True), ("20", False)):
        told = (await asyncio.to_thread(desk.call, *words, "--limit", limit)).stdout
        assert ("there may be more: these are the newest" in told) is is_said
    if words[0] == "events":
        found = [await asyncio.to_thread(desk.ask, *words, "--limit", limit) for limit in ("2", "20")]
        assert [one["complete"] for one in found] == [False, True]
