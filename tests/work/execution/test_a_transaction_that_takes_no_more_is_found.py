"""What a handler left of the transaction is looked at before its savepoint is released: PostgreSQL takes nothing more
after a failed statement, and a handler may have kept that error to itself. SQLite goes on, and is asked nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from consumer.plugin import Reject
from consumer.work.execution.savepoint import in_savepoint
from consumer.work.outcome import Failed, Outcome, Succeeded, failed


class Broken:
    """A session whose transaction takes no statement any more; `did` is what was done with its savepoint."""

    def __init__(self, dialect: str) -> None:
        self.did: list[str] = []
        self._bind = SimpleNamespace(dialect=SimpleNamespace(name=dialect))

    def get_bind(self) -> Any:
        """As a session does."""
        return self._bind

    async def flush(self) -> None:
        """As a session does."""
        self.did.append("flush")

    async def begin_nested(self) -> Broken:
        """As a session does: here it is the savepoint as well."""
        self.did.append("savepoint")
        return self

    async def execute(self, _: object) -> None:
        """As a session does."""
        raise RuntimeError("current transaction is aborted")

    async def rollback(self) -> None:
        """As a savepoint does."""
        self.did.append("rollback")

    async def commit(self) -> None:
        """As a savepoint does."""
        self.did.append("commit")


@pytest.mark.parametrize(
    ("dialect", "outcome", "end"),
    [
        ("postgresql", Succeeded(), ["flush", "rollback"]),
        ("sqlite", Succeeded(), ["flush", "commit"]),
        ("postgresql", failed(Reject("no")), ["rollback"]),
        ("sqlite", failed(Reject("no")), ["rollback"]),
    ],
)
async def test_its_handler_has_failed_and_what_it_wrote_is_undone(
    dialect: str, outcome: Outcome, end: list[str]
) -> None:
    session: Any = Broken(dialect)

    async def transactional(*_: object, limit_s: float) -> Outcome:
        assert limit_s == 3.0
        return outcome

    executor: Any = SimpleNamespace(transactional=transactional)
    given: Any = None
    found = await in_savepoint(session, executor, given, given, given, limit_s=3.0)
    assert session.did == ["flush", "savepoint", *end]
    assert isinstance(found, Failed) is (end[-1] == "rollback")
