"""What SQLite does not need, because whoever writes there is alone, PostgreSQL is told: shown here without a server."""

from __future__ import annotations

from typing import Any

from sqlalchemy.dialects import registry

from consumer.ledger.handling import queue, runs
from consumer.ledger.tables import RunStatus
from tests.contract.ledger.facts import NOW, finish


class Nothing(list[Any]):
    """A result without rows."""

    rowcount = 0

    def all(self) -> list[Any]:
        """As a result does."""
        return []


class Listening:
    """A session that remembers what it was told."""

    def __init__(self, dialect: str) -> None:
        self.dialect: Any = registry.load(dialect)()
        self.told: list[Any] = []

    def get_bind(self) -> Any:
        """As a session does."""
        return self

    async def execute(self, statement: Any, *_: Any) -> Nothing:
        """As a session does."""
        self.told.append(statement)
        return Nothing()

    scalars = execute

    def words(self, number: int, **options: bool) -> str:
        """What it was told at that place, in words of its dialect."""
        return str(self.told[number].compile(dialect=self.dialect, compile_kwargs=options))


def claimed(number: int) -> runs.ClaimedRun:
    return runs.ClaimedRun(application="default", event_id=f"evt_{number}", handler="h", seq=number, key="k",
                           attempts=0, plan=None, created_at=NOW, due_at=NOW)  # fmt: skip


async def test_what_is_finished_is_locked_first_and_in_the_order_of_its_key() -> None:
    for dialect, locks in (("postgresql", True), ("sqlite", False)):
        session: Any = Listening(dialect)
        await runs.finish(session, [finish(claimed(1)), finish(claimed(2), RunStatus.SUCCEEDED)], worker="w", now=NOW)
        assert session.words(0).startswith("SELECT") is locks
        if locks:
            assert session.words(0).endswith("FOR UPDATE")
            assert "ORDER BY" in session.words(0)


async def test_the_oldest_of_each_handler_is_one_probe_of_the_index_each() -> None:
    session: Any = Listening("postgresql")
    assert await queue.oldest_due(session) == {}
    assert len(session.told) == 1
    told = session.words(0, literal_binds=True)
    assert told.startswith("WITH RECURSIVE")
    assert "LIMIT 1)" in " ".join(told.split())
