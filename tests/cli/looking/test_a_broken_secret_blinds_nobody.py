"""Commands that look need no secret and no complete settings. `status` judges an application by what `sync` keeps in
the ledger, whatever the asking shell was given."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from consumer.ledger import Database
from consumer.ledger.reading import sync_state
from consumer.lists import bookmark
from consumer.runtime.loop import REFUSED
from consumer.sync.backfill import silence
from consumer.sync.health import stalled
from consumer.sync.reconcile import state as reconcile
from tests.support.desk import Desk


@pytest.mark.usefixtures("upgraded")
def test_status_and_lists_answer_beside_a_secret_that_cannot_be_read(desk: Desk, tmp_path: Path) -> None:
    broken = {
        "SVC_APP_SECRET_FILE": str(tmp_path / "nowhere"),
        "SVC_APP_ID": "svc_app_1",
        "SVC_BASE_URL": "http://127.0.0.1:1",
        "CONSUMER_PORT": "much",
    }
    shown = desk.call("status", "--json", **broken)
    document = json.loads(shown.stdout)
    problems = [one["text"] for one in document["findings"] if one["code"] == "settings_invalid"]
    assert any(one.startswith("SVC_APP_SECRET_FILE") for one in problems)
    assert any(one.startswith("CONSUMER_PORT") for one in problems)
    assert document["events"] == 0
    listed = desk.call("events", "list", "--json", **broken)
    assert (listed.returncode, json.loads(listed.stdout)["events"]) == (0, [])
    assert "warning[settings_invalid]: SVC_APP_SECRET_FILE" in listed.stderr
    assert desk.call("quarantine", "list", **broken).returncode == 0


@pytest.mark.parametrize(
    "words",
    [
        ("db", "upgrade"),
        ("db", "current"),
        ("handlers", "list"),
        ("handlers", "pause", "shop:ship", "--reason", "it ships twice"),
        ("dead", "list"),
        ("dead", "discard", "--handler", "shop:ship", "--reason", "never to be shipped", "--yes"),
        ("replay", "list"),
        ("replay", "cancel", "01JD0000000000000000000000", "--reason", "wrong plan", "--yes"),
        ("findings", "list"),
        ("invariants",),
    ],
)
@pytest.mark.usefixtures("upgraded")
def test_what_needs_the_ledger_alone_needs_no_secret(desk: Desk, tmp_path: Path, words: tuple[str, ...]) -> None:
    whole = desk.call(*words)
    (tmp_path / "empty").write_text("")
    credentials = {"SVC_APP_ID": "svc_app_1", "SVC_BASE_URL": "http://127.0.0.1:1"}
    done = desk.call(*words, SVC_APP_SECRET_FILE=str(tmp_path / "empty"), **credentials)
    assert done.stderr.splitlines()[0].startswith("warning[settings_invalid]: SVC_APP_SECRET_FILE"), done.stderr
    assert (done.returncode, done.stdout) == (whole.returncode, whole.stdout)
    assert done.stderr.splitlines()[1:] == whole.stderr.splitlines(), "it is said once"


@pytest.mark.usefixtures("upgraded")
def test_doctor_tells_of_it_and_examines_the_rest(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    credentials = {"SVC_APP_ID": "svc_app_1", "SVC_BASE_URL": "http://127.0.0.1:1"}
    done = desk.call("doctor", "--json", SVC_APP_SECRET_FILE=str(tmp_path / "empty"), **credentials)
    assert done.returncode == 1
    checks = {(one["name"], one["grade"]): one["text"] for one in json.loads(done.stdout)["checks"]}
    assert checks["settings", "fail"] == "SVC_APP_SECRET_FILE: the file is empty"
    assert ("database", "ok") in checks


def test_where_the_ledger_is_must_be_known(desk: Desk) -> None:
    unknown = desk.call("status", CONSUMER_DATABASE_URL="mysql://elsewhere")
    assert (unknown.returncode, unknown.stdout.splitlines()[0]) == (3, "unknown")
    assert "CONSUMER_DATABASE_URL" in unknown.stdout
    assert desk.call("events", "list", CONSUMER_DATABASE_URL="mysql://elsewhere").returncode == 2


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


@pytest.mark.usefixtures("upgraded")
def test_credentials_that_the_service_refuses_sync(desk: Desk, environ: dict[str, str]) -> None:
    # case: O3
    now = datetime.now(UTC)
    said = {"since": now.isoformat(), "said": now.isoformat()}
    for code in sorted(REFUSED):
        keep(environ, stalled.WALK, {"confirm": said | {"code": code}})
        exit_code, codes, _ = found(desk)
        assert (exit_code, codes["credentials_refused"]) == (2, "stuck")


@pytest.mark.usefixtures("upgraded")
def test_a_late_walk_a_gap_silence_and_a_brake(desk: Desk, environ: dict[str, str]) -> None:
    # case: O1, B13
    long_ago = (datetime.now(UTC) - timedelta(hours=2)).isoformat()
    keep(environ, bookmark.WALK, {"walked_at": long_ago})
    keep(environ, silence.WALK, {"silent_since": long_ago, "gap_at": long_ago})
    keep(environ, reconcile.WALK, {"braked": True})
    _, codes, _ = found(desk)
    assert codes.keys() == {"walk_late", "webhooks_silent", "retention_gap", "reconcile_braked"}
    assert codes["retention_gap"] == "stuck"


@pytest.mark.usefixtures("upgraded")
def test_where_nothing_was_kept_nobody_meant_to_read(desk: Desk) -> None:
    _, codes, read = found(desk)
    assert (codes, read) == ({}, [])


@pytest.mark.usefixtures("upgraded")
def test_a_role_that_is_gone_is_told_what_keeps_it_from_coming_back(desk: Desk) -> None:
    secretless = {"SVC_BASE_URL": "http://127.0.0.1:1", "SVC_APP_ID": "svc_app_1", "CONSUMER_EXPECT": "sync"}
    whole = {**secretless, "SVC_APP_SECRET": "svc_sk_live_" + "x" * 20}
    for environ, is_told in ((whole, False), (secretless, True)):
        document = json.loads(desk.call("status", "--json", **environ).stdout)
        [gone] = [one["text"] for one in document["findings"] if one["code"] == "no_sync"]
        assert ("with the settings here it would not start: SVC_APP_SECRET: missing" in gone) == is_told, gone
