"""MissingEvents: what is done about the pages of a walk: publish what the ledger lacks, keep what can only be kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Final

from consumer.errors import ConsumerError
from consumer.events import Delivery, Event, Source
from consumer.ledger.handling import events
from consumer.ledger.reading import hints, quarantine
from consumer.lists.bookmark import Bookmark, ListOrder
from consumer.lists.orders import WalkPage
from consumer.lists.walk import Walk
from consumer.payments import EventRecord
from consumer.reason import Reason
from consumer.sync.application import Application
from consumer.sync.backfill import silence
from consumer.sync.backfill.cutover import CutOver
from consumer.sync.backfill.kept_bodies import KeptBodies
from consumer.sync.backfill.page import ListedEvents, Reads, WholeEvents, kept_raw, understand
from consumer.sync.backfill.report import BackfillOptions, BackfillReport
from consumer.sync.backfill.unread import UNREAD_MAX, Unread
from consumer.sync.publisher import Left, PublishedIds
from consumer.sync.settlement import Settlement
from consumer.wire import SEED

AGAIN: Final = 100
"""So many of those that could not be read a walk asks for, as many as a page lists."""


@dataclass(kw_only=True)
class Begun:
    """A walk that has begun, what was asked of it, and what has come of it so far.

    `floor`: what happened before then is history, and not acted on. `cut_over`: where a seed ends; None for other
    walks. `told`: ids that were counted as missing and are not published, so that an id on two pages counts once.
    `unannounced`: the newest events that no delivery had announced. `unread`: the events of this walk and of earlier
    ones that could not be read; a walk that does not follow the bookmark keeps none, and `failures` says why.
    `unmet`: those of `unread` that this walk has not met yet. `reads`: how many events were read singly.
    `lacks_times`: whether a seed could not read some event whose time the list does not show.
    """

    walk: Walk
    options: BackfillOptions
    report: BackfillReport
    began_s: float
    floor: datetime | None
    told: PublishedIds
    cut_over: CutOver | None = None
    unannounced: deque[str] = field(default_factory=partial(deque[str], maxlen=silence.PENDING_MAX))
    unread: Unread = field(default_factory=Unread)
    unmet: Unread = field(default_factory=Unread)
    failures: list[ConsumerError] = field(default_factory=list)
    reads: int = 0
    lacks_times: bool = False

    def is_acted_on(self, event: Event) -> bool:
        """Whether it is not history by its time."""
        return self.floor is None or event.occurred_at is None or event.occurred_at >= self.floor

    @property
    def has_failed(self) -> bool:
        """Whether the walk has failed because of what it could not read. A seed may leave UNREAD_MAX events to the next
        seed, but none that the next one could no longer tell from news."""
        is_kept = self.cut_over is not None and not self.loses_history
        return bool(self.failures) and not (is_kept and self.report.unread <= UNREAD_MAX)

    @property
    def loses_history(self) -> bool:
        """Whether a later seed could not tell that what this one left unread is history. Without a time an event is
        history only before the first walk. Where an operator named a moment, a later read may still show the time,
        unless the reads of other events showed none."""
        if self.cut_over is None or not (self.cut_over.is_first and self.lacks_times):
            return False
        return not self.cut_over.is_said or self.report.without_time > 0

    def leave(self, unread: Iterable[Event]) -> None:
        """A seed leaves these, which could not be read, to the next one."""
        for event in unread:
            self.report.unread += 1
            self.lacks_times |= event.occurred_at is None

    def history(self, wanted: Sequence[Event], listed: tuple[Event, ...], announced: Container[str]) -> list[Event]:
        """What of it a seed archives: all, where it is none. Raises UsageError where it is to divide some by a named
        moment, and no event of the page has a time."""
        if self.cut_over is None or not wanted:
            return list(wanted)
        self.cut_over.require_times(listed)
        history = [event for event in wanted if event.id not in announced and self.cut_over.is_history(event)]
        self.report.left += len(wanted) - len(history)
        self.report.without_time += sum(event.occurred_at is None for event in history)
        return history

    def note(self, page: Decided) -> None:
        """Count a page: what it lists, what of it the ledger lacks, what of that is wanted, and what of the wanted no
        delivery had announced."""
        taken = set() if self.options.dry_run else {event.id for event in page.wanted}
        self.told.add([event.id for event in page.missing if event.id not in taken])
        self.unannounced.extend(page.unannounced)
        report, listed = self.report, page.listed
        report.listed += len(listed.events) + len(listed.strange)
        report.known += len(listed.events) - len(page.missing)
        report.published += len(page.wanted)
        report.recovered += len(page.unannounced)
        report.strange += len(listed.strange)
        is_all = self.options.since is None and not self.options.seed
        report.history += len(page.missing) - len(page.wanted) if is_all else 0

    def unread_after(self, met: Sequence[Event], reads: Sequence[Reads], left: Left, now: datetime) -> Unread:
        """What waits to be read after a page: what of it could not be read, and what the topic does not take for now.
        Where this walk keeps nothing waiting, or there is no room, it is as it was, and `failures` says why."""
        refused = {event.id: 0 for event in left.for_now}
        again = {event_id: failed for one in reads for event_id, failed in one.again.items()} | refused
        if self.options.seed:
            self.leave(event for event in met if event.id in again)
        follows = self.options.follows_bookmark
        unread = self.unread.after(met, again, now, refused=refused) if follows else self.unread
        failure = next((one.failure for one in reads if one.failure is not None), left.refusal)
        if failure is not None and (not follows or unread.is_overfull):
            self.failures.append(failure)
            return self.unread
        return unread


@dataclass(frozen=True, kw_only=True)
class Decided:
    """What is to be done about a page: `listed`, as single reads show it where it is brief, without those that could
    not be read; what of it the ledger is `missing`, and what of that is `wanted` on the topic; the hints that it
    confirms, by event (`announced`); `reads`: those single reads."""

    listed: ListedEvents
    missing: Sequence[Event]
    wanted: Sequence[Event]
    announced: Mapping[str, Delivery]
    reads: Reads

    @property
    def unannounced(self) -> Sequence[str]:
        """The ids of the wanted that no hint waits for."""
        return [event.id for event in self.wanted if event.id not in self.announced]

    @property
    def known(self) -> Sequence[Event]:
        """Those that the ledger has."""
        lacking = {event.id for event in self.missing}
        return [event for event in self.listed.events if event.id not in lacking]


class MissingEvents:
    """Publishes what the pages of one application's list show and its ledger lacks."""

    def __init__(self, app: Application, settlement: Settlement) -> None:
        self._app = app
        self._settlement = settlement
        self._whole = WholeEvents(app)
        self._kept = KeptBodies(app, settlement, self._whole)
        self._history = settlement.ids()  # of those whose list shows no time: they are not read singly by each walk

    async def ask_again(self, begun: Begun) -> None:
        """Take AGAIN of those that earlier walks could not read and this one did not meet, in turn, as if they were
        listed now. Raises as `take`."""
        if asked := begun.unmet.items(AGAIN):
            await self._take(asked, begun, None)

    async def take(self, page: WalkPage, begun: Begun) -> None:
        """Publish what is missing, as a read shows it where it is listed in brief (case B22), settle the hints that the
        page confirms, and count both; keep what can only be kept, which is not understood, or larger than the topic
        takes; compare what lies here under several bodies; and only then move the bookmark, and note with it a gap that
        it is past. A dry run only counts.

        Of those that could not be read, nothing is decided. The bookmark goes on past them, for they are kept with it,
        and `ask_again` asks for them; one for which there is no room keeps it where it is. So it is with those that the
        topic does not take for now."""
        await self._take(page.items, begun, page.bookmark)

    async def _take(self, items: Sequence[EventRecord], begun: Begun, bookmark: Bookmark | None) -> None:
        met = understand(items, self._app)
        page = await self._decide(met, begun)
        begun.note(page)
        if begun.options.dry_run:
            page.reads.check()
            return
        left = await self._publish(page, begun)
        self._app.metrics.walked.labels(self._app.name, "listed").inc(len(items))
        page.reads.check()
        compared = await self._kept.compare(page.known, begun.unread)
        begun.reads += compared.asked
        compared.check()
        strange = [*page.listed.strange, *await self._too_large(left.too_large)]
        unread = begun.unread_after(met.events, (page.reads, compared), left, self._app.clock.now())
        await self._keep(begun, strange, unread, bookmark)

    async def _decide(self, met: ListedEvents, begun: Begun) -> Decided:
        """What of a page is published, once what it shows too little of was read singly."""
        listed = met
        missing = [one for one in await self._missing(listed.events, begun.walk.order) if one.id not in begun.told]
        announced = await self._announced(listed.events)
        acted_on = self._acted_on(missing, announced, begun)
        reads = await self._whole.read(_told_apart(acted_on, begun.options), announced, begun.unread)
        begun.reads += reads.asked
        begun.unmet = begun.unmet.after(met.events, {}, self._app.clock.now())
        if reads.whole or reads.left:
            listed, missing = listed.after(reads), reads.applied(missing)
            announced = {event_id: one for event_id, one in announced.items() if event_id not in reads.left}
            acted_on = self._acted_on(missing, announced, begun)
            self._history.add(sorted(reads.whole.keys() - {event.id for event in acted_on}))
        shown = await self._with_times(listed.events, begun) if acted_on else listed.events
        wanted = begun.history(acted_on, shown, announced)
        if begun.options.seed:
            announced = {}  # the hints stay: `confirm` brings their events with effects
        return Decided(listed=listed, missing=missing, wanted=wanted, announced=announced, reads=reads)

    async def _publish(self, page: Decided, begun: Begun) -> Left:
        """Publish what is wanted, and settle the hints. Returns what the topic does not take."""
        plan = SEED if begun.options.seed else None
        left = await self._settlement.settle(page.announced, page.listed.events, lacking=page.wanted, plan=plan)
        begun.report.published -= len(left.ids)
        begun.report.strange += len(left.too_large)
        self._app.metrics.walked.labels(self._app.name, "recovered").inc(len(page.unannounced))
        self._app.metrics.confirmed.labels(self._app.name, "confirmed").inc(len(page.announced))
        return left

    async def _keep(self, begun: Begun, strange: Sequence[Delivery], unread: Unread, bookmark: Bookmark | None) -> None:
        """In one transaction: what can only be kept, what waits to be read, and the bookmark past both; with it a gap,
        which no later walk sees. A walk that has failed, or follows none, moves no bookmark."""
        moves = bookmark if begun.options.follows_bookmark and not begun.failures else None
        changed = [state for state in (unread if unread is not begun.unread else None, moves) if state is not None]
        if not strange and not changed:
            return
        now = self._app.clock.now()
        async with self._app.database.transaction() as session:
            if moves is not None and begun.walk.gap:
                await silence.note_gap(session, self._app.name, at=now, token=self._app.token())
            await quarantine.put(session, [(one, one.problem or Reason.NOT_UNDERSTOOD) for one in strange], now)
            for state in changed:
                await self._app.keep(session, state)
        begun.unread = unread

    async def _with_times(self, listed: tuple[Event, ...], begun: Begun) -> tuple[Event, ...]:
        """And what an earlier seed archived of them, as it was read then: this one does not read it again, and what it
        knew to be divided by a named moment, this one is to know."""
        is_said = begun.cut_over is not None and begun.cut_over.is_said
        if not is_said or any(event.occurred_at is not None for event in listed):
            return listed
        async with self._app.database.reading() as session:
            known = await events.load(session, [(self._app.name, event.id) for event in listed])
        return (*listed, *(one for one in known.values() if one.source is Source.BACKFILL))

    def _acted_on(self, missing: Sequence[Event], announced: Container[str], begun: Begun) -> list[Event]:
        """Those that a webhook announced, and those that are not history."""
        left = self._history if begun.options.follows_bookmark else ()
        return [
            event for event in missing if event.id in announced or (begun.is_acted_on(event) and event.id not in left)
        ]

    async def _too_large(self, refused: Sequence[Event]) -> list[Delivery]:
        """Those the topic does not take, raw, by their ids, for whoever makes room for them; no hint waits for them."""
        if not refused:
            return []
        await self._settlement.leave_out(refused)
        now = self._app.clock.now()
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


def _told_apart(acted_on: Sequence[Event], options: BackfillOptions) -> Sequence[Event]:
    """What of it is to be read singly: a dry run asks only when something happened, where the list does not say."""
    return [event for event in acted_on if event.occurred_at is None] if options.dry_run else acted_on
