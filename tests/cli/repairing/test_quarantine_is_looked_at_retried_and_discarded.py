"""`consumer quarantine show|retry|discard`: a delivery is shown, taken in again as if it had just come, given up."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

from consumer.broker import EmbeddedBroker
from consumer.events import Delivery
from consumer.ledger import Database
from consumer.ledger.reading import quarantine
from consumer.reason import Reason
from tests.support.desk import Desk

NOW = datetime(2026, 5, 1, tzinfo=UTC)


async def _put(environ: dict[str, str], *ids: str) -> None:
    database = Database(environ["CONSUMER_DATABASE_URL"])
    async with database.transaction() as session:
        rows = [
            Delivery(
                application="default", id=one, raw=b'{"id":"evt_1"}', received_at=NOW, headers={}, event_id="evt_1"
            )
            for one in ids
        ]
        await quarantine.put(session, [(one, Reason.NOT_CONFIRMED) for one in rows], NOW)
    await database.stop()


async def _waiting(path: Path) -> int:
    [report] = await EmbeddedBroker(path).look_at_groups({"payments.confirm": "payments.deliveries"})
    return report.records


# case: I15
def test_show_retry_discard(desk: Desk, environ: dict[str, str], tmp_path: Path) -> None:
    desk.call("db", "upgrade")
    asyncio.run(_put(environ, "dlv_1", "dlv_2", "dlv_3"))
    first, second, third = sorted(one["id"] for one in desk.ask("quarantine", "list")["quarantine"])
    listed = desk.ask("quarantine", "list", "--limit", "1")
    assert (len(listed["quarantine"]), listed["groups"]) == (1, {"not_confirmed": 3})
    assert "there may be more" in desk.call("quarantine", "list", "--limit", "1").stdout
    shown = desk.ask("quarantine", "show", str(first))
    assert (shown["reason"], shown["event_id"], "body" in shown) == ("not_confirmed", "evt_1", False)
    assert desk.ask("quarantine", "show", str(first), "--raw")["body"] == '{"id":"evt_1"}'
    assert "say which" in desk.ask("quarantine", "discard", "--reason", "x", "--yes", code=2)
    assert "not_found" in desk.ask("quarantine", "show", "999", code=1)

    done = desk.ask("quarantine", "retry", "--id", str(first), "--reason", "it was real", "--yes")
    assert done == {"retried": [first]}
    assert asyncio.run(_waiting(tmp_path / "log.db")) == 1, "it will be asked about again"
    none = desk.ask("quarantine", "discard", "--because", "flooded", "--reason", "a runbook's line", "--yes")
    assert none == {"discarded": []}
    gone = desk.ask("quarantine", "discard", "--because", "not_confirmed", "--reason", "forged", "--yes")
    assert sorted(gone["discarded"]) == [second, third]
    assert desk.ask("quarantine", "list")["quarantine"] == []
