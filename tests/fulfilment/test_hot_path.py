"""The usual paid order costs one statement; a duplicate two. One that is asked about first costs two more each for the
answer and for the timer, and no finding. Throughput rests on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event as sqlalchemy_event

from consumer.events import Trust
from consumer.ledger import Database
from tests.fulfilment.confirmed import said
from tests.support.handling.projections import Projections, own


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
        await orders.feed(said("order.paid", "evt_1", id="so1", order_id="A1", amount="10", payment_id="p1"))
    assert len(first) == 1, first
    with statements(sqlite_ledger) as second:
        await orders.feed(said("order.paid", "evt_2", id="so1", order_id="A1", amount="10", payment_id="p1"))
    assert len(second) == 2, second


async def test_an_order_that_is_asked_about_first_costs_no_finding(
    sqlite_ledger: Database, orders: Projections
) -> None:
    with statements(sqlite_ledger) as paid:
        await orders.feed(said("order.paid", "evt_1", id="so1", order_id="A1", amount="10", trust=Trust.SIGNED))
    assert len(paid) == 1, paid
    with statements(sqlite_ledger) as timer:
        await orders.pass_time(seconds=4)
    # Whether the row is new, its lock, and its one change.
    assert len(timer) <= 2, timer
    assert len(orders.of_type("fulfilment.requested")) == 1


async def test_behind_a_registered_order_the_next_ones_are_two(sqlite_ledger: Database, orders: Projections) -> None:
    """A batch of a merchant who registers: only the first is inserted in vain."""
    for name in ("A1", "A2", "A3"):
        registration = {"session_id": f"cs_{name}", "order_id": name, "customer": "c", "expected_amount": "10"}
        await orders.feed(own("checkout.registered", f"order:{name}", registration))
    paid = [said("order.paid", f"evt_{name}", order_id=name, amount="10") for name in ("A1", "A2", "A3")]
    with statements(sqlite_ledger) as sent:
        await orders.feed_together(paid)
    assert len(sent) == 3 + 2 + 2, sent
    with statements(sqlite_ledger) as mixed:  # an unknown one among known ones is looked for, and then inserted
        again = [said("order.paid", f"evt_2{name}", order_id=name, amount="10") for name in ("B1", "A1", "B2")]
        await orders.feed_together(again)
    assert len(mixed) == 1 + 2 + 2, mixed
    assert len(orders.of_type("fulfilment.requested")) == 5
