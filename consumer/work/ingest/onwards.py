"""Onwards: which of the derived events may be taken where they are emitted, without the way through the log. Pure.

Only what the log would bring to this worker, after nothing else: of its cause's own key, whose events come to nobody
else; due; of no plan, whose pace is its own; and behind nothing of its key that goes by the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from consumer.ledger.handling.outbox import Emitted

GENERATIONS = 4
"""So many times what is taken may lead to more that is taken; the rest goes by the log."""
TAKEN_MAX = 1000
"""No more of one generation: a transaction has an end."""


def at_hand(emitted: Sequence[Emitted], now: datetime) -> list[Emitted]:
    """The same, in their order; those that may be taken here and now are not `by_log`. What is on its way already, the
    outbox knows."""
    found, left = [], TAKEN_MAX
    behind: set[tuple[str, str]] = set()
    for one in emitted:
        lane = (one.cause.application, one.emission.key)
        may_be_taken = one.plan is None and one.emission.key == one.cause.key and lane not in behind and left > 0
        if may_be_taken and one.is_due(now):
            found.append(replace(one, by_log=False))
            left -= 1
            continue
        found.append(one)
        if one.is_due(now):
            behind.add(lane)
    return found
