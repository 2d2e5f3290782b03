"""Schedule: which read comes next, and whether it may be made now.

Five lanes take turns by weight. What waits in none of them costs nobody anything; what waits in one gets its part of
the requests, however much waits in the others, and whatever rounds those requests fall into. So subscriptions come
first, as access hangs on them, and nobody waits for ever (cases B22, B23). Pure, but for the quota.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from consumer.clock import Clock
from consumer.ledger.tables import ReadRow
from consumer.payments import Budget, CallKind, PaymentsError, Priority
from consumer.sync.quota import TokenBucket
from consumer.sync.refresh.policy import RefreshPolicy


class Lane(StrEnum):
    """What a request may be for; the first comes first where nothing else decides."""

    SUBSCRIPTION_PAGES = "pages of subscriptions"
    SUBSCRIPTION = "subscription"
    ORDER_PAGES = "pages of orders"
    ORDER = "order"
    REST = "rest"  # sessions, and orders by the service's id, which no list answers


WEIGHTS: Final[Mapping[Lane, int]] = {
    Lane.SUBSCRIPTION_PAGES: 8,
    Lane.SUBSCRIPTION: 8,
    Lane.ORDER_PAGES: 4,
    Lane.ORDER: 1,
    Lane.REST: 1,
}


def lane_of(row: ReadRow) -> Lane:
    """Where a read waits that is to be done singly."""
    return Lane(row.kind) if row.kind in (Lane.SUBSCRIPTION, Lane.ORDER) else Lane.REST


class RoundRobin:
    """Requests in proportion to `WEIGHTS`, among the lanes in which something waits. A lane that had nothing to do
    saves nothing up for later (start-time fair queueing)."""

    def __init__(self) -> None:
        self._now = 0.0
        self._next: dict[Lane, float] = dict.fromkeys(Lane, 0.0)

    def turn(self, waiting: Collection[Lane]) -> Lane:
        """Whose turn it is."""
        return min((one for one in Lane if one in waiting), key=lambda one: max(self._next[one], self._now))

    def took(self, lane: Lane) -> None:
        """This one has had its turn."""
        self._now = max(self._next[lane], self._now)
        self._next[lane] = self._now + 1 / WEIGHTS[lane]


@dataclass
class Round:
    """What a round has come to: the reads it answered, and the failure that holds all calls up, if there was one."""

    answered: list[ReadRow] = field(default_factory=list)
    held_up: PaymentsError | None = None

    def has_answered(self, row: ReadRow) -> bool:
        """Whether this one was read in this round, singly or by a page."""
        return (row.kind, row.object_id) in self._names

    def note(self, rows: Collection[ReadRow]) -> None:
        """These were read."""
        self.answered += rows
        self._names.update((row.kind, row.object_id) for row in rows)

    _names: set[tuple[str, str]] = field(default_factory=set)


class ReadQuota:
    """What the reads that handlers asked for may take of the budget. They come before the walks of events and of
    reconcile, so without a bound a handler that asks again with every answer, or a thin list that leaves thousands of
    subscriptions to single reads, would end those walks, and what webhooks lose would stay lost (cases B23, G3).

    They have `per_s`; beyond it a read only takes what nobody else wants.
    """

    def __init__(self, clock: Clock, budget: Budget, policy: RefreshPolicy) -> None:
        self._budget = budget
        self._share = TokenBucket(clock, per_s=policy.per_s, burst=policy.burst)
        self.is_spent = False

    def begin(self) -> None:
        """A round begins: what was refused is asked for anew."""
        self.is_spent = False

    async def allows(self) -> bool:
        """Take a request if one may be made now. Once refused, all are in this round."""
        if not self.is_spent:
            granted = self._share.grant(1) == 1
            self.is_spent = not granted and await self._budget.predict_s(CallKind.READ, Priority.RECONCILE) > 0
        return not self.is_spent
