"""Fulfilment of one-time orders: whatever arrives, in whatever order and however often, a paid order is handed to
the merchant's handlers as `fulfilment.requested` exactly once.

Proof is a verified `order.paid` or a read that shows PAID. Everything else only asks for a read. The rules are in
`rules.py`; here facts are taken out of events and what the rules decided is done.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

from consumer.plugin import Context, Event, Reject, Trust, handles, parse_time
from handlers.findings import close_by_hand, close_finding, open_finding
from handlers.fulfilment import rules
from handlers.fulfilment.folding import Fact, apply_all
from handlers.fulfilment.lookups import (
    PAID_BEFORE,
    SessionKnown,
    is_paid,
    order_named,
    order_of_service_id,
    session_known,
)
from handlers.fulfilment.money import (
    judge_payments,
    judge_proof,
    keep_payment,
)
from handlers.fulfilment.observing import Seen, observe
from handlers.fulfilment.options import Options
from handlers.fulfilment.order import (
    KNOWN_STATUSES,
    Hold,
    Matching,
    Order,
    Proof,
    Reading,
    Registration,
)
from handlers.fulfilment.registration import hold_session, newer_registration, register_session
from handlers.fulfilment.sessions import heard, take_payments
from handlers.fulfilment.store import ASKED, READ_DUE, Change, apply, compare_again, is_let_go, later
from handlers.fulfilment.tables import (
    FINDINGS,
    FulfilmentPayment,
)
from handlers.origin import is_own, own
from handlers.pointers import TEXT_MAX_CHARS, look, look_amount, look_text, marked_as_test

OPTIONS = Options
BY_SERVICE_ID_S = 20.0  # reads that only lag have mostly come by then


@handles("order.paid", transactional=True, batch=True, name="fulfilment:order_paid")
async def order_paid(batch: Sequence[tuple[Event, Context]]) -> None:
    """Proof; no session event is waited for (cases F1, F7, F36). Of an order that nobody has shown us it may be a test
    event, signed and listed like any other: whether there is such an order is asked first (cases F24, B28). Only what
    was signed is let go when nobody answers: what was read came from where the answer comes from."""
    for apart in _apart(batch):
        facts = [fact for event, ctx in apart if (fact := await _paid(event, ctx)) is not None]
        for fact, change in zip(facts, await apply_all(facts), strict=True):
            await judge_proof(fact.ctx, fact.event, fact.order_id, _payment_in(fact.event, fact.ctx), change)
            if change.after.hold is Hold.ASKED:
                _ask(fact, change)


def _apart(batch: Sequence[tuple[Event, Context]]) -> Iterator[Sequence[tuple[Event, Context]]]:
    """The batch in parts, as good as always one: who names an order by the service's id alone comes behind the part
    that shows whose that is. Pure."""
    part: list[tuple[Event, Context]] = []
    shown: set[str | None] = set()
    for event, ctx in batch:
        if event.order_id is not None:
            shown.add(event.object_id)
        elif event.object_id in shown:
            yield part
            part, shown = [], set()
        part.append((event, ctx))
    yield part


async def _paid(event: Event, ctx: Context) -> Fact | None:
    """What an `order.paid` says of its order, if it says which."""
    _verified(event)
    options: Options = ctx.options
    if marked_as_test(event, options.test_markers):
        ctx.log.info("test_event_ignored", type=event.type)
        return None
    order_id = event.order_id or await order_of_service_id(ctx, event.object_id)
    if order_id is None:
        await _unidentified(ctx, event)
        return None
    amount = look_amount(event, options.amount)
    proof = _proof(event, _payment_in(event, ctx))
    customer = event.customer or look_text(event, options.customer)
    service_order_id = event.object_id if event.object_id != order_id else None
    matching: Matching | None = options.matching
    if ctx.is_history:  # a seed sets state, asks nothing (case B30)
        matching = None if is_let_go(ctx, order_id) else "off"

    def fact(order: Order) -> Order:
        known = rules.mentioned(order, customer=customer, service_order_id=service_order_id)
        return rules.paid(known, proof, matching, amount=amount)

    return Fact(event, ctx, order_id, fact)


def _ask(fact: Fact, change: Change) -> None:
    event, ctx, options = fact.event, fact.ctx, fact.ctx.options
    if change.before.hold is Hold.ASKED:
        ctx.request_read("order", fact.order_id)  # a further event of it: the first one's answer may be lost
    if event.trust is Trust.SIGNED:
        due = max(event.received_at, ctx.now) + timedelta(seconds=options.read_within_s)
        ctx.emit(READ_DUE, f"order:{fact.order_id}", {"due": due.isoformat()}, not_before=due, once=ASKED)


@handles(READ_DUE, transactional=True, batch=True, name="fulfilment:read_due")
async def read_due(batch: Sequence[tuple[Event, Context]]) -> None:
    """No answer came in time: the service's own signature is proof by itself, and nobody's goods wait for an API."""
    await apply_all([_unanswered(event, ctx) for event, ctx in batch], invents=False)


def _unanswered(event: Event, ctx: Context) -> Fact:
    order_id = own(event).order_id
    if order_id is None:
        raise Reject("a timer needs an order")
    options: Options = ctx.options
    at = parse_time(event.find("/data/due")) or event.received_at
    return Fact(event, ctx, order_id, lambda order: rules.unanswered(order, at, options.matching))


@handles("order.unreadable", transactional=True, name="fulfilment:order_unreadable")
async def order_unreadable(event: Event, ctx: Context) -> None:
    """The service says that it has no such order. What only an event vouched for is held for an operator (cases
    F20, F24); what was requested stays so (case G7), and is shown."""
    order_id, version = own(event).order_id, event.find("/data/version")
    if order_id is None or not isinstance(version, int):
        raise Reject("this needs an order and a version")
    options: Options = ctx.options
    at = event.received_at
    change = await apply(
        ctx, event, order_id, lambda o: rules.unreadable(o, version, at, options.matching), invents=False
    )
    if change is None:
        return
    after = change.after
    is_newly_held = after.hold is Hold.UNMATCHED and change.before.hold is not Hold.UNMATCHED
    if is_newly_held and after.service_order_id is not None:
        # It may be there, under an id that cannot be looked up: too long, or with characters that nothing keeps.
        ctx.request_read("service_order", after.service_order_id, later(event, BY_SERVICE_ID_S))
    if after.service_order_id is None and (meant := await order_of_service_id(ctx, order_id)) is not None:
        # A payment named it while a read showed whose id at the service that is: a newer one takes the payment (U10).
        ctx.request_read("order", meant)
    if after.requested_at is not None and after.is_unreadable:
        ctx.log.warning("requested_order_unreadable", order_id=order_id)
        detail = {"proof": after.proof_event_id, "request_id": event.find("/data/request_id")}
        await open_finding(ctx, FINDINGS, "unreadable_order", order_id, at, detail)


@handles("order.expired", transactional=True, name="fulfilment:order_expired")
async def order_expired(event: Event, ctx: Context) -> None:
    """Never final. It invents no order: a subscription session has none (case F23), a read brings the others."""
    _verified(event)
    options: Options = ctx.options
    order_id = event.order_id or await order_of_service_id(ctx, event.object_id)
    if marked_as_test(event, options.test_markers) or order_id is None:
        return
    change = await apply(ctx, event, order_id, lambda order: rules.expired(order, event.received_at), invents=False)
    if change is not None and change.after.paid_at is not None:
        ctx.log.info("stale_event", type=event.type, order_id=order_id)
        ctx.note(f"order:{order_id}", "order.stale_event", {}, {"type": event.type})
    elif not ctx.is_history:
        ctx.request_read("order", order_id, later(event, options.lapse_read_delay_s))


@handles("checkout.session.*", transactional=True, name="fulfilment:checkout_session")
async def checkout_session(event: Event, ctx: Context) -> None:
    """Says nothing about money: the session is recorded and the order is read (cases F5, F10, F11, F12). Not a seed's:
    of that order `order.paid` tells whether it is history, and a read would not (case B30)."""
    _verified(event)
    options: Options = ctx.options
    if marked_as_test(event, options.test_markers):
        return
    order_id, mode = event.order_id, None
    if event.object_id:
        status = event.type.rsplit(".", 1)[1].upper()
        order_id, mode = await heard(ctx, event, event.object_id, status=status, order_id=order_id)
    if "subscription" in (look(event, options.mode), mode) or ctx.is_history:
        return
    completed = event.type == "checkout.session.completed"
    at = None if completed else later(event, options.lapse_read_delay_s)
    if order_id is not None:
        if not await is_paid(ctx, order_id):
            ctx.request_read("order", order_id, at)
    elif event.object_id is not None and completed:
        ctx.request_read("session", event.object_id, at)


@handles("order.observed", transactional=True, batch=True, name="fulfilment:order_observed")
async def order_observed(batch: Sequence[tuple[Event, Context]]) -> None:
    """An authenticated read: PAID is proof, by itself (cases F18, B18); any other word is only shown (F17, F34)."""
    await observe([_seen(event, ctx) for event, ctx in batch])


def _seen(event: Event, ctx: Context) -> Seen:
    """What a read says of its order."""
    order_id = own(event).order_id
    version, record = event.find("/data/version"), event.find("/data/record")
    if order_id is None or not isinstance(version, int) or not isinstance(record, dict):
        raise Reject("an observation needs an order, a version and a record")
    options: Options = ctx.options
    status = event.find("/data/record/status")
    reading = Reading(
        version=version,
        status=status[:TEXT_MAX_CHARS] if isinstance(status, str) else None,
        amount=look_amount(event, options.amount),
        service_order_id=look_text(event, options.service_order),
        customer=look_text(event, options.customer),
    )
    if reading.status not in KNOWN_STATUSES:
        ctx.log.warning("unknown_enum", field="order.status", order_id=order_id)
    return Seen(event, ctx, order_id, reading, _proof(event, _payment_in(event, ctx)))


@handles("session.observed", transactional=True, name="fulfilment:session_observed")
async def session_observed(event: Event, ctx: Context) -> None:
    """An authenticated read of a session tells whose it is, and in which mode, where neither the merchant nor an event
    did: what was paid in it is of that order (case U10). Nothing else is asked of its status (case F35)."""
    session_id = own(event).key.partition(":")[2]
    options: Options = ctx.options
    status = event.find("/data/record/status")
    order_id = look_text(event, options.session_order)
    await heard(ctx, event, session_id, status=status, order_id=order_id)


@handles("checkout.registered", transactional=True, name="fulfilment:checkout_registered")
async def checkout_registered(event: Event, ctx: Context) -> None:
    """The merchant registered a checkout: whose it is and what it should cost (cases F20, F21)."""
    said = own(event).data["data"]
    options: Options = ctx.options
    if said.get("mode") == "subscription":
        await take_payments(ctx, event, said["session_id"])
        return
    registration = Registration(
        session_id=said["session_id"], customer=said.get("customer"), expected_amount=said.get("expected_amount"),
        mode="payment", price_id=said.get("price_id"),
    )  # fmt: skip

    await register_session(ctx.session, ctx.application, said["order_id"], registration, event.received_at)
    at = event.received_at
    newest = await newer_registration(ctx.session, ctx.application, said["order_id"], at) or registration

    def fact(order: Order) -> Order:
        return rules.registered(order, newest, at, options.matching)

    change = await apply(ctx, event, said["order_id"], fact, invents=True)
    if change is not None:
        await compare_again(ctx, event, said["order_id"], change.after)
    await take_payments(ctx, event, said["session_id"])


@handles("payment.observed", transactional=True, name="fulfilment:payment_observed")
async def payment_observed(event: Event, ctx: Context) -> None:
    """A payment seen by a read. It never fulfils (cases F28, F38): it finds double and orphan money."""
    payment_id = look_text(own(event), ("/id",))
    if event.find("/data/record/status") != "SUCCEEDED" or payment_id is None:
        return
    options: Options = ctx.options
    if look_text(event, options.payment_subscription) is not None:
        return
    order_id, service_order_id = await order_named(
        ctx, payment_id, look_text(event, options.payment_order), look_text(event, options.payment_service_order)
    )
    known = SessionKnown()
    session_id = look_text(event, options.payment_session) if order_id is None and service_order_id is None else None
    if session_id is not None:
        await hold_session(ctx.session, ctx.application, session_id)  # its event comes before this, or after
        known = await session_known(ctx, session_id)
        order_id = known.order_id if known.is_known and not known.is_subscriptions else None
        if known.order_id is not None and not (known.is_known or known.is_subscriptions):
            ctx.request_read("order", known.order_id)  # what it shows takes the payment
    payment = FulfilmentPayment(
        application=ctx.application,
        payment_id=payment_id,
        order_id=order_id,
        service_order_id=service_order_id,
        session_id=session_id,
        amount=look_amount(event, options.amount),
        seen_at=event.received_at,
    )
    if order_id is not None:
        await judge_payments(ctx, event, order_id, payment)
    elif (order_id := await keep_payment(ctx, event, payment)) is not None:
        await judge_payments(ctx, event, order_id)
    elif not known.is_subscriptions:
        detail: dict[str, Any] = {"payments": [payment.payment_id]}
        if session_id is not None:
            detail["session_id"] = session_id
            if None in (known.order_id, known.mode) and not ctx.is_history:
                ctx.request_read("session", session_id)  # its answer tells whose it is
        await open_finding(ctx, FINDINGS, "orphan_payment", payment.payment_id, event.received_at, detail)
        if service_order_id is not None:
            ctx.request_read("service_order", service_order_id)


@handles("fulfilment.marked_paid", "fulfilment.released", "fulfilment.unfulfillable", transactional=True,
         name="fulfilment:operator")  # fmt: skip
async def operator(event: Event, ctx: Context) -> None:
    """An operator's word (or, for `unfulfillable`, a merchant's handler's): audited, and never twice (case F37). One
    that is about another state than the order is in by now leaves it alone, and is noted: what is marked as paid was
    not paid, and what a word says that held the order does."""
    order_id = own(event).order_id
    if order_id is None:
        raise Reject("an operator's word needs an order")
    options: Options = ctx.options
    seen: str | None = event.find("/data/hold")

    def meant(order: Order) -> Order:
        match event.type:
            case "fulfilment.marked_paid":
                return rules.released(rules.paid(order, _proof(event), options.matching), event.received_at)
            case "fulfilment.released":
                return rules.released(order, event.received_at)
            case _:
                return rules.unfulfillable(order, event.received_at)

    def is_about(order: Order) -> bool:
        return order.paid_at is None if event.type == "fulfilment.marked_paid" else rules.is_held_as(order, seen)

    def fact(order: Order) -> Order:
        return meant(order) if is_about(order) else order

    change = await apply(ctx, event, order_id, fact, invents=event.type == "fulfilment.marked_paid")
    if change is None:
        raise Reject("the order is unknown")
    if not is_about(change.before) and meant(change.before) != change.before:
        held = change.before.hold
        ctx.log.warning("order_left_alone", type=event.type, order_id=order_id, seen=seen, hold=held)
        ctx.note(f"order:{order_id}", "order.left_alone", {"hold": seen}, {"type": event.type, "hold": held})


@handles("fulfilment.finding_closed", transactional=True, name="fulfilment:finding_closed")
async def finding_closed(event: Event, ctx: Context) -> None:
    """An operator settled a finding by hand (a refund, say): it stays closed."""
    await close_by_hand(own(event), ctx, FINDINGS)


async def _unidentified(ctx: Context, event: Event) -> None:
    """Paid, but the event names no order of the merchant: the read will (case F20: never dropped). None is asked for
    history: it is kept, for whatever shows that order later, that nobody is to ship it (case B30)."""
    subject, at, detail = event.object_id or event.id, event.received_at, {"event_id": event.id}
    ctx.note(f"object:{subject}", "order.paid_unidentified", {}, detail)  # a read acts on it (F19)
    if ctx.is_history:
        await open_finding(ctx, FINDINGS, PAID_BEFORE, subject, at, detail)
        await close_finding(ctx, FINDINGS, PAID_BEFORE, subject, at)
        return
    ctx.log.warning("paid_order_unidentified", object_id=event.object_id)
    await open_finding(ctx, FINDINGS, "paid_unidentified", subject, at, detail)
    payment_id = _payment_in(event, ctx)
    if event.object_id is not None and payment_id is not None:
        payment = FulfilmentPayment(
            application=ctx.application,
            payment_id=payment_id,
            service_order_id=event.object_id,
            seen_at=event.received_at,
        )
        await keep_payment(ctx, event, payment)  # the order's, once a read shows which that is
    if event.object_id is not None:
        ctx.request_read("service_order", event.object_id)


def _verified(event: Event) -> None:
    """A claim is never proof; the stages keep claims away, and so does this (case G6)."""
    if event.trust is Trust.CLAIMED:
        raise Reject("the event is not verified")


def _payment_in(event: Event, ctx: Context) -> str | None:
    """The payment by which the order was paid, where the event or the record shows it."""
    options: Options = ctx.options
    return look_text(event, options.payment)


def _proof(event: Event, payment_id: str | None = None) -> Proof:
    by_event = not is_own(event)
    return Proof(event_id=event.id, type=event.type, at=event.received_at, by_event=by_event, payment_id=payment_id)
