"""Tally: what a backfill walk has found so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from consumer.sync.backfill.cutover import CutOver
from consumer.sync.backfill.page import Recent
from consumer.sync.backfill.report import BackfillReport
from consumer.sync.backfill.walk import Walk


@dataclass(kw_only=True)
class Tally:
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
    told: Recent = field(default_factory=Recent)

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
