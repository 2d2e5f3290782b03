"""Policy of confirm: how patient it is, how much it reads, and how much of what strangers send it keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from consumer.retry import RetryPolicy
from consumer.sync.api import PATIENCE_S

LOOKS: Final = RetryPolicy(attempts=1000, first_s=2.0, factor=3.0, ceiling_s=120.0, jitter=0.0)
"""The waits between the looks at a hint that is denied."""
FAILED_AGAIN_S: Final = 30.0
"""When a hint is looked at again for which the service had no answer."""

MAX_HINTS: Final = 200_000
"""So many hints of an application wait at most."""
MAX_BYTES: Final = 256 * 1024 * 1024
"""So much of what strangers sent is kept of an application: of its waiting hints, and again in its quarantine."""
FLOOD_QUIET_S: Final = 60.0
"""A flood is over when so long nothing was too much; between two deliveries of one there may be some for which there is
room."""
UNKNOWN: Final = "unknown"
"""What a delivery's application is called that is none of ours."""
PRUNE_EVERY_S: Final = 10.0
PRUNE_FOR_S: Final = 1.0
"""So long at most the taking in waits for a pruning; what is left then is pruned after the next batch."""


@dataclass(frozen=True, kw_only=True)
class ConfirmPolicy:
    """`patience_s`: how long an event that the service denies is asked for again. `batch`: hints looked at per round.
    `concurrency`: single reads at once. `idle_s`: how often the ledger is looked at when nothing wakes the stage.
    `single_per_s`, `single_burst`: single reads on average and at once. `walk_every_s`: the least time between two
    walks, unless the last one confirmed `walk_full`, a page of events. `hidden_per_s`: single reads on average while a
    long walk has yet to come to the newest events."""

    patience_s: float = PATIENCE_S
    batch: int = 20_000
    concurrency: int = 4
    idle_s: float = 1.0
    single_per_s: float = 1.0
    single_burst: int = 20
    hidden_per_s: float = 2.0
    walk_every_s: float = 2.5
    walk_full: int = 100
