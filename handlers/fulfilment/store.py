"""Doing what the rules decided: one order's row, what follows from its change, and the findings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import bindparam, exists, select, update

from consumer.plugin import Context, Event, derived_id
from handlers.findings import close_finding, open_finding
from handlers.fulfilment.order import FINDING_OF_HOLD, Hold, Order, decimal
from handlers.fulfilment.rules import amounts_differ, is_underpaid
from handlers.fulfilment.tables import CHECKOUTS, FINDINGS, ORDERS, FulfilmentOrder

REQUESTED, READ_DUE = "fulfilment.requested", "fulfilment.read_due"
ASKED = "read"
ANSWERS = ("order.observed", "order.unreadable")
LATE = "after fulfilment was requested: it may be shipped already"
_RECORD_MAX_BYTES = 64 * 1024
_ORPHAN = exists().where(
    FINDINGS.c.application == bindparam("b_application"),
    FINDINGS.c.kind == "orphan_payment",
    FINDINGS.c.subject == bindparam("b_order_id"),
    FINDINGS.c.closed_at.is_(None),
)
_CHANGE = (
    update(ORDERS)
    .where(ORDERS.c.application == bindparam("b_application"), ORDERS.c.order_id == bindparam("b_order_id"))
    .returning(_ORPHAN)
)
"""Sets what it is sent with, of one order. Whoever opens that finding holds the order's lock while they do, and this
statement begins with the lock held: it sees theirs."""
_MET_KNOWN = "fulfilment: the last order was there already"
"""What the session remembers for the transaction's next orders: which statement to begin with, and nothing else."""


class Change(NamedTuple):
    """An order before and after a fact."""

    before: Order
    after: Order
    is_new: bool = False
    may_be_orphan: bool = False
    """Whether a payment was seen before its order was paid, and that is still shown."""

    def became(self, name: str) -> bool:
        """Whether a field was empty before and is not any more."""
        return getattr(self.before, name) is None and getattr(self.after, name) is not None


async def apply(
    ctx: Context,
    event: Event,
    order_id: str,
    fact: Callable[[Order], Order],
    *,
    invents: bool,
    is_history: bool = False,
) -> Change | None:
    """Apply a fact to the order's row and do what follows; None when the order is unknown and must not be invented.
    `is_history` as of `Fact`.

    The usual first fact is the only one: then this is a single INSERT. Everything else locks the row first, so two
    workers with two proofs of one order cannot both be the first (cases F3, F4). An answer is of an order that was
    asked for: its row is there already, as a rule. So is that of a merchant who registers orders: behind a known one
    the next of the same transaction are looked for first, too.
    """
    looks_first = event.type in ANSWERS or not invents or ctx.session.info.get(_MET_KNOWN, False)
    change = await _written(ctx, order_id, fact, invents=invents, looks_first=looks_first)
    if change is not None and event.type not in ANSWERS:
        ctx.session.info[_MET_KNOWN] = not change.is_new
    if change is not None:
        await follow(ctx, event, order_id, change, is_history=is_history)
    return change


async def _written(
    ctx: Context, order_id: str, fact: Callable[[Order], Order], *, invents: bool, looks_first: bool
) -> Change | None:
    key: dict[str, Any] = {"application": ctx.application, "order_id": order_id}
    found = await ctx.locked(FulfilmentOrder, **key) if looks_first else None
    if found is None and invents:
        fresh = fact(Order())
        if await ctx.insert_new(FulfilmentOrder, **key, **fresh._asdict()):
            return Change(Order(), fresh, is_new=True)
        found = await ctx.locked(FulfilmentOrder, **key)
    if found is None:
        return None
    before = to_order(found)
    after = fact(before)
    if after == before:
        return Change(before, after)
    values = {name: getattr(after, name) for name in changed(before, after)}
    done = await ctx.session.execute(_CHANGE, values | {"b_application": ctx.application, "b_order_id": order_id})
    return Change(before, after, may_be_orphan=bool(done.scalar()))


def changed(before: Order, after: Order) -> tuple[str, ...]:
    """The fields in which they differ."""
    return tuple([name for name, was, now in zip(Order._fields, before, after, strict=True) if was != now])


def to_order(row: Mapping[str, Any]) -> Order:
    """A row of the table as the rules' value."""
    return order_of([row[name] for name in Order._fields])


def order_of(values: Sequence[Any]) -> Order:
    """The same, of the values of its columns in the order of the fields."""
    order = Order._make(values)
    return order._replace(hold=Hold(order.hold)) if order.hold else order


async def follow(ctx: Context, event: Event, order_id: str, change: Change, *, is_history: bool = False) -> None:
    """The effects of a change, if it is one: each is tied to a field that is set once, so none can happen twice."""
    before, after = change.before, change.after
    if before == after:
        return
    _note(ctx, order_id, change)
    if change.became("requested_at"):
        await _through_old_session(ctx, event, order_id, after)
        data = requested_data(order_id, after, event)
        ctx.emit(REQUESTED, f"order:{order_id}", data, once="order", is_history=is_history or None)
    if before.hold != after.hold:
        await _hold_changed(ctx, event, order_id, change)
    if _is_off(after) and not _is_off(before) and after.hold is not Hold.AMOUNT:
        seen = {"seen": LATE} if after.requested_at is not None else {}
        await _finding(ctx, "amount_mismatch", order_id, event.received_at, why_held(after) | seen)
    elif _is_off(before) and not _is_off(after) and before.hold is not Hold.AMOUNT:
        await close_finding(ctx, FINDINGS, "amount_mismatch", order_id, event.received_at)
    if change.became("paid_at") and change.may_be_orphan:
        # A payment seen before its order was paid makes the row first, so a fresh row has no such finding.
        await close_finding(ctx, FINDINGS, "orphan_payment", order_id, event.received_at)
    if change.became("unfulfillable_at"):
        detail = {"reason": str(event.find("/data/reason") or "")[:500]}
        await _finding(ctx, "paid_unfulfillable", order_id, event.received_at, detail)


def is_let_go(ctx: Context, order_id: str) -> bool:
    """Whether an order that history says is paid is held by nothing (case B30). In a rebuild as it was then: before
    2026-11-30 it was held for its amount, or for want of a registration."""
    then = ctx.emitted_then
    return then is None or derived_id(ctx.application, REQUESTED, f"order:{order_id}", "order") in then


async def compare_again(ctx: Context, event: Event, order_id: str, order: Order) -> None:
    """What a registration says of an order that is out already, or held for its amount. It is written before its event
    comes (see `register`): the row shows no change then (case F21)."""
    if order.requested_at is None and order.hold is not Hold.AMOUNT:
        return
    if _is_off(order):
        seen = {} if order.requested_at is None else {"seen": LATE}
        await _finding(ctx, "amount_mismatch", order_id, event.received_at, why_held(order) | seen)
    else:
        await close_finding(ctx, FINDINGS, "amount_mismatch", order_id, event.received_at)


async def _through_old_session(ctx: Context, event: Event, order_id: str, order: Order) -> None:
    """The newest registration names no amount, and what was paid is what an older session of the order should have
    cost: nothing is held, but an operator sees that the older, perhaps cheaper, one may have been paid."""
    paid = decimal(order.amount)
    if order.expected_amount is not None or order.session_id is None or paid is None:
        return
    of_order = (CHECKOUTS.c.application == ctx.application) & (CHECKOUTS.c.order_id == order_id)
    older = of_order & CHECKOUTS.c.expected_amount.is_not(None) & (CHECKOUTS.c.session_id != order.session_id)
    rows = (await ctx.session.execute(select(CHECKOUTS.c.session_id, CHECKOUTS.c.expected_amount).where(older))).all()
    sessions = sorted(row.session_id for row in rows if decimal(row.expected_amount) == paid)
    if sessions:
        detail = {"amount": order.amount, "sessions": sessions, "newest_session": order.session_id}
        await _finding(ctx, "paid_old_session", order_id, event.received_at, detail)


async def _hold_changed(ctx: Context, event: Event, order_id: str, change: Change) -> None:
    at = change.after.requested_at or change.after.unfulfillable_at or change.after.paid_at or ctx.now
    if change.before.hold in FINDING_OF_HOLD:
        await close_finding(ctx, FINDINGS, FINDING_OF_HOLD[change.before.hold], order_id, at)
    if change.before.hold is Hold.ASKED:
        ctx.withdraw(READ_DUE, f"order:{order_id}", once=ASKED)  # nothing is waited for any more
    if change.after.hold in FINDING_OF_HOLD:
        kind = FINDING_OF_HOLD[change.after.hold]
        ctx.log.warning("paid_order_held", order_id=order_id, finding=kind)
        await _finding(ctx, kind, order_id, at, why_held(change.after))
    if change.after.hold is not None and event.type not in ANSWERS and not ctx.is_history:
        ctx.request_read("order", order_id)  # an amount in a payload is a hint: a read may put it right (case U29)


def _is_off(order: Order) -> bool:
    return amounts_differ(order) or is_underpaid(order)


async def _finding(ctx: Context, kind: str, subject: str, at: datetime, detail: dict[str, Any]) -> None:
    await open_finding(ctx, FINDINGS, kind, subject, at, detail)


def why_held(order: Order) -> dict[str, Any]:
    """The two amounts, for an operator to compare, and what else the rules saw."""
    found: dict[str, Any] = {"expected_amount": order.expected_amount, "amount": order.amount}
    if order.hold is Hold.UNMATCHED and order.is_unreadable:
        found["problem"] = "the service says that it has no such order: a test event, or not readable yet"
    elif is_underpaid(order):
        found |= {"amount": order.paid_amount, "problem": "this is what its payment came to; the order names no amount"}
    elif amounts_differ(order) and None in (decimal(order.expected_amount), decimal(order.amount)):
        found["problem"] = "the amount cannot be compared"
    return found


def requested_data(order_id: str, order: Order, event: Event) -> dict[str, Any]:
    """What a merchant's handler of `fulfilment.requested` gets."""
    record = event.find("/data/record", "/data/object", "/data")
    is_record = isinstance(record, dict) and not event.id.startswith("drv_")
    return {
        "order_id": order_id,
        "service_order_id": order.service_order_id,
        "session_id": order.session_id,
        "customer": order.customer,
        "amount": order.amount if decimal(order.amount) is not None else None,
        "paid_at": order.paid_at.isoformat() if order.paid_at else None,
        "proof": {"event_id": order.proof_event_id, "type": order.proof_type},
        "record": record if is_record and len(event.raw) <= _RECORD_MAX_BYTES else None,
    }


def _note(ctx: Context, order_id: str, change: Change) -> None:
    names = [name for name in changed(change.before, change.after) if name != "paid_amount"]
    if not names:
        return  # the payment itself tells that
    ctx.note(
        f"order:{order_id}",
        "order.changed",
        {name: _plain(getattr(change.before, name)) for name in names},
        {name: _plain(getattr(change.after, name)) for name in names},
    )


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def later(event: Event, seconds: float) -> datetime:
    """A time after the event arrived."""
    return event.received_at + timedelta(seconds=seconds)
