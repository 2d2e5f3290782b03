"""Quota: how many reads a stage may spend on what may be forged, or asked for without end (cases I15, B23)."""

from __future__ import annotations

from consumer.clock import Clock
from consumer.payments import Budget, CallKind, Priority
from consumer.sync.refresh.policy import URGENT, RefreshPolicy


class TokenBucket:
    """`per_s` reads a second on average, up to `burst` at once. Nobody waits here: what is not granted comes later."""

    def __init__(self, clock: Clock, *, per_s: float, burst: int) -> None:
        self._clock = clock
        self._per_s = per_s
        self._burst = burst
        self._left = float(burst)
        self._at = clock.monotonic()

    def grant(self, wanted: int) -> int:
        """Take as many of the wanted reads as there are, and return how many."""
        self._refill()
        granted = min(wanted, int(self._left))
        self._left -= granted
        return granted

    def covers(self, wanted: int) -> bool:
        """Whether that many reads are there now."""
        self._refill()
        return wanted <= self._left

    def _refill(self) -> None:
        now = self._clock.monotonic()
        self._left = min(float(self._burst), self._left + (now - self._at) * self._per_s)
        self._at = now


class ReadQuota:
    """What the reads that handlers asked for may take of the budget. They come before the walks of events and of
    reconcile, so without a bound a handler that asks again with every answer, or a thin list that leaves thousands of
    subscriptions to single reads, would end those walks, and what webhooks lose would stay lost (cases B23, G3).

    All of them have `per_s`; orders, of which thousands may become known at once, at most `order_per_s` of that.
    Beyond its share a read only takes what nobody else wants. `since_other`, `last_other`: see `in_turn`.
    """

    def __init__(self, clock: Clock, budget: Budget, policy: RefreshPolicy) -> None:
        self._budget = budget
        self._all = TokenBucket(clock, per_s=policy.per_s, burst=policy.burst)
        self._orders = TokenBucket(clock, per_s=policy.order_per_s, burst=policy.order_burst)
        self._refused: set[bool] = set()  # subscriptions? others?
        self.since_other = URGENT - 1  # the first other comes after one subscription
        self.last_other = "order"

    def begin(self) -> None:
        """A round begins: what was refused is asked for anew."""
        self._refused.clear()

    @property
    def is_spent(self) -> bool:
        """Whether a request was refused in this round."""
        return bool(self._refused)

    async def allows(self, kind: str) -> bool:
        """Take a request about this kind if one may be made now. Once refused, its like are refused in this round; who
        refuses a subscription refuses all."""
        is_urgent = kind == "subscription"
        if is_urgent in self._refused or True in self._refused:
            return False
        if self._grants(is_urgent) or await self._budget.predict_s(CallKind.READ, Priority.RECONCILE) == 0:
            if is_urgent:
                self.since_other += 1
            else:
                self.since_other, self.last_other = 0, kind
            return True
        self._refused.add(is_urgent)
        return False

    def _grants(self, is_urgent: bool) -> bool:
        if is_urgent:
            return self._all.grant(1) == 1
        return self._all.covers(1) and self._orders.grant(1) == 1 and self._all.grant(1) == 1
