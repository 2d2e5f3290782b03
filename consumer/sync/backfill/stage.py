"""Backfill: walks the list of events and publishes what the ledger lacks. One walk, or again and again.

Cases B1-B13, B23-B30, B34. What a walk publishes goes the same way as everything else (topic `events`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

import structlog

from consumer.clock import Clock
from consumer.errors import UsageError
from consumer.events import Delivery, Event
from consumer.ledger import Database
from consumer.ledger.handling import events
from consumer.ledger.reading import hints, quarantine, sync_state
from consumer.payments import Priority, Resources, UnexpectedAnswer
from consumer.reason import Reason
from consumer.sync.api import ApplicationApi
from consumer.sync.backfill import silence
from consumer.sync.backfill.bookmark import Bookmark, ListOrder
from consumer.sync.backfill.cutover import CutOver, FirstWalk
from consumer.sync.backfill.page import Recent, too_large, understand
from consumer.sync.backfill.policy import WalkPolicy
from consumer.sync.backfill.progress import ListStart, WalkProgress
from consumer.sync.backfill.refused_cursors import RefusedCursors
from consumer.sync.backfill.report import BackfillOptions, BackfillReport, Coverage, Progress, ReportBuilder
from consumer.sync.backfill.walk import Walk, WalkPage
from consumer.sync.confirm.decision import as_webhook, other_body, say_differences
from consumer.sync.loop import StageFailure, run_repeatedly
from consumer.sync.metrics import StageMetrics
from consumer.sync.publisher import EventPublisher
from consumer.wire import SEED

LOG = structlog.get_logger()

WALK: Final = "events"

PEEK: Final = BackfillOptions(full=True)  # publishes, and leaves the bookmark alone
PEEK_PAGES_MAX: Final = 20
CATCH_UP_PAGES_MAX: Final = 50


@dataclass(frozen=True, kw_only=True)
class BackfillPolicy:
    """`interval_s`: from the start of one walk of the loop to the next; `silent_interval_s` while webhooks are silent.
    `walk`: how a walk behaves.

    `history`: events older than this when the very first walk begins are history: not published, because somebody
    else has acted on them already (case B30). `--seed --full` archives them, `--full` acts on them.
    """

    interval_s: float = 60.0
    silent_interval_s: float = 10.0
    history: timedelta = timedelta(hours=1)
    walk: WalkPolicy = field(default_factory=WalkPolicy)


class Backfill:
    """Backfill of one application. `token` gives the leader's fencing token, and raises when it leads no more."""

    def __init__(
        self,
        api: ApplicationApi,
        database: Database,
        publisher: EventPublisher,
        *,
        clock: Clock,
        token: Callable[[], int],
        metrics: StageMetrics | None = None,
        policy: BackfillPolicy | None = None,
        on_report: Callable[[BackfillReport], None] | None = None,
        on_gap: Callable[[], None] | None = None,
    ) -> None:
        self.application = api.application
        self._api = api
        self._resources = api.client.with_priority(Priority.BACKFILL)
        self._database = database
        self._publisher = publisher
        self._clock = clock
        self._token = token
        self.metrics = metrics or StageMetrics()
        self._policy = policy or BackfillPolicy()
        self._on_report = on_report
        self._on_gap = on_gap
        self._recent = Recent()
        self._heard_at: datetime | None = None
        self._walk: Walk | None = None
        self._walking = asyncio.Lock()
        self.first_walk = FirstWalk(database, api.application, token=token)
        self._list_start = ListStart(database, api.application)
        self._refused_cursors = RefusedCursors(api.application, self.metrics)
        self._peeked: frozenset[str] = frozenset()
        self._say_history_at = 0.0
        self.interval_s = self._policy.interval_s
        self.wake = asyncio.Event()
        self.failure = StageFailure(f"backfill {api.application}")

    async def run(self, stop: asyncio.Event) -> None:
        """Walk every `interval_s` seconds, until `stop`."""
        await run_repeatedly(self._step, stop=stop, wake=self.wake, clock=self._clock, failure=self.failure)

    async def _step(self) -> float:
        began = self._clock.monotonic()
        await self.once()
        return max(0.0, began + self.interval_s - self._clock.monotonic())

    async def once(
        self, options: BackfillOptions | None = None, on_progress: Callable[[Progress], None] | None = None
    ) -> BackfillReport:
        """One walk. Raises PaymentsError, BrokerError, LedgerError; what was done until then stays done.

        On a failure the next walk goes on where this one was cut (case B10); a 429 is waited out on the way (B24).
        """
        async with self._walking:
            return await self._once(options or BackfillOptions(), on_progress, self._resources)

    async def catch_up(self) -> Coverage:
        """Walk with confirm's priority: settles at a hundred events a read what many hints announced.

        ALL when everything listed up to now has been walked. NEWEST when only the newest part was, because a long walk
        is under way, or because this one turned out long: the loop goes on with it, less urgently. NOTHING when such
        a walk has yet to come to the newest part, which lies at the list's far end. Raises as `once`.
        """
        resources = self._api.client.with_priority(Priority.CONFIRM)
        if self._walking.locked():
            if self._walk is not None and self._walk.order is not ListOrder.NEWEST_FIRST:
                return Coverage.NOTHING  # the newest are beyond where it is: to look for them would be to walk it twice
            return await self._peek(resources)
        try:
            async with self._walking:
                await self._once(BackfillOptions(), _not_long, resources)
        except _LongWalk as cut:
            self.wake.set()
            return Coverage.NEWEST if cut.order is ListOrder.NEWEST_FIRST else Coverage.NOTHING
        return Coverage.ALL

    @property
    def recent(self) -> Recent:
        """The ids published a short while ago."""
        return self._recent

    def heard(self, received_at: datetime, published: Sequence[str] = ()) -> None:
        """A webhook that came then proved to be real; `published` are the events it brought: no walk brings them."""
        self._heard_at = max(received_at, self._heard_at or received_at)
        self._recent.add(published)

    async def _peek(self, resources: Resources) -> Coverage:
        """Look at what came to a newest-first list since the walk under way began. The bookmark stays."""
        bookmark = await self.bookmark()
        known = frozenset(bookmark.resume.head_ids if bookmark.resume else bookmark.head_ids) | self._peeked
        walk = Walk(
            lister=resources.events,
            locators=self._api.locators,
            bookmark=Bookmark(order=bookmark.order),
            now=self._clock.now(),
            policy=self._policy.walk,
            stop_ids=known,
            pages_max=PEEK_PAGES_MAX,
        )
        builder, floor = ReportBuilder(began_s=self._clock.monotonic()), await self._first_began()
        seen: list[str] = []
        with suppress(UnexpectedAnswer):  # more news than a look may take: the next look begins at the head again
            try:
                async with aclosing(walk.pages()) as pages:
                    async for page in pages:
                        if walk.order is not ListOrder.NEWEST_FIRST:
                            return Coverage.NOTHING
                        await self._page(page, walk, PEEK, builder, floor - self._policy.history)
                        seen = seen or [item.id for item in page.items if item.id]
            finally:
                self._refused_cursors.ended(walk.refused, is_complete=False)
        self._peeked = frozenset(seen)
        return Coverage.NEWEST

    async def _once(
        self, options: BackfillOptions, on_progress: Callable[[Progress], None] | None, resources: Resources
    ) -> BackfillReport:
        bookmark = await self.bookmark() if options.reads_bookmark else Bookmark()
        now = self._clock.now()
        cut_over = await self._cut_over(options, now) if options.seed else None
        floor = await self._floor(options, now) if options.reads_bookmark else options.since
        walk = Walk(
            lister=resources.events,
            locators=self._api.locators,
            bookmark=bookmark,
            now=now,
            policy=self._policy.walk,
            since=floor if bookmark.walked_at is None else None,
            sweeps=resources is self._resources,  # hints are in a hurry: the loop looks for what is listed late
        )
        builder = ReportBuilder(began_s=self._clock.monotonic())
        walk_progress = WalkProgress(
            walk, self._clock, begins_at=await self._list_start.at() if on_progress is not None else None
        )
        self._walk, is_complete = walk, False
        try:
            async with aclosing(walk.pages()) as pages:
                async for page in pages:
                    await self._page(page, walk, options, builder, floor, cut_over)
                    self._refused_cursors.seen(walk.refused)
                    if on_progress is not None:
                        on_progress(walk_progress.progress(page, listed=builder.listed, published=builder.published))
            is_complete = True
        except _LongWalk as cut:
            cut.order = walk.order
            raise
        finally:
            self._walk = None
            self._refused_cursors.ended(walk.refused, is_complete=is_complete)
        now_s = self._clock.monotonic()
        report = builder.report(self.application, walk, cut_over=cut_over, dry_run=options.dry_run, now_s=now_s)
        if not options.dry_run:
            await self._list_start.keep(walk.begins_at, now)
        if options.follows_bookmark:
            await self._note(report, builder.unannounced, now)
        if cut_over is not None and cut_over.is_first and not options.dry_run:
            await self.first_walk.begin(cut_over.at + self._policy.history, self._clock.now())
        self._say(report)
        return report

    async def _note(self, report: BackfillReport, unannounced: Sequence[str], now: datetime) -> None:
        """Webhooks that are silent make the walks more frequent; a gap calls for a reconcile walk (O1, B13)."""
        async with self._database.transaction() as session:
            delivery_health = await silence.note_walk(
                session,
                self.application,
                recovered=unannounced,
                gap=report.gap,
                heard_at=self._heard_at,
                token=self._token(),
                now=now,
            )
        silent = delivery_health.silent_since is not None
        often = min(self._policy.silent_interval_s, self._policy.interval_s)
        self.interval_s = often if silent else self._policy.interval_s
        self.metrics.gauge("webhooks_silent", self.application, int(silent))
        self.metrics.gauge("gap_open", self.application, int(delivery_health.gap_at is not None))
        if report.gap and self._on_gap is not None:
            self._on_gap()

    async def bookmark(self) -> Bookmark:
        """The stored bookmark."""
        async with self._database.reading() as session:
            return Bookmark.load(await sync_state.load(session, self.application, WALK))

    async def _floor(self, options: BackfillOptions, now: datetime) -> datetime:
        """From when on events are acted on: what is older when the first walk of all begins is history."""
        began = (await self.first_walk.began() or now) if options.dry_run else await self._first_began()
        return began - self._policy.history

    async def _first_began(self) -> datetime:
        """When the first walk of this application began; remembered over restarts."""
        now = self._clock.now()
        return await self.first_walk.begin(now, now)

    async def _cut_over(self, options: BackfillOptions, now: datetime) -> CutOver:
        """Where a seed ends. Raises UsageError for one that says neither how far back nor how far on it goes."""
        if not (options.full or options.since) and (await self.bookmark()).walked_at is not None:
            raise UsageError("a walk has been completed here: a seed needs --full or --since as well")
        return await self.first_walk.cut_over(options.until, now, self._policy.history)

    async def predict_s(self, pages: int) -> float:
        """Seconds that many pages take within the budget, if nothing more urgent asks."""
        return await self._api.predict_s(pages)

    # --- one page ----------------------------------------------------------------------------------------------

    async def _page(
        self,
        page: WalkPage,
        walk: Walk,
        options: BackfillOptions,
        builder: ReportBuilder,
        floor: datetime | None,
        cut_over: CutOver | None = None,
    ) -> None:
        """Publish what is missing, keep what is strange, and only then move the bookmark."""
        now = self._clock.now()
        listed = understand(page.items, self._api.locators, application=self.application, now=now)
        missing = [event for event in await self._missing(listed.events, walk.order) if event.id not in builder.told]
        announced = await self._announced(listed.events)
        wanted = [event for event in missing if event.id in announced or _is_since(event, floor)]
        if cut_over is not None:
            cut_over.require_times(listed.events)
            history = [event for event in wanted if event.id not in announced and cut_over.is_history(event)]
            builder.left += len(wanted) - len(history)
            builder.without_time += sum(event.occurred_at is None for event in history)
            wanted, announced = history, {}  # the hints stay: `confirm` brings their events with effects
        taken = set() if options.dry_run else {event.id for event in wanted}
        builder.told.add([event.id for event in missing if event.id not in taken])
        builder.listed += len(page.items)
        builder.known += len(listed.events) - len(missing)
        builder.published += len(wanted)
        unannounced = [event.id for event in wanted if event.id not in announced]
        builder.recovered += len(unannounced)
        builder.unannounced = [*builder.unannounced, *unannounced][-silence.PENDING_MAX :]
        builder.strange += len(listed.strange)
        builder.history += len(missing) - len(wanted) if options.since is None and cut_over is None else 0
        if options.dry_run:
            return
        # A hint's own event carries the delivery's provenance: it was the webhook that brought it.
        refused = await self._publisher.publish(
            [as_webhook(one, announced[one.id]) if one.id in announced else one for one in wanted],
            plan=SEED if options.seed else None,
        )
        builder.published, builder.strange = builder.published - len(refused), builder.strange + len(refused)
        self._recent.add([event.id for event in wanted])
        if announced:
            self.heard(max(one.received_at for one in announced.values()))
        others = self._count(page, wanted, listed.events, announced)
        token = self._token() if options.follows_bookmark else 0
        async with self._database.transaction() as session:
            await hints.drop(session, [(self.application, event_id) for event_id in sorted(announced)])
            strange = [*listed.strange, *too_large(refused, now), *others]
            await quarantine.put(session, [(one, one.problem or Reason.NOT_UNDERSTOOD) for one in strange], now)
            if options.follows_bookmark:
                await sync_state.keep(session, self.application, WALK, page.bookmark.dump(), token=token, now=now)

    async def _announced(self, listed: Sequence[Event]) -> dict[str, Delivery]:
        """The deliveries that announced listed events and wait to be confirmed: this is their confirmation."""
        async with self._database.reading() as session:
            waiting = await hints.of_events(session, self.application, [event.id for event in listed])
        return {hint.event_id: hints.as_delivery(hint) for hint in waiting}

    def _count(
        self, page: WalkPage, missing: Sequence[Event], listed: Sequence[Event], announced: Mapping[str, Delivery]
    ) -> list[Delivery]:
        """Returns the deliveries that state something else than the service's record does: they are kept."""
        recovered = [event for event in missing if event.id not in announced]
        self.metrics.count("events_listed", self.application, len(page.items))
        self.metrics.count("events_recovered", self.application, len(recovered))
        self.metrics.count("hints_confirmed", self.application, len(announced))
        return [
            other_body(announced[event.id])
            for event in listed
            if event.id in announced and say_differences(announced[event.id], event, self._api.locators, self.metrics)
        ]

    async def _missing(self, listed: Sequence[Event], order: ListOrder) -> list[Event]:
        """What the ledger lacks and was not published just now, oldest first as far as the order is known."""
        fresh = {event.id: event for event in listed if event.id not in self._recent}
        async with self._database.reading() as session:
            known = await events.known(session, [(self.application, event_id) for event_id in fresh])
        missing = [event for event in fresh.values() if (self.application, event.id) not in known]
        return missing[::-1] if order is ListOrder.NEWEST_FIRST else missing

    # --- what is told ------------------------------------------------------------------------------------------

    def _say(self, report: BackfillReport) -> None:
        if report.strange:
            LOG.error("listed events were not understood", application=self.application, events=report.strange)
            self.metrics.count("events_strange", self.application, report.strange)
        if report.history and not report.dry_run and self._clock.monotonic() >= self._say_history_at:
            self._say_history_at = self._clock.monotonic() + 3600
            LOG.error(
                "events from before the first walk were left alone: `backfill --seed --full` archives, `--full` acts",
                application=self.application, at_least=report.history,
            )  # fmt: skip
            self.metrics.gauge("events_history", self.application, report.history)
        if report.without_time:
            LOG.warning("a seed took events without a time", application=self.application, events=report.without_time)
        if report.gap:
            LOG.error("retention gap: events may have come and gone unseen", application=self.application)
            self.metrics.count("retention_gaps", self.application)
        if report.published:
            LOG.info(
                "backfill found events that the ledger lacks", application=self.application,
                events=report.published, listed=report.listed, dry_run=report.dry_run,
            )  # fmt: skip
        if not report.dry_run:
            self.metrics.count("walk_s", self.application, report.seconds)
            self.metrics.gauge("last_walk_at", self.application, self._clock.now().timestamp())
        if self._on_report is not None:
            self._on_report(report)


class _LongWalk(Exception):
    """A walk for hints has become too long for its priority. It is cut as a crash would cut it."""

    order = ListOrder.UNKNOWN


def _not_long(progress: Progress) -> None:
    if progress.pages >= CATCH_UP_PAGES_MAX:
        raise _LongWalk


def _is_since(event: Event, since: datetime | None) -> bool:
    return since is None or event.occurred_at is None or event.occurred_at >= since
