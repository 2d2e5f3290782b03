"""MissingEvents: what is done about the pages of a walk: publish what the ledger lacks, keep what can only be kept."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncSession

from consumer.events import Delivery, Event
from consumer.ledger.handling import events
from consumer.ledger.reading import hints, quarantine
from consumer.reason import Reason
from consumer.sync.application import Application
from consumer.sync.backfill.bookmark import ListOrder
from consumer.sync.backfill.cutover import CutOver
from consumer.sync.backfill.page import kept_raw, understand
from consumer.sync.backfill.report import BackfillOptions, ReportBuilder
from consumer.sync.backfill.walk_orders import WalkPage
from consumer.sync.settlement import Settlement
from consumer.wire import SEED


@dataclass(frozen=True, kw_only=True)
class Taking:
    """What a walk does about its pages. `floor`: from when on events are acted on; `cut_over`: where a seed ends."""

    options: BackfillOptions
    builder: ReportBuilder
    floor: datetime | None
    cut_over: CutOver | None = None

    def is_acted_on(self, event: Event) -> bool:
        """Whether it is not history by its time."""
        return self.floor is None or event.occurred_at is None or event.occurred_at >= self.floor


class MissingEvents:
    """Publishes what the pages of one application's list show and its ledger lacks."""

    def __init__(self, app: Application, settlement: Settlement) -> None:
        self._app = app
        self._settlement = settlement

    async def take(self, page: WalkPage, order: ListOrder, taking: Taking) -> list[Delivery]:
        """Publish what is missing, settle the hints that the page confirms, and count both. Returns what can only be
        kept: records that are not understood, or larger than the topic takes. A dry run only counts."""
        now = self._app.clock.now()
        listed = understand(page.items, self._app.locators, application=self._app.name, now=now)
        missing = [one for one in await self._missing(listed.events, order) if one.id not in taking.builder.told]
        announced = await self._announced(listed.events)
        wanted = [event for event in missing if event.id in announced or taking.is_acted_on(event)]
        if taking.cut_over is not None:
            wanted = _history(wanted, listed.events, announced, taking.cut_over, taking.builder)
            announced = {}  # the hints stay: `confirm` brings their events with effects
        unannounced = [event.id for event in wanted if event.id not in announced]
        taking.builder.note(listed, missing, wanted, unannounced, taking.options)
        if taking.options.dry_run:
            return []
        plan = SEED if taking.options.seed else None
        refused = await self._settlement.settle(announced, listed.events, lacking=wanted, plan=plan)
        taking.builder.published -= len(refused)
        taking.builder.strange += len(refused)
        self._app.metrics.count("events_listed", self._app.name, len(page.items))
        self._app.metrics.count("events_recovered", self._app.name, len(unannounced))
        self._app.metrics.count("hints_confirmed", self._app.name, len(announced))
        return [*listed.strange, *await self._too_large(refused, now)]

    async def keep_strange(self, session: AsyncSession, strange: Sequence[Delivery]) -> None:
        """Into quarantine with what can only be kept."""
        kept = [(one, one.problem or Reason.NOT_UNDERSTOOD) for one in strange]
        await quarantine.put(session, kept, self._app.clock.now())

    async def _too_large(self, refused: Sequence[Event], now: datetime) -> list[Delivery]:
        """Those the topic does not take, raw, by their ids, for whoever makes room for them; no hint waits for them."""
        if not refused:
            return []
        self._settlement.published.add([event.id for event in refused])
        async with self._app.database.transaction() as session:
            await hints.drop(session, [(self._app.name, event.id) for event in refused])
        return [kept_raw(one.application, one.raw, now, Reason.TOO_LARGE, event_id=one.id) for one in refused]

    async def _announced(self, listed: Sequence[Event]) -> dict[str, Delivery]:
        """The deliveries that announced listed events and wait to be confirmed: this is their confirmation."""
        async with self._app.database.reading() as session:
            waiting = await hints.of_events(session, self._app.name, [event.id for event in listed])
        return {hint.event_id: hints.as_delivery(hint) for hint in waiting}

    async def _missing(self, listed: Sequence[Event], order: ListOrder) -> list[Event]:
        """What the ledger lacks and was not published just now, oldest first as far as the order is known."""
        fresh = {event.id: event for event in listed if event.id not in self._settlement.published}
        async with self._app.database.reading() as session:
            known = await events.known(session, [(self._app.name, event_id) for event_id in fresh])
        missing = [event for event in fresh.values() if (self._app.name, event.id) not in known]
        return missing[::-1] if order is ListOrder.NEWEST_FIRST else missing


def _history(
    wanted: Sequence[Event],
    listed: tuple[Event, ...],
    announced: Container[str],
    cut_over: CutOver,
    builder: ReportBuilder,
) -> list[Event]:
    """What of it a seed archives. Raises UsageError where no event has a time that a named cut-over could divide."""
    cut_over.require_times(listed)
    history = [event for event in wanted if event.id not in announced and cut_over.is_history(event)]
    builder.left += len(wanted) - len(history)
    builder.without_time += sum(event.occurred_at is None for event in history)
    return history
