"""Explain: why an order, a subscription or a customer stands where it does, and what will happen next (case A50).

Each explanation is a JSON-ready mapping: `state` (the query API's view), `timeline` (what happened, oldest first, each
with a reason code) and `next` (what is due, by whom). Bounded: the newest entries of each kind.

A read that nobody will do, for want of API credentials, says so (`is_read`, from `unread.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Table, and_, text
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.columns import among
from consumer.console.alarms.queues import KINDS
from consumer.console.alarms.unread import NO_CREDENTIALS, is_read
from consumer.console.belongings import BELONGINGS_MAX, orders_of
from consumer.console.cure import lift, release, steps
from consumer.console.event_view import place_in, traces_of
from consumer.console.timeline import ENTRIES_MAX, newest, timeline, wait_of, waits_of
from consumer.console.views import access_view, order_view, rows_of, subscription_view
from consumer.errors import NotFound
from consumer.ledger.handling import handlers, lanes
from consumer.ledger.handling.requests import GIVEN_UP, Request, Step, requests
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
            await _handed_on(session, application, state["steps"], but={key}),
            reads,
            _unserved(state, await _asked(session, application, [state])),
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
    customer, each of the subscriptions and each of the orders, of which the newest are shown. Raises NotFound for one
    of whom nothing was ever heard."""
    state = await access_view(session, application, customer, now)
    key = f"customer:{customer}"
    subscriptions = [
        await subscription_view(session, application, id_, policy, now)
        for id_ in await _subscriptions_of(session, application, customer)
    ]
    rows = await orders_of(session, application, customer)
    orders = [await order_view(session, application, row["order_id"]) for row in rows[:ORDERS_MAX]]
    checkouts = await rows_of(session, fulfilment.CHECKOUTS, application, limit=ENTRIES_MAX, customer=customer)
    sources = await _sources(session, application, customer)
    next_ = [
        await _due(session, application, {key: {}}),
        _stopped(sources, now),
        await _next_of_subscriptions(session, application, subscriptions, is_read=is_read),
        await _next_of_orders(session, application, customer, rows, checkouts, is_read=is_read),
        _not_looked_at(rows),
    ]
    found = {
        "state": state,
        "policy": _policy(policy, None),
        "subscriptions": subscriptions,
        "sources": [
            _picked(row, "id", "kind", "entitlement", "until", "reason", "by", "created_at", "ended_at")
            for row in sources
        ],
        "orders": [_picked(one, "order_id", "status", "fulfilment", "hold", "paid_at", "amount") for one in orders],
        "orders_shown": f"the newest {ORDERS_MAX} of {_how_many(rows)}" if len(rows) > ORDERS_MAX else None,
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


def _how_many(orders: Sequence[Any]) -> str:
    return f"{len(orders):,}" if len(orders) <= BELONGINGS_MAX else f"more than {BELONGINGS_MAX:,}"


def _not_looked_at(orders: Sequence[Any]) -> list[Entry]:
    """That nothing else is due cannot be said of orders that nobody looked at."""
    if len(orders) <= BELONGINGS_MAX:
        return []
    detail = f"of {_how_many(orders)} orders what comes next is told of the newest, and of what is held"
    return [{"at": None, "code": "older_orders", "detail": detail}]


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
    session: AsyncSession,
    application: str,
    customer: str,
    known: Sequence[Mapping[str, Any]],
    checkouts: Sequence[Mapping[str, Any]],
    *,
    is_read: bool,
) -> list[Entry]:
    """The same of a customer's orders (rows), of all that are held, and of what was begun in these checkouts: "I paid
    and got nothing". The words are literal for the index of held orders."""
    orders = and_(
        fulfilment.ORDERS.c.application == application,
        fulfilment.ORDERS.c.customer == customer,
        text("hold IS NOT NULL"),
    )
    held = await newest(session, fulfilment.ORDERS, fulfilment.ORDERS.c.order_id, orders)
    rows = {row["order_id"]: row for row in [*known, *held]}
    begun = [row["order_id"] for row in checkouts if row["order_id"] is not None]
    named: dict[str, Entry] = {id_: {"order_id": id_} for id_ in [*rows, *begun]}
    keys = {f"order:{id_}": name for id_, name in named.items()}
    asked = await _asked(session, application, list(rows.values()))
    findings = await _findings_of_each(session, application, rows)
    due = await _due(session, application, keys)
    due += await _reads(session, application, "order", named, is_read=is_read)
    steps_ = {one.event_id: (id_, one) for id_, request in asked.items() for one in request.steps}
    told = [entry for _, one in steps_.values() for entry in _of_step(one)]
    but = {*keys, f"customer:{customer}"}
    due += [
        entry | named[steps_[entry["event_id"]][0]] for entry in await _handed_on(session, application, told, but=but)
    ]
    for id_, row in rows.items():
        waits = [*_unserved(row, asked), *_held(application, id_, row["hold"], findings.get(id_, ()))]
        due += [entry | named[id_] for entry in waits]
    return due


def _of_step(step: Step) -> list[Entry]:
    """A step as `order_view` has it, without what only a page shows."""
    what = {"type": step.type, "event_id": step.event_id, "key": step.key, "by": step.handler}
    nobody = {"handler": None, "status": "waits" if step.is_wanted else "no_handler", "next_at": step.due_at}
    return [what | {"handler": one, "status": status} for one, status in step.runs.items()] or [what | nobody]


async def _asked(session: AsyncSession, application: str, orders: Sequence[Mapping[str, Any]]) -> dict[str, Request]:
    """Order to what became of its `fulfilment.requested`, of those that are to be fulfilled."""
    due = [one["order_id"] for one in orders if one["requested_at"] is not None and one["unfulfillable_at"] is None]
    ids = {derived_id(application, REQUESTED, f"order:{id_}", "order"): id_ for id_ in due}
    found = await requests(session, application, sorted(ids)) if ids else {}
    return {id_: found.get(event_id, Request()) for event_id, id_ in ids.items()}


async def _findings_of_each(
    session: AsyncSession, application: str, order_ids: Collection[str]
) -> dict[str, list[Mapping[str, Any]]]:
    """Order to what is open about it, as `views.findings_of`, in one look."""
    table, found = fulfilment.FINDINGS, dict[str, list[Mapping[str, Any]]]()
    mine = and_(table.c.application == application, among(table.c.kind, sorted(KINDS)), text("closed_at IS NULL"))
    about = among(table.c.subject, sorted(order_ids))
    for row in await newest(session, table, table.c.opened_at, and_(mine, about)) if order_ids else []:
        found.setdefault(row["subject"], []).append(row)
    return found


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
    is_dead, runs = lanes.is_status(RunStatus.DEAD), list[Mapping[str, Any]]()
    for some in ((RUNS.c.blocking, ~is_dead), (RUNS.c.blocking, is_dead), (is_dead, ~RUNS.c.blocking)):
        runs += await newest(session, RUNS, RUNS.c.seq, and_(ours, *some))
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
    session: AsyncSession, application: str, steps: Sequence[Mapping[str, Any]], *, but: Collection[str]
) -> list[Entry]:
    """What is due of that by which orders were handed on, and nobody finds under their own keys (`but`)."""
    over = (RunStatus.SUCCEEDED, RunStatus.SKIPPED, GIVEN_UP)
    of = {(one["event_id"], one["handler"]) for one in steps if one["key"] not in but and one["status"] not in over}
    ids = sorted({event_id for event_id, handler in of if handler is not None})
    ours = and_(RUNS.c.application == application, among(RUNS.c.event_id, ids), RUNS.c.status.not_in(over))
    runs = await newest(session, RUNS, RUNS.c.seq, ours) if ids else []
    runs = [row for row in runs if (row["event_id"], row["handler"]) in of]
    entries = [one | {"key": row["key"]} for row, one in await _waiting(session, runs)]
    for one in steps:
        named = {"event_id": one["event_id"], "key": one["key"]}
        if one["status"] == "waits" and one["key"] not in but:
            entries.append({"at": one["next_at"], "code": one["type"]} | named)
        elif one["status"] == "no_handler":
            detail = f"no handler takes {one['type']}, by which {one['by']} handed the order on"
            entries.append({"at": None, "code": "no_handler", "detail": detail} | named)
    return entries


async def _failure(session: AsyncSession, row: Mapping[str, Any]) -> Entry:
    """Why a run failed last, or asked for later, and in which line of its author's; nothing of one that did neither."""
    if row["code"] is None:
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


def _unserved(order: Mapping[str, Any], asked: Mapping[str, Request]) -> list[Entry]:
    """Asked for, and nobody who fulfils took it: that one is installed, or says `fulfils=True`, is for a person. What a
    seed asked for, nobody is to do."""
    request = asked.get(order["order_id"])
    if request is None or request.runs or request.is_history:
        return []
    return [{"at": None, "code": "no_handler", "detail": NOBODY}]


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
