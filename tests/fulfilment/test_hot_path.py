"""The usual paid order costs one statement; a duplicate two. Throughput rests on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event as sqlalchemy_event

from consumer.ledger import Database
from tests.support.projections import Projections, said


@contextmanager
def statements(database: Database) -> Iterator[list[str]]:
    """The statements on the plugin's own tables."""
    found: list[str] = []

    def note(_: Any, __: Any, statement: str, *___: Any) -> None:
        if "fulfilment_" in statement:
            found.append(statement)

    engine = database.engine.sync_engine
    sqlalchemy_event.listen(engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        sqlalchemy_event.remove(engine, "before_cursor_execute", note)


async def test_a_paid_order_is_one_statement_and_a_duplicate_two(sqlite_ledger: Database, orders: Projections) -> None:
    with statements(sqlite_ledger) as first:
        await orders.feed(said("order.paid", "evt_1", id="so1", order_id="A1", amount="10"))
    assert len(first) == 1, first
    with statements(sqlite_ledger) as second:
        await orders.feed(said("order.paid", "evt_2", id="so1", order_id="A1", amount="10"))
    assert len(second) == 2, second
