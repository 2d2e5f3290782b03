"""Policy of backfill: how often it walks, and how far back it acts."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from consumer.lists.policy import WalkPolicy
from consumer.sync.backfill.cutover import HISTORY


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
