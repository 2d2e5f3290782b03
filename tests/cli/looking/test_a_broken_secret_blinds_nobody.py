"""Commands that look need no secret and no complete settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.desk import Desk


def test_status_and_lists_answer_beside_a_secret_that_cannot_be_read(desk: Desk, tmp_path: Path) -> None:
    desk.call("db", "upgrade")
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
def test_what_needs_the_ledger_alone_needs_no_secret(desk: Desk, tmp_path: Path, words: tuple[str, ...]) -> None:
    desk.call("db", "upgrade")
    whole = desk.call(*words)
    (tmp_path / "empty").write_text("")
    credentials = {"SVC_APP_ID": "svc_app_1", "SVC_BASE_URL": "http://127.0.0.1:1"}
    done = desk.call(*words, SVC_APP_SECRET_FILE=str(tmp_path / "empty"), **credentials)
    assert done.stderr.splitlines()[0].startswith("warning[settings_invalid]: SVC_APP_SECRET_FILE"), done.stderr
    assert (done.returncode, done.stdout) == (whole.returncode, whole.stdout)
    assert done.stderr.splitlines()[1:] == whole.stderr.splitlines(), "it is said once"


def test_doctor_tells_of_it_and_examines_the_rest(desk: Desk, tmp_path: Path) -> None:
    desk.call("db", "upgrade")
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
