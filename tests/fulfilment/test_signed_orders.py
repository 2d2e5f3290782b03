"""`order.paid` of an order that nobody has shown us: whether there is such an order is asked first. A signature waits a
moment for the answer, for nobody's goods wait for an API; what was read of the list waits until it comes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from consumer.console.alarms.unfulfilled import unfulfilled
from consumer.errors import ConsumerError
from consumer.events import Source, Trust
from consumer.plugin import Event
from handlers.fulfilment.handler import BY_SERVICE_ID_S
from handlers.fulfilment.tables import FINDINGS, ORDERS
from tests.support.handling.projections import READS, START, Projections, observed, own, said, unreadable

SHOWN = {"id": "so1", "order_id": "A1", "status": "PAID"}
REGISTERED = {"session_id": "s1", "order_id": "A1", "customer": "c1"}


def signed(id_: str = "evt_1") -> Event:
    """A webhook whose signature was checked; nobody has read it."""
    return said("order.paid", id_, id="so1", order_id="A1", amount="10", trust=Trust.SIGNED)


def listed(id_: str = "evt_1", source: Source = Source.WEBHOOK) -> Event:
    """An event that was read: the service lists it, as it may list test events (case U8)."""
    return replace(said("order.paid", id_, id="so1", order_id="A1", amount="10", trust=Trust.READ), source=source)


@pytest.fixture
def orders(orders_with: Callable[..., Projections]) -> Projections:
    """The fulfilment handlers with their defaults."""
    return orders_with()


def registered() -> Event:
    return own("checkout.registered", "order:A1", REGISTERED)


async def requests(orders: Projections) -> int:
    return len(orders.of_type("fulfilment.requested"))


async def open_kinds(orders: Projections) -> set[str]:
    return {row["kind"] for row in await orders.rows(FINDINGS) if row["closed_at"] is None}


@pytest.mark.parametrize("status", ["PAID", "PENDING", "EXPIRED", "A_NEW_WORD", None])
@pytest.mark.parametrize("event", [signed(), listed()], ids=["signed", "listed"])
async def test_an_order_that_a_read_shows_is_fulfilled_at_once_whatever_its_status(
    orders: Projections, status: str | None, event: Event
) -> None:
    # case: F1, F19, F24
    await orders.feed(event)
    assert await requests(orders) == 0
    assert await orders.asked() == {("order", "A1")}
    assert await open_kinds(orders) == set(), "a moment's question is nobody's alarm"
    await orders.feed(observed("order:A1", 1, {"id": "so1", "order_id": "A1", "status": status}))
    assert await requests(orders) == 1
    assert await open_kinds(orders) == (set() if status == "PAID" else {"disagreement"})
    await orders.pass_time(minutes=1)
    assert await requests(orders) == 1


async def test_no_answer_in_time_is_no_reason_to_keep_goods_back(orders: Projections) -> None:
    # case: F1, G7
    await orders.feed(signed())
    await orders.pass_time(seconds=2.9)
    assert await requests(orders) == 0
    await orders.pass_time(seconds=0.2)
    assert await requests(orders) == 1
    row = await orders.row(ORDERS)
    assert (row["hold"], row["requested_at"]) == (None, START + timedelta(seconds=3))
    assert await orders.asked() == {("order", "A1")}, "still to be read"


@pytest.mark.parametrize("answer", [registered(), unreadable("order:A1", 1), observed("order:A1", 1, SHOWN)])
async def test_nobody_is_woken_for_an_order_that_was_answered(orders: Projections, answer: Event) -> None:
    # case: F1, F24
    await orders.feed(signed(), answer)
    assert "fulfilment.read_due" not in [event.type for event in await orders.pass_time(minutes=1)]


async def test_how_long_the_answer_may_take_is_a_setting(orders_with: Callable[..., Projections]) -> None:
    # case: F1
    orders = orders_with(read_within_s=60)
    await orders.feed(signed())
    await orders.pass_time(seconds=59)
    assert await requests(orders) == 0
    await orders.pass_time(seconds=2)
    assert await requests(orders) == 1


async def test_a_webhook_that_waited_in_the_log_has_its_order_asked_for_all_the_same(orders: Projections) -> None:
    # case: F24
    event = signed()
    orders.now = START + timedelta(hours=1)
    await orders.feed(event)
    await orders.relay()
    assert await requests(orders) == 0, "the time runs from when it was asked"
    await orders.feed(unreadable("order:A1", 1, at=orders.now))
    await orders.pass_time(minutes=1)
    assert await requests(orders) == 0


@pytest.mark.parametrize("source", [Source.WEBHOOK, Source.BACKFILL])
async def test_what_was_read_waits_for_the_answer_however_long_a_backlog_takes(
    orders: Projections, source: Source
) -> None:
    # case: F24, B28
    await orders.feed(listed(source=source))
    assert await orders.asked() == {("order", "A1")}
    await orders.pass_time(hours=2)
    assert await requests(orders) == 0
    await orders.feed(observed("order:A1", 1, {"id": "so1", "order_id": "A1", "status": "PAID"}, at=orders.now))
    assert await requests(orders) == 1


@pytest.mark.parametrize(
    "event", [signed(), listed(), listed(source=Source.BACKFILL)], ids=["signed", "listed", "found by a walk"]
)
async def test_a_test_event_that_looks_real_is_held_and_shown_and_never_fulfilled(
    orders: Projections, event: Event
) -> None:
    # case: F24, F20, B28
    await orders.feed(event, unreadable("order:A1", 1))
    await orders.pass_time(days=30)
    assert await requests(orders) == 0
    found = await orders.row(FINDINGS)
    assert (found["kind"], found["subject"], found["closed_at"]) == ("paid_unmatched", "A1", None)
    assert "no such order" in found["detail"]["problem"]
    row = await orders.row(ORDERS)
    assert (row["paid_at"], row["hold"], row["requested_at"]) == (START, "unmatched", None), "never dropped"


async def test_an_operator_settles_a_held_order_without_shipping_it(orders: Projections) -> None:
    """A test event, or money that was given back: it is no paid order that waits, and nothing sends it by itself."""
    # case: F24, F33
    await orders.feed(listed(), unreadable("order:A1", 1))
    await orders.feed(own("fulfilment.unfulfillable", "order:A1", {"by": "op", "reason": "a test event"}))
    assert (await orders.row(ORDERS))["hold"] is None
    assert await open_kinds(orders) == {"paid_unfulfillable"}
    closing = {"kind": "paid_unfulfillable", "by": "op", "reason": "a test event"}
    await orders.feed(own("fulfilment.finding_closed", "object:A1", closing))
    async with orders.database.reading() as session:
        assert await unfulfilled(session) == []
    shown = observed("order:A1", 2, {"id": "so1", "order_id": "A1", "status": "PAID"})
    await orders.feed(signed("evt_2"), unreadable("order:A1", 3), registered(), shown)
    await orders.pass_time(days=1)
    assert (await requests(orders), await open_kinds(orders)) == (0, set())
    await orders.feed(own("fulfilment.released", "order:A1", {"by": "op", "reason": "it was real"}))
    assert await requests(orders) == 1


@pytest.mark.parametrize("freed_by", ["registering", "a later read", "an operator"])
async def test_what_is_held_as_unmatched_goes_out_once_when_somebody_knows_it(
    orders: Projections, freed_by: str
) -> None:
    # case: F20
    await orders.feed(signed(), unreadable("order:A1", 1))
    await orders.pass_time(minutes=5)
    frees = {
        "registering": registered(),
        "a later read": observed("order:A1", 2, {"id": "so1", "order_id": "A1", "status": "PENDING"}),
        "an operator": own("fulfilment.released", "order:A1", {"by": "op", "reason": "known by phone"}),
    }
    await orders.feed(frees[freed_by])
    assert await requests(orders) == 1
    assert "paid_unmatched" not in await open_kinds(orders)
    rest = [event for event in frees.values() if event is not frees[freed_by]]
    await orders.feed(*rest, signed("evt_3"), listed("evt_4"))
    await orders.pass_time(minutes=5)
    assert await requests(orders) == 1


@pytest.mark.parametrize(
    "known",
    [registered(), observed("order:A1", 1, {"id": "so1", "order_id": "A1", "status": "PENDING"})],
    ids=["registered", "shown by a read"],
)
async def test_an_order_that_is_known_is_not_asked_for(orders: Projections, known: Event) -> None:
    # case: F1, F20
    await orders.feed(known, signed())
    assert await requests(orders) == 1
    assert await orders.asked() == set()
    await orders.feed(unreadable("order:A1", 2))
    assert await requests(orders) == 1


async def test_what_went_out_unread_and_does_not_exist_is_shown_and_stays(orders: Projections) -> None:
    # case: G7, F24, F31
    await orders.feed(signed())
    await orders.pass_time(seconds=4)
    with capture_logs() as logs:
        await orders.feed(unreadable("order:A1", 1))
    assert [one["event"] for one in logs if one["log_level"] == "warning"] == ["requested_order_unreadable"]
    assert await open_kinds(orders) == {"unreadable_order"}
    assert (await orders.row(ORDERS))["requested_at"] is not None
    await orders.feed(observed("order:A1", 2, {"id": "so1", "order_id": "A1", "status": "PAID"}))
    assert await open_kinds(orders) == set(), "it was only too new to be read (case U30)"
    assert await requests(orders) == 1


async def test_a_read_from_before_says_nothing_against_a_newer_answer_that_there_is_no_such_order(
    orders: Projections,
) -> None:
    # case: G7, B18
    await orders.feed(signed())
    await orders.pass_time(seconds=4)
    await orders.feed(unreadable("order:A1", 2))
    await orders.feed(observed("order:A1", 1, {"id": "so1", "order_id": "A1", "status": "PAID"}))
    assert await open_kinds(orders) == {"unreadable_order"}


async def test_an_answer_from_before_the_event_counts_and_the_order_is_asked_for_again(orders: Projections) -> None:
    # case: F20, U30
    await orders.feed(observed("payment:p1", 1, {"id": "p1", "status": "SUCCEEDED", "order_id": "A1"}))
    await orders.feed(unreadable("order:A1", 2))
    await orders.forget_reads()
    await orders.feed(signed())
    assert (await orders.row(ORDERS))["hold"] == "unmatched"
    assert await orders.asked() == {("order", "A1")}
    await orders.feed(observed("order:A1", 3, {"id": "so1", "order_id": "A1", "status": "PAID"}))
    assert await requests(orders) == 1


async def test_no_such_order_and_no_answer_say_nothing_of_orders_nobody_spoke_of(orders: Projections) -> None:
    # case: G7
    timer = own("fulfilment.read_due", "order:A2", {"due": START.isoformat()})
    await orders.feed(unreadable("order:A1", 1), timer)
    assert await orders.rows(ORDERS) == []
    assert await orders.rows(FINDINGS) == []


async def test_a_held_order_is_not_asked_for_over_and_over(orders: Projections) -> None:
    # case: B23
    await orders.feed(signed())
    await orders.forget_reads()
    await orders.feed(unreadable("order:A1", 1), signed("evt_2"))
    assert await orders.asked() == {("service_order", "so1")}, "once by the other id"
    await orders.forget_reads()
    await orders.feed(unreadable("order:A1", 2), signed("evt_3"))
    await orders.pass_time(days=1)
    assert await orders.rows(READS) == [], "the read itself goes on being tried; nobody asks again"


async def test_an_order_whose_own_id_cannot_be_looked_up_is_read_by_the_services(orders: Projections) -> None:
    """A text that no column holds, or one too long: the service has no such order, and shows it all the same."""
    # case: F20, F26, U1
    await orders.feed(listed(), unreadable("order:A1", 1))
    assert (await orders.row(ORDERS))["hold"] == "unmatched"
    [read] = [row for row in await orders.rows(READS) if row["kind"] == "service_order"]
    assert (read["object_id"], read["due_at"]) == ("so1", START + timedelta(seconds=BY_SERVICE_ID_S))
    await orders.feed(observed("order:A1", 2, {"id": "so1", "order_id": "A1", "status": "PAID"}))
    assert await requests(orders) == 1
    assert await open_kinds(orders) == set()


@pytest.mark.parametrize("further", [signed("evt_2"), listed("evt_2")], ids=["signed", "listed"])
async def test_a_further_event_asks_again_and_a_signed_one_waits_for_nobody(
    orders: Projections, further: Event
) -> None:
    """The answer to the first one may be lost, with the log that it was on."""
    # case: F1, F4
    await orders.feed(listed())
    await orders.forget_reads()
    await orders.pass_time(hours=1)
    await orders.feed(replace(further, received_at=orders.now))
    assert await orders.asked() == {("order", "A1")}
    await orders.pass_time(seconds=4)
    assert await requests(orders) == (1 if further.trust is Trust.SIGNED else 0)
    await orders.feed(observed("order:A1", 1, {"id": "so1", "order_id": "A1", "status": "PAID"}, at=orders.now))
    await orders.pass_time(minutes=1)
    assert await requests(orders) == 1


@pytest.mark.parametrize("type_", ["order.unreadable", "fulfilment.read_due"])
async def test_the_service_cannot_speak_for_us(orders: Projections, type_: str) -> None:
    # case: G6
    await orders.feed(signed())
    with pytest.raises(ConsumerError, match="does not send"):
        await orders.feed(said(type_, "evt_2", order_id="A1", envelope={"data": {"version": 9}, "order_id": "A1"}))
    assert (await orders.row(ORDERS))["hold"] == "asked"


@pytest.mark.parametrize(("key", "version"), [("order:A1", "9"), ("object:A1", 9)])
async def test_no_such_order_without_its_order_or_version_is_refused(
    orders: Projections, key: str, version: object
) -> None:
    # case: G6
    await orders.feed(signed())
    with pytest.raises(ConsumerError, match="needs an order and a version"):
        await orders.feed(own("order.unreadable", key, {"kind": "order", "id": "A1", "version": version}))
    assert (await orders.row(ORDERS))["hold"] == "asked"


@pytest.mark.parametrize("matching", ["auto", "read"])
async def test_history_is_asked_nothing(orders_with: Callable[..., Projections], matching: str) -> None:
    # case: B30
    orders = orders_with(matching=matching)
    orders.is_history = True
    await orders.feed(listed(source=Source.BACKFILL))
    assert await requests(orders) == 1, "which belongs to the seed's plan, and has no effect"
    assert await orders.asked() == set()


@pytest.mark.parametrize("seeded_first", [True, False])
@pytest.mark.parametrize("matching", ["auto", "on", "read", "off"])
async def test_what_history_names_by_the_services_id_is_history_whatever_else_names_it_so(
    orders_with: Callable[..., Projections], matching: str, *, seeded_first: bool
) -> None:
    # case: B30, F4, F20
    orders = orders_with(matching=matching)
    seeded, further = (said("order.paid", f"evt_{number}", id="so1") for number in (1, 2))
    for event in (seeded, further) if seeded_first else (further, seeded):
        orders.is_history = event is seeded
        await orders.feed(event)
    orders.is_history = False
    await orders.feed(observed("order:A1", 1, {"id": "so1", "order_id": "A1", "status": "PENDING"}))
    [request] = orders.of_type("fulfilment.requested")
    assert request.is_history is True
    assert (await orders.row(ORDERS))["hold"] is None
