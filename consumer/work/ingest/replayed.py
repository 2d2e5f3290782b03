"""Replayed: what a replay plan sends comes as copies of events that the ledger has. A copy changes nothing by itself:
the plan's items in the ledger say which handlers are meant, and each is taken once (cases R3, R7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncSession

from consumer.ledger.handling import events, runs
from consumer.ledger.handling.events import EventKey
from consumer.ledger.handling.runs import Run
from consumer.ledger.plans import items
from consumer.wire import is_replay
from consumer.work.unit_of_work import Incoming


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """A pair that is to begin now: the event as the ledger has it, and the handler's name."""

    incoming: Incoming
    handler: str
    seq: int


async def take(
    session: AsyncSession, arrived: Sequence[Incoming], new: frozenset[EventKey], now: datetime
) -> tuple[list[Replayed], int]:
    """Take what these copies are for: pairs without a run, by arrival, and how many runs that exist were let go again
    here. Nothing for an event that is new to the ledger: it is handled as such."""
    wanted = {
        (incoming.plan, *incoming.id)
        for incoming in arrived
        if incoming.plan is not None and is_replay(incoming.plan) and incoming.id not in new
    }
    if not wanted:
        return [], 0
    taken, let_go = await items.take(session, wanted, now)
    found = await events.load(session, {(one.application, one.event_id) for one in taken})
    begins = [
        Replayed(
            incoming=Incoming(found[one.application, one.event_id], one.plan), handler=one.handler, seq=one.seq
        )
        for one in taken
    ]  # fmt: skip
    return begins, let_go


def waits_for_handler(one: Replayed, now: datetime, *, blocked: bool) -> Run:
    """The run of a handler that this process does not have: it waits for one that does (case O9)."""
    event = one.incoming.event
    return Run(
        application=event.application,
        event_id=event.id,
        handler=one.handler,
        seq=one.seq,
        key=event.key,
        status=runs.first_status(blocked=blocked),
        blocking=True,
        next_at=None if blocked else now,
        plan=one.incoming.plan,
    )
