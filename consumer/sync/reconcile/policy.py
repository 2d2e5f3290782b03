"""Policy of reconcile: how often, and what one walk may do."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, kw_only=True)
class ReconcilePolicy:
    """`every`: how often; `braked_again`: how soon after a walk that was braked, as events may have told meanwhile, or
    that left what a lowered limit of the topic refuses.

    The brake of a walk nobody limited: more than `brake_min` changes in one list, or `brake_share` of what it shows if
    that is more. `held_back_max`: how many changes wait in memory until it is known how many there are.
    """

    every: timedelta = timedelta(hours=24)
    braked_again: timedelta = timedelta(hours=1)
    brake_min: int = 500
    brake_share: float = 0.1
    look_s: float = 60.0
    held_back_max: int = 20_000


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What one walk may do: see Reconcile.once. `began`: when it did. `has_gap`: events were forgotten unread before
    it began, which explains orders and subscriptions that nobody has heard of. `is_early`: no walk of the events had
    begun here when the walk before ended, so what changed since may be somebody else's, too."""

    began: datetime
    max_changes: int | None
    baseline: bool
    has_gap: bool
    is_early: bool = False
