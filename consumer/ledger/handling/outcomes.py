"""Outcomes: what became of events, for the outage certificate."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import Table, and_, or_, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.columns import among, unindexed
from consumer.events import Source
from consumer.ledger.engine.chunks import CHUNK, portions
from consumer.ledger.handling import lanes
from consumer.ledger.tables import EventRow, HintRow, OutboxRow, QuarantineRow, RunRow, RunStatus

_EVENTS: Table = EventRow.__table__
_RUNS: Table = RunRow.__table__
_OUTBOX: Table = OutboxRow.__table__
_HINTS: Table = HintRow.__table__
_QUARANTINE: Table = QuarantineRow.__table__

UNCONFIRMED: Final = "unconfirmed"
QUARANTINED: Final = "quarantined"
WORST_FIRST: Final = (RunStatus.DEAD.value, RunStatus.PARKED.value, RunStatus.RETRYING.value)


@dataclass(frozen=True)
class Outcome:
    """`source`: what brought the event first. `word`: the worst of its runs' states, `handled` when all is done;
    `unconfirmed` or `quarantined` for one that the ledger has as a delivery only."""

    source: Source
    word: str


async def outcomes(session: AsyncSession, application: str, event_ids: Sequence[str]) -> Mapping[str, Outcome]:
    """Event id to what became of it; without those the ledger lacks. At most a few hundred ids at once."""
    if not event_ids:
        return {}
    ids = list(event_ids)
    sources = await session.execute(
        select(_EVENTS.c.id, _EVENTS.c.source).where(_EVENTS.c.application == application, among(_EVENTS.c.id, ids))
    )
    found = {event_id: Source(source) for event_id, source in sources}
    rows = await session.execute(
        select(_RUNS.c.event_id, _RUNS.c.status)
        .where(_RUNS.c.application == application, among(_RUNS.c.event_id, ids))
        .distinct()
    )
    states: dict[str, set[str]] = {}
    for event_id, status in rows:
        states.setdefault(event_id, set()).add(status)
    return {event_id: Outcome(source, _word(states.get(event_id, set()))) for event_id, source in found.items()}


async def derived_open(
    session: AsyncSession, application: str, causes: Container[str], now: datetime
) -> Mapping[str, str]:
    """Which of these events derived other events whose work is not done, and the worst state of it; what is due and not
    yet published, nor taken where it was emitted, counts as retrying. One level. Reads open runs and what waits only,
    by their partial indexes."""
    found: dict[str, str] = {}
    for status in WORST_FIRST:
        derived_from = select(_OUTBOX.c.cause).where(
            _OUTBOX.c.application == application, _OUTBOX.c.event_id == _RUNS.c.event_id
        )
        open_ = select(derived_from.scalar_subquery()).where(
            lanes.is_status(RunStatus(status)), _RUNS.c.application == application
        )
        async for (of,) in await session.stream(open_):
            if of in causes:
                found.setdefault(of, status)
    event = select(_EVENTS.c.seq).where(
        _EVENTS.c.application == _OUTBOX.c.application, _EVENTS.c.id == _OUTBOX.c.event_id
    )
    waits = and_(
        text("outbox.published_at IS NULL"), _OUTBOX.c.not_before <= now, event.scalar_subquery().is_(None)
    )  # fmt: skip
    async for (cause,) in await session.stream(
        select(_OUTBOX.c.cause)
        .where(unindexed(_OUTBOX.c.application) == application, waits)
        .order_by(_OUTBOX.c.not_before)
    ):
        if cause in causes:
            found.setdefault(cause, RunStatus.RETRYING.value)
    return found


async def delivered_only(session: AsyncSession, application: str, event_ids: Sequence[str]) -> Mapping[str, Outcome]:
    """The same for events whose delivery waits to be confirmed, or lies in quarantine."""
    found: dict[str, Outcome] = {}
    for some in portions(event_ids, CHUNK):
        kept = await session.scalars(
            select(_QUARANTINE.c.event_id).where(
                unindexed(_QUARANTINE.c.application) == application, among(_QUARANTINE.c.event_id, some)
            )
        )
        found |= {event_id: Outcome(Source.WEBHOOK, QUARANTINED) for event_id in kept}
        waiting = await session.scalars(
            select(_HINTS.c.event_id).where(_HINTS.c.application == application, among(_HINTS.c.event_id, some))
        )
        found |= {event_id: Outcome(Source.WEBHOOK, UNCONFIRMED) for event_id in waiting}
    return found


async def quarantined_deliveries(
    session: AsyncSession, application: str, delivery_ids: Sequence[str]
) -> frozenset[str]:
    """Which of these deliveries lie in quarantine. At most a few hundred ids at once."""
    where = (_QUARANTINE.c.application == application) & among(_QUARANTINE.c.delivery_id, delivery_ids)
    return frozenset(await session.scalars(select(_QUARANTINE.c.delivery_id).where(where)))


async def has_business_before(session: AsyncSession, application: str, moment: datetime) -> bool:
    """Whether an event of an order or a subscription, from the service, was received before then."""
    statement = (
        select(_EVENTS.c.seq)
        .where(
            _EVENTS.c.received_at < moment,
            unindexed(_EVENTS.c.application) == application,
            _EVENTS.c.source.in_([Source.WEBHOOK.value, Source.BACKFILL.value]),
            or_(_EVENTS.c.order_id.is_not(None), _EVENTS.c.subscription_id.is_not(None)),
        )
        .order_by(_EVENTS.c.received_at)
        .limit(1)
    )
    return (await session.scalar(statement)) is not None


def _word(states: set[str]) -> str:
    for status in WORST_FIRST:
        if status in states:
            return status
    if not states:
        return "no_handler"
    return "skipped" if states == {RunStatus.SKIPPED.value} else "handled"
