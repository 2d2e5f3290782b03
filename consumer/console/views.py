"""Views: what the query API says about an order, a subscription and a customer, read from the projections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Table, select
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.columns import unindexed
from consumer.console.event_view import traces_of
from consumer.errors import NotFound
from consumer.ledger.handling.handlers import bystanders
from consumer.ledger.handling.requests import Step, state_of, steps
from consumer.ledger.tables import RunRow, RunStatus
from consumer.plugin import derived_id
from handlers.access import tables as access
from handlers.access.policy import Policy
from handlers.access.rules import OperatorSource, by_subscription, holding
from handlers.access.subscription import to_subscription
from handlers.fulfilment import tables as fulfilment
from handlers.fulfilment.store import REQUESTED, to_order

RUNS: Table = RunRow.__table__
ROWS_MAX = 50
ENTITLEMENTS_MAX = 10_000
"""Of one customer, with those that are over: who has one for each title that a shop ever sold has many."""
RUN = ("handler", "status", "attempts", "next_at", "code", "reason")


async def order_view(session: AsyncSession, application: str, order_id: str) -> dict[str, Any]:
    """An order with its proof and where its fulfilment stands. Raises NotFound."""
    row = await _one(session, fulfilment.ORDERS, application, order_id=order_id)
    if row is None:
        raise NotFound("the order is unknown", order_id=order_id)
    order = to_order(row)
    request = derived_id(application, REQUESTED, f"order:{order_id}", "order")
    runs = await runs_on(session, application, request)
    handed_on = await steps(session, application, [request]) if runs else []
    proof = {"type": order.proof_type, "event_id": order.proof_event_id, "at": order.paid_at}
    return {
        "application": application,
        "order_id": order_id,
        "status": order.status,
        "fulfilment": fulfilment_word(row, runs, handed_on),
        "proof": proof if order.paid_at is not None else None,
        "hold": order.hold,
        "paid_at": order.paid_at,
        "requested_at": order.requested_at,
        "unfulfillable_at": order.unfulfillable_at,
        "registered_at": order.registered_at,
        "customer": order.customer,
        "amount": order.amount,
        "expected_amount": order.expected_amount,
        "session_id": order.session_id,
        "service_order_id": order.service_order_id,
        "runs": runs,
        "steps": [entry for step in handed_on[:ROWS_MAX] for entry in await _step(session, application, step)],
        "sessions": [
            {"session_id": one["session_id"], "status": one["status"]}
            for one in await rows_of(session, fulfilment.CHECKOUTS, application, order_id=order_id)
        ],
        "payments": [
            {"payment_id": one["payment_id"], "amount": one["amount"]}
            for one in await rows_of(session, fulfilment.PAYMENTS, application, order_id=order_id)
        ],
        "findings": await findings_of(session, fulfilment.FINDINGS, application, order_id),
    }


async def runs_on(session: AsyncSession, application: str, event_id: str) -> list[dict[str, Any]]:
    """The runs of the merchant's handlers on an order's `fulfilment.requested`, or on what it was handed on by."""
    rows = await rows_of(session, RUNS, application, event_id=event_id)
    others = frozenset(await session.scalars(bystanders())) if rows else frozenset()
    traces = await traces_of(session, application, event_id) if rows else {}
    return [
        {name: row[name] for name in RUN}
        | {"fulfils": row["handler"] not in others, "trace": traces.get(row["handler"])}
        for row in rows
    ]


async def _step(session: AsyncSession, application: str, step: Step) -> list[dict[str, Any]]:
    """By what a handler handed the order on, and how far each who fulfils is with that; `waits` before anybody is."""
    what = {"type": step.type, "event_id": step.event_id, "key": step.key, "cause": step.cause, "by": step.handler}
    runs = await runs_on(session, application, step.event_id) if step.runs else []
    nobody = {"handler": None, "status": "waits" if step.is_wanted else "no_handler", "next_at": step.due_at}
    return [what | {name: one[name] for name in RUN} for one in runs if one["fulfils"]] or [what | nobody]


def fulfilment_word(row: Mapping[str, Any], runs: Sequence[Mapping[str, Any]], handed_on: Sequence[Step]) -> str:
    """`none`, `requested`, `fulfilled` or `failed`: from the runs of the handlers that fulfil, without what a seed
    skipped; those to whom it was handed on are among them. With one that an operator gave up it is never `fulfilled`,
    whatever the others did: whether somebody shipped it by hand nobody knows here."""
    statuses = {state_of(run["status"], run["code"]) for run in runs if run["fulfils"]} - {RunStatus.SKIPPED}
    statuses |= {state for step in handed_on for state in step.states} - {RunStatus.SKIPPED}
    if row["unfulfillable_at"] is not None or RunStatus.DEAD in statuses:
        return "failed"
    if row["requested_at"] is None:
        return "none"
    return "fulfilled" if statuses == {RunStatus.SUCCEEDED} else "requested"


async def subscription_view(
    session: AsyncSession, application: str, subscription_id: str, policy: Policy, now: datetime
) -> dict[str, Any]:
    """A subscription, and whether it gives anything now: by itself, and by no operator's hold on its customer (case
    A42; `held`: what of it is stopped). Raises NotFound."""
    row = await _one(session, access.SUBSCRIPTIONS, application, subscription_id=subscription_id)
    if row is None:
        raise NotFound("the subscription is unknown", subscription_id=subscription_id)
    sub = to_subscription(row)
    grants = policy.grants_of(sub.price_id, sub.product_id)
    standing = await rows_of(session, access.ENTITLEMENTS, application, limit=ENTITLEMENTS_MAX, customer=sub.customer)
    stands = any(row["allowed"] and row["entitlement"] in (grants or ()) for row in standing)
    source = by_subscription(subscription_id, sub, policy, now, stands=stands)
    holds = await _holds(session, application, sub.customer)
    held = {name: found for name in grants or () if (found := holding(holds, name, now))}
    is_held = bool(held) and len(held) == len(set(grants or ()))
    gives = source is not None and source.allowed and bool(grants)
    stopped = next(iter(held.values()))[0] if gives and is_held else None
    return {
        "application": application,
        "id": subscription_id,
        "status": sub.status,
        "end_reason": sub.end_reason,
        "cancel_at_period_end": sub.cancel_at_period_end,
        "cancel_reason": sub.cancel_reason,
        "merchant_cancel_requested": sub.merchant_cancel_requested,
        "will_end": sub.will_end,
        "allowed": gives and not is_held,
        "until": source.until if source and not stopped else None,
        "reason": f"held:{stopped.id}" if stopped else source.reason if source else "unread",
        "entitlements": list(grants or ()),
        "held": sorted(held),
        "provisional": sub.provisional,
        "customer": sub.customer,
        "customer_source": sub.customer_source or None,
        "price_id": sub.price_id,
        "product_id": sub.product_id,
        "period_end": sub.period_end,
        "past_due_since": sub.past_due_since,
        "ended_at": sub.ended_at,
        "charged_after_end": sub.charged_after_end,
        "read_at": sub.read_at,
        "read_again_at": sub.lease_until,
        "findings": await findings_of(session, access.FINDINGS, application, subscription_id),
    }


async def _holds(session: AsyncSession, application: str, customer: str | None) -> list[OperatorSource]:
    """An operator's open holds on the customer, as the decisions read them."""
    if customer is None:
        return []
    mine: dict[str, Any] = {"customer": customer, "kind": "hold", "ended_at": None}
    rows = await rows_of(session, access.SOURCES, application, limit=ENTITLEMENTS_MAX, **mine)
    return [OperatorSource(**{name: row[name] for name in ("id", "entitlement", "until")}) for row in rows]


async def access_view(session: AsyncSession, application: str, customer: str, now: datetime) -> dict[str, Any]:
    """What a customer may use, and why. One nobody has heard of may use nothing; that is an answer, not an error."""
    rows = await rows_of(session, access.ENTITLEMENTS, application, limit=ENTITLEMENTS_MAX, customer=customer)
    entitlements = [
        {
            "entitlement": row["entitlement"],
            "allowed": is_allowed(row, now),
            "until": row["until"],
            "reasons": row["reasons"],
            "version": row["version"],
            "changed_at": row["changed_at"],
        }
        for row in rows
    ]
    return {
        "application": application,
        "customer": customer,
        "allowed": any(one["allowed"] for one in entitlements),
        "entitlements": entitlements,
    }


def is_allowed(row: Mapping[str, Any], now: datetime) -> bool:
    """The standing decision; one whose time is over counts no more, even before its timer has gone off."""
    return bool(row["allowed"]) and (row["braked"] or row["until"] is None or now < row["until"])


async def findings_of(session: AsyncSession, table: Table, application: str, subject: str) -> list[dict[str, Any]]:
    """What is open for an operator about this subject."""
    rows = await rows_of(session, table, application, subject=subject, closed_at=None)
    return [{"kind": row["kind"], "opened_at": row["opened_at"], "detail": row["detail"]} for row in rows]


async def _one(session: AsyncSession, table: Table, application: str, **key: Any) -> Mapping[str, Any] | None:
    found = await rows_of(session, table, application, **key)
    return found[0] if found else None


async def rows_of(
    session: AsyncSession, table: Table, application: str, *, limit: int = ROWS_MAX, **where: Any
) -> list[Mapping[str, Any]]:
    """Rows of one application whose columns have these values, at most `limit`, in key order."""
    conditions = [table.c[name] == value for name, value in where.items()]
    wanted = select(table).where(table.c.application == application, *conditions)
    rows = await session.execute(wanted.order_by(*map(unindexed, table.primary_key.columns)).limit(limit))
    return [dict(row) for row in rows.mappings()]
