"""Subjects: whether what a word is about is there, so that a mistyped id is told to who typed it, and not to nobody.

Whether the handler would refuse the word (an order nobody knows) or take it and do nothing (a finding that is not
open), it is refused before it is said. Words that may come before anything else was heard need nothing to be there: an
order marked paid by hand, a checkout, a hold or a gift for a customer who has bought nothing yet.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Table
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.console.cure import (
    BRAKE,
    UNMAPPED,
    UNRESOLVED,
    command,
    discard,
    of_application,
    release,
    settle,
    steps,
    unfulfillable,
)
from consumer.console.find import near as near_names
from consumer.console.views import rows_of
from consumer.errors import NotFound, TermsDiffer, UsageError
from consumer.ledger.handling.requests import GIVEN_UP, requests
from consumer.ledger.tables import OutboxRow, RunStatus
from consumer.plugin import derived_id
from handlers.access import tables as access
from handlers.access.subscription import to_subscription
from handlers.books import orders_of
from handlers.findings import as_seen
from handlers.fulfilment import tables as fulfilment
from handlers.fulfilment.order import FINDING_OF_HOLD
from handlers.fulfilment.registration import contradicted, known_terms
from handlers.fulfilment.rules import is_held_as
from handlers.fulfilment.store import REQUESTED, to_order

OUTBOX: Table = OutboxRow.__table__
LISTED_MAX = 5
UNFULFILLABLE = "fulfilment.unfulfillable"
MARKED_PAID = "fulfilment.marked_paid"
GIVES = {"access.hold_lifted": "access.held", "access.complimentary_ended": "access.complimentary_granted"}
KINDS = {"access.hold_lifted": "hold", "access.complimentary_ended": "complimentary"}


async def require(session: AsyncSession, word: str, subject: str, data: Mapping[str, Any], *, application: str) -> None:
    """Return when the word can do something, as far as the ledger knows now.

    Raises NotFound when what it is about is not there, UsageError when it is beyond what the word could change,
    TermsDiffer for a checkout that is registered with other terms.
    """
    match word:
        case "fulfilment.marked_paid":
            await _not_paid(session, subject, application)
        case "fulfilment.released" | "fulfilment.unfulfillable":
            await _order(session, word, subject, data.get("hold"), application)
        case "fulfilment.finding_closed":
            await _finding(session, fulfilment.FINDINGS, subject, data, application)
            await _not_held(session, subject, data["kind"], application)
        case "access.finding_closed":
            await _finding(session, access.FINDINGS, subject, data, application)
            await _not_without_access(session, subject, data["kind"], application)
            await _not_braked(session, subject, data["kind"], application)
        case "access.customer_attached":
            await _subscription(session, subject, application)
        case "access.hold_lifted" | "access.complimentary_ended":
            await _source(session, word, subject, data["id"], application)
        case "access.brake_released":
            await _brake(session, application)
        case "checkout.registered":
            await _not_contradicted(session, data, application)


async def require_known_order(session: AsyncSession, order_id: str, *, application: str) -> None:
    """Return when somebody has heard of the order. Raises UsageError otherwise: a parcel for a typing error is gone."""
    if not await rows_of(session, fulfilment.ORDERS, application, order_id=order_id) and not await rows_of(
        session, fulfilment.CHECKOUTS, application, order_id=order_id
    ):
        near = ", ".join(await near_names(session, order_id, application=application))
        raise UsageError(
            "nobody here has heard of this order: --unknown says that it is paid all the same",
            order_id=order_id[:100],
            near=near or None,
        )


async def held_by(session: AsyncSession, application: str, order_ids: Collection[str]) -> dict[str, str]:
    """Of these orders those that are held: the finding that stands for what holds each."""
    found = await orders_of(session, application, order_ids)
    return {one: FINDING_OF_HOLD[row["hold"]] for one, row in found.items() if row["hold"] in FINDING_OF_HOLD}


async def fulfilled_by(session: AsyncSession, application: str, order_id: str) -> list[str]:
    """The handlers that fulfil and succeeded on the order, by name; others may have been given up. Of a renamed one the
    new one did what the old one left (case F33)."""
    asked = (await requests(session, application, [event_id := _request(application, order_id)])).get(event_id)
    if asked is None:
        return []
    runs = [asked.runs, *(step.runs for step in asked.steps)]
    return sorted({handler for some in runs for handler, state in some.items() if state == RunStatus.SUCCEEDED})


def _request(application: str, order_id: str) -> str:
    """The id of the event that asks for the order's fulfilment."""
    return derived_id(application, REQUESTED, f"order:{order_id}", "order")


async def _order(session: AsyncSession, word: str, order_id: str, seen: str | None, application: str) -> None:
    found = await rows_of(session, fulfilment.ORDERS, application, order_id=order_id)
    if not found:
        raise NotFound("the order is unknown in this application")
    order = found[0]
    if order["paid_at"] is None:
        raise UsageError("the order is not paid; fulfilment.marked_paid says that it is")
    if word == "fulfilment.released" and order["requested_at"] is not None:
        raise UsageError("nothing holds the order: its fulfilment was requested", at=order["requested_at"])
    if word == "fulfilment.unfulfillable":
        if order["unfulfillable_at"] is not None:
            raise UsageError("the order counts as unfulfillable already", at=order["unfulfillable_at"])
        if order["requested_at"] is not None:
            await _may_not_be_sent(session, order_id, application)
    if not is_held_as(to_order(order), seen):
        raise UsageError("that does not hold the order by now", seen=seen, hold=order["hold"] or "none")


async def _not_paid(session: AsyncSession, order_id: str, application: str) -> None:
    """Who marks it as paid may not have seen that it is held for its amount, or that its money was given back (cases
    F21, F33): there is a word that lets such go."""
    found = await rows_of(session, fulfilment.ORDERS, application, order_id=order_id)
    if not found or (order := found[0])["paid_at"] is None:
        return
    if order["requested_at"] is not None:
        raise UsageError("the order is paid already, and its fulfilment was requested", at=order["requested_at"])
    next_ = release(order_id, application, hold=order["hold"])
    if order["unfulfillable_at"] is not None:
        raise UsageError("the order is paid already, and counts as unfulfillable", next=next_)
    raise UsageError("the order is paid already, and held", hold=order["hold"], next=next_)


async def _may_not_be_sent(session: AsyncSession, order_id: str, application: str) -> None:
    """What was asked for would go out although the money is given back: by its next attempt, or by who replays what is
    dead. And of what went out nothing is left to be said."""
    event_id = _request(application, order_id)
    asked = (await requests(session, application, [event_id])).get(event_id)
    if asked is None or asked.arrived_at is None:
        raise UsageError("its fulfilment was requested and is on its way to the handlers: say it again in a moment")
    if any(not step.runs for step in asked.steps):
        raise UsageError("it was handed on, and waits to be taken: say it again when `explain order` shows by whom")
    by = {event_id: asked.runs} | {step.event_id: step.runs for step in asked.steps}
    states = [(handler, id_, state) for id_, some in by.items() for handler, state in some.items()]
    states = [one for one in states if one[2] != RunStatus.SKIPPED]
    for handler, id_, state in sorted(states):
        if state not in (RunStatus.SUCCEEDED, GIVEN_UP):
            next_ = discard(id_, handler, application)
            raise UsageError("it may still be delivered: give that up first", handler=handler, stands=state, next=next_)
    if states and not any(state == GIVEN_UP for *_, state in states):
        raise UsageError("the order was fulfilled", by=", ".join(sorted({handler for handler, *_ in states})))


async def _finding(
    session: AsyncSession, table: Table, subject: str, data: Mapping[str, Any], application: str
) -> None:
    rows = await rows_of(session, table, application, subject=subject, closed_at=None)
    found, kind, seen = {row["kind"]: row["detail"] for row in rows}, data["kind"], data.get("seen")
    if kind not in found:
        raise NotFound("no such finding is open about this", open=", ".join(found) or "none")
    if seen is not None and as_seen(kind, found[kind]) not in (None, seen):
        next_ = command("consumer findings show", subject, options=of_application(application))
        raise UsageError("it is not as it was seen any more: look again", next=next_)


async def _not_held(session: AsyncSession, order_id: str, kind: str, application: str) -> None:
    """Closing what stands for a hold would leave a paid order held, and nothing that says so."""
    if (await held_by(session, application, [order_id])).get(order_id) == kind:
        raise UsageError(
            "the order is held: this closes when it is let go, or said to be unfulfillable",
            next=f"{release(order_id, application)}, or {unfulfillable(order_id, application)}",
        )


async def _not_without_access(session: AsyncSession, subscription_id: str, kind: str, application: str) -> None:
    """Closing it would leave somebody who pays without access, and nothing that says so."""
    if kind not in (UNRESOLVED, UNMAPPED):
        return
    rows = await rows_of(session, access.SUBSCRIPTIONS, application, subscription_id=subscription_id)
    live = [row for row in rows if to_subscription(row).is_live]
    cure = steps(subscription_id, kind, application)
    if kind == UNRESOLVED and any(row["customer"] is None for row in live):
        raise UsageError(
            "somebody pays for this subscription, and nobody has its access: this closes when it is said whose it is",
            next=cure,
        )
    if kind == UNMAPPED and live:
        raise UsageError(
            "somebody pays for this subscription, and its price gives nothing: this closes when the price is mapped",
            next=cure,
        )


async def _not_braked(session: AsyncSession, subject: str, kind: str, application: str) -> None:
    """Closing it would leave who has ended with access for good, and nothing that says so."""
    if kind == BRAKE and await rows_of(session, access.ENTITLEMENTS, application, braked=True):
        raise UsageError(
            "revocations are stopped: this closes when they are let go", next=settle(subject, kind, application)
        )


async def _subscription(session: AsyncSession, subscription_id: str, application: str) -> None:
    if not await rows_of(session, access.SUBSCRIPTIONS, application, subscription_id=subscription_id):
        raise NotFound("the subscription is unknown in this application; POST /api/subscriptions/{id}/read has it read")


async def _source(session: AsyncSession, word: str, customer: str, id_: str, application: str) -> None:
    """A hold or a gift of this customer that is not over; one said a moment ago may still be on its way."""
    kind = KINDS[word]
    known = await rows_of(session, access.SOURCES, application, id=id_)
    if not known and await rows_of(
        session, OUTBOX, application, event_id=id_, type=GIVES[word], key=f"customer:{customer}"
    ):
        return
    if not any((row["kind"], row["customer"], row["ended_at"]) == (kind, customer, None) for row in known):
        open_ = await rows_of(session, access.SOURCES, application, customer=customer, kind=kind, ended_at=None)
        ids = ", ".join(row["id"] for row in open_[:LISTED_MAX])
        raise NotFound(f"the customer has no such {kind}", open=ids or "none")


async def _brake(session: AsyncSession, application: str) -> None:
    stopped = await rows_of(session, access.ENTITLEMENTS, application, braked=True)
    if not stopped and not await rows_of(session, access.FINDINGS, application, kind="brake", closed_at=None):
        raise NotFound("no revocation is stopped in this application")


async def _not_contradicted(session: AsyncSession, data: Mapping[str, Any], application: str) -> None:
    known = await known_terms(session, application, data["session_id"])
    if known is not None and (differing := contradicted(known, {"mode": "payment", **data})):
        raise TermsDiffer(differing)
