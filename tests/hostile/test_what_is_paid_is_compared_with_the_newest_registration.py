"""A further checkout of an order replaces what the older one should have cost, wholly and in any order of arrival."""

from __future__ import annotations

from datetime import timedelta

from consumer.events import Event
from consumer.ledger import Database
from handlers.fulfilment.order import Registration
from handlers.fulfilment.registration import register
from handlers.fulfilment.tables import FINDINGS, ORDERS
from tests.support.handling.projections import READS, START, Projections, observed, own, said


def orders_of(database: Database) -> Projections:
    return Projections(database, "handlers.fulfilment.handler", options={"matching": "off"})


def registered(session_id: str, minute: int, order_id: str = "A1", **more: str) -> Event:
    at = START + timedelta(minutes=minute)
    data = {"session_id": session_id, "order_id": order_id, **more}
    return own("checkout.registered", f"order:{order_id}", data, at=at, id_=f"drv_{session_id}_{minute}")


def paid(amount: str) -> Event:
    return said("order.paid", "evt_1", order_id="A1", amount=amount)


async def kinds(orders: Projections) -> list[str]:
    return [row["kind"] for row in await orders.rows(FINDINGS) if row["closed_at"] is None]


async def test_a_registration_by_price_forgets_the_older_amount(database: Database) -> None:
    # case: F21
    orders = orders_of(database)
    await orders.feed(registered("s1", 1, expected_amount="10.00"), registered("s2", 2), paid("50.00"))
    assert len(orders.of_type("fulfilment.requested")) == 1
    assert await kinds(orders) == []


async def test_a_newer_amount_counts_and_holds_what_was_paid_less(database: Database) -> None:
    # case: F21
    orders = orders_of(database)
    amounts = ({"expected_amount": "10.00"}, {"expected_amount": "50.00"})
    await orders.feed(registered("s1", 1, **amounts[0]), registered("s2", 2, **amounts[1]), paid("10.00"))
    assert orders.emitted == []
    assert await kinds(orders) == ["amount_mismatch"]


async def test_registrations_worked_off_in_the_wrong_order_end_the_same(database: Database) -> None:
    # case: F21, G1
    orders = orders_of(database)
    await orders.feed(registered("s2", 2, expected_amount="50.00"), registered("s1", 1, expected_amount="10.00"))
    assert (await orders.row(ORDERS))["expected_amount"] == "50.00"
    await orders.feed(registered("s2", 1, expected_amount="7.00"))
    assert (await orders.row(ORDERS))["expected_amount"] == "50.00", "an older word on the same session"


async def test_what_is_said_of_another_order_since_then_is_of_no_account(database: Database) -> None:
    # case: F21
    orders = orders_of(database)
    await orders.feed(registered("s2", 2, "A2", expected_amount="50.00"), registered("s1", 1, expected_amount="10.00"))
    assert (await orders.row(ORDERS, order_id="A1"))["expected_amount"] == "10.00"


async def test_a_registration_counts_at_once_before_its_event_is_worked_off(database: Database) -> None:
    # case: F20, F21
    orders = orders_of(database)
    newest = {"s1": "10.00", "s2": None, "s3": "50.00", "s4": None}
    for minute, (session_id, amount) in enumerate(newest.items()):
        said_now = Registration(session_id=session_id, expected_amount=amount)
        async with database.transaction() as session:
            await register(session, "default", "A1", said_now, START + timedelta(minutes=minute))
        row = await orders.row(ORDERS)
        assert (row["session_id"], row["expected_amount"], row["registered_at"]) == (session_id, amount, START)
        assert row["observed_version"] == 0, "no read has shown it"
    await orders.feed(paid("50.00"))
    assert len(orders.of_type("fulfilment.requested")) == 1


async def test_a_payment_of_the_older_session_is_shown(database: Database) -> None:
    # case: F21, F28
    orders = orders_of(database)
    await orders.feed(registered("s1", 1, expected_amount="10.00"), registered("s2", 2), paid("10.00"))
    assert len(orders.of_type("fulfilment.requested")) == 1
    assert await kinds(orders) == ["paid_old_session"]


async def test_a_completed_session_whose_order_still_reads_pending_is_read_again(database: Database) -> None:
    # case: F5, U30
    orders = orders_of(database)
    await orders.feed(said("checkout.session.completed", "evt_1", id="cs_1", order_id="A1"))
    waits = []
    for version, minute in enumerate((0, 1, 2, 60, 60 * 24 * 3), 1):
        await orders.forget_reads()
        at = START + timedelta(minutes=minute)
        await orders.feed(observed("order:A1", version, {"status": "PENDING", "order_id": "A1"}, at=at))
        [read] = await orders.rows(READS)
        assert (read["kind"], read["object_id"]) == ("order", "A1")
        waits.append((read["due_at"] - at) / timedelta(minutes=1))
    assert waits == [1, 1, 2, 60, 60 * 24], "as long as it is since the session was completed, a day at most"
    await orders.forget_reads()
    await orders.feed(observed("order:A1", 9, {"status": "PAID", "order_id": "A1"}))
    assert await orders.asked() == set()
    assert len(orders.of_type("fulfilment.requested")) == 1


async def test_an_order_whose_session_is_open_is_not_read_again_and_again(database: Database) -> None:
    orders = orders_of(database)
    await orders.feed(said("checkout.session.expired", "evt_1", id="cs_1", order_id="A1"))
    await orders.forget_reads()
    await orders.feed(observed("order:A1", 1, {"status": "PENDING", "order_id": "A1"}))
    assert await orders.asked() == set()
