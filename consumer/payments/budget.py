"""The request budget, the pure part: what may be sent when, so that a limit of the service is never met.

The service limits requests per minute but not how it counts them. Each bucket here is safe for all three usual
ways (fixed windows, a sliding window, a token bucket of the full size), by two rules at once:

- *window*: in any `window_s` never more than the limit less a small margin, counted in slots;
- *pace*: a token bucket that refills at the same rate. Live calls ignore it and may burst; every other priority must
  leave part of it, more the less urgent it is. So background work spreads evenly and a free place always goes to
  the most urgent who waits.

Nothing here reads a clock or a database: state and time in, decision and state out (spec, Limits; cases C15-C17).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum

import orjson

SLOTS = 120
PAUSE_MAX_S = 3600.0
SIMULATED_MAX = 400


class Priority(IntEnum):
    """Who asks. A lower number is served first, always."""

    LIVE = 0
    CONFIRM = 1
    REFRESH = 2
    BACKFILL = 3
    RECONCILE = 4


class CallKind(StrEnum):
    """What is asked: each kind draws on its own buckets."""

    READ = "read"
    WRITE = "write"
    TEST_EVENT = "test_event"


# How far ahead of the even pace a priority may run, in requests. The differences are the headroom that a lower
# priority always leaves for a higher one.
AHEAD: Mapping[Priority, float] = {
    Priority.LIVE: math.inf,
    Priority.CONFIRM: 12,
    Priority.REFRESH: 8,
    Priority.BACKFILL: 4,
    Priority.RECONCILE: 2,
}


@dataclass(frozen=True, kw_only=True)
class Limit:
    """`requests` per `window_s` seconds, as the service documents it."""

    requests: int
    window_s: float

    @property
    def margin(self) -> int:
        """Requests never used: requests granted in one window may arrive in the next (2 %)."""
        return self.requests // 50

    @property
    def slot_s(self) -> float:
        """Seconds of one counting slot."""
        return self.window_s / SLOTS

    def places(self, priority: Priority) -> int:
        """How many requests of any one window this priority may see used when it takes the last place."""
        usable = self.requests - self.margin
        return max(1, usable - int(priority)) if self.margin else usable

    @property
    def interval_s(self) -> float:
        """Seconds between two requests at the even pace, a little slower than the window allows."""
        return (self.window_s + self.slot_s) / max(1, self.places(Priority.RECONCILE))


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The documented limits (spec, Limits)."""

    ip: Limit = field(default_factory=lambda: Limit(requests=300, window_s=60))
    application_reads: Limit = field(default_factory=lambda: Limit(requests=600, window_s=60))
    application_writes: Limit = field(default_factory=lambda: Limit(requests=120, window_s=60))
    merchant_writes: Limit = field(default_factory=lambda: Limit(requests=300, window_s=60))
    test_events: Limit = field(default_factory=lambda: Limit(requests=10, window_s=3600))


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Whose limits: the address requests leave from, the application, the merchant that owns it."""

    ip: str
    application: str
    merchant: str = "default"

    def buckets(self, kind: CallKind, limits: Limits) -> dict[str, Limit]:
        """The buckets, by name, that one request of this kind draws on."""
        shared = {f"ip/{self.ip}": limits.ip}
        if kind is CallKind.READ:
            return shared | {f"application/{self.application}/reads": limits.application_reads}
        writes = shared | {
            f"application/{self.application}/writes": limits.application_writes,
            f"merchant/{self.merchant}/writes": limits.merchant_writes,
        }
        if kind is CallKind.TEST_EVENT:
            return writes | {self.test_events_bucket: limits.test_events}
        return writes

    def paused_by(self, kind: CallKind, limits: Limits) -> dict[str, Limit]:
        """The buckets that a 429 on this kind pauses: a refused test event holds up nothing else (case C34)."""
        if kind is CallKind.TEST_EVENT:
            return {self.test_events_bucket: limits.test_events}
        return self.buckets(kind, limits)

    @property
    def test_events_bucket(self) -> str:
        """The name of the bucket of test events."""
        return f"application/{self.application}/test-events"


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """The state of one limit. `slots` are (slot number, requests), oldest first; times are seconds of one clock.

    `paced_to` is the time up to which the even pace is already spent; `paused_until` comes from a 429. A pause that is
    longer than the limit's own window is more than the limit explains: when nothing went for a window, one request may,
    to see whether the service still means it.
    """

    slots: tuple[tuple[int, int], ...] = ()
    paced_to: float = 0.0
    paused_until: float = 0.0
    latest: float = 0.0

    @classmethod
    def load(cls, text: str | None) -> Bucket:
        """The state from its stored text; a fresh bucket for None, and for a text of another version of this code."""
        if text is None:
            return cls()
        try:
            slots, paced_to, paused_until, latest = orjson.loads(text)
            return cls(
                slots=tuple((int(number), int(used)) for number, used in slots),
                paced_to=float(paced_to),
                paused_until=float(paused_until),
                latest=float(latest),
            )
        except (ValueError, TypeError):
            return cls()

    def dump(self) -> str:
        """The state as text, for a store."""
        return orjson.dumps([self.slots, self.paced_to, self.paused_until, self.latest]).decode()

    def at(self, now: float, limit: Limit) -> tuple[Bucket, float]:
        """The bucket as it is at `now`, without what has left the window, and the time to reckon with.

        A clock slightly behind is held at the latest time seen; one that jumped back by more than a window (it was
        set anew) moves the state along, so that nothing waits for a future that will not come.
        """
        bucket = self
        if now < self.latest - limit.window_s:
            shift = now - self.latest
            moved = tuple((number + math.ceil(shift / limit.slot_s), used) for number, used in self.slots)
            bucket = replace(
                self, slots=moved, paced_to=self.paced_to + shift, paused_until=self.paused_until + shift, latest=now
            )
        now = max(now, bucket.latest)
        kept = tuple((number, used) for number, used in bucket.slots if _leaves_at(number, limit) > now)
        return replace(bucket, slots=kept, latest=now), now

    def wait_s(self, limit: Limit, priority: Priority, now: float) -> float:
        """Seconds until this bucket may let one request of this priority through; 0 when it may now."""
        wait = min(self.paused_s(now), _leaves_at(self.slots[-1][0], limit) - now) if self.slots else 0.0
        ahead = AHEAD[priority]
        if math.isfinite(ahead):
            wait = max(wait, self.paced_to - ahead * limit.interval_s - now)
        excess = sum(used for _, used in self.slots) + 1 - limit.places(priority)
        for number, used in self.slots:
            if excess <= 0:
                break
            excess -= used
            wait = max(wait, _leaves_at(number, limit) - now)
        return wait

    def paused_s(self, now: float) -> float:
        """Seconds of what a 429 asked for that are left."""
        return max(0.0, self.paused_until - now)

    def paused(self, limit: Limit, seconds: float, now: float) -> Bucket:
        """The bucket after a 429 at `now` that asked for so long; nothing is counted, and the window is as after a
        request."""
        number = math.floor(now / limit.slot_s)
        is_marked = bool(self.slots) and self.slots[-1][0] >= number
        slots = self.slots if is_marked else (*self.slots, (number, 0))
        return replace(self, slots=slots, paused_until=max(self.paused_until, now + seconds))

    def take(self, limit: Limit, now: float) -> Bucket:
        """The bucket after one request at `now`."""
        number = math.floor(now / limit.slot_s)
        if self.slots and self.slots[-1][0] >= number:
            last, used = self.slots[-1]
            slots = (*self.slots[:-1], (last, used + 1))
        else:
            slots = (*self.slots, (number, 1))
        # Live bursts run ahead of the pace; a whole window ahead is as far as it need be remembered.
        paced_to = min(max(self.paced_to, now) + limit.interval_s, now + limit.window_s)
        return replace(self, slots=slots, paced_to=paced_to, latest=now)


def _leaves_at(number: int, limit: Limit) -> float:
    return (number + 1) * limit.slot_s + limit.window_s


@dataclass(frozen=True)
class Granted:
    """The request may be sent; `changed` are the new states to store. `tries`: the buckets whose pauses it goes
    through, to see whether they still hold."""

    changed: Mapping[str, Bucket]
    tries: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Wait:
    """Not yet: nobody of this priority gets a place before `seconds` have passed; `bucket` is what binds. `paused_s`:
    how long a 429 holds one of them still; 0 when none does."""

    seconds: float
    bucket: str
    paused_s: float = 0.0


def decide(
    buckets: Mapping[str, Bucket], limits: Mapping[str, Limit], priority: Priority, now: float
) -> Granted | Wait:
    """One request of this priority at `now`: a place in all of its buckets, or in none of them and the wait."""
    current = {name: buckets[name].at(now, limit) for name, limit in limits.items()}
    waits = {name: current[name][0].wait_s(limit, priority, current[name][1]) for name, limit in limits.items()}
    binding = max(waits, key=lambda name: waits[name])
    paused_s = {name: bucket.paused_s(at) for name, (bucket, at) in current.items()}
    if waits[binding] > 0:
        return Wait(waits[binding], binding, max(paused_s.values()))
    changed = {name: current[name][0].take(limit, current[name][1]) for name, limit in limits.items()}
    return Granted(changed, tries=frozenset(name for name, left_s in paused_s.items() if left_s > 0))


def paused(buckets: Mapping[str, Bucket], limits: Mapping[str, Limit], seconds: float, now: float) -> dict[str, Bucket]:
    """The buckets after a 429 that asked for this wait; a pause is never shortened and bounded (case C6)."""
    changed = {}
    for name, limit in limits.items():
        bucket, at = buckets[name].at(now, limit)
        changed[name] = bucket.paused(limit, min(max(seconds, 0.0), PAUSE_MAX_S), at)
    return changed


def resumed(buckets: Mapping[str, Bucket], limits: Mapping[str, Limit], now: float) -> dict[str, Bucket]:
    """The buckets after an answer to a request that tried: what it went through is paused no more."""
    return {name: replace(buckets[name].at(now, limit)[0], paused_until=0.0) for name, limit in limits.items()}


def predict_s(
    buckets: Mapping[str, Bucket], limits: Mapping[str, Limit], priority: Priority, now: float, requests: int
) -> float:
    """Seconds until `requests` requests of this priority are through, if nobody else asks.

    The first ones are played through exactly, the rest reckoned at the slowest bucket's rate.
    """
    states = dict(buckets)
    at = now
    for _ in range(min(requests, SIMULATED_MAX)):
        verdict = decide(states, limits, priority, at)
        if isinstance(verdict, Wait):
            at += verdict.seconds
            verdict = decide(states, limits, priority, at)
            while isinstance(verdict, Wait):
                at = math.nextafter(at + verdict.seconds, math.inf)
                verdict = decide(states, limits, priority, at)
        states.update(verdict.changed)
    rest = max(0, requests - SIMULATED_MAX)
    return at - now + rest * max(limit.interval_s for limit in limits.values())
