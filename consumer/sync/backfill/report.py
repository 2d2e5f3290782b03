"""What a backfill walk is asked to do, how far it is, and what it found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

import structlog

from consumer.events import Event
from consumer.sync.backfill.bookmark import ListOrder
from consumer.sync.backfill.cutover import CutOver
from consumer.sync.backfill.page import ListedEvents
from consumer.sync.backfill.silence import PENDING_MAX
from consumer.sync.backfill.walk import Walk
from consumer.sync.metrics import StageMetrics
from consumer.sync.publisher import PublishedIds

LOG = structlog.get_logger()


@dataclass(frozen=True, kw_only=True)
class BackfillOptions:
    """`full`: the whole list, whatever the bookmark says. `since`: only events from then on. `dry_run`: the same walk,
    and nothing is published or stored. `seed`: what happened before the cut-over, `until` or as decision 0004 has it,
    is published as plan `seed`, which workers archive without effects (case B30); the bookmark stays, so that the loop
    brings the rest.
    """

    full: bool = False
    since: datetime | None = None
    until: datetime | None = None
    seed: bool = False
    dry_run: bool = False

    @property
    def follows_bookmark(self) -> bool:
        """Whether the walk continues, and moves, the bookmark."""
        return self.reads_bookmark and not self.dry_run

    @property
    def sees_to_history(self) -> bool:
        """Whether the walk, once complete, has archived or acted on all there was before the first one."""
        return self.full and not (self.since or self.until or self.dry_run)

    @property
    def reads_bookmark(self) -> bool:
        """Whether the walk continues where the bookmark is: a dry run does so to foretell what the walk would do."""
        return not (self.full or self.since or self.seed)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a walk is. `share` is from 0 to 1 and `eta_s` in seconds, both None while they cannot be told;
    `published` is None where nothing is to be."""

    pages: int
    listed: int
    published: int | None
    reached_at: datetime | None = None
    share: float | None = None
    eta_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class BackfillReport:
    """What a walk found. `published` is what the ledger lacked (in a dry run: lacks), `recovered` what of it no
    delivery had announced; `strange` was not understood.

    `gap`: events may have come and gone unseen (B13). `refused`: cursors the service did not take (B11). `history`:
    events from before the first walk that the ledger lacks and that were left alone (B30): so many at least, as a walk
    reads no further than it has to. Of a seed: `cut_over`, and how many it `left`, because they are younger, announced
    by a webhook that waits, or without a time. Where nothing has run yet it takes those, too: `without_time`.
    """

    application: str
    order: ListOrder
    pages: int
    listed: int
    known: int
    published: int
    recovered: int
    strange: int
    gap: bool
    refused: int
    history: int
    seconds: float
    dry_run: bool = False
    cut_over: datetime | None = None
    left: int = 0
    without_time: int = 0


@dataclass(kw_only=True)
class ReportBuilder:
    """The numbers of a `BackfillReport` as they grow. `told`: ids that were counted as missing or left alone and are
    not published, so that one on two pages is counted once. Bounded."""

    began_s: float
    listed: int = 0
    known: int = 0
    published: int = 0
    recovered: int = 0
    unannounced: list[str] = field(default_factory=list)
    strange: int = 0
    history: int = 0
    left: int = 0
    without_time: int = 0
    told: PublishedIds = field(default_factory=PublishedIds)

    def note(
        self,
        listed: ListedEvents,
        missing: Sequence[Event],
        wanted: Sequence[Event],
        unannounced: Sequence[str],
        options: BackfillOptions,
    ) -> None:
        """Count a page: what it lists, what of it the ledger lacks, what of that is wanted, and what of the wanted no
        delivery had announced."""
        taken = set() if options.dry_run else {event.id for event in wanted}
        self.told.add([event.id for event in missing if event.id not in taken])
        self.listed += len(listed.events) + len(listed.strange)
        self.known += len(listed.events) - len(missing)
        self.published += len(wanted)
        self.recovered += len(unannounced)
        self.unannounced = [*self.unannounced, *unannounced][-PENDING_MAX:]
        self.strange += len(listed.strange)
        self.history += len(missing) - len(wanted) if options.since is None and not options.seed else 0

    def report(
        self, application: str, walk: Walk, *, cut_over: CutOver | None, dry_run: bool, now_s: float
    ) -> BackfillReport:
        """What the walk found in all. `now_s` by the clock of `began_s`."""
        return BackfillReport(
            application=application,
            order=walk.order,
            pages=walk.pages_read,
            listed=self.listed,
            known=self.known,
            published=self.published,
            recovered=self.recovered,
            strange=self.strange,
            gap=walk.gap,
            refused=walk.refused,
            history=self.history,
            cut_over=cut_over.at if cut_over else None,
            left=self.left,
            without_time=self.without_time,
            seconds=now_s - self.began_s,
            dry_run=dry_run,
        )


def say(report: BackfillReport, metrics: StageMetrics, *, left_alone: int) -> None:
    """Log and count what a walk found. `left_alone`: how much history is, where that is to be said now."""
    log = LOG.bind(application=report.application)
    if report.strange:
        log.error("listed_events_not_understood", events=report.strange)
        metrics.count("events_strange", report.application, report.strange)
    if left_alone:
        log.error(
            "history_left_alone",
            hint="`backfill --seed --full` archives, `--full` acts",
            at_least=left_alone,
        )
    if report.without_time:
        log.warning("seed_took_events_without_time", events=report.without_time)
    if report.gap:
        log.error("retention_gap", hint="events may have come and gone unseen; reconcile heals what it can")
        metrics.count("retention_gaps", report.application)
    if report.published:
        log.info(
            "backfill_found_events",
            events=report.published,
            listed=report.listed,
            dry_run=report.dry_run,
        )
