"""Find: any id that somebody may hold leads to what it is about: the merchant's order, a session, a payment, the
service's order, a subscription, a customer, an event, a delivery (quarantined or waiting, too), an idempotency key.

It looks into every table that knows the id, in every application or in one; bounded. A slip of the finger finds
nothing, and what is near.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import Column, ColumnElement, RowMapping, Select, Table, and_, literal, or_, select, true
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.columns import among, unindexed
from consumer.console import mentions
from consumer.console.mentions import subject_in
from consumer.document import shown
from consumer.errors import NotFound
from consumer.ledger.engine.counting import each_of
from consumer.ledger.plans import plans
from consumer.ledger.plans.tables import PlanItemRow, PlanRow
from consumer.ledger.tables import EventRow, HintRow, OutboxRow, QuarantineRow, RunRow
from consumer.plugin.emission import idempotency_key
from consumer.reason import reason_of
from consumer.wire import REPLAY
from handlers.access import tables as access
from handlers.fulfilment import tables as fulfilment

EVENTS: Table = EventRow.__table__
HINTS: Table = HintRow.__table__
OUTBOX: Table = OutboxRow.__table__
QUARANTINE: Table = QuarantineRow.__table__
RUNS: Table = RunRow.__table__
PLANS: Table = PlanRow.__table__
ITEMS: Table = PlanItemRow.__table__
KEYED: Final = tuple(RUNS.c[name] for name in ("application", "event_id", "handler", "key", "status", "updated_at"))
KINDS: Final = (*mentions.SUBJECTS, "payment", "session", "object")
"""What aggregates' keys begin with."""
FOUND_MAX: Final = 20
NEAR_FROM: Final = 2_000
NEAR_MAX: Final = 5
KEYS_MAX: Final = 100_000
"""So many are tried, which takes a second."""
RECEIVED_WITHIN: Final = timedelta(minutes=10)


@dataclass(frozen=True, kw_only=True)
class Found:
    """One thing that has this name. `subject` (`order`, `subscription`, `customer` and its id) is what to explain; None
    where it belongs to none, as a forged delivery does. `detail` says what is known of it."""

    application: str
    kind: str
    id: str
    subject: tuple[str, str] | None = None
    at: datetime | None = None
    detail: str | None = None


async def find(session: AsyncSession, name: str, *, application: str | None = None) -> list[Found]:
    """Everything that has this name, what it is about first; empty when nothing has. Raises NotFound for an idempotency
    key when there are more of them than can be tried."""
    found = await _orders(session, name, application)
    found += await _subscriptions(session, name, application)
    found += await _customers(session, name, application)
    found += await _events(session, name, application)
    found += await _deliveries(session, name, application)
    if name.startswith("ik_"):
        found += await _key(session, name, application)
    if name.startswith(REPLAY):
        found += await _plan(session, name)
    if not found and name not in mentions.SUBJECTS:  # a kind stands in bodies as such
        found = await _said(session, name, application) or await _awaited(session, name, application)
    return list(dict.fromkeys(found))[:FOUND_MAX]


async def find_shown(session: AsyncSession, name: str, *, application: str | None) -> list[Found]:
    """As `find`; also what lists, logs and JSON call `order:A-1`. Where that is a name of its own, it is that."""
    if found := await find(session, name, application=application):
        return found
    kind, _, rest = name.partition(":")
    return await find(session, rest, application=application) if kind in KINDS and rest else []


async def _plan(session: AsyncSession, name: str) -> list[Found]:
    """A replay plan: of no application, and about all that `replay show` says."""
    row = await plans.get(session, name)
    if row is None:
        return []
    detail = f"{row.status}; consumer replay show {row.id}"
    return [Found(application="", kind="replay plan", id=name, subject=None, at=row.created_at, detail=detail)]


async def near(session: AsyncSession, name: str, *, application: str | None = None) -> list[str]:
    """Names that look alike, among those of the newest events; at most NEAR_MAX."""
    named = (EVENTS.c.id, EVENTS.c.order_id, EVENTS.c.subscription_id, EVENTS.c.customer, EVENTS.c.object_id)
    newest = select(*named).order_by(EVENTS.c.seq.desc()).limit(NEAR_FROM)
    if application is not None:
        newest = newest.where(unindexed(EVENTS.c.application) == application)
    known = {one for row in await session.execute(newest) for one in row if one not in (None, name)}
    folded = {one.casefold(): one for one in known}
    return [folded[one] for one in difflib.get_close_matches(name.casefold(), folded, n=NEAR_MAX, cutoff=0.7)]


async def _orders(session: AsyncSession, name: str, application: str | None) -> list[Found]:
    columns = fulfilment.ORDERS.c
    rows = await _rows(session, fulfilment.ORDERS, application, columns.order_id, name)
    found = [_order(row, "order", name) for row in rows]
    rows = await _rows(session, fulfilment.ORDERS, application, columns.service_order_id, name)
    found += [_order(row, "order of the service", name) for row in rows]
    found += await _checkouts(session, name, application)
    rows = await _rows(session, fulfilment.PAYMENTS, application, fulfilment.PAYMENTS.c.payment_id, name)
    return found + [_order(row, "payment", name) for row in rows]


def _order(row: dict[str, Any], kind: str, name: str) -> Found:
    order_id = row["order_id"]
    return Found(
        application=row["application"],
        kind=kind,
        id=name,
        subject=("order", order_id) if order_id else None,
        at=row.get("paid_at") or row.get("seen_at") or row.get("registered_at"),
        detail=row.get("status") or ("PAID" if row.get("paid_at") else row.get("observed_status")),
    )


async def _checkouts(session: AsyncSession, name: str, application: str | None) -> list[Found]:
    """A session is its order's; where nobody knows that order, it may be a subscription's, as its events say."""
    column = fulfilment.CHECKOUTS.c.session_id
    found = []
    for row in await _rows(session, fulfilment.CHECKOUTS, application, column, name):
        one = _order(row, "checkout session", name)
        order_id, where = row["order_id"], row["application"]
        if order_id and not await _rows(session, fulfilment.ORDERS, where, fulfilment.ORDERS.c.order_id, order_id):
            said = [subject_in(event) for event in await mentions.by_key(session, order_id, where)]
            one = replace(one, subject=next((of for of in said if of and of[0] == "subscription"), one.subject))
        found.append(one)
    return found


async def _said(session: AsyncSession, name: str, application: str | None) -> list[Found]:
    """What no table is kept by, as events tell it: one line of each aggregate."""
    rows = await mentions.by_key(session, name, application)
    kind = "{0}" if rows else "payment, said in {1}" if name.startswith("pay_") else "said in {1}"
    rows = rows or await mentions.by_body(session, name, application)
    found: dict[tuple[str, tuple[str, str] | None], Found] = {}
    for row in rows:
        subject = subject_in(row)
        one = Found(
            application=row.application,
            kind=kind.format(row.key.partition(":")[0], row.type),
            id=name,
            subject=subject,
            at=row.received_at,
            detail=row.type,
        )
        found.setdefault((row.application, subject), one)
    return list(found.values())


async def _awaited(session: AsyncSession, name: str, application: str | None) -> list[Found]:
    """What is said by deliveries only that are no events yet: while nobody reads, that is all there is."""
    return [
        Found(
            application=row.application,
            kind=f"said in {row.event_id or 'a delivery'}, {row.place}",
            id=name,
            at=row.received_at,
            detail=_what_next(row._mapping),
        )
        for row in await mentions.by_waiting(session, name, application)
    ]


async def _subscriptions(session: AsyncSession, name: str, application: str | None) -> list[Found]:
    table = access.SUBSCRIPTIONS
    return [
        Found(
            application=row["application"],
            kind="subscription",
            id=name,
            subject=("subscription", name),
            at=row["read_at"],
            detail=row["status"],
        )
        for row in await _rows(session, table, application, table.c.subscription_id, name)
    ]


async def _customers(session: AsyncSession, name: str, application: str | None) -> list[Found]:
    applications: set[str] = set()
    for table in (access.CUSTOMERS, access.SUBSCRIPTIONS, fulfilment.ORDERS, fulfilment.CHECKOUTS):
        rows = await _rows(session, table, application, table.c.customer, name)
        applications |= {row["application"] for row in rows}
    return [
        Found(application=one, kind="customer", id=name, subject=("customer", name)) for one in sorted(applications)
    ]


async def _events(session: AsyncSession, name: str, application: str | None) -> list[Found]:
    if not name.startswith(("evt_", "drv_", "obs_")):
        return []
    found = [
        Found(
            application=row["application"],
            kind="event",
            id=name,
            subject=subject_of(row["key"]),
            at=row["received_at"],
            detail=row["type"],
        )
        for row in await _rows(session, EVENTS, application, EVENTS.c.id, name)
    ]
    if not found:
        waiting = await _rows(session, OUTBOX, application, OUTBOX.c.event_id, name)
        found = [
            Found(
                application=row["application"],
                kind="derived event, not yet published",
                id=name,
                subject=subject_of(row["key"]),
                at=row["created_at"],
                detail=row["type"],
            )
            for row in waiting
        ]
    return found


async def _deliveries(session: AsyncSession, name: str, application: str | None) -> list[Found]:
    found = []
    for table, kind in ((HINTS, "delivery that waits to be confirmed"), (QUARANTINE, "delivery in quarantine")):
        same = or_(table.c.event_id == name, table.c.delivery_id == name)
        ours = await _of(session, table, application)
        known = [column for column in table.c if column.name not in ("raw", "headers")]
        rows = await session.execute(select(*known).where(same, ours).limit(FOUND_MAX))
        for row in rows.mappings():
            about = {"application": row["application"], "id": name, "at": row["received_at"]}
            found.append(Found(**about, kind=kind, detail=_what_next(row)))
    came_at = _received_at(name)
    if not found and came_at is not None:
        near_it = EVENTS.c.received_at.between(came_at - RECEIVED_WITHIN, came_at + RECEIVED_WITHIN)
        ours = true() if application is None else unindexed(EVENTS.c.application) == application
        same = and_(near_it, EVENTS.c.delivery_id == name, ours)
        rows = await session.execute(select(EVENTS).where(same).limit(FOUND_MAX))
        found = [
            Found(
                application=row["application"],
                kind=f"delivery of {row['type']}",
                id=name,
                subject=subject_of(row["key"]),
                at=row["received_at"],
                detail=row["id"],
            )
            for row in rows.mappings()
        ]
    return found


def _what_next(row: RowMapping) -> str:
    """What becomes of a delivery that is no event yet. Pure."""
    if "reason" in row:
        return f"{reason_of(row['reason']).detail}; consumer quarantine retry {row['id']} --reason …"
    again = shown(row["next_at"])
    return f"asked {row['attempts']} times, again at {again}; what is never confirmed goes to quarantine"


def _received_at(delivery_id: str) -> datetime | None:
    """When a delivery came, as its id says: so it is found by that time, whatever the ledger holds."""
    found = re.match(r"dlv_(0[0-9a-f]{11})", delivery_id)  # until the year 2527
    return datetime.fromtimestamp(int(found.group(1), 16) / 1000, UTC) if found else None


async def _key(session: AsyncSession, name: str, application: str | None) -> list[Found]:
    """The run of an idempotency key. A key is a digest, from which nothing can be told back: those that plans renewed
    are tried, then those of the newest events' runs. Raises NotFound when there are more than were tried. The
    application is asked for here, and not there, where a quiet one would have all runs read."""
    renewed = (
        select(*KEYED, ITEMS.c.plan.label("renewed_by"))
        .join(ITEMS, and_(*(ITEMS.c[column.name] == column for column in KEYED[:3])))
        .join(PLANS, and_(PLANS.c.id == ITEMS.c.plan, PLANS.c.renews_keys))
        .order_by(PLANS.c.number.desc())
        .limit(KEYS_MAX)
    )
    newest = (
        select(*KEYED, literal(None).label("renewed_by"))
        .join(EVENTS, and_(EVENTS.c.id == RUNS.c.event_id, EVENTS.c.application == RUNS.c.application))
        .order_by(EVENTS.c.seq.desc())
        .limit(KEYS_MAX)
    )
    most = 0
    for keyed in (renewed, newest):
        found, tried = await _holder(session, keyed, name, application)
        if found:
            return found
        most = max(most, tried)
    if most == KEYS_MAX:
        raise NotFound("no newer run has this key; older ones were not tried", name=name[:100], tried=KEYS_MAX)
    return []


async def _holder(
    session: AsyncSession, keyed: Select[Any], name: str, application: str | None
) -> tuple[list[Found], int]:
    """The first of these runs that has this key, and how many were tried."""
    tried = 0
    rows = await session.stream(keyed)
    try:
        async for row in rows.mappings():
            tried += 1
            key = idempotency_key(row["application"], row["event_id"], row["handler"], row["renewed_by"])
            if key == name and application in (None, row["application"]):
                return [_run_of_key(row, name)], tried
    finally:
        await rows.close()
    return [], tried


def _run_of_key(row: RowMapping, name: str) -> Found:
    renewed = f", renewed by {row['renewed_by']}" if row["renewed_by"] else ""
    return Found(
        application=row["application"],
        kind=f"idempotency key of {row['handler']} for {row['event_id']}{renewed}",
        id=name,
        subject=subject_of(row["key"]),
        at=row["updated_at"],
        detail=row["status"],
    )


def subject_of(key: str) -> tuple[str, str] | None:
    """What an aggregate's key is about; None for a key of its own, as an event without a subject has."""
    kind, _, id_ = key.partition(":")
    return (kind, id_) if kind in ("order", "subscription", "customer") and id_ else None


async def _of(session: AsyncSession, table: Table, application: str | None) -> ColumnElement[bool]:
    """Of this application, or of each that the table has: the keys begin with it."""
    column = table.c.application
    return column == application if application is not None else among(column, await each_of(session, column))


async def _rows(
    session: AsyncSession, table: Table, application: str | None, column: Column[Any], name: str
) -> list[dict[str, Any]]:
    ours = await _of(session, table, application)
    wanted = select(table).where(column == name, ours).limit(FOUND_MAX)
    return [dict(row) for row in (await session.execute(wanted)).mappings()]
