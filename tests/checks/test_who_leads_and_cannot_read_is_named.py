"""Held up: the `sync` that leads may have other settings than who looks; it is named, with what keeps it up."""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import timedelta

import pytest

from consumer.checks.doctor import Check, Grade
from consumer.checks.held_up import held_up
from consumer.errors import LedgerUnavailable
from consumer.ledger import Database, leases
from consumer.ledger.engine.database_time import shared_time
from consumer.ledger.reading import sync_state
from consumer.sync.health import stalled

HOLDER = "shop-b-4711-0a1b2c3d"


async def noted(database: Database, code: str, *, since_s: float = 40.0, leads: bool = True) -> None:
    """What the one that leads noted of its stage `confirm`."""
    async with database.transaction() as session:
        now = await shared_time(session)
        since = (now - timedelta(seconds=since_s)).isoformat()
        state = {"confirm": {"code": code, "since": since, "said": now.isoformat()}}
        await sync_state.keep(session, "default", stalled.WALK, state, token=1, now=now)
        if leads:
            await leases.acquire(session, "sync/default", HOLDER, now, 15)


async def said(check: Awaitable[Check | None]) -> str:
    found = await check
    assert found is not None
    assert (found.name, found.grade) == ("sync", Grade.WARN)
    return found.text


async def test_one_that_is_refused_while_these_credentials_are_taken(sqlite_ledger: Database) -> None:
    # case: O3, B26
    await noted(sqlite_ledger, "circuit_open", since_s=1)
    text = await said(held_up(sqlite_ledger, "default", accepted=True))
    assert text.startswith("the `sync` that leads (pid 4711 on shop-b) is held up by circuit_open: confirm since ")
    assert text.endswith("; the credentials are accepted here: give it these, and restart it")
    assert "accepted" not in await said(held_up(sqlite_ledger, "default", accepted=False))


@pytest.mark.parametrize(
    ("code", "hint"),
    [("service_unreachable", "compare its settings"), ("wrong_application", "compare its settings"), ("api_error", "")],
)
async def test_one_that_asks_elsewhere(sqlite_ledger: Database, code: str, hint: str) -> None:
    # case: B7, B32
    await noted(sqlite_ledger, code, leads=False)
    text = await said(held_up(sqlite_ledger, "default", accepted=True))
    assert text.startswith(f"the `sync` that leads is held up by {code}: confirm since ")
    assert ("compare its settings" in text) is bool(hint)


async def test_who_holds_the_lock_is_named(sqlite_ledger: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    # case: O2
    async def blocker(_: Database) -> str:
        return "process 9 holds it"

    monkeypatch.setattr(Database, "who_blocks", blocker)
    await noted(sqlite_ledger, "ledger_locked")
    assert (await said(held_up(sqlite_ledger, "default", accepted=True))).endswith("; process 9 holds it")


async def test_nothing_is_told_of_what_is_well_or_has_only_begun(sqlite_ledger: Database) -> None:
    # case: B7
    assert await held_up(sqlite_ledger, "default", accepted=True) is None
    await noted(sqlite_ledger, "server_error", since_s=20)
    assert await held_up(sqlite_ledger, "default", accepted=True) is None


async def test_a_ledger_that_does_not_answer_is_told(sqlite_ledger: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    # case: B7
    def gone(_: Database) -> None:
        raise LedgerUnavailable(reason="gone")

    monkeypatch.setattr(Database, "reading", gone)
    assert "ledger_unavailable" in await said(held_up(sqlite_ledger, "default", accepted=True))
