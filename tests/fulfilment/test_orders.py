"""Orders through the handlers and a real ledger: in whatever order and however often, one fulfilment."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy import delete
from structlog.testing import capture_logs

from consumer.errors import ConsumerError
from consumer.events import Event, Trust
from handlers.fulfilment.order import Registration
from handlers.fulfilment.registration import register_session
from handlers.fulfilment.tables import CHECKOUTS, FINDINGS, ORDERS
from tests.fulfilment.confirmed import said
from tests.support.handling.projections import OUTBOX, READS, START, Projections, observed, own

ODD_ID = "Bestellung №7/ä & söhne " + "x" * 104


async def fulfilments(orders: Projections) -> int:
    return len(orders.of_type("fulfilment.requested"))


async def test_a_paid_order_is_requested_once_keyed_by_the_order(orders: Projections) -> None:
    # case: F1, F36
    await orders.feed(said("order.paid", "evt_1", id="so1", order_id="A1", amount="12.50", customer_reference="c7"))
    [request] = orders.of_type("fulfilment.requested")
    assert request.key == "order:A1"
    assert request.data["order_id"] == "A1"
    assert request.data["service_order_id"] == "so1"
    assert request.data["customer"] == "c7"
    assert request.data["amount"] == "12.50"
    assert request.data["proof"] == {"event_id": "evt_1", "type": "order.paid"}
    assert request.data["record"]["id"] == "so1"
    assert request.data["paid_at"] == START.isoformat()
    assert (await orders.row(ORDERS))["requested_at"] == START


async def test_the_customer_is_found_where_an_option_says(orders_with: Callable[..., Projections]) -> None:
    # case: F1
    orders = orders_with(matching="off", customer=("/buyer",))
    await orders.feed(said("order.paid", "evt_1", order_id="A1", buyer="c7"))
    [request] = orders.of_type("fulfilment.requested")
    assert request.data["customer"] == "c7"


async def test_the_same_event_twice_and_forced_is_one_effect(orders: Projections) -> None:
    # case: F2
    event = said("order.paid", "evt_1", order_id="A1")
    await orders.feed(event, event)
    await orders.force(event)
    assert await fulfilments(orders) == 1
    assert len(orders.emitted) == 1, "a forced replay does not even emit it again"


async def test_two_event_ids_for_one_order_are_one_effect(orders: Projections) -> None:
    # case: F4, U27
    await orders.feed(said("order.paid", "evt_1", order_id="A1"), said("order.paid", "evt_2", order_id="A1"))
    assert len(orders.emitted) == 1


async def test_an_order_whose_row_was_lost_is_requested_under_the_same_id(orders: Projections) -> None:
    # case: F4, B35
    """The last gate: whatever proves it the next time, the ledger has this request already."""
    await orders.feed(said("order.paid", "evt_1", id="so1", order_id="A1"))
    async with orders.database.transaction() as session:
        await session.execute(delete(ORDERS))
    await orders.feed(observed("order:A1", 1, {"id": "so1", "order_id": "A1", "status": "PAID"}))
    assert len(await orders.rows(OUTBOX, type="fulfilment.requested")) == 1


async def test_a_completed_session_only_asks_for_a_read(orders: Projections) -> None:
    # case: F5
    await orders.feed(said("checkout.session.completed", "evt_1", id="s1", order_id="A1"))
    assert await fulfilments(orders) == 0
    assert await orders.rows(ORDERS) == []
    assert await orders.asked() == {("order", "A1")}
    await orders.feed(observed("order:A1", 1, {"id": "so1", "order_id": "A1", "status": "PENDING"}))
    assert await fulfilments(orders) == 0
    await orders.feed(observed("order:A1", 2, {"id": "so1", "order_id": "A1", "status": "PAID"}))
    assert await fulfilments(orders) == 1


@pytest.mark.parametrize("first", ["order.paid", "checkout.session.completed"])
async def test_paid_and_completed_in_either_order_are_one_effect(orders: Projections, first: str) -> None:
    # case: F6
    paid = said("order.paid", "evt_1", id="so1", order_id="A1")
    completed = said("checkout.session.completed", "evt_2", id="s1", order_id="A1")
    both = [paid, completed] if first == "order.paid" else [completed, paid]
    await orders.feed(*both, *both)
    await orders.feed(observed("order:A1", 1, {"status": "PAID"}))
    assert await fulfilments(orders) == 1
    assert len(orders.emitted) == 1


async def test_a_session_of_a_paid_order_asks_for_nothing(orders: Projections) -> None:
    await orders.feed(said("order.paid", "evt_1", order_id="A1"))
    await orders.feed(said("checkout.session.completed", "evt_2", id="s1", order_id="A1"))
    assert await orders.asked() == set()


async def test_a_session_asks_for_its_own_order_whoever_else_has_paid(orders: Projections) -> None:
    # case: F5, G8
    await orders.feed(said("order.paid", "evt_1", order_id="A1"))
    await orders.feed(said("order.paid", "evt_2", order_id="A2", application="second"))
    await orders.feed(said("checkout.session.completed", "evt_3", id="s2", order_id="A2"))
    assert await orders.asked() == {("order", "A2")}


async def test_a_late_payment_waits_for_no_session_event(orders: Projections) -> None:
    # case: F7, F10
    await orders.feed(said("checkout.session.canceled", "evt_1", id="s1", order_id="A1"))
    await orders.feed(said("order.paid", "evt_2", order_id="A1"))
    assert await fulfilments(orders) == 1
    assert (await orders.row(CHECKOUTS))["status"] == "CANCELED"


async def test_an_expired_order_that_is_paid_is_fulfilled(orders: Projections) -> None:
    # case: F8, F15
    await orders.feed(observed("order:A1", 1, {"status": "PENDING"}))
    await orders.feed(said("order.expired", "evt_1", order_id="A1"))
    await orders.feed(said("order.paid", "evt_2", order_id="A1"))
    row = await orders.row(ORDERS)
    assert (row["paid_at"], row["expired_at"]) == (START, None)
    assert await fulfilments(orders) == 1


async def test_a_new_session_of_an_expired_order_is_the_same_order(orders: Projections) -> None:
    # case: F15
    await orders.feed(own("checkout.registered", "order:A1", {"session_id": "s1", "order_id": "A1", "customer": "c1"}))
    await orders.feed(said("checkout.session.expired", "evt_1", id="s1", order_id="A1"))
    await orders.feed(said("order.expired", "evt_2", order_id="A1"))
    await orders.feed(own("checkout.registered", "order:A1", {"session_id": "s2", "order_id": "A1"}, id_="drv_2"))
    await orders.feed(said("checkout.session.completed", "evt_3", id="s2", order_id="A1"))
    await orders.feed(said("order.paid", "evt_4", order_id="A1"))
    row = await orders.row(ORDERS)
    assert (row["session_id"], row["customer"], row["paid_at"]) == ("s2", "c1", START)
    assert {one["session_id"]: one["status"] for one in await orders.rows(CHECKOUTS)} == {
        "s1": "EXPIRED",
        "s2": "COMPLETED",
    }
    assert await fulfilments(orders) == 1


async def test_a_late_expiry_changes_nothing_and_is_counted(orders: Projections) -> None:
    # case: F9
    await orders.feed(said("order.paid", "evt_1", order_id="A1"))
    before = await orders.rows(ORDERS)
    with capture_logs() as logs:
        await orders.feed(said("order.expired", "evt_2", order_id="A1"))
    assert [(one["event"], one["order_id"]) for one in logs] == [("stale_event", "A1")]
    assert await orders.rows(ORDERS) == before
    assert [note.action for note in orders.notes] == ["order.changed", "order.stale_event"]
    assert [one.type for one in orders.emitted] == ["fulfilment.requested"]
    assert await orders.asked() == set()


async def test_a_cancelled_session_leaves_the_order_alone(orders: Projections) -> None:
    # case: F11
    await orders.feed(observed("order:A1", 1, {"status": "PENDING"}))
    await orders.feed(said("checkout.session.canceled", "evt_1", id="s1", order_id="A1"))
    row = await orders.row(ORDERS)
    assert (row["observed_status"], row["paid_at"], row["expired_at"]) == ("PENDING", None, None)
    assert (await orders.row(CHECKOUTS))["status"] == "CANCELED"


async def test_a_replaced_session_expires_alone(orders: Projections) -> None:
    # case: F12
    await orders.feed(observed("order:A1", 1, {"status": "PENDING"}))
    await orders.feed(said("checkout.session.expired", "evt_1", id="sA", order_id="A1"))
    await orders.feed(said("checkout.session.completed", "evt_3", id="sB", order_id="A1"))
    await orders.feed(said("order.paid", "evt_2", order_id="A1"))
    assert {row["session_id"]: row["status"] for row in await orders.rows(CHECKOUTS)} == {
        "sA": "EXPIRED",
        "sB": "COMPLETED",
    }
    assert (await orders.row(ORDERS))["expired_at"] is None
    assert await fulfilments(orders) == 1


async def test_a_session_keeps_its_highest_word(orders: Projections) -> None:
    # case: F35
    await orders.feed(
        said("checkout.session.completed", "evt_1", id="s1", order_id="A1"),
        said("checkout.session.expired", "evt_2", id="s1", order_id="A1"),
    )
    assert (await orders.row(CHECKOUTS))["status"] == "COMPLETED"


async def test_a_session_is_completed_when_it_says_so_first(orders: Projections) -> None:
    # case: F5, F35
    times = []
    for number, word in enumerate(("canceled", "expired", "completed", "completed")):
        at = START + timedelta(minutes=number)
        session = said(f"checkout.session.{word}", f"evt_{number}", id="s1", order_id="A1", at=at)
        fresh = said(f"checkout.session.{word}", f"evt_{number}_fresh", id=f"fresh{number}", order_id="B1", at=at)
        await orders.feed(session, fresh)
        times.append((await orders.row(CHECKOUTS, session_id="s1"))["completed_at"])
    completed_at = START + timedelta(minutes=2)
    assert times == [None, None, completed_at, completed_at]
    assert [row["completed_at"] for row in await orders.rows(CHECKOUTS, order_id="B1")] == [
        None,
        None,
        completed_at,
        completed_at + timedelta(minutes=1),
    ]


async def test_a_browser_coming_back_proves_nothing(orders: Projections) -> None:
    # case: F16, F32
    await orders.feed(own("checkout.registered", "order:A1", {"session_id": "s1", "order_id": "A1"}))
    await orders.pass_time(days=2)
    assert orders.emitted == []
    row = await orders.row(ORDERS)
    assert (row["paid_at"], row["expired_at"]) == (None, None), "no event and no read: nothing happened to it"


async def test_a_read_alone_fulfils_and_a_later_event_adds_nothing(orders: Projections) -> None:
    # case: F18
    await orders.feed(observed("order:A1", 1, {"id": "so1", "status": "PAID", "amount": "3"}))
    [request] = orders.of_type("fulfilment.requested")
    assert request.data["proof"]["type"] == "order.observed"
    assert request.data["amount"] == "3"
    await orders.feed(said("order.paid", "evt_1", order_id="A1"))
    assert len(orders.emitted) == 1


async def test_a_read_that_lags_is_shown_and_read_again(orders: Projections) -> None:
    # case: F19
    await orders.feed(said("order.paid", "evt_1", order_id="A1"))
    await orders.feed(observed("order:A1", 1, {"status": "PENDING"}))
    assert await fulfilments(orders) == 1
    assert (await orders.row(FINDINGS, kind="disagreement"))["closed_at"] is None
    assert await orders.asked() == {("order", "A1")}
    await orders.feed(observed("order:A1", 2, {"status": "PAID"}))
    assert (await orders.row(FINDINGS, kind="disagreement"))["closed_at"] is not None


@pytest.mark.parametrize(
    ("key", "given"), [("object:A1", {}), ("order:A1", {"version": "9"}), ("order:A1", {"record": []})]
)
async def test_a_read_without_its_order_version_or_record_is_refused(
    orders: Projections, key: str, given: dict[str, object]
) -> None:
    # case: G6
    data = {"kind": "order", "id": "A1", "version": 9, "record": {"status": "PAID"}} | given
    with pytest.raises(ConsumerError, match="needs an order, a version and a record"):
        await orders.feed(own("order.observed", key, data))
    assert await orders.rows(ORDERS) == []


@pytest.mark.parametrize("status", ["PENDING", "REVIEW", None, 7])
async def test_other_words_of_a_read_never_fulfil(orders: Projections, status: object) -> None:
    # case: F17, F34
    await orders.feed(observed("order:A1", 1, {"status": status}))
    assert await fulfilments(orders) == 0


async def test_subscription_sessions_make_no_order(orders: Projections) -> None:
    # case: F22, F23
    await orders.feed(
        said("checkout.session.completed", "evt_1", id="s1", order_id="A1", mode="subscription"),
        said("checkout.session.expired", "evt_2", id="s2", order_id="A2", mode="subscription"),
        said("checkout.session.canceled", "evt_3", id="s3", order_id="A3"),
        said("order.expired", "evt_4", order_id="A2"),
    )
    assert await orders.rows(ORDERS) == []
    assert await fulfilments(orders) == 0
    assert ("order", "A1") not in await orders.asked()


async def test_a_session_that_was_registered_for_a_subscription_has_no_order_to_read(orders: Projections) -> None:
    # case: F22, F23, U21
    said_before = {"session_id": "s1", "order_id": "A1", "customer": "c", "mode": "subscription"}
    async with orders.database.transaction() as session:
        await register_session(session, "default", "A1", Registration(session_id="s1", mode="subscription"), START)
    await orders.feed(own("checkout.registered", "order:A1", said_before))
    for word in ("completed", "expired", "canceled"):
        await orders.feed(said(f"checkout.session.{word}", f"evt_{word}", id="s1", order_id="A1"))
    assert await orders.asked() == set(), "the event shows no mode, the merchant has told it"


@pytest.mark.parametrize(
    "envelope", [{"test": True}, {"livemode": False}, {"data": {"object": {"order_id": "T", "test": True}}}]
)
async def test_an_event_marked_as_a_test_does_nothing(orders: Projections, envelope: dict[str, object]) -> None:
    # case: F24, B28
    for type_ in ("order.paid", "order.expired", "checkout.session.completed"):
        await orders.feed(said(type_, f"evt_{type_}", id="so1", order_id="T", envelope=envelope))
    assert orders.emitted == []
    assert await orders.rows(ORDERS) == []
    assert await orders.asked() == set()


async def test_a_test_event_without_a_mark_waits_for_a_read_that_never_comes(
    orders_with: Callable[..., Projections],
) -> None:
    # case: F24, B28
    orders = orders_with(matching="read")
    await orders.feed(said("order.paid", "evt_1", id="so1", order_id="A1"))
    assert await fulfilments(orders) == 0
    assert await orders.asked() == {("order", "A1")}
    assert (await orders.row(FINDINGS))["kind"] == "paid_unconfirmed"
    await orders.feed(observed("order:A1", 1, {"status": "PENDING"}))
    assert await fulfilments(orders) == 1, "the order exists: the event is proof enough"
    assert (await orders.row(FINDINGS, kind="paid_unconfirmed"))["closed_at"] is not None


async def test_sessions_of_other_orders_say_nothing_about_this_one(orders: Projections) -> None:
    # case: F5, F21, G8
    def registered(session_id: str, order_id: str, application: str = "default", **amount: str) -> Event:
        data = {"session_id": session_id, "order_id": order_id, **amount}
        return own("checkout.registered", f"order:{order_id}", data, application=application, id_=f"drv_{session_id}")

    await orders.feed(
        registered("s1", "A1"),
        registered("s2", "B1", expected_amount="10"),
        registered("s3", "A1", "other", expected_amount="10"),
        said("checkout.session.completed", "evt_1", id="s2", order_id="B1"),
        said("checkout.session.completed", "evt_2", id="s3", order_id="A1", application="other"),
    )
    await orders.forget_reads()
    await orders.feed(observed("order:A1", 1, {"status": "PENDING"}))
    assert await orders.asked() == set(), "no session of it is completed"
    await orders.feed(said("order.paid", "evt_3", order_id="A1", amount="10"))
    assert await orders.rows(FINDINGS, kind="paid_old_session") == []


async def test_two_applications_are_two_worlds(orders: Projections) -> None:
    # case: F25, G8
    await orders.feed(
        said("order.paid", "evt_1", order_id="A1", application="a"),
        said("order.expired", "evt_1", order_id="A1", application="b"),
        said("order.paid", "evt_2", order_id="A1", application="b"),
    )
    assert await fulfilments(orders) == 2
    assert {row["application"]: row["proof_event_id"] for row in await orders.rows(ORDERS)} == {
        "a": "evt_1",
        "b": "evt_2",
    }


async def test_odd_order_ids_are_kept_whole(orders: Projections) -> None:
    # case: F26
    await orders.feed(said("order.paid", "evt_1", order_id=ODD_ID), said("order.paid", "evt_2", order_id=ODD_ID[:-1]))
    assert {row["order_id"] for row in await orders.rows(ORDERS)} == {ODD_ID, ODD_ID[:-1]}
    assert {one.key for one in orders.emitted} == {f"order:{ODD_ID}", f"order:{ODD_ID[:-1]}"}


async def test_nothing_un_pays_an_order(orders: Projections) -> None:
    # case: F31, G4, G7
    await orders.feed(said("order.paid", "evt_1", order_id="A1"))
    await orders.feed(
        said("order.expired", "evt_2", order_id="A1"),
        said("checkout.session.expired", "evt_3", id="s1", order_id="A1"),
        said("checkout.session.canceled", "evt_4", id="s2", order_id="A1"),
        observed("order:A1", 1, {"status": "CANCELED"}),
        observed("order:A1", 2, {"status": "REFUNDED"}),
    )
    await orders.pass_time(days=400)
    row = await orders.row(ORDERS)
    assert (row["paid_at"], row["requested_at"]) == (START, START)
    assert [one.type for one in orders.emitted] == ["fulfilment.requested"]


async def test_a_status_that_nobody_knows_is_told_and_one_that_is_known_is_not(orders: Projections) -> None:
    # case: F34
    with capture_logs() as lines:
        await orders.feed(
            observed("order:A1", 1, {"status": "PENDING"}), observed("order:A2", 1, {"status": "REFUNDED"})
        )
    assert [one["order_id"] for one in lines if one["event"] == "unknown_enum"] == ["A2"]


@pytest.mark.parametrize("type_", ["order.paid", "order.expired", "checkout.session.completed"])
async def test_a_claimed_event_is_refused(orders: Projections, type_: str) -> None:
    # case: G6
    with pytest.raises(ConsumerError, match="not verified"):
        await orders.feed(said(type_, "evt_1", order_id="A1", trust=Trust.CLAIMED))
    assert orders.emitted == []


@pytest.mark.parametrize("type_", ["order.observed", "fulfilment.marked_paid", "checkout.registered"])
async def test_the_service_cannot_speak_for_us(orders: Projections, type_: str) -> None:
    # case: G6
    body = {"version": 1, "record": {"status": "PAID"}, "session_id": "s1", "order_id": "A1"}
    with pytest.raises(ConsumerError, match="does not send"):
        await orders.feed(said(type_, "evt_1", order_id="A1", envelope={"data": body, "order_id": "A1"}))
    assert orders.emitted == []


async def test_a_thin_event_without_the_order_is_read_by_the_services_id(orders: Projections) -> None:
    # case: F20, F36
    await orders.feed(said("order.paid", "evt_1", id="so1"))
    assert await fulfilments(orders) == 0
    assert await orders.asked() == {("service_order", "so1")}
    assert (await orders.row(FINDINGS, kind="paid_unidentified"))["closed_at"] is None
    assert [(one.action, one.subject) for one in orders.notes] == [("order.paid_unidentified", "object:so1")]
    await orders.feed(observed("order:A1", 1, {"id": "so1", "order_id": "A1", "status": "PAID"}))
    assert await fulfilments(orders) == 1
    assert (await orders.row(FINDINGS, kind="paid_unidentified"))["closed_at"] is not None


@pytest.mark.parametrize("matching", ["auto", "off", "read"])
async def test_a_thin_event_is_proof_though_the_read_that_says_whose_it_is_lags(
    orders_with: Callable[..., Projections], matching: str
) -> None:
    # case: F19, U30
    orders = orders_with(matching=matching)
    await orders.feed(said("order.paid", "evt_1", id="so1"))
    await orders.feed(observed("order:A1", 1, {"id": "so1", "order_id": "A1", "status": "PENDING"}))
    [request] = orders.of_type("fulfilment.requested")
    assert (request.key, request.data["proof"]) == ("order:A1", {"event_id": "evt_1", "type": "order.paid"})
    assert (await orders.row(FINDINGS, kind="paid_unidentified"))["closed_at"] is not None
    assert (await orders.row(FINDINGS, kind="disagreement"))["closed_at"] is None
    assert ("order", "A1") in await orders.asked(), "read again until it agrees"
    await orders.feed(
        said("order.paid", "evt_2", id="so1"),
        observed("order:A1", 2, {"id": "so1", "order_id": "A1", "status": "PAID"}),
    )
    assert await fulfilments(orders) == 1
    assert (await orders.row(FINDINGS, kind="disagreement"))["closed_at"] is not None


async def test_a_thin_event_about_another_order_is_no_proof_of_this_one(orders: Projections) -> None:
    # case: F17, G6
    await orders.feed(said("order.paid", "evt_1", id="so2"))
    await orders.feed(observed("order:A1", 1, {"id": "so1", "order_id": "A1", "status": "PENDING"}))
    assert await fulfilments(orders) == 0
    assert (await orders.row(FINDINGS, kind="paid_unidentified"))["closed_at"] is None


async def test_a_thin_event_finds_an_order_read_before(orders: Projections) -> None:
    # case: F1
    await orders.feed(observed("order:A1", 1, {"id": "so1", "order_id": "A1", "status": "PENDING"}))
    await orders.feed(said("order.paid", "evt_1", id="so1"))
    [request] = orders.of_type("fulfilment.requested")
    assert request.key == "order:A1"


async def test_a_thin_session_is_read_itself_unless_registered(orders: Projections) -> None:
    # case: F5
    await orders.feed(said("checkout.session.completed", "evt_1", id="s1"))
    assert await orders.asked() == {("session", "s1")}
    await orders.forget_reads()
    await orders.feed(own("checkout.registered", "order:A2", {"session_id": "s2", "order_id": "A2"}))
    await orders.feed(said("checkout.session.completed", "evt_2", id="s2"))
    assert await orders.asked() == {("order", "A2")}


async def test_every_change_of_an_order_is_noted(orders: Projections) -> None:
    # case: G12
    await orders.feed(said("order.paid", "evt_1", order_id="A1"))
    [note] = orders.notes
    assert note.subject == "order:A1"
    assert note.after["proof_event_id"] == "evt_1"
    assert note.before["paid_at"] is None
    await orders.feed(said("order.paid", "evt_2", order_id="A1"))
    assert len(orders.notes) == 1


async def test_reads_after_a_lapse_are_not_urgent(orders: Projections) -> None:
    await orders.feed(said("order.expired", "evt_1", order_id="A1"))
    await orders.feed(said("checkout.session.completed", "evt_2", id="s2", order_id="A2"))
    due = {row["object_id"]: row["due_at"] - START for row in await orders.rows(READS)}
    assert due == {"A1": timedelta(seconds=30), "A2": timedelta(0)}
