"""What a backfill walk is asked to do, and what it found."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

import structlog

from consumer.clock import Clock
from consumer.lists.bookmark import ListOrder
from consumer.telemetry.logs import Condition
from consumer.telemetry.metrics import Metrics

LOG = structlog.get_logger()
QUIET_S: Final = 600.0
"""Walks in which all is understood may lie between two in which it is not."""


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


@dataclass(kw_only=True)
class BackfillReport:
    """What a walk found. `published` is what the ledger lacked (in a dry run: lacks), `recovered` what of it no
    delivery had announced; `strange` was not understood, `unread` could not be read and waits for the next one.

    `gap`: events may have come and gone unseen (B13). `refused`: cursors the service did not take (B11). `history`:
    events from before the first walk that the ledger lacks and that were left alone (B30): so many at least, as a walk
    reads no further than it has to. Of a seed: `cut_over`, and how many it `left`, because they are younger, announced
    by a webhook that waits, or without a time. Where nothing has run yet it takes those, too: `without_time`.
    """

    application: str
    order: ListOrder = ListOrder.UNKNOWN
    pages: int = 0
    listed: int = 0
    known: int = 0
    published: int = 0
    recovered: int = 0
    strange: int = 0
    unread: int = 0
    gap: bool = False
    refused: int = 0
    history: int = 0
    seconds: float = 0.0
    dry_run: bool = False
    cut_over: datetime | None = None
    left: int = 0
    without_time: int = 0


class Telling:
    """Logs and counts what one application's walks find. A gap is an event: the walk that finds it moves the bookmark
    beyond it, and its end is told by reconcile (`retention_gap_over`)."""

    def __init__(self, application: str, clock: Clock, metrics: Metrics) -> None:
        self._log = LOG.bind(application=application)
        self._metrics = metrics
        self._strange = Condition(
            "listed_events_not_understood",
            level="error",
            monotonic=clock.monotonic,
            quiet_s=QUIET_S,
            application=application,
        )
        self._history = Condition(
            "history_left_alone", level="error", monotonic=clock.monotonic, application=application
        )

    def say(self, report: BackfillReport, left_alone: int | None) -> None:
        """`left_alone`: how much history is; None where this walk cannot know."""
        if report.strange:
            self._strange.lasts("listed_events_not_understood", events=report.strange)
            self._metrics.walked.labels(report.application, "strange").inc(report.strange)
        else:
            self._strange.lapse()
        if left_alone:
            hint = "`backfill --seed --full --reason …` archives, `--full` acts"
            self._history.lasts("history_left_alone", hint=hint, at_least=left_alone)
        elif left_alone == 0:
            self._history.over()
        if report.without_time:
            self._log.warning("seed_took_events_without_time", events=report.without_time)
        if report.gap:
            hint = "events may have come and gone unseen; reconcile heals what it can"
            self._log.error("retention_gap", hint=hint)
            self._metrics.retention_gaps.labels(report.application).inc()
        if report.published:
            self._log.info(
                "backfill_found_events", events=report.published, listed=report.listed, dry_run=report.dry_run
            )
