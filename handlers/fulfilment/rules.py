"""What a fact does to an order. Pure: the order as we know it and a fact in, the order afterwards out.

    fact                                   effect on the order                                    case
    order.paid, or a read that says PAID   PAID for good; fulfilment is requested, once           F1 F7 F8 F10 F18
    order.paid while a read says PENDING   PAID all the same: either proof suffices               F19
    order.paid of an unknown order (auto)  PAID, and held until it is asked whether it exists      F24 B28
    the service has no such order          held for an operator; changes nothing once requested   F20 F24 G7
    nobody answered in time (signed)       the signature is proof by itself                       F1
    order.expired                          shown until a read says more; nothing once PAID        F9 F32
    a read with any other status word      shown; never proof                                     F17 F34
    registered by the merchant             known; the expected amount is compared from now on     F20 F21
    what its payments came to              compared where the order itself names no amount        F21
    an operator's word                     PAID by hand, released, unfulfillable                  F31 F33 F37

Fulfilment is requested when `requested_at` turns from nothing into a time. No rule turns it back (cases G4, F31).
"""

from __future__ import annotations

from datetime import datetime

from handlers.fulfilment.order import PAID, Hold, Matching, Order, Proof, Reading, Registration, decimal


def paid(order: Order, proof: Proof, matching: Matching | None, *, amount: str | None = None) -> Order:
    """The first proof makes it PAID; further ones change nothing but what a mere event left open (cases F2-F6)."""
    known = order._replace(amount=order.amount or amount, payment_id=order.payment_id or proof.payment_id)
    if known.paid_at is None:
        known = known._replace(expired_at=None, paid_at=proof.at, proof_event_id=proof.event_id, proof_type=proof.type)
    elif proof.by_event:
        return known
    return _requested_unless_held(known, proof.at, matching, sure=not proof.by_event)


def observed(order: Order, reading: Reading, proof: Proof, matching: Matching | None) -> Order:
    """The newest version is what we show; PAID in any version is proof (cases F18, B18)."""
    if reading.version > order.observed_version:
        order = order._replace(
            observed_version=reading.version,
            unreadable_version=order.unreadable_version if (order.unreadable_version or 0) > reading.version else None,
            observed_status=reading.status,
            amount=reading.amount or order.amount,
            service_order_id=reading.service_order_id or order.service_order_id,
            customer=order.customer or reading.customer,
        )
    if reading.status == PAID:
        order = paid(order, proof, matching, amount=reading.amount)
    return _requested_unless_held(order, proof.at, matching)


def unreadable(order: Order, version: int, at: datetime, matching: Matching) -> Order:
    """The service says that it has no such order: a test event's, or one too new to be read (cases F24, U30). What was
    requested stays requested (case G7)."""
    if version > max(order.observed_version, order.unreadable_version or 0):
        order = order._replace(unreadable_version=version)
    return _requested_unless_held(order, at, matching)


def unanswered(order: Order, at: datetime, matching: Matching) -> Order:
    """Nobody has answered in time whether there is such an order: then the signature is proof by itself."""
    return _requested_unless_held(order, at, matching, sure=order.unreadable_version is None)


def mentioned(order: Order, *, customer: str | None, service_order_id: str | None) -> Order:
    """What an event mentions fills what is unknown; it overwrites nothing a read or the merchant said (case U29)."""
    return order._replace(
        customer=order.customer or customer,
        service_order_id=order.service_order_id or service_order_id,
    )


def expired(order: Order, at: datetime) -> Order:
    """Never final: a session of the order expired, a payment may still land (cases F8, F9, CS-R2)."""
    if order.paid_at is not None:
        return order
    return order._replace(expired_at=min(at, order.expired_at or at))


def registered(order: Order, registration: Registration, at: datetime, matching: Matching) -> Order:
    """The merchant says what it expects of this order; one that was parked may go on (case F20). `registration` is the
    newest there is: it counts wholly, also where it names no amount."""
    known = order._replace(
        registered_at=order.registered_at or at,
        session_id=registration.session_id,
        customer=registration.customer or order.customer,
        expected_amount=registration.expected_amount,
    )
    return _requested_unless_held(known, at, matching)


def came_to(order: Order, paid_amount: str | None) -> Order:
    """What the payments of an order came to. They prove nothing, and hold nothing (case F38)."""
    return order._replace(paid_amount=paid_amount)


def is_held_as(order: Order, seen: str | None) -> bool:
    """Whether the order is still held by what a person saw who decided about it; None: nobody said what that was. What
    holds it otherwise by now nobody looked at (cases F20, F21); and what is out, or settled, is not held at all."""
    return seen is None or order.hold == seen


def released(order: Order, at: datetime) -> Order:
    """An operator lets a paid order go, whatever held it."""
    if order.paid_at is None or order.requested_at is not None:
        return order
    return order._replace(hold=None, requested_at=at)


def unfulfillable(order: Order, at: datetime) -> Order:
    """Paid, but there is nothing to deliver: an operator decides, refunds are made by hand (case F33). One that is held
    waits for nothing any more then; only an operator lets it go (`released`)."""
    if order.paid_at is None or order.unfulfillable_at is not None:
        return order
    return order._replace(unfulfillable_at=at, hold=None)


def hold_for(order: Order, matching: Matching | None, *, sure: bool) -> Hold | None:
    """What keeps a paid order from fulfilment, or None. `sure`: under `auto`, that it exists needs no read. `matching`
    None: it is history, and was shipped long since, so that nothing may let it go later (case B30)."""
    if matching is None:
        return None
    known, shown = order.registered_at is not None, order.observed_version > 0
    match matching:
        case "on" if not known:
            return Hold.UNMATCHED
        case "read" if not (known or shown):
            return Hold.UNCONFIRMED
        case "auto" if not (known or shown or sure):
            return Hold.ASKED if order.unreadable_version is None else Hold.UNMATCHED
    return Hold.AMOUNT if amounts_differ(order) else None


def amounts_differ(order: Order) -> bool:
    """Whether an amount was said that is not the expected one: 10 and 10.000000 are the same, and what is no decimal
    is the same as nothing (case F21). An amount that nobody says is not waited on."""
    if order.expected_amount is None or order.amount is None:
        return False
    expected, said = decimal(order.expected_amount), decimal(order.amount)
    return expected is None or said is None or expected != said


def is_underpaid(order: Order) -> bool:
    """Whether no payment of an order that says no amount itself came to what is expected (case F21). A larger one may
    have the service fee in it."""
    expected, came = decimal(order.expected_amount), decimal(order.paid_amount)
    return order.amount is None and expected is not None and came is not None and came < expected


def _requested_unless_held(order: Order, at: datetime, matching: Matching | None, *, sure: bool = False) -> Order:
    if order.paid_at is None or order.requested_at is not None or order.unfulfillable_at is not None:
        return order
    held = hold_for(order, matching, sure=sure)
    return order._replace(hold=held, requested_at=None if held else at)
