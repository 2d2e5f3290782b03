"""Two workers, two proofs of one order, at the same moment: one fulfilment, decided by the database."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from consumer.errors import LedgerUnavailable
from consumer.events import Event
from consumer.ledger import Database
from handlers.fulfilment.tables import FINDINGS, ORDERS, PAYMENTS
from tests.fulfilment.confirmed import said
from tests.support.handling.live import Live
from tests.support.handling.projections import OUTBOX, Projections, observed, own, unreadable
from tests.support.handling.projections import said as signed

MODULE = "handlers.fulfilment.handler"


async def test_proofs_that_race_make_one_request(database: Database) -> None:
    # case: F3, F4, G2
    workers = [Projections(database, MODULE, options={"matching": "off"}) for _ in range(4)]
    for number in range(10):
        order = f"A{number}"
        await asyncio.gather(
            workers[0].feed(said("order.paid", f"evt_{number}a", id=f"so{number}", order_id=order)),
            workers[1].feed(said("order.paid", f"evt_{number}b", id=f"so{number}", order_id=order)),
            workers[2].feed(observed(f"order:{order}", number + 1, {"id": f"so{number}", "status": "PAID"})),
            workers[3].feed(said("order.paid", f"evt_{number}a", id=f"so{number}", order_id=order)),
        )
    requests = await workers[0].rows(OUTBOX, type="fulfilment.requested")
    assert sorted(row["key"] for row in requests) == sorted(f"order:A{number}" for number in range(10))
    assert sum(len(worker.emitted) for worker in workers) == 10, "only one worker even tried"
    assert len(await workers[0].rows(ORDERS)) == 10


async def test_batches_that_cross_each_other_end_well(database: Database) -> None:
    # case: F3, F28, G2
    """Of the same orders, half of them known, in opposite order, beside the payments of all: no batch is lost to the
    other's locks, and what both prove is asked for once."""
    workers = [Live(database, {"fulfilment": {"matching": "off"}}, application="default") for _ in range(3)]
    names = [f"A{number:02}" for number in range(20)]
    await workers[0].arrive(*[order_event("expired", f"evt_x{one}", one) for one in names[::2]])
    await workers[0].arrive(
        *[observed(f"order:{one}", 1, {"id": f"so{one}", "status": "PENDING"}) for one in names[::2]]
    )
    first = [order_event("paid", f"evt_a{one}", one) for one in names]
    second = [order_event("paid", f"evt_b{one}", one) for one in reversed(names)]
    paid = [observed(f"payment:p{one}", 100 + number, {"id": f"p{one}", "status": "SUCCEEDED", "order_id": one})
            for number, one in enumerate(names)]  # fmt: skip
    try:
        await asyncio.gather(
            *[_until_taken(worker, batch) for worker, batch in zip(workers, (first, second, paid), strict=True)]
        )
        await workers[0].pass_time(seconds=120)
        assert await workers[0].unfinished() == []
    finally:
        for worker in workers:
            await worker.close()
    seen = Projections(database, MODULE)
    requests = await seen.rows(OUTBOX, type="fulfilment.requested")
    assert sorted(row["key"] for row in requests) == [f"order:{one}" for one in names]
    assert len(await seen.rows(PAYMENTS)) == 20
    assert [row for row in await seen.rows(FINDINGS) if row["closed_at"] is None] == []


def order_event(word: str, event_id: str, order_id: str) -> Event:
    return signed(f"order.{word}", event_id, id=f"so{order_id}", order_id=order_id)


async def _until_taken(worker: Live, batch: Sequence[Event]) -> None:
    """As a worker does: what the database cut short comes again."""
    for _ in range(5):
        try:
            await worker.arrive(*batch)
        except LedgerUnavailable:
            continue
        return
    raise AssertionError("a batch never came through")


async def test_group_commits_that_cross_each_other_end_well(database: Database) -> None:
    # case: F3, G2
    workers = [Projections(database, MODULE, options={"matching": "off"}) for _ in range(2)]
    first = [said("order.paid", f"evt_a{number}", order_id=f"A{number}") for number in range(20)]
    second = [said("order.paid", f"evt_b{number}", order_id=f"A{number}") for number in range(20)]
    await asyncio.gather(workers[0].feed_together(first), workers[1].feed_together(second))
    assert len(await workers[0].rows(OUTBOX, type="fulfilment.requested")) == 20


@pytest.mark.parametrize("proof", ["event", "read"])
async def test_payment_and_proof_that_race_leave_no_false_orphan(database: Database, proof: str) -> None:
    # case: F28
    workers = [Projections(database, MODULE, options={"matching": "off"}) for _ in range(2)]
    for number in range(5):
        order = f"A{number}"
        record = {"id": f"p{number}", "status": "SUCCEEDED", "order_id": order}
        paid = (
            said("order.paid", f"evt_{number}", order_id=order)
            if proof == "event"
            else observed(f"order:{order}", number + 1, {"status": "PAID"})
        )
        await asyncio.gather(
            workers[0].feed(observed(f"payment:p{number}", number + 100, record)), workers[1].feed(paid)
        )
    assert len(await workers[0].rows(PAYMENTS)) == 5
    assert [row for row in await workers[0].rows(FINDINGS) if row["closed_at"] is None] == []


async def test_two_payments_that_race_are_a_duplicate(database: Database) -> None:
    # case: F29
    workers = [Projections(database, MODULE, options={"matching": "off"}) for _ in range(2)]
    await workers[0].feed(said("order.paid", "evt_1", order_id="A1"))
    both = [observed(f"payment:p{n}", n, {"id": f"p{n}", "status": "SUCCEEDED", "order_id": "A1"}) for n in (1, 2)]
    await asyncio.gather(workers[0].feed(both[0]), workers[1].feed(both[1]))
    found = await workers[0].row(FINDINGS)
    assert (found["kind"], found["detail"]) == ("duplicate_payment", {"payments": ["p1", "p2"]})


async def test_a_payment_its_session_and_its_order_that_race_leave_no_orphan_that_nobody_looks_for(
    database: Database,
) -> None:
    """A read of a session and one of its order come together: each may miss what the other just told."""
    # case: F28, U10, G1
    workers = [Projections(database, MODULE, options={"matching": "off"}) for _ in range(3)]
    orders = {f"A{number}": {"id": f"so{number}", "order_id": f"A{number}", "status": "PAID"} for number in range(5)}
    for number, (order, record) in enumerate(orders.items(), 1):
        money = {"id": f"p{order}", "status": "SUCCEEDED", "session_id": f"s{order}"}
        await asyncio.gather(
            workers[0].feed(observed(f"payment:p{order}", number, money)),
            workers[1].feed(observed(f"session:s{order}", number, {"id": f"s{order}", "order": record})),
            workers[2].feed(observed(f"order:{order}", number, record)),
        )
    for kind, one in await workers[0].asked():
        if kind == "order":
            await workers[0].feed(observed(f"order:{one}", 100, orders[one]))
    assert [row["order_id"] for row in await workers[0].rows(PAYMENTS)] == list(orders)
    assert [row for row in await workers[0].rows(FINDINGS) if row["closed_at"] is None] == []


async def test_an_order_registered_while_it_is_paid_is_fulfilled_once(database: Database) -> None:
    # case: F20
    workers = [Projections(database, MODULE, options={"matching": "on"}) for _ in range(2)]
    for number in range(10):
        order = f"A{number}"
        said_ = {"session_id": f"s{number}", "order_id": order}
        await asyncio.gather(
            workers[0].feed(said("order.paid", f"evt_{number}", order_id=order)),
            workers[1].feed(own("checkout.registered", f"order:{order}", said_)),
        )
    assert len(await workers[0].rows(OUTBOX, type="fulfilment.requested")) == 10
    assert [row for row in await workers[0].rows(FINDINGS) if row["closed_at"] is None] == []


async def test_answers_and_timers_that_race_make_one_request(database: Database) -> None:
    # case: F3, F20, F24
    workers = [Projections(database, MODULE) for _ in range(4)]
    for number in range(10):
        order = f"A{number}"
        await asyncio.gather(
            workers[0].feed(signed("order.paid", f"evt_{number}a", id=f"so{number}", order_id=order)),
            workers[1].feed(observed(f"order:{order}", 100 + number, {"id": f"so{number}", "status": "PENDING"})),
            workers[2].feed(unreadable(f"order:{order}", 50 + number)),
            workers[3].feed(signed("order.paid", f"evt_{number}b", id=f"so{number}", order_id=order)),
        )
    await workers[0].pass_time(seconds=5)
    requests = await workers[0].rows(OUTBOX, type="fulfilment.requested")
    assert sorted(row["key"] for row in requests) == sorted(f"order:A{number}" for number in range(10))
    assert [row["hold"] for row in await workers[0].rows(ORDERS)] == [None] * 10
