"""A command that looks or repairs makes no file: a ledger in the wrong place would say that all is well."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.support.desk import Desk

SERVICE = {"SVC_BASE_URL": "http://127.0.0.1:1", "SVC_APP_ID": "svc_app_1", "SVC_APP_SECRET": "svc_sk_live_1"}
NEEDING_THE_LEDGER = [
    ["db", "current"],
    ["events", "list"],
    ["events", "show", "evt_1"],
    ["dead", "list"],
    ["dead", "redrive", "--all", "--reason", "x", "--yes"],
    ["quarantine", "list"],
    ["explain", "order", "A-1"],
    ["explain", "subscription", "sub_1"],
    ["explain", "customer", "ada"],
    ["handlers", "pause", "shop", "--reason", "x"],
    ["reconcile", "--dry-run"],
    ["backfill", "--dry-run"],
]
HINT = "error[database_missing]: There is no database yet: run `consumer db upgrade`."


@pytest.fixture
def environ(environ: dict[str, str]) -> dict[str, str]:
    """With a service that nobody reaches, so that commands which would ask it get as far as the ledger."""
    return {**environ, **SERVICE}


@pytest.mark.parametrize("arguments", NEEDING_THE_LEDGER, ids=" ".join)
def test_without_a_database_the_answer_is_one_line_and_2(arguments: list[str], desk: Desk, tmp_path: Path) -> None:
    done = desk.call(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(HINT)
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_status_tells_it_as_a_finding(desk: Desk, tmp_path: Path) -> None:
    done = desk.call("status")
    assert done.returncode == 3
    assert done.stdout.splitlines() == [
        "unknown",
        f"  unknown: There is no database yet: run `consumer db upgrade`. ({tmp_path}/consumer.db) [database_missing]",
    ]
    assert list(tmp_path.iterdir()) == []


def test_doctor_tells_it_as_a_finding_and_makes_the_checks_that_need_no_database(desk: Desk, tmp_path: Path) -> None:
    done = desk.call("doctor", "--learn", "--test-event", "--json")
    assert done.returncode == 1
    assert done.stderr == ""
    found = {check["name"]: (check["grade"], check["text"]) for check in json.loads(done.stdout)["checks"]}
    assert found["database"] == ("fail", found["database"][1])
    assert found["database"][1].startswith(HINT)
    assert {found[name][0] for name in ("settings", "handlers", "broker", "default: environment")} == {"ok"}
    assert found["default: credentials"][0] == "fail"
    assert "service_unreachable" in found["default: credentials"][1]
    for name in ("default: learn", "default: test event"):
        assert found[name][0] == "fail"
        assert "ledger" in found[name][1]
    assert list(tmp_path.iterdir()) == []


def test_the_list_of_handlers_needs_no_database(desk: Desk, tmp_path: Path) -> None:
    done = desk.call("handlers", "list")
    assert done.returncode == 0
    assert "fulfilment" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("upgraded")
def test_status_leaves_a_log_that_is_not_there_unmade(desk: Desk, tmp_path: Path) -> None:
    done = desk.call("status")
    assert done.returncode == 2
    assert "[topics_missing]" in done.stdout
    assert not list(tmp_path.glob("log.db*"))


@pytest.mark.slow
def test_as_an_operator_sees_it(consumer: Run, tmp_path: Path) -> None:
    done = consumer("quarantine", "list", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(HINT)
    assert list(tmp_path.iterdir()) == []
    assert consumer("db", "upgrade").returncode == 0
    assert consumer("quarantine", "list", "--json").returncode == 0
    assert not (tmp_path / "log.db").exists()
