"""Whoever sees a page of a list sees that it is not all: in words, and as `more` in JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from consumer.ledger import Database
from consumer.ledger.handling import events
from consumer.ledger.plans import plans
from consumer.ledger.plans.plans import Decided
from tests.contract.ledger import facts
from tests.support.desk import Desk


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Of the ledger that the test fills."""
    return {"CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/ledger.db", "CONSUMER_LOG_LEVEL": "error"}


@pytest.fixture
async def two_of_each(sqlite_ledger: Database) -> None:
    async with sqlite_ledger.transaction() as session:
        await events.record(session, [facts.event(number) for number in (1, 2)], facts.NOW)
        for digest in ("a", "b"):  # each leaves an entry in the audit trail
            await plans.create(session, plans.new_id(), decided(digest), facts.NOW)


def decided(digest: str) -> Decided:
    return Decided(by="ann", reason=None, filters={}, forced=False, renews_keys=False, items=0, predicted={},
                   digest=digest * 64)  # fmt: skip


@pytest.mark.parametrize(
    ("words", "name"), [(["events", "list"], "events"), (["audit", "list"], "entries"), (["replay", "list"], "plans")]
)
async def test_a_page_of_one_and_one_of_all(desk: Desk, two_of_each: None, words: Sequence[str], name: str) -> None:
    for limit, more in (("1", True), ("2", False)):
        found = await asyncio.to_thread(desk.ask, *words, "--limit", limit)
        assert (len(found[name]), found["more"], found.get("complete", not more)) == (int(limit), more, not more)
        told = (await asyncio.to_thread(desk.call, *words, "--limit", limit)).stdout
        assert ("there is more: these are the newest 1 (--limit)" in told) == more
