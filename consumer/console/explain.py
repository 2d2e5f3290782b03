"""Explain: why an order, a subscription or a customer stands where it does, and what will happen next (case A50).

Each explanation is a JSON-ready mapping: `state` (the query API's view), `timeline` (what happened, oldest first, each
with a reason code) and `next` (what is due, by whom). Bounded: the newest entries of each kind.

A read that nobody will do, for want of API credentials, says so (`is_read`, from `unread.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Table, and_, text
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.columns import among, unindexed
from consumer.console.alarms.unread import NO_CREDENTIALS, is_read
from consumer.console.cure import lift, release, steps
from consumer.console.event_view import place_in, traces_of
from consumer.console.timeline import ENTRIES_MAX, newest, timeline, wait_of, waits_of
from consumer.console.views import access_view, findings_of, order_view, rows_of, subscription_view
from consumer.errors import NotFound
from consumer.ledger.handling import handlers, lanes
from consumer.ledger.handling.requests import requests
from consumer.ledger.tables import OutboxRow, ReadRow, RunRow, RunStatus
from consumer.plugin import derived_id
from handlers.access import tables as access
from handlers.access.policy import Policy
from handlers.findings import as_seen
from handlers.fulfilment import tables as fulfilment
from handlers.fulfilment.order import FINDING_OF_HOLD, Hold
from handlers.fulfilment.store import REQUESTED

OUTBOX: Table = OutboxRow.__table__
READS: Table = ReadRow.__table__
RUNS: Table = RunRow.__table__
ORDERS_MAX = 20
NOBODY = "no handler that fulfils (`fulfils=True`, or an effect handler of fulfilment.requested) took the order"
Entry = dict[str, Any]
Named = Mapping[str, Entry]
"""Ids or keys to what their entries are named by; by nothing where all are about the same."""


async def explain(
    session: AsyncSession,
    application: str,
    subject: tuple[str, str],
    policy: Policy,
    now: datetime,
    *,
    has_credentials: bool,
) -> dict[str, Any]:
    """Why a subject (its kind and id) stands where it does, as an operator asks: whoever reads the service, here
    (`has_credentials`) or elsewhere; what is over its time is due since then. Raises NotFound."""
    reads = has_credentials or await is_read(session, application, now)
    match subject:
        case ("order", id_):
            found = await explain_order(session, application, id_, is_read=reads)
        case ("subscription", id_):
            found = await explain_subscription(session, application, id_, policy, now, is_read=reads)
        case (_, id_):
            found = await explain_customer(session, application, id_, policy, now, is_read=reads)
    return found | {"next": [_to_come(entry, now) for entry in found["next"]]}


def _to_come(entry: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """A time that is over is no time to come: since then it is due."""
    if entry["at"] is None or entry["at"] > now:
        return dict(entry)
    return {**entry, "at": None, "due_since": entry["at"]}


async def explain_order(
    session: AsyncSession, application: str, order_id: str, *, is_read: bool = True
) -> dict[str, Any]:
    """Raises NotFound."""
    state = await order_view(session, application, order_id)
    key = f"order:{order_id}"
    reads = await _reads(session, application, "order", {order_id: {}}, is_read=is_read)
    payments = [one["payment_id"] for one in state["payments"]]
    about = [order_id, *payments, *([state["service_order_id"]] if state["service_order_id"] else [])]
    return {
        "state": state,
        "timeline": await timeline(session, application, key, plugin="fulfilment", about=about, steps=state["steps"]),
        "next": _in_order(
            await _due(session, application, {key: {}}),
            await _handed_on(session, application, state["steps"], but=key),
            reads,
            await _unserved(session, state),
            _held(application, order_id, state["hold"], state["findings"]),
        ),
    }


async def explain_subscription(
    session: AsyncSession,
    application: str,
    subscription_id: str,
    policy: Policy,
    now: datetime,
    *,
    is_read: bool = True,
) -> dict[str, Any]:
    """With what comes next for its customer, by whom access is told, and may be stopped. Raises NotFound."""
    state = await subscription_view(session, application, subscription_id, policy, now)
    key, customer = f"subscription:{subscription_id}", state["customer"]
    due = await _due(session, application, {key: {}})
    due += await _due(session, application, {f"customer:{customer}": {}} if customer else {})
    reads = await _reads(session, application, "subscription", {subscription_id: {}}, is_read=is_read)
    stopped = _stopped(await _sources(session, application, customer), now) if customer else []
    return {
        "state": state,
        "policy": _policy(policy, state["price_id"]),
        "timeline": await timeline(session, application, key, plugin="access", about=[subscription_id]),
        "next": _in_order(due, reads, stopped, _found(application, subscription_id, state["findings"])),
    }


async def explain_customer(
    session: AsyncSession, application: str, customer: str, policy: Policy, now: datetime, *, is_read: bool = True
) -> dict[str, Any]:
    """Why a customer has access, or has not: the policy, every source, every change; and what comes next for the
    customer, each of the subscriptions, the newest orders and each order that is held. Raises NotFound for one of whom
    nothing was ever heard."""
    state = await access_view(session, application, customer, now)
    key = f"customer:{customer}"
    subscriptions = [
        await subscription_view(session, application, id_, policy, now)
        for id_ in await _subscriptions_of(session, application, customer)
    ]
    orders = await _orders_of(session, application, customer)
    sources = await _sources(session, application, customer)
    next_ = [
        await _due(session, application, {key: {}}),
        _stopped(sources, now),
        await _next_of_subscriptions(session, application, subscriptions, is_read=is_read),
        await _next_of_orders(session, application, customer, orders, is_read=is_read),
    ]
    checkouts = await rows_of(session, fulfilment.CHECKOUTS, application, limit=ENTRIES_MAX, customer=customer)
    found = {
        "state": state,
        "policy": _policy(policy, None),
        "subscriptions": subscriptions,
        "sources": [
            _picked(row, "id", "kind", "entitlement", "until", "reason", "by", "created_at", "ended_at")
            for row in sources
        ],
        "orders": [_picked(one, "order_id", "status", "fulfilment", "hold", "paid_at", "amount") for one in orders],
        "checkouts": [_picked(row, "session_id", "order_id", "status") for row in checkouts],
        "timeline": await timeline(session, application, key),
        "next": _in_order(*next_),
    }
    if not any(found[part] for part in ("subscriptions", "sources", "orders", "checkouts", "timeline", "next")):
        raise NotFound("the customer is unknown", customer=customer)
    return found


async def _sources(session: AsyncSession, application: str, customer: str) -> list[Mapping[str, Any]]:
    return await rows_of(session, access.SOURCES, application, limit=ENTRIES_MAX, customer=customer)


def _stopped(sources: Sequence[Mapping[str, Any]], now: datetime) -> list[Entry]:
    """What an operator stopped, and the command that gives it back (case A42)."""
    return [
        {"at": row["until"], "code": "access.held", "by": row["by"], "reason": row["reason"],
         "entitlement": row["entitlement"],
         "waits": f"an operator: {lift(row['customer'], row['id'], row['application'])}"}
        for row in sources
        if row["kind"] == "hold" and row["ended_at"] is None and (row["until"] is None or row["until"] > now)
    ]  # fmt: skip


async def _orders_of(session: AsyncSession, application: str, customer: str) -> list[Entry]:
    """What the customer ordered, the newest payments first; bounded."""
    mine = and_(unindexed(fulfilment.ORDERS.c.application) == application, fulfilment.ORDERS.c.customer == customer)
    rows = await newest(session, fulfilment.ORDERS, fulfilment.ORDERS.c.paid_at, mine)
    return [await order_view(session, application, row["order_id"]) for row in rows[:ORDERS_MAX]]


async def _next_of_subscriptions(
    session: AsyncSession, application: str, subscriptions: Sequence[Mapping[str, Any]], *, is_read: bool
) -> list[Entry]:
    """Timers, runs, reads and findings of a customer's subscriptions, each named."""
    named: dict[str, Entry] = {one["id"]: {"subscription_id": one["id"]} for one in subscriptions}
    due = await _due(session, application, {f"subscription:{id_}": name for id_, name in named.items()})
    due += await _reads(session, application, "subscription", named, is_read=is_read)
    return due + [
        entry | named[one["id"]] for one in subscriptions for entry in _found(application, one["id"], one["findings"])
    ]


async def _next_of_orders(
    session: AsyncSession, application: str, customer: str, known: Sequence[Entry], *, is_read: bool
) -> list[Entry]:
    """The same of a customer's newest orders (as `order_view` shows them), and of all that are held: "I paid and got
    nothing". The words are literal for the index of held orders."""
    shown = {one["order_id"]: one for one in known}
    orders = and_(
        fulfilment.ORDERS.c.application == application,
        fulfilment.ORDERS.c.customer == customer,
        text("hold IS NOT NULL"),
    )
    held = await newest(session, fulfilment.ORDERS, fulfilment.ORDERS.c.order_id, orders)
    older = [row for row in held if row["order_id"] not in shown]
    named: dict[str, Entry] = {id_: {"order_id": id_} for id_ in [*shown, *(row["order_id"] for row in older)]}
    due = await _due(session, application, {f"order:{id_}": name for id_, name in named.items()})
    due += await _reads(session, application, "order", named, is_read=is_read)
    for id_, one in shown.items():
        due += [
            entry | named[id_]
            for entry in [*await _unserved(session, one), *_held(application, id_, one["hold"], one["findings"])]
        ]
    for row in older:
        found = await findings_of(session, fulfilment.FINDINGS, application, row["order_id"])
        due += [entry | named[row["order_id"]] for entry in _held(application, row["order_id"], row["hold"], found)]
    return due


def _policy(policy: Policy, price_id: str | None) -> dict[str, Any]:
    rule = policy.past_due_by_price.get(price_id or "", policy.past_due)
    return {"past_due": rule, "past_due_by_price": dict(policy.past_due_by_price), "entitlements": policy.entitlements}


async def _subscriptions_of(session: AsyncSession, application: str, customer: str) -> list[str]:
    rows = await rows_of(session, access.SUBSCRIPTIONS, application, limit=ENTRIES_MAX, customer=customer)
    return [row["subscription_id"] for row in rows]


async def _due(session: AsyncSession, application: str, keys: Named) -> list[Entry]:
    """Derived events that wait for their time, and runs that will be tried again or wait for an operator."""
    if not keys:
        return []
    waiting = and_(OUTBOX.c.application == application, among(OUTBOX.c.key, keys), OUTBOX.c.published_at.is_(None))
    timers = await newest(session, OUTBOX, OUTBOX.c.seq, waiting)
    ours = and_(RUNS.c.application == application, among(RUNS.c.key, keys))
    runs = await newest(session, RUNS, RUNS.c.seq, and_(ours, RUNS.c.blocking))
    let_pass = and_(ours, lanes.is_status(RunStatus.DEAD), ~RUNS.c.blocking)
    runs += await newest(session, RUNS, RUNS.c.seq, let_pass)
    found: list[Entry] = [
        {"at": row["not_before"], "code": row["type"], "event_id": row["event_id"]} | keys[row["key"]] for row in timers
    ]
    return _in_order(found, [one | keys[row["key"]] for row, one in await _waiting(session, runs)])


async def _waiting(session: AsyncSession, runs: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], Entry]]:
    """Runs that are not over, each as an entry: what it waits for, and why it failed last."""
    kept = await waits_of(session, runs)
    runbooks = await handlers.runbooks(session, {row["handler"] for row in runs})
    found = []
    for row in runs:
        entry = {"at": row["next_at"], "code": f"run.{row['status']}", "by": row["handler"]}
        entry["event_id"] = row["event_id"]
        if row["status"] == RunStatus.DEAD:
            entry["died_at"] = row["updated_at"]
        failure = await _failure(session, row)
        is_in_trouble = failure or (row["application"], row["handler"]) in kept or row["status"] == RunStatus.DEAD
        told = runbooks.get(row["handler"]) if is_in_trouble else None
        found.append((row, entry | failure | ({"runbook": told} if told else {}) | wait_of(row, kept)))
    return found


async def _handed_on(
    session: AsyncSession, application: str, steps: Sequence[Mapping[str, Any]], *, but: str
) -> list[Entry]:
    """What is due of that by which an order was handed on, and nobody finds under the order's own key (`but`)."""
    over = (RunStatus.SUCCEEDED, RunStatus.SKIPPED)
    of = {(one["event_id"], one["handler"]) for one in steps if one["key"] != but and one["status"] not in over}
    ids = sorted({event_id for event_id, handler in of if handler is not None})
    ours = and_(RUNS.c.application == application, among(RUNS.c.event_id, ids), RUNS.c.status.not_in(over))
    runs = await newest(session, RUNS, RUNS.c.seq, ours) if ids else []
    runs = [row for row in runs if (row["event_id"], row["handler"]) in of]
    entries = [one | {"key": row["key"]} for row, one in await _waiting(session, runs)]
    for one in steps:
        named = {"event_id": one["event_id"], "key": one["key"]}
        if one["status"] == "waits" and one["key"] != but:
            entries.append({"at": one["next_at"], "code": one["type"]} | named)
        elif one["status"] == "no_handler":
            detail = f"no handler takes {one['type']}, by which {one['by']} handed the order on"
            entries.append({"at": None, "code": "no_handler", "detail": detail} | named)
    return entries


async def _failure(session: AsyncSession, row: Mapping[str, Any]) -> Entry:
    """Why a run failed last, and in which line of its author's; nothing of one that did not."""
    if not row["attempts"] or row["code"] is None:
        return {}
    traces = await traces_of(session, row["application"], row["event_id"])
    return {"error": row["code"], "reason": row["reason"], "place": place_in(traces.get(row["handler"]))}


async def _reads(session: AsyncSession, application: str, kind: str, ids: Named, *, is_read: bool) -> list[Entry]:
    """Reads that were asked for; `is_read` False: nobody will do them before there are credentials."""
    asked = and_(READS.c.application == application, READS.c.kind == kind, among(READS.c.object_id, ids))
    return [
        {"at": row["due_at"], "code": "read", "attempts": row["attempts"],
         "error": row["code"] if is_read else NO_CREDENTIALS} | ids[row["object_id"]]
        for row in await newest(session, READS, READS.c.created_at, asked)
    ]  # fmt: skip


async def _unserved(session: AsyncSession, state: Mapping[str, Any]) -> list[Entry]:
    """Asked for, and nobody who fulfils took it: that one is installed, or says `fulfils=True`, is for a person. What a
    seed asked for, nobody is to do."""
    is_due = state["requested_at"] is not None and state["unfulfillable_at"] is None
    if not is_due or any(run["fulfils"] for run in state["runs"]):
        return []
    event_id = derived_id(state["application"], REQUESTED, f"order:{state['order_id']}", "order")
    asked = (await requests(session, state["application"], [event_id])).get(event_id)
    return [] if asked and asked.is_history else [{"at": None, "code": "no_handler", "detail": NOBODY}]


def _held(application: str, order_id: str, hold: Hold | None, findings: Sequence[Mapping[str, Any]]) -> list[Entry]:
    """What only an operator can move, and the command that does. The finding that stands for the hold is the same
    matter: it closes when the order goes, and closing it by hand moves nothing."""
    if hold is None:
        return _found(application, order_id, findings)
    who = "an operator" if hold != Hold.ASKED else "the service's answer, or an operator"
    entry = {"at": None, "code": f"held.{hold}", "waits": f"{who}: {release(order_id, application, hold=hold)}"}
    same = [one for one in findings if one["kind"] == FINDING_OF_HOLD.get(hold)]
    others = [one for one in findings if one not in same]
    return ([entry | {"detail": one["detail"]} for one in same] or [entry]) + _found(application, order_id, others)


def _found(application: str, subject: str, findings: Sequence[Mapping[str, Any]]) -> list[Entry]:
    return [
        {"at": None, "code": f"finding.{one['kind']}", "detail": one["detail"],
         "waits": f"an operator: {steps(subject, one['kind'], application, seen=as_seen(one['kind'], one['detail']))}"}
        for one in findings
    ]  # fmt: skip


def _in_order(*parts: list[Entry]) -> list[Entry]:
    """By time; what has none waits for an operator, and comes last: what holds an order before what is only found."""
    entries = [entry for part in parts for entry in part]
    return sorted(entries, key=lambda entry: (entry["at"] is None, entry["at"] or 0))


def _picked(row: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: row[name] for name in names}
