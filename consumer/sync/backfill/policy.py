"""Policy of backfill: how often it walks, how much of the list a walk reads, and what it takes for a gap."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from consumer.sync.backfill.cutover import HISTORY


@dataclass(frozen=True, kw_only=True)
class WalkPolicy:
    """`overlap_pages`: how many pages beyond the bookmark are read again each time, for what became visible late.
    `overlap_s`: how late a listed event may become visible and still be found: a sweep reads again what is younger
    than that many seconds before the last sweep, `overlap_pages_max` pages of it at most. `overlap_every_s`: the least
    time between two sweeps; keep it below the interval of the walks. A list that shows no times is swept by pages.
    `gap_after`: how old the last complete walk must be for a gap to be possible. `limit`: events a page."""

    overlap_pages: int = 1
    overlap_s: float = 60.0
    overlap_every_s: float = 45.0
    overlap_pages_max: int = 60
    gap_after: timedelta = timedelta(hours=1)
    limit: int = 100


@dataclass(frozen=True, kw_only=True)
class BackfillPolicy:
    """`interval_s`: from the start of one walk of the loop to the next; `silent_interval_s` while webhooks are silent.
    `walk`: how a walk behaves.

    `history`: events older than this when the very first walk begins are history: not published, because somebody
    else has acted on them already (case B30). `--seed --full` archives them, `--full` acts on them.
    """

    interval_s: float = 60.0
    silent_interval_s: float = 10.0
    history: timedelta = HISTORY
    walk: WalkPolicy = field(default_factory=WalkPolicy)
