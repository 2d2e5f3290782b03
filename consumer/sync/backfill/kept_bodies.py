"""KeptBodies: of an event that came by signed webhooks with two bodies, the list tells which is not the service's
(case I16).

Both are kept: one is recorded, the other lies in quarantine. Where webhooks are confirmed by a read, that read has
judged them already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from consumer.events import Delivery, Event, Source, Trust
from consumer.ledger.handling import events
from consumer.ledger.reading import quarantine
from consumer.ledger.reading.sync_state import KeptState
from consumer.sync.application import Application
from consumer.sync.backfill.page import Reads, WholeEvents
from consumer.sync.backfill.unread import Unread
from consumer.sync.settlement import BESIDE_MAX, Settlement

COMPARED_MAX: Final = 500


@dataclass(frozen=True, kw_only=True)
class Compared(KeptState, walk="kept_bodies"):
    """The newest bodies that were compared: deliveries in quarantine, and events for those that are recorded."""

    names: tuple[str, ...] = ()


class KeptBodies:
    """Compares the kept bodies of one application's events with what a walk lists, each once."""

    def __init__(self, app: Application, settlement: Settlement, whole: WholeEvents) -> None:
        self._app = app
        self._settlement = settlement
        self._whole = whole
        self._compared: tuple[str, ...] = ()

    async def compare(self, listed: Sequence[Event], unread: Unread) -> Reads:
        """Count and log whichever body states something else than the list, or than a read where that is brief (case
        B22): BESIDE_MAX at most. One statement, and more only where another body lies in quarantine. Returns these
        reads: those of them that could not be made are for a later walk. Raises LedgerError."""
        if not listed:
            return Reads()
        name, known = self._app.name, {event.id: event for event in listed}
        async with self._app.database.reading() as session:
            beside = await quarantine.other_bodies(session, name, sorted(known), BESIDE_MAX, but=self._compared)
            if not beside:
                return Reads()
            before = (await Compared.of(session, name)).names
            recorded = await events.load(session, {(name, str(row.event_id)) for row in beside})
        disputed = [known[event.id] for event in recorded.values() if not _was_confirmed(event)]
        reads = await self._whole.read(disputed, known, unread)
        known |= reads.whole
        names = dict.fromkeys(before)
        for row in beside:
            first = recorded.get((name, str(row.event_id)))
            if first is None or first.id in reads.left or row.delivery_id in names:
                continue
            names[row.delivery_id] = None
            if _was_confirmed(first) or row.delivery_id in self._settlement.compared:
                continue
            if first.trust is Trust.SIGNED and first.raw and first.id not in names:
                names[first.id] = None
                self._settlement.differs(_as_delivery(first), known[first.id], kept="recorded")
            self._settlement.differs(quarantine.as_delivery(row), known[first.id], kept="quarantine")
        self._compared = tuple(names)[-COMPARED_MAX:]
        if self._compared != before:
            async with self._app.database.transaction() as session:
                await Compared(names=self._compared).keep(session, name, now=self._app.clock.now())
        return reads


def _was_confirmed(event: Event) -> bool:
    """Whether a read confirmed its webhook."""
    return event.trust is Trust.READ and event.source is Source.WEBHOOK


def _as_delivery(event: Event) -> Delivery:
    return Delivery(
        application=event.application,
        id=event.delivery_id,
        raw=event.raw,
        received_at=event.received_at,
        event_id=event.id,
        traceparent=event.traceparent,
    )
