"""`--json` prints one JSON document on stdout and nothing else there."""

from __future__ import annotations

import json

from tests.support.desk import Desk


def test_of_every_command_that_looks(desk: Desk) -> None:
    upgraded = json.loads(desk.call("db", "upgrade", "--json").stdout)
    assert upgraded["missing"] == []
    for arguments, key in [
        (["db", "current"], "current"),
        (["events", "list"], "events"),
        (["handlers", "list"], "handlers"),
        (["quarantine", "list"], "quarantine"),
        (["status"], "status"),
    ]:
        done = desk.call(*arguments, "--json")
        document = json.loads(done.stdout)
        assert key in document, arguments
    names = [handler["name"] for handler in json.loads(desk.call("handlers", "list", "--json").stdout)["handlers"]]
    assert any("fulfilment" in name for name in names)
    assert any("access" in name for name in names)


def test_status_tells_by_its_exit_code(desk: Desk) -> None:
    """Without a database nobody can tell: 3. With one, but nobody who ever worked on events: 2."""
    unknown = desk.call("status")
    assert (unknown.returncode, unknown.stdout.splitlines()[0]) == (3, "unknown")
    assert "[database_missing]" in unknown.stdout
    desk.call("db", "upgrade")
    lonely = desk.call("status")
    assert (lonely.returncode, lonely.stdout.splitlines()[0]) == (2, "stuck")
    assert "[no_work]" in lonely.stdout
