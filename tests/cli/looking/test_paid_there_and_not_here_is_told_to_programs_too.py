"""The service shows what the ledger lacks: `status --json` tells it to programs, as `status` does to people."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta

from consumer.ledger import Database
from consumer.sync.canary.sightings import LATE, Sightings
from tests.support.desk import Desk

SERVICE = {"SVC_BASE_URL": "http://127.0.0.1:1", "SVC_APP_ID": "svc_app_1", "SVC_APP_SECRET": "svc_sk_live_1"}


# case: B27, O5
def test_in_one_document(desk: Desk, environ: dict[str, str]) -> None:
    """It was `internal` as long as an order was missing, which is when somebody looks."""
    assert desk.call("db", "upgrade").returncode == 0
    asyncio.run(missed(environ["CONSUMER_DATABASE_URL"], LATE + timedelta(seconds=20)))
    called = desk.call("status", "--json", **SERVICE)
    found = json.loads(called.stdout)
    assert "paid_there_but_not_here" in {one["code"] for one in found["findings"]}
    [reading] = found["reading"]
    assert reading["missing"] == {"orders": 1, "events": 0, "age_s": 200.0, "ids": ["A-1"]}


async def missed(url: str, age: timedelta) -> None:
    """At the last look an order had been missing for so long."""
    database, now = Database(url), datetime.now(UTC)
    try:
        async with database.transaction() as session:
            await Sightings(looked_at=now, missing={"order:A-1": now - age}).keep(session, "default", now=now)
    finally:
        await database.stop()
