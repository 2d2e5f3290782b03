"""Money that does not fit: parked, held, double, orphaned. Shown to an operator, never dropped, never doubled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from itertools import permutations
from typing import Any

import pytest
from structlog.testing import capture_logs

from consumer.errors import ConsumerError
from consumer.events import Event
from consumer.ledger import Database
from handlers.findings import as_seen
from handlers.fulfilment import handler, lookups
from handlers.fulfilment.order import Registration
from handlers.fulfilment.registration import register, register_session
from handlers.fulfilment.store import LATE
from handlers.fulfilment.tables import CHECKOUTS, FINDINGS, ORDERS, PAYMENTS
from tests.fulfilment.confirmed import said
from tests.support.handling.projections import START, Projections, observed, own


def registered(order_id: str = "A1", session_id: str = "s1", id_: str = "", **said_: Any) -> Event:
    """The merchant registered a checkout."""
    data = {"session_id": session_id, "order_id": order_id, **said_}
    return own("checkout.registered", f"order:{order_id}", data, id_=id_ or f"drv_{order_id}_{session_id}")


def payment(id_: str, version: int, order_id: str | None = "A1", status: str = "SUCCEEDED", **more: Any) -> Event:
    """A payment as a read showed it."""
    record = {"id": id_, "status": status, **more} | ({"order_id": order_id} if order_id else {})
    return observed(f"payment:{id_}", version, record)


async def open_kinds(orders: Projections) -> set[tuple[str, str]]:
    return {(row["kind"], row["subject"]) for row in await orders.rows(FINDINGS) if row["closed_at"] is None}


async def test_an_unmatched_paid_order_is_parked_until_it_is_registered(
    orders_with: Callable[..., Projections],
) -> None:
    # case: F20
    orders = orders_with(matching="on")
    await orders.feed(said("order.paid", "evt_1", order_id="A1"), observed("order:A1", 1, {"status": "PAID"}))
    assert orders.emitted == []
    assert await open_kinds(orders) == {("paid_unmatched", "A1")}
    assert "problem" not in (await orders.row(FINDINGS))["detail"], "the service does not deny it"
    await orders.feed(registered(customer="c1"))
    [request] = orders.of_type("fulfilment.requested")
    assert request.data["customer"] == "c1"
    assert request.data["proof"]["event_id"] == "evt_1"
    assert await open_kinds(orders) == set()
    await orders.feed(said("order.paid", "evt_2", order_id="A1"), registered(id_="drv_again"))
    assert len(orders.emitted) == 1


async def test_a_registered_order_is_not_parked(orders_with: Callable[..., Projections]) -> None:
    # case: F20
    orders = orders_with(matching="on")
    await orders.feed(registered(), said("order.paid", "evt_1", order_id="A1"))
    assert len(orders.emitted) == 1


async def test_a_wrong_amount_is_held_and_an_operator_releases_it(orders: Projections) -> None:
    # case: F21
    await orders.feed(registered(expected_amount="10.00"))
    with capture_logs() as logs:
        await orders.feed(said("order.paid", "evt_1", order_id="A1", amount="9.99"))
    assert [(one["event"], one["finding"]) for one in logs] == [("paid_order_held", "amount_mismatch")]
    assert orders.emitted == []
    assert await open_kinds(orders) == {("amount_mismatch", "A1")}
    detail = (await orders.row(FINDINGS))["detail"]
    assert detail == {"expected_amount": "10.00", "amount": "9.99"}
    await orders.feed(own("fulfilment.released", "order:A1", {"by": "op", "reason": "agreed"}))
    assert len(orders.of_type("fulfilment.requested")) == 1
    assert await open_kinds(orders) == set()


async def test_the_right_amount_in_another_spelling_is_right(orders: Projections) -> None:
    # case: F21
    items = [{"name": "a", "quantity": 1, "amount": "999"}]
    await orders.feed(registered(expected_amount="10"))
    paid = said("order.paid", "evt_1", order_id="A1", amount="10.000000", service_fee="0.30", line_items=items)
    await orders.feed(paid)
    assert len(orders.emitted) == 1


@pytest.mark.parametrize(
    "amount", ["NaN", "Infinity", "1e1", "ten", "", "10 USDC", 10, 10.0, {"value": "10"}, ["10"], True]
)
@pytest.mark.parametrize("by", ["event", "read"])
async def test_an_amount_that_cannot_be_compared_is_held_and_shown(
    orders: Projections, amount: object, by: str
) -> None:
    # case: F21
    await orders.feed(registered(expected_amount="10"))
    if by == "event":
        await orders.feed(said("order.paid", "evt_1", order_id="A1", amount=amount))
    else:
        await orders.feed(observed("order:A1", 1, {"status": "PAID", "amount": amount}))
    assert orders.emitted == []
    assert await open_kinds(orders) == {("amount_mismatch", "A1")}
    assert (await orders.row(FINDINGS))["detail"]["problem"] == "the amount cannot be compared"
    await orders.feed(own("fulfilment.released", "order:A1", {"by": "op", "reason": "looked at it"}))
    [request] = orders.of_type("fulfilment.requested")
    assert request.data["amount"] is None, "what is no amount is not handed on as one"


async def test_an_amount_that_nobody_says_is_not_waited_on(orders: Projections) -> None:
    # case: F21
    await orders.feed(registered(expected_amount="10"), said("order.paid", "evt_1", order_id="A1", amount=None))
    assert len(orders.of_type("fulfilment.requested")) == 1


async def test_an_amount_that_nobody_expects_is_not_judged(orders: Projections) -> None:
    # case: F21
    await orders.feed(said("order.paid", "evt_1", order_id="A1", amount="a lot"))
    assert len(orders.of_type("fulfilment.requested")) == 1


async def test_a_read_that_corrects_the_amount_lets_it_go(orders: Projections) -> None:
    # case: F21
    await orders.feed(registered(expected_amount="10"), said("order.paid", "evt_1", order_id="A1", amount="1"))
    assert orders.emitted == []
    await orders.feed(observed("order:A1", 1, {"status": "PAID", "amount": "10"}))
    assert len(orders.emitted) == 1
    assert await open_kinds(orders) == set()


async def test_a_payloads_wrong_amount_has_the_order_read(orders: Projections) -> None:
    # case: F21
    await orders.feed(registered(expected_amount="10"), said("order.paid", "evt_1", order_id="A1", amount="10.30"))
    assert await orders.asked() == {("order", "A1")}, "a payload may count otherwise; the record decides"
    await orders.forget_reads()
    await orders.feed(observed("order:A1", 1, {"status": "PAID", "amount": "10.30"}))
    assert await orders.asked() == set()
    assert await open_kinds(orders) == {("amount_mismatch", "A1")}


async def test_a_report_of_a_wrong_amount_closes_when_it_is_right(orders: Projections) -> None:
    # case: F21
    await orders.feed(registered(expected_amount="10"), said("order.paid", "evt_1", order_id="A1"))
    await orders.feed(observed("order:A1", 1, {"status": "PAID", "amount": "4"}))
    await orders.feed(observed("order:A1", 2, {"status": "PAID", "amount": "10"}))
    assert await open_kinds(orders) == set()
    assert len(orders.emitted) == 1


async def test_a_wrong_amount_seen_after_fulfilment_is_reported(orders: Projections) -> None:
    # case: F21
    await orders.feed(registered(expected_amount="10"), said("order.paid", "evt_1", order_id="A1"))
    await orders.feed(observed("order:A1", 1, {"status": "PAID", "amount": "4"}))
    assert len(orders.emitted) == 1
    assert await open_kinds(orders) == {("amount_mismatch", "A1")}
    assert (await orders.row(FINDINGS))["detail"]["seen"] == LATE


async def test_an_order_that_is_registered_after_it_went_out_is_reported_as_that(orders: Projections) -> None:
    # case: F21
    await orders.feed(said("order.paid", "evt_1", order_id="A1", amount="1.00"))
    assert len(orders.of_type("fulfilment.requested")) == 1
    await orders.feed(registered(expected_amount="99.00"))
    assert len(orders.of_type("fulfilment.requested")) == 1
    detail = (await orders.row(FINDINGS))["detail"]
    assert detail == {"expected_amount": "99.00", "amount": "1.00", "seen": LATE}


async def test_a_registration_is_compared_although_it_is_written_before_its_event(orders: Projections) -> None:
    # case: F21
    await orders.feed(said("order.paid", "evt_1", order_id="A1", amount="1.00"))
    for session_id, expected in (("s1", "99.00"), ("s2", "1")):
        async with orders.database.transaction() as session:  # as the query API and the client of a plugin do
            terms = Registration(session_id=session_id, expected_amount=expected, mode="payment")
            await register(session, "default", "A1", terms, START)
        await orders.feed(registered(session_id=session_id, expected_amount=expected))
        row = await orders.row(FINDINGS)
        assert row["detail"] == {"expected_amount": "99.00", "amount": "1.00", "seen": LATE}
        assert (row["closed_at"] is None) == (expected == "99.00"), "the newest registration counts"
    assert len(orders.of_type("fulfilment.requested")) == 1


async def test_what_a_held_order_should_have_cost_is_told_as_registered_last(orders: Projections) -> None:
    # case: F21
    await orders.feed(registered(expected_amount="99.00"), said("order.paid", "evt_1", order_id="A1", amount="1.00"))
    await orders.feed(registered(session_id="s2", expected_amount="50.00"))
    assert (await orders.row(ORDERS))["hold"] == "amount_mismatch"
    assert (await orders.row(FINDINGS))["detail"] == {"expected_amount": "50.00", "amount": "1.00"}


IN_FULL = {"one too small": ("1", ["amount_mismatch"]), "the same": ("100.0", []), "with the fee": ("101", []),
           "not shown": (None, []), "no decimal": (100, [])}  # fmt: skip


@pytest.mark.parametrize("order", list(permutations(range(4))), ids=lambda order: "".join(map(str, order)))
async def test_what_alone_a_payment_shows_is_compared_with_what_was_registered(
    orders_with: Callable[..., Projections], order: tuple[int, ...]
) -> None:
    """It was shipped for a hundredth of its price, and nobody was told (a link whose price was tampered with)."""
    # case: F21, F38, G1
    orders = orders_with(matching="off")
    told = [registered(expected_amount="100"), said("order.paid", "evt_1", order_id="A1"), payment("p1", 1, amount="1"),
            read_paid(2)]  # fmt: skip
    await orders.feed(*(told[number] for number in order))
    is_out = min(order.index(1), order.index(3)) < max(order.index(0), order.index(2))
    row, found = await orders.row(ORDERS), await orders.row(FINDINGS, kind="amount_mismatch")
    assert (row["hold"], len(orders.of_type("fulfilment.requested"))) == (None, 1), "a payment holds nothing"
    assert (found["closed_at"], found["detail"].get("seen")) == (None, LATE if is_out else None)
    assert (found["detail"]["expected_amount"], found["detail"]["amount"]) == ("100", "1")
    assert await open_kinds(orders) == {("amount_mismatch", "A1")}


@pytest.mark.parametrize("paid", IN_FULL)
@pytest.mark.parametrize("shown", [None, "100"])
@pytest.mark.parametrize("payment_first", [True, False])
async def test_what_is_no_smaller_payment_is_no_finding(
    orders: Projections, paid: str, shown: str | None, payment_first: bool
) -> None:
    # case: F21
    amount, kinds = IN_FULL[paid]
    told = [payment("p1", 1, amount=amount), read_paid(2, amount=shown)]
    await orders.feed(registered(expected_amount="100"), *(told if payment_first else reversed(told)))
    expected = [] if shown else kinds
    assert [kind for kind, _ in await open_kinds(orders)] == expected
    assert len(orders.of_type("fulfilment.requested")) == 1


async def test_a_second_payment_that_is_large_enough_ends_the_finding(orders: Projections) -> None:
    # case: F21, F29
    await orders.feed(registered(expected_amount="100"), payment("p1", 1, amount="1"), read_paid(2))
    assert await open_kinds(orders) == {("amount_mismatch", "A1")}
    await orders.feed(payment("p2", 3, amount="100"))
    assert await open_kinds(orders) == {("duplicate_payment", "A1")}


@pytest.mark.parametrize("expected", ["100", "1"])
async def test_one_that_waited_for_its_registration_is_compared_as_it_goes(
    orders_with: Callable[..., Projections], expected: str
) -> None:
    # case: F20, F21
    orders = orders_with(matching="on")
    await orders.feed(payment("p1", 1, amount="1"), said("order.paid", "evt_1", order_id="A1"))
    assert orders.of_type("fulfilment.requested") == []
    await orders.feed(registered(expected_amount=expected))
    assert len(orders.of_type("fulfilment.requested")) == 1
    assert await open_kinds(orders) == ({("amount_mismatch", "A1")} if expected == "100" else set())


async def test_a_payment_alone_is_no_change_of_its_order(orders: Projections) -> None:
    """The trail of an order that was paid before this was kept does not have it: a rebuild goes by that."""
    # case: G9, G12
    await orders.feed(registered(expected_amount="1"), said("order.paid", "evt_1", order_id="A1"))
    before = len(orders.notes)
    await orders.feed(payment("p1", 1, amount="1"))
    assert ((await orders.row(ORDERS))["paid_amount"], len(orders.notes)) == ("1", before)


async def test_two_payments_of_one_order_are_one_fulfilment_and_a_report(orders: Projections) -> None:
    # case: F29
    await orders.feed(said("order.paid", "evt_1", order_id="A1"), payment("p1", 1), payment("p2", 2), payment("p1", 3))
    assert len(orders.of_type("fulfilment.requested")) == 1
    found = await orders.row(FINDINGS)
    assert (found["kind"], found["subject"], found["detail"]) == ("duplicate_payment", "A1", {"payments": ["p1", "p2"]})


def paid_by(payment_id: str | None, number: int, **more: Any) -> Event:
    """An `order.paid` that shows by which payment."""
    shown: dict[str, Any] = {"payment_id": payment_id} if payment_id else {}
    return said("order.paid", f"evt_{number}", order_id="A1", **shown, **more)


def read_paid(version: int, **shown: Any) -> Event:
    """A read that says PAID."""
    return observed("order:A1", version, {"status": "PAID", **shown})


SECONDS = {
    "an event": lambda: [paid_by("p1", 1), paid_by("p2", 2)],
    "the same event again": lambda: [paid_by("p1", 1), paid_by("p2", 2), paid_by("p2", 3), paid_by("p1", 4)],
    "a read": lambda: [paid_by("p1", 1), read_paid(1, payment={"id": "p2"})],
    "an event after a read": lambda: [read_paid(1, payment_id="p1"), paid_by("p2", 1)],
    "a read after an event that shows none": lambda: [
        paid_by(None, 1),
        payment("p1", 1),
        read_paid(2, payment_id="p2"),
    ],
    "a payment": lambda: [paid_by("p1", 1), payment("p2", 1)],
    "an event after a payment": lambda: [payment("p1", 1), paid_by("p2", 1)],
    "an event that names the service's order": lambda: [
        said("order.paid", "evt_1", id="so1", payment_id="p2"),
        read_paid(1, id="so1", order_id="A1", payment_id="p1"),
    ],
}
"""By what the second payment is heard of, and not by the list of payments."""


@pytest.mark.parametrize("second", SECONDS)
async def test_a_second_payment_is_found_when_its_event_or_its_read_comes(database: Database, second: str) -> None:
    # case: F4, F29
    orders = Projections(database, "handlers.fulfilment.handler", options={"matching": "off"})
    await orders.feed(*SECONDS[second]())
    assert len(orders.of_type("fulfilment.requested")) == 1
    assert await open_kinds(orders) == {("duplicate_payment", "A1")}
    found = await orders.row(FINDINGS, kind="duplicate_payment")
    assert found["detail"] == {"payments": ["p1", "p2"]}

    await orders.feed(payment("p1", 8, amount="10"), payment("p2", 9, amount="10"))  # the list tells it, too
    assert await orders.row(FINDINGS, kind="duplicate_payment") == found
    rows = await orders.rows(PAYMENTS)
    assert [(row["payment_id"], row["order_id"]) for row in rows] == [("p1", "A1"), ("p2", "A1")]
    refunded = {"kind": "duplicate_payment", "by": "op", "reason": "refunded"}
    await orders.feed(own("fulfilment.finding_closed", "object:A1", refunded), paid_by("p2", 9), read_paid(9))
    assert await open_kinds(orders) == set(), "once"


NO_SECONDS = {
    "the same payment": lambda: [
        paid_by("p1", 1),
        paid_by("p1", 2),
        read_paid(1, payment={"id": "p1"}),
        payment("p1", 2),
    ],
    "none shown": lambda: [paid_by(None, 1), paid_by(None, 2), read_paid(1), payment("p1", 2)],
    "none shown by the second": lambda: [paid_by("p1", 1), paid_by(None, 2), read_paid(1, payment={"id": {}})],
    "one that did not pay": lambda: [
        paid_by("p1", 1),
        observed("order:A1", 1, {"status": "PENDING", "payment_id": "p2"}),
    ],
    "a test": lambda: [paid_by("p1", 1), paid_by("p2", 2, livemode=False)],
}


@pytest.mark.parametrize("shown", NO_SECONDS)
async def test_what_shows_no_second_payment_concludes_nothing(database: Database, shown: str) -> None:
    # case: F4, F29
    orders = Projections(database, "handlers.fulfilment.handler", options={"matching": "off"})
    await orders.feed(*NO_SECONDS[shown]())
    assert len(orders.of_type("fulfilment.requested")) == 1
    assert not [row for row in await orders.rows(FINDINGS) if row["kind"] == "duplicate_payment"]


async def test_what_a_payment_cost_is_known_although_an_event_named_it_first(orders: Projections) -> None:
    # case: F29
    await orders.feed(paid_by("p1", 1), paid_by("p2", 2), payment("p2", 1, amount="10", order={"id": "so1"}))
    row = await orders.row(PAYMENTS, payment_id="p2")
    assert (row["amount"], row["service_order_id"]) == ("10", "so1")


async def test_a_payment_without_a_paid_order_is_an_orphan_until_the_order_is_paid(orders: Projections) -> None:
    # case: F28, B33
    await orders.feed(payment("p1", 1))
    assert orders.of_type("fulfilment.requested") == []
    assert await open_kinds(orders) == {("orphan_payment", "A1")}
    assert await orders.asked() == {("order", "A1")}
    await orders.feed(said("order.paid", "evt_1", order_id="A1"))
    assert await open_kinds(orders) == set()
    assert len(orders.of_type("fulfilment.requested")) == 1


async def test_a_late_payment_beside_a_newer_session_fulfils_when_the_order_is_paid_and_is_told_until_then(
    orders: Projections,
) -> None:
    # case: U13, F28
    await orders.feed(
        said("checkout.session.expired", "evt_1", id="s1", order_id="A1"),
        registered(session_id="s2"),
        payment("p1", 1, session_id="s1"),
        observed("order:A1", 1, {"status": "PENDING"}),
    )
    assert orders.of_type("fulfilment.requested") == []
    assert await open_kinds(orders) == {("orphan_payment", "A1")}
    await orders.feed(observed("order:A1", 2, {"status": "PAID"}))
    assert len(orders.of_type("fulfilment.requested")) == 1
    assert await open_kinds(orders) == set()


async def test_a_payment_of_nothing_we_know_is_an_orphan(orders: Projections) -> None:
    # case: F28, B33
    await orders.feed(payment("p1", 1, order_id=None))
    assert await open_kinds(orders) == {("orphan_payment", "p1")}


async def test_a_payment_keeps_the_order_that_it_was_once_said_to_be_of(orders: Projections) -> None:
    # case: F28
    await orders.feed(payment("p1", 1), payment("p1", 2, order_id=None))
    assert await open_kinds(orders) == {("orphan_payment", "A1")}


async def test_a_payment_that_names_the_services_order_finds_it_by_a_read(orders: Projections) -> None:
    # case: F28, F29
    await orders.feed(payment("p1", 1, order_id=None, order={"id": "so1"}))
    assert await open_kinds(orders) == {("orphan_payment", "p1")}
    assert await orders.asked() == {("service_order", "so1")}
    await orders.feed(observed("order:A1", 2, {"id": "so1", "order_id": "A1", "status": "PAID"}))
    assert await open_kinds(orders) == set()
    await orders.feed(payment("p2", 3, order_id=None, order={"id": "so1"}))
    assert await open_kinds(orders) == {("duplicate_payment", "A1")}


async def test_a_payment_whose_order_id_is_the_services_is_of_that_order(orders: Projections) -> None:
    # case: F28, F29, U10
    await orders.feed(observed("order:A1", 1, {"id": "so1", "order_id": "A1", "status": "PAID"}))
    await orders.feed(payment("p1", 2, order_id="so1"))
    assert [(row["order_id"], row["service_order_id"]) for row in await orders.rows(PAYMENTS)] == [("A1", "so1")]
    assert [row["order_id"] for row in await orders.rows(ORDERS)] == ["A1"], "no order is invented"
    assert await open_kinds(orders) == set()
    await orders.feed(payment("p2", 3, order_id="so1"))
    assert await open_kinds(orders) == {("duplicate_payment", "A1")}


async def test_one_that_came_before_its_order_is_of_it_too(orders: Projections) -> None:
    """It stayed an orphan of an order that nobody has, with the advice to give the money back."""
    # case: F28, F29, U10
    await orders.feed(payment("p1", 1, order_id="so1"))
    assert await open_kinds(orders) == {("orphan_payment", "so1")}
    await orders.feed(said("order.paid", "evt_1", order_id="A1"))
    await orders.feed(observed("order:A1", 2, {"id": "so1", "order_id": "A1", "status": "PAID"}))
    assert await open_kinds(orders) == set()
    assert [(row["order_id"], row["service_order_id"]) for row in await orders.rows(PAYMENTS)] == [("A1", "so1")]
    assert [row["order_id"] for row in await orders.rows(ORDERS)] == ["A1"]
    await orders.feed(own("order.unreadable", "order:so1", {"order_id": "so1", "version": 3}, id_="drv_unreadable"))
    await orders.feed(payment("p1", 4, order_id="so1"), payment("p2", 5, order_id="so1"))
    assert await open_kinds(orders) == {("duplicate_payment", "A1")}
    assert len(orders.of_type("fulfilment.requested")) == 1


@pytest.mark.parametrize("read", range(5), ids=lambda place: f"read after {place}")
async def test_two_that_their_proofs_named_are_of_that_order_whatever_their_records_name(
    orders_with: Callable[..., Projections], read: int
) -> None:
    """An order that nobody has was invented, with a finding about no payment that nothing closed."""
    # case: F29, U10, G1
    orders = orders_with(matching="off")
    told = [paid_by("p1", 1), paid_by("p2", 2), payment("p1", 1, order_id="so1"), payment("p2", 2, order_id="so1")]
    await orders.feed(*told[:read], read_paid(3, id="so1", order_id="A1"), *told[read:])
    assert await open_kinds(orders) == {("duplicate_payment", "A1")}
    assert [row["order_id"] for row in await orders.rows(ORDERS)] == ["A1"]
    assert [row["order_id"] for row in await orders.rows(PAYMENTS)] == ["A1", "A1"]


async def test_one_that_was_said_to_be_of_another_order_meanwhile_is_no_finding_of_none(
    orders: Projections, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case: F29, U10
    await orders.feed(paid_by("p1", 1), paid_by("p2", 2))
    real = lookups.order_named
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(handler, "order_named", lambda ctx, _, *named: real(ctx, "not seen yet", *named))
        await orders.feed(payment("p1", 1, order_id="so1"))
    assert await open_kinds(orders) == {("duplicate_payment", "A1")}


async def test_one_that_came_while_its_order_was_read_is_of_it_too(
    orders: Projections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had been looked up before that read was stored: the read found no payment to take, and nobody read again."""
    # case: F28, U10
    show = observed("order:A1", 1, {"id": "so1", "order_id": "A1", "status": "PAID"})
    await orders.feed(said("order.paid", "evt_1", order_id="A1"), show)
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(lookups, "order_of_service_id", lambda *_: asyncio.sleep(0))
        await orders.feed(payment("p1", 2, order_id="so1"))
    assert await open_kinds(orders) == {("orphan_payment", "so1")}
    assert await orders.asked() == {("order", "so1")}
    denied = own("order.unreadable", "order:so1", {"order_id": "so1", "version": 3}, id_="drv_unreadable")
    await orders.feed(denied)
    assert ("order", "A1") in await orders.asked()
    await orders.feed(observed("order:A1", 4, {"id": "so1", "order_id": "A1", "status": "PAID"}))
    assert await open_kinds(orders) == set()
    assert [row["order_id"] for row in await orders.rows(PAYMENTS)] == ["A1"]
    assert [row["order_id"] for row in await orders.rows(ORDERS)] == ["A1"]
    again = own("order.unreadable", "order:so1", {"order_id": "so1", "version": 5}, id_="drv_again")
    before = await orders.asked()
    await orders.feed(again)
    assert await orders.asked() == before, "there is no such order any more"


async def test_orders_that_name_each_other_are_not_asked_for_in_turn(orders: Projections) -> None:
    # case: U10, F24
    await orders.feed(said("order.paid", "evt_1", order_id="A1", id="A2"))
    await orders.feed(said("order.paid", "evt_2", order_id="A2", id="A1"))
    assert {row["service_order_id"] for row in await orders.rows(ORDERS)} == {"A1", "A2"}
    await orders.forget_reads()
    for one in ("A1", "A2"):
        denial = {"order_id": one, "version": 3}
        await orders.feed(own("order.unreadable", f"order:{one}", denial, id_=f"drv_unreadable_{one}"))
    assert "order" not in {kind for kind, _ in await orders.asked()}


TOLD = {
    "a registration": [registered("so1")],
    "a read": [observed("order:so1", 1, {"order_id": "so1", "status": "PENDING"})],
    "an event": [said("order.paid", "evt_1", order_id="so1")],
}


@pytest.mark.parametrize("told", TOLD)
async def test_an_order_that_anything_told_of_keeps_its_payments(orders: Projections, told: str) -> None:
    # case: F28, U10
    await orders.feed(payment("p1", 1, order_id="so1"), *TOLD[told])
    await orders.feed(observed("order:A1", 2, {"id": "so1", "order_id": "A1", "status": "PAID"}))
    assert [row["order_id"] for row in await orders.rows(PAYMENTS)] == ["so1"]
    assert {row["order_id"] for row in await orders.rows(ORDERS)} == {"A1", "so1"}


async def test_an_order_of_the_merchants_is_itself_whatever_the_service_calls_others(orders: Projections) -> None:
    # case: F28, U10
    await orders.feed(
        observed("order:A1", 1, {"id": "A2", "order_id": "A1", "status": "PAID"}),
        observed("order:A2", 1, {"id": "A1", "order_id": "A2", "status": "PENDING"}),
        payment("p1", 2, order_id="A2"),
    )
    assert await open_kinds(orders) == {("orphan_payment", "A2")}


async def test_a_read_claims_the_payments_of_its_order_alone(orders: Projections) -> None:
    # case: F28
    await orders.feed(
        payment("p1", 1, order_id=None, order={"id": "so1"}),
        payment("p2", 2, order_id=None, order={"id": "so2"}),
        payment("p3", 3, order_id="A3", order={"id": "so1"}),
        observed("order:A1", 4, {"id": "so1", "order_id": "A1", "status": "PAID"}),
    )
    of = {row["payment_id"]: row["order_id"] for row in await orders.rows(PAYMENTS)}
    assert of == {"p1": "A1", "p2": None, "p3": "A3"}


IN_S1 = {"a session": "session_id", "a checkout session": "checkout_session_id"}


@pytest.mark.parametrize("named", IN_S1.values(), ids=list(IN_S1))
async def test_a_payment_that_names_its_session_alone_is_of_its_order(orders: Projections, named: str) -> None:
    """Each of a shipped order was an orphan, with the advice to give the money back."""
    # case: F29, U10
    await orders.feed(
        said("checkout.session.completed", "evt_1", order_id="A1", id="s1"),
        said("order.paid", "evt_2", order_id="A1"),
        payment("p1", 1, order_id=None, **{named: "s1"}),
    )
    assert await open_kinds(orders) == set()
    assert [(row["order_id"], row["session_id"]) for row in await orders.rows(PAYMENTS)] == [("A1", "s1")]
    await orders.feed(payment("p2", 2, order_id=None, **{named: "s1"}))
    assert await open_kinds(orders) == {("duplicate_payment", "A1")}


SESSION = said("checkout.session.completed", "evt_1", order_id="A1", id="s1")
IN_A_SESSION = {
    "it, its session, the proof and a read": [SESSION, said("order.paid", "evt_2", order_id="A1"),
                                              observed("order:A1", 2, {"order_id": "A1", "status": "PAID"})],
    "it, the proof, its session": [said("order.paid", "evt_2", order_id="A1"), SESSION],
    "it, its session, a read": [SESSION, observed("order:A1", 2, {"order_id": "A1", "status": "PAID"})],
    "it, a read, its registration": [observed("order:A1", 2, {"order_id": "A1", "status": "PAID"}), registered()],
}  # fmt: skip


@pytest.mark.parametrize("then", IN_A_SESSION)
async def test_one_that_came_before_its_session_is_of_its_order_too(database: Database, then: str) -> None:
    # case: F28, U10
    orders = Projections(database, "handlers.fulfilment.handler", options={"matching": "off"})
    await orders.feed(payment("p1", 1, order_id=None, session_id="s1"))
    assert await open_kinds(orders) == {("orphan_payment", "p1")}
    assert (await orders.row(FINDINGS))["detail"] == {"payments": ["p1"], "session_id": "s1"}
    await orders.feed(*IN_A_SESSION[then])
    assert await open_kinds(orders) == set()
    assert [row["order_id"] for row in await orders.rows(PAYMENTS)] == ["A1"]
    assert [row["order_id"] for row in await orders.rows(ORDERS)] == ["A1"]


async def test_one_between_its_session_and_its_order_waits_for_a_read_of_that(orders: Projections) -> None:
    # case: F28, U10
    await orders.feed(SESSION)
    await orders.forget_reads()
    await orders.feed(payment("p1", 1, order_id=None, session_id="s1"))
    assert await orders.asked() == {("order", "A1"), ("session", "s1")}, "it may be a subscription's"
    await orders.feed(observed("order:A1", 2, {"order_id": "A1", "status": "PAID"}))
    assert await open_kinds(orders) == set()


def session_read(version: int = 9, **shown: Any) -> Event:
    """A read of session s1."""
    return observed("session:s1", version, {"id": "s1", "status": "COMPLETED", "url": None, **shown})


OF_A1 = {"order": {"id": "so1", "order_id": "A1", "status": "PAID"}}


@pytest.mark.parametrize("places", list(permutations(range(5))), ids=lambda places: "".join(map(str, places)))
async def test_one_whose_session_no_event_explained_is_of_the_order_that_a_read_shows(
    orders_with: Callable[..., Projections], places: tuple[int, ...]
) -> None:
    """Events carried ids only, or were lost: each was an orphan for ever, and a second payment two of them."""
    # case: F28, F29, U10, G1
    orders = orders_with(matching="off")
    told = [
        said("order.paid", "evt_1", id="so1"),
        session_read(1, **OF_A1),
        observed("order:A1", 2, {"id": "so1", "order_id": "A1", "status": "PAID"}),
        *(payment(f"p{number}", number, order_id=None, checkout_session_id="s1") for number in (1, 2)),
    ]
    await orders.feed(*(told[place] for place in places))
    assert await open_kinds(orders) == {("duplicate_payment", "A1")}
    assert [(row["order_id"], row["status"]) for row in await orders.rows(CHECKOUTS)] == [("A1", "COMPLETED")]
    assert [row["order_id"] for row in await orders.rows(ORDERS)] == ["A1"]
    assert len(orders.of_type("fulfilment.requested")) == 1


async def test_whose_a_session_is_is_asked_where_nobody_told_and_nowhere_else(orders: Projections) -> None:
    # case: U10, B23
    in_s1 = [payment(f"p{number}", number, order_id=None, session_id="s1") for number in (1, 2, 3)]
    await orders.feed(in_s1[0], in_s1[1])
    assert await orders.asked() == {("session", "s1")}, "one read for both"
    await orders.forget_reads()
    await orders.feed(session_read(3, **OF_A1))
    assert await orders.asked() == {("order", "A1")}, "its read may have come just before"
    await orders.feed(observed("order:A1", 4, {"id": "so1", "order_id": "A1", "status": "PAID"}))
    await orders.forget_reads()
    await orders.feed(in_s1[2], payment("p4", 4), payment("p5", 5, order_id=None))
    await orders.feed(payment("p6", 6, order_id=None, session_id="s1", subscription_id="sub1"))
    assert await orders.asked() == set()


async def test_a_seed_asks_for_no_session_and_no_order(orders: Projections) -> None:
    # case: B30
    orders.is_history = True
    await orders.feed(payment("p1", 1, order_id=None, session_id="s1"), SESSION)
    assert await orders.asked() == set()


async def test_a_read_of_a_session_overrules_nobody(orders: Projections) -> None:
    # case: U10, U29, F35
    await orders.feed(registered(), payment("p1", 1, order_id=None, session_id="s1"))
    elsewhere = {"order": {"order_id": "B2"}, "mode": "subscription", "status": "EXPIRED"}
    await orders.feed(session_read(2, **elsewhere), session_read(3, order=None, status={"odd": 1}))
    [row] = await orders.rows(CHECKOUTS)
    assert (row["order_id"], row["mode"], row["status"]) == ("A1", "payment", "EXPIRED")
    assert [row["order_id"] for row in await orders.rows(PAYMENTS)] == ["A1"]
    forged = said("session.observed", "evt_9", envelope={"data": {"record": elsewhere}})
    with pytest.raises(ConsumerError, match="does not send"):
        await orders.feed(forged)


@pytest.mark.parametrize("named", [{}, {"order_id": "O1"}], ids=["no order named", "an order named"])
@pytest.mark.parametrize("first", ["payment", "read"])
async def test_one_in_a_session_whose_read_says_that_it_is_a_subscriptions_is_no_orphan(
    orders: Projections, first: str, named: dict[str, Any]
) -> None:
    """Its event showed no mode: the runbook said to give a live subscription's money back."""
    # case: F22, B33, U10
    await orders.feed(said("checkout.session.completed", "evt_1", id="s1", **named))
    told = [payment("p1", 1, order_id=None, session_id="s1"), session_read(2, mode="subscription", order=None)]
    await orders.feed(told[0 if first == "payment" else 1])
    assert ("session", "s1") in await orders.asked() or first == "read"
    await orders.feed(told[1 if first == "payment" else 0])
    assert await open_kinds(orders) == set()
    assert await orders.rows(ORDERS) == []


async def test_one_in_a_subscriptions_session_makes_no_order(orders: Projections) -> None:
    # case: F22
    await orders.feed(SESSION, payment("p1", 1, order_id=None, session_id="s1"))
    assert await orders.rows(ORDERS) == []
    assert await open_kinds(orders) == {("orphan_payment", "p1")}


@pytest.mark.parametrize("first", ["payment", "session"])
@pytest.mark.parametrize("told", ["event", "registration"])
async def test_one_in_a_session_that_said_to_be_a_subscriptions_is_no_orphan(
    orders: Projections, first: str, told: str
) -> None:
    # case: F22, B33
    async def tell() -> None:
        if told == "registration":
            terms = Registration(session_id="s1", mode="subscription")
            async with orders.database.transaction() as session:  # as the query API does
                await register_session(session, "default", "A1", terms, START)
            await orders.feed(registered(mode="subscription"))
        else:
            await orders.feed(said("checkout.session.completed", "evt_1", order_id="A1", id="s1", mode="subscription"))

    if first == "session":
        await tell()
    await orders.feed(payment("p1", 1, order_id=None, session_id="s1"))
    if first == "payment":
        assert await open_kinds(orders) == {("orphan_payment", "p1")}
        await tell()
    assert await open_kinds(orders) == set()
    assert await orders.rows(ORDERS) == []


async def test_a_payment_that_names_an_order_is_of_that_whatever_its_session(orders: Projections) -> None:
    # case: F28
    await orders.feed(SESSION, said("order.paid", "evt_2", order_id="A1"))
    await orders.feed(payment("p1", 1, order_id="A2", session_id="s1"))
    assert [(row["order_id"], row["session_id"]) for row in await orders.rows(PAYMENTS)] == [("A2", None)]


async def test_a_payment_of_a_subscription_is_no_orphan(orders: Projections) -> None:
    # case: B33
    await orders.feed(payment("p1", 1, order_id=None, subscription_id="sub1"))
    assert await orders.rows(FINDINGS) == []
    assert await orders.rows(PAYMENTS) == []


@pytest.mark.parametrize("status", ["PENDING", "FAILED", "PROCESSING", "NEW_WORD"])
async def test_a_payment_that_did_not_succeed_says_nothing(orders: Projections, status: str) -> None:
    # case: F38
    await orders.feed(payment("p1", 1, status=status))
    assert await orders.rows(PAYMENTS) == []
    assert await orders.rows(ORDERS) == []
    assert orders.emitted == []


async def test_a_succeeded_payment_never_fulfils_by_itself(orders: Projections) -> None:
    # case: F38, F28
    await orders.feed(payment("p1", 1))
    assert orders.of_type("fulfilment.requested") == []
    assert (await orders.row(ORDERS))["paid_at"] is None


async def test_what_an_operator_closed_stays_closed(orders: Projections) -> None:
    # case: F28
    await orders.feed(payment("p1", 1, order_id=None))
    await orders.feed(
        own("fulfilment.finding_closed", "object:p1", {"kind": "orphan_payment", "by": "op", "reason": "refunded"})
    )
    assert await open_kinds(orders) == set()
    row = await orders.row(FINDINGS)
    assert (row["closed_by"], row["closed_reason"]) == ("op", "refunded")
    [note] = [one for one in orders.notes if one.action == "finding.closed"]
    assert (note.subject, note.before) == ("object:p1", {"kind": "orphan_payment"})
    assert note.after == {"by": "op", "reason": "refunded"}
    await orders.feed(payment("p1", 2, order_id=None))
    assert await open_kinds(orders) == set()


async def test_who_closed_a_finding_and_why_is_kept_as_far_as_there_is_room(orders: Projections) -> None:
    # case: F28
    await orders.feed(payment("p1", 1, order_id=None))
    closing = {"kind": "orphan_payment", "by": "o" * 101, "reason": "r" * 501}
    await orders.feed(own("fulfilment.finding_closed", "object:p1", closing))
    row = await orders.row(FINDINGS)
    assert (row["closed_by"], row["closed_reason"]) == ("o" * 100, "r" * 500)


async def test_a_finding_of_a_hold_is_as_old_as_the_proof(orders: Projections) -> None:
    # case: F21
    orders.now = START + timedelta(hours=1)
    await orders.feed(registered(expected_amount="10"), said("order.paid", "evt_1", order_id="A1", amount="9"))
    assert (await orders.row(FINDINGS))["opened_at"] == START


async def test_marked_paid_by_hand_and_then_by_event_is_one_effect(orders: Projections) -> None:
    # case: F37
    await orders.feed(own("fulfilment.marked_paid", "order:A1", {"by": "op", "reason": "support case"}))
    await orders.feed(said("order.paid", "evt_1", order_id="A1"), observed("order:A1", 1, {"status": "PAID"}))
    [request] = orders.of_type("fulfilment.requested")
    assert request.data["proof"]["type"] == "fulfilment.marked_paid"
    assert request.data["record"] is None, "an operator's word is no record of the service"
    assert len(orders.emitted) == 1
    assert orders.notes[0].after["proof_type"] == "fulfilment.marked_paid"


async def test_an_event_and_then_marked_paid_by_hand_is_one_effect(orders: Projections) -> None:
    # case: F37
    await orders.feed(said("order.paid", "evt_1", order_id="A1"))
    await orders.feed(own("fulfilment.marked_paid", "order:A1", {"by": "op"}))
    assert len(orders.emitted) == 1


OF_9 = said("order.paid", "evt_1", order_id="A1", amount="9")
NONE_LEFT = own("fulfilment.unfulfillable", "order:A1", {"by": "op", "reason": "sold out"})
HELD: list[tuple[str, str | None, list[Event]]] = [
    ("off", "amount_mismatch", [registered(expected_amount="10"), OF_9]),
    ("on", "unmatched", [OF_9]),
    ("read", "unconfirmed", [OF_9]),
    ("auto", "asked", [OF_9]),
    ("on", None, [OF_9, NONE_LEFT]),
]


@pytest.mark.parametrize(("matching", "hold", "given"), HELD)
async def test_who_marks_as_paid_what_was_paid_lets_nothing_go(
    orders_with: Callable[..., Projections], matching: str, hold: str | None, given: list[Event]
) -> None:
    # case: F21, F24, F33, F37
    orders = orders_with(matching=matching)
    await orders.feed(*given)
    before = await orders.row(ORDERS)
    assert before["hold"] == hold
    with capture_logs() as logs:
        await orders.feed(own("fulfilment.marked_paid", "order:A1", {"by": "op", "reason": "paid by wire"}))
    assert [(one["event"], one["type"], one["hold"]) for one in logs] == [
        ("order_left_alone", "fulfilment.marked_paid", hold)
    ]
    assert await orders.row(ORDERS) == before
    assert (orders.notes[-1].action, orders.of_type("fulfilment.requested")) == ("order.left_alone", [])
    await orders.feed(own("fulfilment.released", "order:A1", {"by": "op"}))
    assert len(orders.of_type("fulfilment.requested")) == 1, "there is a word for that"


async def test_what_is_marked_as_paid_goes_whatever_is_expected_of_it(
    orders_with: Callable[..., Projections],
) -> None:
    # case: F37, F21
    orders = orders_with(matching="on")
    await orders.feed(registered(expected_amount="10"), observed("order:A1", 1, {"status": "PENDING", "amount": "9"}))
    for order_id in ("A1", "nobody's"):
        await orders.feed(own("fulfilment.marked_paid", f"order:{order_id}", {"by": "op", "reason": "paid by wire"}))
    assert [one.key for one in orders.of_type("fulfilment.requested")] == ["order:A1", "order:nobody's"]


async def test_paid_without_stock_is_shown_and_stays_paid(orders: Projections) -> None:
    # case: F33
    await orders.feed(said("order.expired", "evt_1", order_id="A1"), said("order.paid", "evt_2", order_id="A1"))
    await orders.feed(own("fulfilment.unfulfillable", "order:A1", {"reason": "sold out"}))
    row = await orders.row(ORDERS)
    assert row["paid_at"] is not None
    assert row["unfulfillable_at"] is not None
    found = await orders.row(FINDINGS)
    assert (found["kind"], found["detail"]) == ("paid_unfulfillable", {"reason": "sold out"})


@pytest.mark.parametrize("word", ["fulfilment.released", "fulfilment.unfulfillable"])
async def test_a_word_about_another_hold_is_left_alone_and_noted(orders: Projections, word: str) -> None:
    # case: F21, F37
    told = {"session_id": "s1", "order_id": "A1", "expected_amount": "10"}
    await orders.feed(
        own("checkout.registered", "order:A1", told), said("order.paid", "evt_1", order_id="A1", amount="9")
    )
    before = await orders.row(ORDERS)
    with capture_logs() as logs:
        await orders.feed(own(word, "order:A1", {"by": "op", "reason": "ours", "hold": "unmatched"}))
    assert [(one["event"], one["seen"], one["hold"]) for one in logs] == [
        ("order_left_alone", "unmatched", "amount_mismatch")
    ]
    assert await orders.row(ORDERS) == before
    note = orders.notes[-1]
    assert (note.action, note.subject, note.before) == ("order.left_alone", "order:A1", {"hold": "unmatched"})
    assert note.after == {"type": word, "hold": "amount_mismatch"}
    right = own(word, "order:A1", {"by": "op", "hold": "amount_mismatch"}, id_="drv_again")
    await orders.feed(right)
    assert (await orders.row(ORDERS))["hold"] is None
    await orders.force(right)
    assert [one.action for one in orders.notes].count("order.left_alone") == 1, "what was done already is no news"


@pytest.mark.parametrize("word", ["fulfilment.released", "fulfilment.unfulfillable"])
async def test_a_word_that_names_no_hold_acts_whatever_holds(orders: Projections, word: str) -> None:
    """As those did that were said before words told what was seen, and those of a plugin do."""
    # case: F33, F37
    told = {"session_id": "s1", "order_id": "A1", "expected_amount": "10"}
    await orders.feed(
        own("checkout.registered", "order:A1", told), said("order.paid", "evt_1", order_id="A1", amount="9")
    )
    await orders.feed(own(word, "order:A1", {"by": "op", "reason": "ours"}))
    assert (await orders.row(ORDERS))["hold"] is None


async def test_what_was_settled_meanwhile_is_not_sent(orders: Projections) -> None:
    # case: F33
    told = {"session_id": "s1", "order_id": "A1", "expected_amount": "10"}
    await orders.feed(
        own("checkout.registered", "order:A1", told), said("order.paid", "evt_1", order_id="A1", amount="9")
    )
    await orders.feed(own("fulfilment.unfulfillable", "order:A1", {"by": "op", "hold": "amount_mismatch"}))
    await orders.feed(own("fulfilment.released", "order:A1", {"by": "op", "hold": "amount_mismatch"}))
    assert orders.emitted == []


async def test_an_operators_word_about_an_unknown_order_is_refused(orders: Projections) -> None:
    with pytest.raises(ConsumerError, match="unknown"):
        await orders.feed(own("fulfilment.released", "order:nobody", {"by": "op"}))


async def test_registering_a_subscription_checkout_makes_no_order(orders: Projections) -> None:
    # case: F22
    await orders.feed(registered(mode="subscription"))
    assert await orders.rows(ORDERS) == []


async def test_money_of_another_application_is_another_world(orders: Projections) -> None:
    # case: F25, G8
    def elsewhere(version: int, key: str, record: dict[str, Any]) -> Event:
        return observed(key, version, record, application="other")

    so1 = {"id": "so1", "order_id": "B9", "status": "PAID"}
    await orders.feed(elsewhere(1, "order:B9", so1))
    await orders.feed(elsewhere(2, "payment:p1", {"id": "p1", "status": "SUCCEEDED", "order_id": "A1"}))
    await orders.feed(said("order.paid", "evt_1", order_id="A1"), payment("p2", 3))
    ours = {(row["kind"], row["subject"]) for row in await orders.rows(FINDINGS, application="default")}
    assert ours == set(), "one payment here, one there: nothing is double"
    await orders.feed(payment("p3", 4, order_id=None, order={"id": "so1"}))
    [row] = await orders.rows(PAYMENTS, payment_id="p3")
    assert row["order_id"] is None, "the order with this id of the service is the other application's"


@pytest.mark.parametrize("kind", ["duplicate_payment", "orphan_payment"])
async def test_a_further_payment_after_an_operator_settled_the_others_is_shown_again(
    orders: Projections, kind: str
) -> None:
    # case: F29, F28
    if kind == "duplicate_payment":
        await orders.feed(said("order.paid", "evt_1", order_id="A1", payment_id="p1"))
    await orders.feed(payment("p1", 1), payment("p2", 2))
    refunded = {"kind": kind, "by": "op", "reason": "refunded"}
    settled = own("fulfilment.finding_closed", "object:A1", refunded)
    await orders.feed(settled)
    assert (kind, "A1") not in await open_kinds(orders)
    await orders.feed(payment("p2", 3, more="of the same"))
    assert (kind, "A1") not in await open_kinds(orders), "what was settled stays so"
    await orders.feed(payment("p3", 4))
    assert (kind, "A1") in await open_kinds(orders), "this money was not given back"
    assert (await orders.row(FINDINGS, kind=kind))["detail"] == {"payments": ["p1", "p2", "p3"]}


@pytest.mark.parametrize("kind", ["duplicate_payment", "orphan_payment"])
async def test_a_word_about_fewer_payments_than_are_shown_by_now_settles_none(orders: Projections, kind: str) -> None:
    """Between the page and `work` a third payment comes: who gave the second back owed the third for good, for a read
    of it was no news any more."""
    # case: F29, F28
    if kind == "duplicate_payment":
        await orders.feed(said("order.paid", "evt_1", order_id="A1", payment_id="p1"))
    await orders.feed(payment("p1", 1), payment("p2", 2))
    refunded = {"kind": kind, "by": "op", "reason": "refunded"}
    seen = as_seen(kind, (await orders.row(FINDINGS, kind=kind))["detail"])
    await orders.feed(payment("p3", 3))
    with capture_logs() as logs:
        await orders.feed(own("fulfilment.finding_closed", "object:A1", refunded | {"seen": seen}, id_="drv_stale"))
    assert [(one["event"], one["kind"], one["subject"]) for one in logs] == [("finding_left_open", kind, "A1")]
    note = orders.notes[-1]
    assert (note.action, note.subject, note.before) == ("finding.left_open", "object:A1", {"kind": kind})
    assert note.after == {"by": "op", "reason": "refunded"}
    assert (kind, "A1") in await open_kinds(orders), "this money was not given back"
    seen = as_seen(kind, (await orders.row(FINDINGS, kind=kind))["detail"])
    right = own("fulfilment.finding_closed", "object:A1", refunded | {"seen": seen}, id_="drv_again")
    await orders.feed(right)
    assert (kind, "A1") not in await open_kinds(orders)
    await orders.force(right)
    assert [one.action for one in orders.notes].count("finding.left_open") == 1, "what was done already is no news"


async def test_what_an_operator_decides_about_is_each_payment_and_not_what_else_is_told() -> None:
    # case: F28
    both = {"payments": ["p1", "p2"]}
    assert as_seen("duplicate_payment", both) == as_seen("duplicate_payment", both | {"session_id": "s1"})
    assert as_seen("duplicate_payment", both) != as_seen("duplicate_payment", {"payments": ["p1", "p2", "p3"]})
    assert as_seen("disagreement", {"read_at": "now"}) is None
