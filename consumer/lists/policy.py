"""Policy of a walk: how much of the list it reads, and what it takes for a gap."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


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
