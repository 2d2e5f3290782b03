"""However the log is cut into batches, fulfilment ends in the same rows, and has asked and told the same (case G1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Table, select

from consumer.events import Event, Trust
from consumer.ledger import Database
from consumer.ledger.tables import AuditRow, OutboxRow, ReadRow, RunRow
from handlers.fulfilment import observing
from handlers.fulfilment.folding import Fact
from handlers.fulfilment.order import Order, Proof, Reading
from handlers.fulfilment.store import Change
from handlers.fulfilment.tables import CHECKOUTS, FINDINGS, ORDERS, PAYMENTS
from tests.support.handling.live import Live
from tests.support.handling.projections import START, observed, own, said, unreadable
from tests.support.ledger.shared import SharedLedger

SAID_FROM = START + timedelta(hours=1)
# `asked` counts transactions that asked; traces are named after the application.
TABLES: dict[str, tuple[Table, tuple[str, ...]]] = {
    "orders": (ORDERS, ()),
    "checkouts": (CHECKOUTS, ()),
    "payments": (PAYMENTS, ()),
    "findings": (FINDINGS, ()),
    "outbox": (OutboxRow.__table__, ("seq", "event_id", "traceparent")),  # both are named after the application
    "reads": (ReadRow.__table__, ("asked", "traceparent")),
    "audit": (AuditRow.__table__, ("id", "hash", "previous")),
    "runs": (RunRow.__table__, ("seq",)),
}
KINDS = ("paid", "paid", "paid", "paid read", "paid differently", "expired", "completed", "registered", "read paid",
         "read pending", "unreadable", "released", "unfulfillable", "test", "unnamed", "paid by 1", "paid by 2",
         "read by 2")  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _said_later_than_taken() -> Iterator[None]:
    """So the times at which a batch was taken can be told from those that are said in it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("consumer.work.ingest.arrivals.AGREES", timedelta(days=1))
        yield


def event(kind: str, order_id: str, number: int, application: str) -> Event:
    """Something that is said about an order; `number` makes its id and its time."""
    at = SAID_FROM + timedelta(seconds=number)
    of: dict[str, Any] = {"order_id": order_id, "application": application}
    session = {"session_id": f"cs_{order_id}", "order_id": order_id, "customer": "c", "expected_amount": "10"}
    record = {"id": f"so_{order_id}", "order_id": order_id, "amount": "10"}
    name, paid = f"evt_{number}", {"id": f"so_{order_id}", "amount": "10", **of}
    match kind:
        case "paid":
            return said("order.paid", name, at=at, **paid)
        case "paid read":
            return said("order.paid", name, at=at, trust=Trust.READ, **paid)
        case "paid differently":
            return said("order.paid", name, at=at, **paid | {"amount": "12"})
        case "paid by 1" | "paid by 2":
            return said("order.paid", name, at=at, payment_id=f"pay_{kind[-1]}_{order_id}", **paid)
        case "read by 2":
            read = {**record, "status": "PAID", "payment": {"id": f"pay_2_{order_id}"}}
            return observed(f"order:{order_id}", number, read, at=at, application=application)
        case "test":
            return said("order.paid", name, at=at, livemode=False, **paid)
        case "unnamed":
            return said("order.paid", name, at=at, id=f"other_{order_id}", application=application)
        case "paid by the service's id":
            return said("order.paid", name, at=at, id=f"so_{order_id}", amount="10", application=application)
        case "money":
            payment = {"id": name, "status": "SUCCEEDED", "order": {"id": f"so_{order_id}"}}
            return observed(f"payment:{name}", number, payment, at=at, application=application)
        case "payment":
            payment = {"id": name, "status": "SUCCEEDED", "order_id": order_id}
            return observed(f"payment:{name}", number, payment, at=at, application=application)
        case "due":
            return own("fulfilment.read_due", f"order:{order_id}", {"due": at.isoformat()}, at=at,
                       application=application)  # fmt: skip
        case "expired":
            return said("order.expired", name, at=at, id=f"so_{order_id}", **of)
        case "completed":
            return said("checkout.session.completed", name, at=at, id=f"cs_{order_id}", **of)
        case "registered":
            return own("checkout.registered", f"order:{order_id}", session, at=at, application=application)
        case "read paid" | "read pending":
            status = kind.split()[1].upper()
            return observed(f"order:{order_id}", number, {**record, "status": status}, at=at, application=application)
        case "unreadable":
            return unreadable(f"order:{order_id}", number, at=at, application=application)
    data = {"by": "operator", "reason": "by hand"}
    return own(f"fulfilment.{kind}", f"order:{order_id}", data, at=at, application=application)


async def end(database: Database, application: str, happened: Sequence[tuple[str, str]], sizes: Sequence[int],
              matching: str) -> dict[str, list[str]]:  # fmt: skip
    """What is in the ledger when these came in batches of these sizes, the last one again and again."""
    live = Live(database, {"fulfilment": {"matching": matching}}, application=application)
    events = [event(kind, order_id, number, application) for number, (kind, order_id) in enumerate(happened)]
    for size in sizes:
        batch, events = events[:size], events[size:]
        if batch:
            await live.arrive(*batch)
    while events:
        batch, events = events[: sizes[-1]], events[sizes[-1] :]
        await live.arrive(*batch)
    await live.close()
    assert live.disturbed == [], "a batch is taken together, not one by one after it failed"
    found: dict[str, list[str]] = {}
    async with database.reading() as session:
        for name, (table, but) in TABLES.items():
            rows = await session.execute(select(table).where(table.c.application == application))
            found[name] = sorted(_comparable(row, but).replace(application, "") for row in rows.mappings())
    return found


def _comparable(row: Mapping[Any, Any], but: Sequence[str]) -> str:
    """As text, without what counts up, and without the times at which a batch was taken: what is said is said later."""
    hidden = {name for name, value in row.items() if isinstance(value, datetime) and value < SAID_FROM}
    return repr(dict(row) | dict.fromkeys({*hidden, *but}, ""))


def histories() -> st.SearchStrategy[list[tuple[str, str]]]:
    """What happened to three orders, in the order of the log."""
    return st.lists(st.tuples(st.sampled_from(KINDS), st.sampled_from("ABC")), min_size=2, max_size=14)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(happened=histories(), sizes=st.lists(st.integers(1, 7), min_size=1, max_size=5),
       matching=st.sampled_from(["auto", "off", "on", "read"]))  # fmt: skip
def test_any_split_ends_in_the_same_rows(
    shared_ledger: SharedLedger, happened: list[tuple[str, str]], sizes: list[int], matching: str
) -> None:
    singly = shared_ledger.runner.run(end(shared_ledger.database, next(shared_ledger.names), happened, [1], matching))
    other = shared_ledger.runner.run(end(shared_ledger.database, next(shared_ledger.names), happened, sizes, matching))
    assert other == singly


# case: G1, G2
async def test_on_both_databases_too(database: Database) -> None:
    """Known and unknown orders, the same one twice, one that is held, one whose payment was seen before."""
    happened = [("payment", "D"),
                ("registered", "A"), ("paid", "A"), ("paid", "B"), ("paid", "D"), ("paid differently", "C"),
                ("paid", "A"), ("expired", "B"), ("paid", "B"), ("registered", "C"), ("paid", "C"),
                ("paid by 1", "A"), ("paid by 2", "A"), ("paid by 1", "B"), ("paid by 2", "D")]  # fmt: skip
    singly = await end(database, "singly", happened, [1], "off")
    assert await end(database, "together", happened, [1, len(happened)], "off") == singly
    assert await end(database, "split", happened, [1, 2, 4], "off") == singly
    assert len(singly["outbox"]) == 4
    assert any("orphan_payment" in row for row in singly["findings"])
    double = [row for row in singly["findings"] if "duplicate_payment" in row]
    assert [one for one in "ABCD" if any(f"'{one}'" in row for row in double)] == ["A", "D"]


# case: F18, F19, F28, G1
async def test_reads_taken_together_are_what_they_are_singly(database: Database) -> None:
    """One whose money was seen before, one whose proof named it by the service's id, one that could not be read, one
    that a read contradicts, one nobody knew; and two that are read again. Then the timers of some of them."""
    before = [("money", "A"), ("money", "A"), ("paid by the service's id", "B"), ("unreadable", "C"), ("paid", "D"),
              ("paid", "E"), ("paid", "F"), ("money", "I")]  # fmt: skip
    reads = [("read paid", "A"), ("read pending", "B"), ("read paid", "C"), ("read pending", "D"), ("read paid", "G"),
             ("read paid", "A"), ("read paid", "D"), ("read pending", "H"), ("read pending", "A"),
             ("read pending", "I"), ("read paid", "I")]  # fmt: skip
    timers = [("due", "D"), ("due", "E"), ("due", "F"), ("due", "unknown")]
    happened = [*before, *reads, *timers]
    singly = await end(database, "singly", happened, [1], "auto")
    assert await end(database, "together", happened, [*[1] * len(before), len(reads), len(timers)], "auto") == singly
    assert await end(database, "split", happened, [*[1] * len(before), 4, 3], "auto") == singly
    assert sum("fulfilment.requested" in row for row in singly["outbox"]) == 8
    kinds = ("duplicate_payment", "orphan_payment", "paid_unidentified", "disagreement")
    assert {kind for kind in kinds if any(kind in row for row in singly["findings"])} == set(kinds)


async def test_a_proof_by_the_services_id_comes_after_the_one_that_shows_whose_it_is(database: Database) -> None:
    # case: F19, G1 (found by the property of `tests/access/test_rebuild.py`)
    happened = [("paid", "A"), ("paid by the service's id", "A"), ("paid by the service's id", "B"), ("paid", "B"),
                ("paid by the service's id", "B"), ("paid", "C")]  # fmt: skip
    singly = await end(database, "singly", happened, [1], "auto")
    assert await end(database, "together", happened, [len(happened)], "auto") == singly
    assert [row for row in singly["findings"] if "so_A" in row] == []
    assert len([row for row in singly["findings"] if "paid_unidentified" in row]) == 1


async def test_one_event_proves_one_of_two_orders_with_one_id_of_the_service(database: Database) -> None:
    # case: F19, G1
    live = Live(database, {"fulfilment": {"matching": "off"}}, application="default")
    reads = [observed(f"order:{one}", number, {"id": "so_X", "order_id": one, "status": "PENDING"})
             for number, one in enumerate("AB", 1)]  # fmt: skip
    await live.arrive(said("order.paid", "evt_1", id="so_X", amount="10"))
    await live.arrive(*reads)
    await live.close()
    async with database.reading() as session:
        outbox = OutboxRow.__table__
        keys = await session.scalars(select(outbox.c.key).where(outbox.c.type == "fulfilment.requested"))
        assert list(keys) == ["order:A"]


@pytest.mark.parametrize(
    ("reads", "parts"),
    [
        ([], []),
        ([("A", None), ("B", None)], ["AB"]),
        ([("A", "1"), ("B", "2"), ("A", "3"), ("B", "4"), ("C", "5")], ["AB", "ABC"]),
        ([("A", "1"), ("B", "1"), ("C", "1")], ["A", "B", "C"]),
        ([("A", "B"), ("B", "A")], ["AB"]),
        ([("A", None), ("B", None), ("A", None), ("C", None)], ["AB", "AC"]),
    ],
)
async def test_no_order_comes_twice_in_a_part_by_either_of_its_ids(
    reads: list[tuple[str, str | None]], parts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    async def apply_all(facts: Sequence[Fact]) -> list[Change]:
        seen.append("".join(fact.order_id for fact in facts))
        return [Change(Order(observed_version=9), Order(observed_version=9)) for _ in facts]

    async def nobody(*_: object) -> dict[str, Proof]:
        return {}

    monkeypatch.setattr(observing, "apply_all", apply_all)
    monkeypatch.setattr(observing, "proofs_by_service_id", nobody)

    def read(ours: str, theirs: str | None) -> Any:
        reading = Reading(version=1, status=None, service_order_id=theirs)
        return SimpleNamespace(order_id=ours, reading=reading, event=None, ctx=None, proof=None)

    batch = [read(ours, theirs) for ours, theirs in reads]
    await observing.observe(batch)
    assert seen == parts
