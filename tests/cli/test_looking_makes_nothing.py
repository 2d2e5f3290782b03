"""A command that looks or repairs makes no file: a ledger in the wrong place would say that all is well."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import structlog

from consumer.cli.entry import run
from tests.cli.conftest import Run

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
def here(environ: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The same environment for commands that are called in this process, which is a second quicker."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    for name in os.environ:
        if name.startswith(("CONSUMER_", "SVC_")):
            monkeypatch.delenv(name)
    for name, value in {**environ, **SERVICE}.items():
        monkeypatch.setenv(name, value)
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("arguments", NEEDING_THE_LEDGER, ids=" ".join)
def test_without_a_database_the_answer_is_one_line_and_2(
    arguments: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err.startswith(HINT)
    assert len(said.err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("here")
def test_status_tells_it_as_a_finding(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["status"]) == 2
    assert capfd.readouterr().out.splitlines() == [
        "stuck",
        "  stuck: There is no database yet: run `consumer db upgrade`. [database_missing]",
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("here")
def test_the_list_of_handlers_needs_no_database(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["handlers", "list"]) == 0
    assert "fulfilment" in capfd.readouterr().out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("here")
def test_status_leaves_a_log_that_is_not_there_unmade(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["db", "upgrade"]) == 0
    capfd.readouterr()
    assert run(["status"]) == 1
    assert "[topics_missing]" in capfd.readouterr().out
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
