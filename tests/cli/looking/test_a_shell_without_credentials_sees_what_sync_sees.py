"""`status` judges an application by what `sync` keeps in the ledger, whatever settings the asking shell has."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from consumer.ledger import Database
from consumer.ledger.reading import sync_state
from consumer.sync.backfill import bookmark, silence
from consumer.sync.health import stalled
from consumer.sync.loop import REFUSED
from consumer.sync.reconcile import state as reconcile
from tests.support.desk import Desk


def found(desk: Desk) -> tuple[int, dict[str, str], list[str]]:
    """How `status` ends without any `SVC_*`, its findings about reading, and the applications it shows."""
    done = desk.call("status", "--json")
    document = json.loads(done.stdout)
    codes = {one["code"]: one["grade"] for one in document["findings"] if one["text"].startswith("default: ")}
    return done.returncode, codes, [one["application"] for one in document["reading"]]


def keep(environ: Mapping[str, str], walk: str, state: Mapping[str, Any]) -> None:
    async def kept() -> None:
        database = Database(environ["CONSUMER_DATABASE_URL"])
        try:
            async with database.transaction() as session:
                await sync_state.keep(session, "default", walk, state, token=1, now=datetime.now(UTC))
        finally:
            await database.stop()

    asyncio.run(kept())


def test_credentials_that_the_service_refuses_sync(desk: Desk, environ: dict[str, str]) -> None:
    # case: O3
    desk.call("db", "upgrade")
    now = datetime.now(UTC)
    said = {"since": now.isoformat(), "said": now.isoformat()}
    for code in sorted(REFUSED):
        keep(environ, stalled.WALK, {"confirm": said | {"code": code}})
        exit_code, codes, _ = found(desk)
        assert (exit_code, codes["credentials_refused"]) == (2, "stuck")


def test_a_late_walk_a_gap_silence_and_a_brake(desk: Desk, environ: dict[str, str]) -> None:
    # case: O1, B13
    desk.call("db", "upgrade")
    long_ago = (datetime.now(UTC) - timedelta(hours=2)).isoformat()
    keep(environ, bookmark.WALK, {"walked_at": long_ago})
    keep(environ, silence.WALK, {"silent_since": long_ago, "gap_at": long_ago})
    keep(environ, reconcile.WALK, {"braked": True})
    _, codes, _ = found(desk)
    assert codes.keys() == {"walk_late", "webhooks_silent", "retention_gap", "reconcile_braked"}
    assert codes["retention_gap"] == "stuck"


def test_where_nothing_was_kept_nobody_meant_to_read(desk: Desk) -> None:
    desk.call("db", "upgrade")
    _, codes, read = found(desk)
    assert (codes, read) == ({}, [])
