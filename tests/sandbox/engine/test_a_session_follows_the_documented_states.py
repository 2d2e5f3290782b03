"""Checkout sessions: the state rows and rules of the spec."""

from __future__ import annotations

from datetime import timedelta

import pytest

from consumer.sandbox import Engine, PageRefusal, Refusal
from consumer.sandbox.engine.records import OrderStatus, PaymentStatus, SessionStatus
from consumer.sandbox.engine.sessions import tick_after
from tests.sandbox.support import Api, create, make_engine, types


def order_status(engine: Engine, order_id: str) -> OrderStatus:
    order = engine.orders.find(engine.application.id, order_id)
    assert order is not None
    return order.status


async def test_a_new_session_is_open_with_a_link_for_thirty_minutes(api: Api) -> None:
    # case: X1
    session = await api.create()
    assert session["status"] == "OPEN"
    assert session["url"].startswith("http://127.0.0.1")
    assert session["order"]["status"] == "PENDING"
    assert session["created_at"] == "2026-01-01T00:00:00.000Z"
    assert session["expires_at"] == "2026-01-01T00:30:00.000Z"


async def test_a_read_never_shows_the_link_but_the_order(api: Api) -> None:
    # case: X2
    session = await api.create()
    read = (await api.get(f"/v1/checkout-sessions/{session['id']}")).json
    assert read["url"] is None
    assert read["order"]["status"] == "PENDING"
    await api.control(f"/sessions/{session['id']}/pay")
    read = (await api.get(f"/v1/checkout-sessions/{session['id']}")).json
    assert (read["status"], read["order"]["status"], read["url"]) == ("COMPLETED", "PAID", None)


async def test_creating_again_while_open_returns_the_same_session_without_link(api: Api) -> None:
    # case: X3
    session = await api.create(order_id="same")
    reply = await api.post("/v1/checkout-sessions", {**_again("same")})
    assert reply.status == 200
    assert reply.json["id"] == session["id"]
    assert reply.json["url"] is None


def _again(order_id: str) -> dict[str, str]:
    return {
        "mode": "payment", "order_id": order_id, "amount": "12.50", "description": "Two tickets",
        "success_url": "https://shop.example/done", "cancel_url": "https://shop.example/back",
    }  # fmt: skip


def test_a_paid_order_takes_no_new_session(engine: Engine) -> None:
    # case: X4
    engine.payments.pay(create(engine, order_id="paid"))
    with pytest.raises(Refusal) as refused:
        create(engine, order_id="paid")
    assert (refused.value.problem_code, refused.value.problem.status) == ("order_already_paid", 409)


def test_after_expiry_or_cancel_the_order_gets_a_new_session(engine: Engine) -> None:
    # case: X5
    expired = create(engine, order_id="again")
    engine.advance(1800 + 31)
    assert engine.session(expired.id).status is SessionStatus.EXPIRED
    second = create(engine, order_id="again")
    assert second.id != expired.id
    assert order_status(engine, "again") is OrderStatus.PENDING
    engine.sessions.cancel(second)
    third = create(engine, order_id="again")
    assert third.id not in (expired.id, second.id)
    assert order_status(engine, "again") is OrderStatus.PENDING


def test_a_final_payment_completes_session_order_and_payment(engine: Engine) -> None:
    # case: X6
    session = create(engine, order_id="final")
    payment = engine.payments.pay(session)
    assert payment.status is PaymentStatus.SUCCEEDED
    assert engine.session(session.id).status is SessionStatus.COMPLETED
    assert order_status(engine, "final") is OrderStatus.PAID
    assert types(engine) == ["order.paid", "checkout.session.completed"]


def test_confirmed_is_not_paid_and_sends_nothing(engine: Engine) -> None:
    # case: X7
    session = create(engine, order_id="confirmed")
    payment = engine.payments.pay(session, until="confirmed")
    assert payment.status is PaymentStatus.CONFIRMED
    assert engine.session(session.id).status is SessionStatus.OPEN
    assert order_status(engine, "confirmed") is OrderStatus.PENDING
    assert types(engine) == []
    engine.payments.pay(session)
    assert order_status(engine, "confirmed") is OrderStatus.PAID


def test_a_session_expires_only_at_a_tick_after_its_time(engine: Engine) -> None:
    # case: X8
    session = create(engine, order_id="late", expires_at=engine.clock.now() + timedelta(seconds=310))
    engine.advance(310)
    assert engine.session(session.id).status is SessionStatus.OPEN, "expires_at has passed, but no check has run"
    engine.advance(19)
    assert engine.session(session.id).status is SessionStatus.OPEN
    engine.advance(1)
    assert engine.session(session.id).status is SessionStatus.EXPIRED
    assert types(engine) == ["checkout.session.expired", "order.expired"]
    assert order_status(engine, "late") is not OrderStatus.PAID


def test_the_check_runs_every_thirty_seconds(engine: Engine) -> None:
    # case: X8
    at = engine.clock.now()
    assert [(tick_after(at + timedelta(seconds=s)) - at).total_seconds() for s in (0, 1, 29.9, 30, 59)] == [
        30, 30, 30, 60, 60,
    ]  # fmt: skip


def test_a_payment_in_flight_keeps_a_session_from_expiring(engine: Engine) -> None:
    # case: X9
    session = create(engine, order_id="flight")
    payment = engine.payments.pay(session, until="confirmed")
    engine.advance(7200)
    assert engine.session(session.id).status is SessionStatus.OPEN
    engine.payments.fail(payment)
    assert types(engine) == []
    engine.advance(30)
    assert engine.session(session.id).status is SessionStatus.EXPIRED
    assert types(engine) == ["checkout.session.expired", "order.expired"]


def test_a_payment_that_finalizes_after_the_time_completes_the_session(engine: Engine) -> None:
    # case: X9
    session = create(engine)
    payment = engine.payments.pay(session, until="confirmed")
    engine.advance(7200)
    engine.payments.finalize(payment)
    assert engine.session(session.id).status is SessionStatus.COMPLETED
    assert types(engine) == ["order.paid", "checkout.session.completed"]


def test_a_lapsed_session_is_replaced_without_order_expired(engine: Engine) -> None:
    # case: X10
    first = create(engine, order_id="lapse", expires_at=engine.clock.now() + timedelta(seconds=310))
    engine.advance(310)
    second = create(engine, order_id="lapse")
    assert second.id != first.id
    replaced = engine.session(first.id)
    assert (replaced.status, replaced.replaced_by) == (SessionStatus.EXPIRED, second.id)
    assert order_status(engine, "lapse") is OrderStatus.PENDING
    engine.advance(60)
    assert types(engine) == ["checkout.session.expired"]


@pytest.mark.parametrize("who", ["merchant", "payer"])
async def test_a_cancel_leaves_the_order_pending(api: Api, who: str) -> None:
    # case: X11
    session = await api.create(order_id=f"cancel-{who}")
    if who == "merchant":
        assert (await api.post(f"/v1/checkout-sessions/{session['id']}/cancel")).json["status"] == "CANCELED"
    else:
        await api.control(f"/sessions/{session['id']}/cancel")
    read = (await api.get(f"/v1/checkout-sessions/{session['id']}")).json
    assert (read["status"], read["order"]["status"]) == ("CANCELED", "PENDING")
    assert [event["type"] for event in await api.items("/v1/events")] == ["checkout.session.canceled"]


def test_what_is_in_progress_or_over_cannot_be_cancelled(engine: Engine) -> None:
    # case: X12
    session = create(engine)
    engine.payments.pay(session, until="broadcast")
    with pytest.raises(Refusal, match="payment_in_progress"):
        engine.sessions.cancel(engine.session(session.id))
    engine.payments.pay(engine.session(session.id))
    with pytest.raises(Refusal, match="session_not_cancelable"):
        engine.sessions.cancel(engine.session(session.id))


@pytest.mark.parametrize("over", ["expired", "canceled"])
def test_a_late_payment_pays_the_order_without_completing_the_session(engine: Engine, over: str) -> None:
    # case: X13
    session = create(engine, order_id="late")
    if over == "expired":
        engine.advance(1831)
    else:
        engine.sessions.cancel(session)
    before = types(engine)
    engine.payments.pay(engine.session(session.id))
    assert types(engine) == [*before, "order.paid"]
    assert order_status(engine, "late") is OrderStatus.PAID
    assert engine.session(session.id).status.value.lower() == over


def test_the_session_status_after_a_late_payment_is_a_switch() -> None:
    # case: X13
    engine = make_engine(late_payment_session="completed")
    session = create(engine)
    engine.sessions.cancel(session)
    engine.payments.pay(engine.session(session.id))
    assert engine.session(session.id).status is SessionStatus.COMPLETED
    assert "checkout.session.completed" not in types(engine)


@pytest.mark.parametrize(("switch", "paid"), [("orphan", False), ("pays_order", True)])
def test_a_late_payment_with_a_newer_session_is_a_switch(switch: str, paid: bool) -> None:
    # case: X14
    engine = make_engine(late_payment_newer_session=switch)
    first = create(engine, order_id="newer")
    engine.sessions.cancel(first)
    create(engine, order_id="newer")
    payment = engine.payments.pay(engine.session(first.id))
    assert payment.status is PaymentStatus.SUCCEEDED
    assert (order_status(engine, "newer") is OrderStatus.PAID) is paid
    assert ("order.paid" in types(engine)) is paid


def test_a_second_payment_of_a_paid_order_is_money_without_event(engine: Engine) -> None:
    # case: X14
    first = create(engine, order_id="twice")
    engine.sessions.cancel(first)
    engine.payments.pay(create(engine, order_id="twice"))
    engine.payments.pay(engine.session(first.id))
    assert types(engine).count("order.paid") == 1
    assert sum(1 for payment in engine.world.payments if payment.status is PaymentStatus.SUCCEEDED) == 2


async def test_a_reissued_link_kills_the_old_one(api: Api) -> None:
    # case: X15
    session = await api.create()
    old = session["url"].removeprefix(session["url"].partition("/checkout/")[0])
    assert (await api.get(old)).status == 200
    reply = await api.post(f"/v1/checkout-sessions/{session['id']}/link")
    assert reply.status == 200
    assert reply.json["url"] not in (None, session["url"])
    assert (await api.get(old)).status == 404
    new = reply.json["url"].removeprefix(reply.json["url"].partition("/checkout/")[0])
    assert (await api.get(new)).status == 200


async def test_checkout_unavailable_asks_for_five_seconds(api: Api) -> None:
    # case: X15
    session = await api.create()
    await api.control("/faults", {"checkout_unavailable_next": 1})
    reply = await api.post(f"/v1/checkout-sessions/{session['id']}/link")
    assert (reply.status, reply.code, reply.headers["Retry-After"]) == (409, "checkout_unavailable", "5")
    assert (await api.post(f"/v1/checkout-sessions/{session['id']}/link")).status == 200


def test_a_reissue_needs_an_open_quiet_session_with_two_minutes_left(engine: Engine) -> None:
    # case: X15
    session = create(engine)
    engine.payments.build(session)
    with pytest.raises(Refusal, match=r"payment_in_progress.*prepared"):
        engine.sessions.reissue(engine.session(session.id))
    engine.advance(91)
    assert engine.sessions.reissue(engine.session(session.id)).token != session.token
    engine.payments.pay(engine.session(session.id), until="broadcast")
    with pytest.raises(Refusal, match="payment_in_progress"):
        engine.sessions.reissue(engine.session(session.id))

    other = create(engine)
    engine.advance(1800 - 119)
    with pytest.raises(Refusal, match="session_not_reissuable"):
        engine.sessions.reissue(engine.session(other.id))
    done = create(engine)
    engine.sessions.cancel(done)
    with pytest.raises(Refusal, match="session_not_reissuable"):
        engine.sessions.reissue(engine.session(done.id))


def test_ten_builds_may_succeed(engine: Engine) -> None:
    # case: X16
    session = create(engine)
    for _ in range(10):
        session = engine.payments.build(session)
    with pytest.raises(PageRefusal) as refused:
        engine.payments.build(session)
    assert refused.value.problem_code == "build_limit_reached"


def test_thirty_builds_may_be_tried(engine: Engine) -> None:
    # case: X16
    session = create(engine)
    for _ in range(30):
        session = engine.payments.build(session, succeeds=False)
    with pytest.raises(PageRefusal) as refused:
        engine.payments.build(session)
    assert refused.value.problem_code == "build_limit_reached"


def test_nothing_is_built_in_the_last_two_minutes(engine: Engine) -> None:
    # case: X16
    session = create(engine)
    engine.advance(1800 - 120)
    engine.payments.build(session)
    engine.advance(1)
    with pytest.raises(PageRefusal) as refused:
        engine.payments.build(engine.session(session.id))
    assert refused.value.problem_code == "too_close_to_expiry"


def test_the_fee_is_on_top_rounded_down_and_fixed_at_creation(engine: Engine) -> None:
    # case: X19
    merchant_id = engine.application.merchant_id
    engine.applications.change_merchant(merchant_id, fee_bps=150)
    session = create(engine, amount=333_333)
    assert (session.amount, session.fee) == (333_333, 4_999), "1.5 % of 0.333333 is 0.00499999…"
    engine.applications.change_merchant(merchant_id, fee_bps=900)
    payment = engine.payments.pay(session)
    assert (payment.amount, payment.fee) == (333_333, 4_999)
