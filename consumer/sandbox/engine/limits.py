"""Limits: requests per address, reads and writes per application, writes per merchant (spec, Limits; case X54)."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from consumer.sandbox.engine import records as r
from consumer.sandbox.engine.world import World
from consumer.sandbox.errors import Refusal

MAX_KEYS = 10_000


@dataclass(frozen=True)
class Limit:
    """`amount` per `window_s` seconds."""

    name: str
    amount: int
    window_s: float


PER_ADDRESS = Limit("address", 300, 60)
READS = Limit("reads", 600, 60)
WRITES = Limit("writes", 120, 60)
MERCHANT_WRITES = Limit("merchant_writes", 300, 60)
TEST_EVENTS = Limit("test_events", 10, 3600)


@dataclass
class _Bucket:
    """What is left as of `at`; `taken`: when the requests of the last window came, for sliding windows."""

    left: float
    at: datetime
    taken: deque[datetime] = field(default_factory=deque)


class Limits:
    """So many in any window, buckets, or fixed windows (assumption `limit_window`). A refused request is charged for
    nothing.

    `requests` counts what came from any address, `refused` what was over a limit.
    """

    def __init__(self, world: World, *, enabled: bool) -> None:
        self._world = world
        self.enabled = enabled
        self.requests = 0
        self.refused = 0
        self._buckets: OrderedDict[tuple[str, str], _Bucket] = OrderedDict()

    def address(self, address: str) -> None:
        """One request from an IP address. Raises rate_limited."""
        self.requests += 1
        self._charge([(PER_ADDRESS, address)])

    def request(self, application: r.Application, *, write: bool) -> None:
        """One authenticated request. Raises rate_limited."""
        if write:
            self._charge([(WRITES, application.id), (MERCHANT_WRITES, application.merchant_id)])
        else:
            self._charge([(READS, application.id)])

    def test_event(self, app_id: str) -> None:
        """One test event, from the API or the dashboard's button (case X54). Raises rate_limited."""
        self._charge([(TEST_EVENTS, app_id)])

    def drain(self, limit: Limit, key: str) -> None:
        """Use up a limit, as others would who came at an even pace."""
        bucket = self._bucket(limit, key)
        bucket.left = 0.0
        step = timedelta(seconds=limit.window_s / limit.amount)
        bucket.taken = deque(bucket.at - number * step for number in reversed(range(limit.amount)))

    def _charge(self, wanted: list[tuple[Limit, str]]) -> None:
        if not self.enabled:
            return
        buckets = [(limit, self._bucket(limit, key)) for limit, key in wanted]
        waits = [self._wait_s(limit, bucket) for limit, bucket in buckets if bucket.left < 1]
        if waits:
            self.refused += 1
            raise Refusal("rate_limited", retry_after_s=max(1, math.ceil(max(waits))))
        for _, bucket in buckets:
            bucket.left -= 1
            bucket.taken.append(bucket.at)

    def _bucket(self, limit: Limit, key: str) -> _Bucket:
        now = self._world.now()
        bucket = self._buckets.setdefault((limit.name, key), _Bucket(limit.amount, now))
        self._buckets.move_to_end((limit.name, key))
        while len(self._buckets) > MAX_KEYS:
            self._buckets.popitem(last=False)
        match self._world.assumptions.text("limit_window"):
            case "sliding":
                while bucket.taken and (now - bucket.taken[0]).total_seconds() >= limit.window_s:
                    bucket.taken.popleft()
                bucket.left = limit.amount - len(bucket.taken)
            case "fixed":
                if now.timestamp() // limit.window_s > bucket.at.timestamp() // limit.window_s:
                    bucket.left = limit.amount
            case _:
                passed_s = (now - bucket.at).total_seconds()
                bucket.left = min(limit.amount, bucket.left + passed_s * limit.amount / limit.window_s)
        bucket.at = now
        while len(bucket.taken) > limit.amount:
            bucket.taken.popleft()
        return bucket

    def _wait_s(self, limit: Limit, bucket: _Bucket) -> float:
        match self._world.assumptions.text("limit_window"):
            case "sliding":
                return limit.window_s - (self._world.now() - bucket.taken[0]).total_seconds()
            case "fixed":
                return limit.window_s - self._world.now().timestamp() % limit.window_s
            case _:
                return (1 - bucket.left) * limit.window_s / limit.amount
