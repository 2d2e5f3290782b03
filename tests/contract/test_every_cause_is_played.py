"""Each code of the table of causes is played on a real server or file, by a test that says so: `# cause: 53100`.

`ledger SQLITE_FULL` is said of the ledger's file, `log SQLITE_FULL` of the log's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from consumer.causes import KAFKA, SQLITE, SQLITE_LOG, SQLSTATES

TESTS = Path(__file__).resolve().parents[1]
SAYS = "# cause: "
BESIDE = {"TLS", "DATABASE_TLS", "NOT_UTF8", "SLOW", "REPLICA", "COLLATION", "LOG_INCOMPATIBLE"}
"""What has no code of its own there."""
NOT_PLAYED = {
    "ledger SQLITE_PERM": "a file system that lets nobody lock, as some of a network do",
    "log SQLITE_PERM": "the same",
    "IncompatibleBrokerVersion": "a broker older than Kafka 1",
    "UnsupportedVersionError": "a server that speaks Kafka's protocol and is none: Kafka closes the connection",
}
"""Who says it, where we have no such server."""


def played(path: Path) -> Iterator[str]:
    """The codes that this file's tests play; each stands above its test."""
    waiting: list[str] = []
    for line in path.read_text().splitlines():
        if line.startswith(SAYS):
            waiting += line.removeprefix(SAYS).split(", ")
        elif line.startswith(("def ", "async def ", "class ")):
            assert not waiting or line.removeprefix("async ").startswith("def test_"), f"{path}: {line} is no test"
            yield from waiting
            waiting = []
    assert not waiting, f"{path}: no test stands below {waiting}"


def test_by_a_test_that_names_it() -> None:
    there = {*SQLSTATES, *KAFKA, *(f"ledger {one}" for one in SQLITE), *(f"log {one}" for one in SQLITE_LOG), *BESIDE}
    found = {code for path in TESTS.rglob("test_*.py") for code in played(path)}
    assert found - there == set(), "a test names what the table does not know"
    assert there - found == NOT_PLAYED.keys(), "what is there is played on what really says it"
