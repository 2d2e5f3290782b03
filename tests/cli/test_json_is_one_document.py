"""`--json` prints one JSON document on stdout and nothing else there."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Run

pytestmark = pytest.mark.slow


def test_of_every_command_that_looks(consumer: Run) -> None:
    upgraded = json.loads(consumer("db", "upgrade", "--json").stdout)
    assert upgraded["missing"] == []
    for arguments, key in [
        (["db", "current"], "current"),
        (["events", "list"], "events"),
        (["handlers", "list"], "handlers"),
        (["quarantine", "list"], "quarantine"),
        (["status"], "status"),
    ]:
        done = consumer(*arguments, "--json")
        document = json.loads(done.stdout)
        assert key in document, arguments
    names = [handler["name"] for handler in json.loads(consumer("handlers", "list", "--json").stdout)["handlers"]]
    assert any("fulfilment" in name for name in names)
    assert any("access" in name for name in names)


def test_status_tells_by_its_exit_code(consumer: Run) -> None:
    """Without a schema nothing can go on: 2. With one, but nobody who ever worked on events: 1."""
    assert consumer("status").returncode == 2
    consumer("db", "upgrade")
    lonely = consumer("status")
    assert (lonely.returncode, lonely.stdout.splitlines()[0]) == (1, "degraded")
    assert "[no_worker]" in lonely.stdout
