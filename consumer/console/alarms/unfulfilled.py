"""Paid but not fulfilled: how many orders, since when, and why (case O5). The business's own alarm.

An order counts while it is held, while its `fulfilment.requested` waits to be sent, while a run on that (or on what a
projection that fulfils handed it on by) is not done, and when no handler that fulfils took it: statistics and the like
(`fulfils=False`, projections) deliver nothing, and their troubles are not the customer's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Select, Table, and_, func, null, or_, select, text, true, union
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.columns import among
from consumer.console.alarms import taken
from consumer.console.alarms.taken import taker
from consumer.ledger.engine.chunks import grouped
from consumer.ledger.handling import lanes, queue
from consumer.ledger.handling.handlers import bystanders, handing_on
from consumer.ledger.reading import observations
from consumer.ledger.reading.observation import PAID, status_of
from consumer.ledger.tables import DERIVED, EventRow, OutboxRow, RunRow, RunStatus
from handlers.fulfilment.store import REQUESTED
from handlers.fulfilment.tables import ORDERS

EVENTS: Table = EventRow.__table__
OUTBOX: Table = OutboxRow.__table__
RUNS: Table = RunRow.__table__
NEWEST = 10_000
HELD_SHOWN = 5
HELD = "held"
PROVES = "fulfilment:order_paid"
OBSERVES = "fulfilment:order_observed"


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """So many orders of one application wait for one reason, the oldest of them since `oldest_at`. `events`: those by
    which they wait, where the same may wait for another reason, too."""

    application: str
    reason: str
    count: int
    oldest_at: datetime
    events: frozenset[str] = field(default=frozenset(), repr=False)

    def document(self) -> dict[str, Any]:
        """For `--json`."""
        return {name: getattr(self, name) for name in ("application", "reason", "count", "oldest_at")}

    def age_s(self, now: datetime) -> float:
        """For how long the oldest waits. Where that is far from now it is late, also by a time that is to come: a clock
        was ahead when the order came, and nobody knows for how long."""
        return abs((now - self.oldest_at).total_seconds())


@dataclass(frozen=True, kw_only=True)
class HeldOrder:
    """A paid order that is not handed to fulfilment, and why (`hold`, see the plugin's README)."""

    application: str
    order_id: str
    hold: str
    paid_at: datetime


async def longest_held(session: AsyncSession, limit: int = HELD_SHOWN) -> list[HeldOrder]:
    """The orders held for longest: those being asked for have no finding by which they could be found."""
    columns = (ORDERS.c.application, ORDERS.c.order_id, ORDERS.c.hold, ORDERS.c.paid_at)
    held = select(*columns).where(text("hold IS NOT NULL")).order_by(ORDERS.c.paid_at, ORDERS.c.order_id).limit(limit)
    return [HeldOrder(**row) for row in (await session.execute(held)).mappings()]


async def unfulfilled(session: AsyncSession) -> list[Waiting]:
    """Per application and reason: held, unsent, retrying, parked, dead, no_handler. Empty when all is well."""
    found: list[Waiting] = []
    unhandled = _unhandled(await taken.until(session))
    for reason, statement in ((HELD, _held()), ("unsent", _unsent()), ("no_handler", unhandled)):
        for application, count, oldest_at in await session.execute(statement):
            found.append(Waiting(application=application, reason=reason, count=count, oldest_at=oldest_at))
    return sorted([*found, *await _unfinished(session)], key=lambda one: (one.application, one.reason))


def orders_of(waiting: Iterable[Waiting]) -> Counter[str]:
    """Application to how many orders, each once: one handler's run may be dead, and another's retrying. Pure."""
    found, events = Counter[str](), dict[str, set[str]]()
    for one in waiting:
        found[one.application] += 0 if one.events else one.count
        events.setdefault(one.application, set()).update(one.events)
    return found + Counter({application: len(ids) for application, ids in events.items()})


def _held() -> Select[Any]:
    columns = (ORDERS.c.application, func.count(), func.min(ORDERS.c.paid_at))
    return select(*columns).where(text("hold IS NOT NULL")).group_by(ORDERS.c.application)


def _unsent() -> Select[Any]:
    """Among what is due for longest: a request is due at once, and what waits behind it are timers."""
    first = select(OUTBOX).where(text("published_at IS NULL")).order_by(OUTBOX.c.not_before).limit(NEWEST).subquery()
    columns = (first.c.application, func.count(), func.min(first.c.created_at))
    return select(*columns).where(first.c.type == REQUESTED).group_by(first.c.application)


async def _unfinished(session: AsyncSession) -> list[Waiting]:
    """Runs that are not done, handler by handler, of each at most NEWEST in a state."""
    found: dict[tuple[str, str], tuple[set[str], list[datetime]]] = {}
    beside: set[Any] = {row[0] for row in await session.execute(bystanders())}
    projections: list[Any] = [row[0] for row in await session.execute(handing_on())]
    for handler, status in await queue.count_by_status(session):
        rows: Sequence[Any] = (await session.execute(_open(handler, status, projections))).all()
        unknown = await _paid_there(session, [(row[0], row[4]) for row in rows]) if handler == OBSERVES else frozenset()
        for application, event_id, event_type, at, key, by in rows:
            # Of PROVES, and of a read that showed it: the order is paid, and not even known to be so yet.
            is_proof = handler == PROVES or (application, key) in unknown
            if is_proof or ((event_type == REQUESTED or by in projections) and handler not in beside):
                ids, times = found.setdefault((application, status), (set(), []))
                ids.add(event_id)
                times.append(at)
    return [
        Waiting(application=application, reason=status, count=len(ids), oldest_at=min(times), events=frozenset(ids))
        for (application, status), (ids, times) in found.items()
    ]


async def _paid_there(session: AsyncSession, keys: Collection[tuple[str, str]]) -> frozenset[tuple[str, str]]:
    """Of these orders those that the service has shown to be paid, and that are not known to be so here."""
    found: set[tuple[str, str]] = set()
    for application, names in grouped((((application,), key.partition(":")[2]) for application, key in keys)):
        states = await observations.last(session, application[0], "order", names)
        paid = [name for name, last in states.items() if status_of(last.state) == PAID]
        mine = (ORDERS.c.application == application[0], among(ORDERS.c.order_id, paid), ORDERS.c.paid_at.is_not(None))
        known = set(await session.scalars(select(ORDERS.c.order_id).where(*mine))) if paid else set()
        found |= {(application[0], f"order:{name}") for name in paid if name not in known}
    return frozenset(found)


def _open(handler: str, status: str, projections: Sequence[str]) -> Select[Any]:
    """Of a merchant's handler those that were asked to fulfil, or that one of these `projections` handed on to it: it
    may want other events, too, and have far more of them."""
    event = and_(EVENTS.c.application == RUNS.c.application, EVENTS.c.id == RUNS.c.event_id)
    type_, at = (select(column).where(event).scalar_subquery() for column in (EVENTS.c.type, EVENTS.c.received_at))
    since = func.coalesce(at, RUNS.c.created_at)  # one whose event is not here waits all the same
    emitted = and_(OUTBOX.c.application == RUNS.c.application, OUTBOX.c.event_id == RUNS.c.event_id, text(DERIVED))
    by = select(OUTBOX.c.handler).where(emitted).scalar_subquery()
    wanted = select(RUNS.c.application, RUNS.c.event_id, type_, since, RUNS.c.key, by if projections else null())
    is_theirs = or_(type_ == REQUESTED, by.in_(projections)) if projections else type_ == REQUESTED
    counts = true() if handler in (PROVES, OBSERVES) else is_theirs
    return wanted.where(lanes.is_status(RunStatus(status)), RUNS.c.handler == handler, counts).limit(NEWEST)


def _unhandled(taken_until: int) -> Select[Any]:
    """Requests that no handler which fulfils took: among the first after those that were all taken, so that the oldest
    is always seen; and among the newest, where nobody has looked for long."""
    requests = select(EVENTS.c.seq, EVENTS.c.application, EVENTS.c.id, EVENTS.c.received_at).where(
        EVENTS.c.type == REQUESTED, EVENTS.c.seq > taken_until
    )
    ends = (requests.order_by(order).limit(NEWEST).subquery() for order in (EVENTS.c.seq, EVENTS.c.seq.desc()))
    seen = union(*(select(end) for end in ends)).subquery()
    columns = (seen.c.application, func.count(), func.min(seen.c.received_at))
    return select(*columns).where(taker(seen).is_(None)).group_by(seen.c.application)
