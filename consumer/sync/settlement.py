"""Settlement: the one place where a hint ends: by the event that the service returned for it, or in quarantine where
it returned none, or none that can be published (cases I15, I16, B4).

`confirm` asks for the events of hints, `backfill` meets them in the list; both settle here, and both leave here what
the other has to know: which ids were published a short while ago, and when a webhook came that proved to be real.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.events import Delivery, Event
from consumer.ledger.reading import hints as ledger_hints
from consumer.ledger.reading import quarantine
from consumer.reason import Reason
from consumer.sync.application import Application
from consumer.sync.provenance import as_webhook, differing, other_body
from consumer.sync.publisher import EventPublisher, Left, PublishedIds
from consumer.telemetry import way

LOG = structlog.get_logger()

BESIDE_MAX: Final = 20
"""Other bodies of the events of a batch that are compared with the record; all are kept and counted."""
BESIDE_MARGIN: Final = timedelta(minutes=5)
"""A body that was kept so long before the hint came still counts as come while it waited. It covers what hosts' clocks
differ by (5 s) with much to spare, also where a clock is wrong: too wide compares a body that was compared before, too
narrow would leave a forged one uncompared."""


class Settlement:
    """Settles the hints of one application.

    `published`: the ids published a short while ago, which the workers may not have recorded yet. `heard_at`: when the
    newest webhook came that the service has confirmed, as far as this process knows. `compared`: the other bodies that
    were compared with the service's record.
    """

    def __init__(self, app: Application, publisher: EventPublisher) -> None:
        self._app = app
        self._publisher = publisher
        self.published = self.ids()
        self.compared = self.ids()
        self.heard_at: datetime | None = None

    def ids(self) -> PublishedIds:
        """Some more ids, in the room that all applications share."""
        return self._publisher.ids()

    async def settle(
        self,
        hints: Mapping[str, Delivery],
        events: Sequence[Event],
        *,
        lacking: Sequence[Event] | None = None,
        plan: str | None = None,
    ) -> Left:
        """The service has returned these events: publish what the ledger lacks, in this order, and forget the hints.

        `hints` are deliveries by the id of the event that confirms them: it carries their provenance. `lacking`: which
        of `events` are published (all, if it is not said), as part of `plan`. Returns those that are larger than the
        topic takes, whose hints stay. Published first: after a crash in between it is done again, which changes
        nothing. Raises BrokerError, LedgerError.
        """
        wanted = [
            as_webhook(event, hints[event.id]) if event.id in hints else event
            for event in (events if lacking is None else lacking)
        ]
        left = await self._publisher.publish(wanted, plan=plan)
        too_large = left.ids
        self.published.add([event.id for event in wanted if event.id not in too_large])
        for event in wanted if way.is_told() else ():
            if event.id not in too_large:
                way.tell("event_published", event, source=event.source.value, by_hint=event.id in hints)
        settled = {event_id: one for event_id, one in hints.items() if event_id not in too_large}
        known = {event.id: event for event in events if event.id in settled}
        judged = {event_id: self.differs(settled[event_id], event) for event_id, event in known.items()}
        for delivery in await self._forget(settled, judged):
            self.differs(delivery, known[str(delivery.event_id)])
        return left

    async def give_up(self, event_ids: Sequence[str], reasons: Mapping[str, Reason]) -> int:
        """The service confirmed none of these: their hints go to quarantine, each for its reason (`not_confirmed` where
        none is given). Returns how many there were. Raises LedgerError."""
        async with self._app.database.transaction() as session:
            denied = await ledger_hints.of_events(session, self._app.name, event_ids)
            kept = [(ledger_hints.as_delivery(one), reasons.get(one.event_id, Reason.NOT_CONFIRMED)) for one in denied]
            await quarantine.put(session, kept, self._app.clock.now())
            await self._drop(session, event_ids)
        for _, reason in kept:
            self._app.metrics.quarantined.labels(self._app.name, reason).inc()
        return len(kept)

    async def leave_out(self, refused: Sequence[Event]) -> None:
        """The topic takes none of these, which `settle` returned: no hint waits for them any more, and nobody tries
        again soon. Raises LedgerError."""
        self.published.add([event.id for event in refused])
        async with self._app.database.transaction() as session:
            await self._drop(session, [event.id for event in refused])

    def differs(self, delivery: Delivery, event: Event, *, kept: str | None = None) -> bool:
        """Whether a delivery states something else than the service does: counted and logged, never what it states.
        `kept`: where its body is, if it is known."""
        differs = differing(delivery, event, self._app.locators)
        if differs:
            self._app.metrics.mismatches.labels(event.application).inc()
            LOG.warning(
                "delivery_differs_from_record",
                application=event.application,
                trace_id=way.trace_id(delivery),
                delivery_id=delivery.id,
                event_id=event.id,
                differs="+".join(differs),
                **({} if kept is None else {"kept": kept}),
            )
        return bool(differs)

    async def _forget(self, hints: Mapping[str, Delivery], judged: Mapping[str, bool]) -> list[Delivery]:
        """Forget these hints. A body that states something else than the record (`judged`) is kept beside it, if it was
        not when it came (case I16); by one that does not, what comes later under its id is judged. Returns the other
        bodies that came while these waited: they wait no longer either."""
        if not hints:
            return []
        now = self._app.clock.now()
        agreeing = [hints[event_id] for event_id, differs in judged.items() if not differs]
        others = [hints[event_id] for event_id, differs in judged.items() if differs]
        async with self._app.database.transaction() as session:
            await self._drop(session, sorted(hints))
            await ledger_hints.remember(session, agreeing)
            beside = await quarantine.other_bodies(session, self._app.name, sorted(judged), BESIDE_MAX)
            there = {one.id for one in await ledger_hints.differing(session, others)}
            others = [other_body(one) for one in others if one.id not in there]
            await quarantine.put(session, [(other, Reason.OTHER_BODY) for other in others], now)
        if others:
            self._app.metrics.quarantined.labels(self._app.name, Reason.OTHER_BODY).inc(len(others))
        received_at = max(one.received_at for one in hints.values())
        self.heard_at = max(received_at, self.heard_at or received_at)
        self.compared.add([other_body(hints[event_id]).id for event_id in judged])
        came = [row for row in beside if row.created_at >= hints[str(row.event_id)].received_at - BESIDE_MARGIN]
        new = [quarantine.as_delivery(row) for row in came if row.delivery_id not in self.compared]
        self.compared.add([one.id for one in new])
        return new

    async def _drop(self, session: AsyncSession, event_ids: Sequence[str]) -> None:
        await ledger_hints.drop(session, [(self._app.name, event_id) for event_id in event_ids])
