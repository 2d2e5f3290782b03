"""An account of money and access that cannot be made is told: silence would say that all is as it should be."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson
import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from consumer.app.alarms import accounting
from consumer.app.alarms.accounting import Accounting
from consumer.cli.looking.evidence.alive import alive
from consumer.cli.looking.status_finding import Grade
from consumer.clock import SystemClock
from consumer.console.alarms import standing
from consumer.ledger import Database
from consumer.ledger.processes import UNACCOUNTED
from consumer.ledger.reading import key_values
from consumer.telemetry.logs import Condition
from consumer.telemetry.metrics import Metrics
from tests.cli.looking.evidence.test_roles_that_are_gone_are_named import ALL, living
from tests.cli.looking.test_what_is_healthy_degraded_or_stuck import NOW, WELL
from tests.console.invariants.shop import OPTIONS, Shop
from tests.support.ports import eventually


# case: O1, O6
async def test_it_is_said_of_the_application_and_the_others_are_accounted_for(
    sqlite_ledger: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounting, "FIRST_LOOK_S", 0.01)
    monkeypatch.setattr(accounting, "AGAIN_S", 0.05)
    monkeypatch.setattr(accounting, "SHARE", 0)  # a look that was slow is not what the next one waits for
    shop = Shop(sqlite_ledger)
    await shop.paid("A-1")
    await _statement(sqlite_ledger, "UPDATE fulfilment_order SET hold = 'of a newer version'")
    looks = Accounting(sqlite_ledger, Metrics(), SystemClock(), ["default", "club"], OPTIONS, rest_s=0)
    stop = asyncio.Event()
    with capture_logs() as logs:
        running = asyncio.create_task(looks.run(stop))
        await eventually(lambda: looks.unaccounted is not None)
        assert looks.unaccounted == "default: ValueError"
        await eventually(lambda: _is_kept(sqlite_ledger, "club"))
        await _statement(sqlite_ledger, "DELETE FROM fulfilment_order")
        await eventually(lambda: looks.unaccounted is None)
        stop.set()
        await running
    told: Mapping[str, Any] = next(one for one in logs if one["event"] == "invariants_unknown")
    assert (told["application"], told["code"]) == ("default", "ValueError")


def test_one_look_that_fails_may_have_met_a_ledger_that_was_away(sqlite_ledger: Database) -> None:
    looks, failed = (
        Accounting(sqlite_ledger, Metrics(), SystemClock(), ["default"], {}),
        Condition("invariants_unknown"),
    )
    said = []
    for failure in (away := ("default", ConnectionResetError()), None, away, away, None):
        looks._note(failure, failed)
        said.append(looks.unaccounted)
    assert said == [None, None, None, "default: ConnectionResetError", None]


# case: O6
def test_status_and_an_alert_say_it_where_no_other_console_can() -> None:
    blind = living("console", seen_at=WELL.at, said={UNACCOUNTED: "default: ValueError"})
    sees = replace(blind, process="other", said={})
    assert standing.wrong(WELL, 0, [blind]) == {"unaccounted"}
    assert standing.wrong(WELL, 0, [blind, sees]) == frozenset()
    assert standing.wrong(WELL, 0, [replace(blind, stopped_at=blind.seen_at)]) == frozenset()
    [finding] = alive([*(one for one in ALL if one.role != "console"), replace(blind, seen_at=NOW)], NOW, expected=None)
    assert (finding.code, finding.grade) == ("unaccounted", Grade.DEGRADED)
    assert "default: ValueError" in finding.text


async def _statement(database: Database, words: str) -> None:
    async with database.transaction() as session:
        await session.execute(text(words))


async def _is_kept(database: Database, application: str) -> bool:
    async with database.reading() as session:
        kept = await key_values.beginning(session, f"account/{application}")
    return [orjson.loads(one)["broken"] for one in kept.values()] == [{}]
