"""Outcomes: what became of events, for the outage certificate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Table, select
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.events import Source
from consumer.ledger.tables import EventRow, RunRow, RunStatus

_EVENTS: Table = EventRow.__table__
_RUNS: Table = RunRow.__table__


@dataclass(frozen=True)
class Outcome:
    """`source`: what brought the event first. `word`: the worst of its runs' states, `handled` when all is done."""

    source: Source
    word: str


async def outcomes(session: AsyncSession, application: str, event_ids: Sequence[str]) -> Mapping[str, Outcome]:
    """Event id to what became of it; without those the ledger lacks. At most a few hundred ids at once."""
    if not event_ids:
        return {}
    ids = list(event_ids)
    sources = await session.execute(
        select(_EVENTS.c.id, _EVENTS.c.source).where(_EVENTS.c.application == application, _EVENTS.c.id.in_(ids))
    )
    found = {event_id: Source(source) for event_id, source in sources}
    rows = await session.execute(
        select(_RUNS.c.event_id, _RUNS.c.status)
        .where(_RUNS.c.application == application, _RUNS.c.event_id.in_(ids))
        .distinct()
    )
    states: dict[str, set[str]] = {}
    for event_id, status in rows:
        states.setdefault(event_id, set()).add(status)
    return {event_id: Outcome(source, _word(states.get(event_id, set()))) for event_id, source in found.items()}


def _word(states: set[str]) -> str:
    for status in (RunStatus.DEAD, RunStatus.PARKED, RunStatus.RETRYING):
        if status.value in states:
            return status.value
    if not states:
        return "no_handler"
    return "skipped" if states == {RunStatus.SKIPPED.value} else "handled"
