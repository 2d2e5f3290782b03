"""Budget: the request budget at work. Waits on the injected clock, keeps its state in a store that processes share."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Protocol, TypeVar

from consumer.clock import Clock
from consumer.payments.budget import (
    Bucket,
    CallKind,
    Granted,
    Limit,
    Limits,
    Priority,
    Scope,
    Wait,
    decide,
    paused,
    predict_s,
    resumed,
)
from consumer.payments.errors import BudgetExhausted, BudgetPaused

T = TypeVar("T")

Step = Callable[[Mapping[str, str], float], tuple[Mapping[str, str], T]]
"""(stored texts by name, seconds now) to (texts to store, result). An empty text is forgotten.

Pure; may be called again when a write races.
"""

_SHORTEST_WAIT_S = 0.001


class BudgetStore(Protocol):
    """Named short texts, changed atomically. In memory for one process, in the ledger for several."""

    async def update(self, names: Sequence[str], step: Step[T]) -> T:
        """Run `step` on what is stored under `names` (missing ones left out) and store what it returns, atomically.

        The time handed to `step` is one for all who share the store.
        """
        ...


class MemoryBudgetStore:
    """The store of a single process; its time is the clock's monotonic one."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._texts: dict[str, str] = {}

    async def update(self, names: Sequence[str], step: Step[T]) -> T:
        """See BudgetStore."""
        changes, result = step(
            {name: self._texts[name] for name in names if name in self._texts}, self._clock.monotonic()
        )
        for name, text in changes.items():
            if text:
                self._texts[name] = text
            else:
                self._texts.pop(name, None)
        return result


class Budget:
    """One application's view of the shared request budget.

    `acquire` returns when one request may be sent. Strict priority: see `consumer.payments.budget`. `on_wait` is told
    how many seconds each place was waited for.
    """

    def __init__(
        self,
        store: BudgetStore,
        scope: Scope,
        clock: Clock,
        limits: Limits | None = None,
        *,
        on_wait: Callable[[Priority, float], None] | None = None,
    ) -> None:
        self.store = store
        self.scope = scope
        self._clock = clock
        self._limits = limits or Limits()
        self._on_wait = on_wait
        self._trying: dict[CallKind, frozenset[str]] = {}  # the buckets whose pauses the last one went through
        self._turns: defaultdict[tuple[CallKind, Priority], asyncio.Lock] = defaultdict(asyncio.Lock)

    async def acquire(self, kind: CallKind, priority: Priority, *, max_wait_s: float) -> float:
        """Wait for a place and take it; returns the seconds waited.

        Raises BudgetExhausted at once when the place cannot come within `max_wait_s` seconds, as BudgetPaused where the
        service asked for that; nothing is taken then. Through a long pause one goes in each window (`answered`).
        Callers of one kind and priority are served in the order they came.
        """
        limits = self.scope.buckets(kind, self._limits)
        began = self._clock.monotonic()
        async with self._turns[kind, priority]:
            while True:
                verdict = await self.store.update(list(limits), _taking(limits, priority))
                waited = self._clock.monotonic() - began
                if isinstance(verdict, Granted):
                    self._trying[kind] = verdict.tries
                    if self._on_wait is not None:
                        self._on_wait(priority, waited)
                    return waited
                if waited + verdict.seconds > max_wait_s:
                    raise self._refusal(verdict, priority)
                await self._clock.sleep(max(verdict.seconds, _SHORTEST_WAIT_S))

    def _refusal(self, verdict: Wait, priority: Priority) -> BudgetExhausted:
        wait_s, bucket = verdict.seconds, verdict.bucket
        if verdict.paused_s <= 0:
            return BudgetExhausted(retry_after_s=wait_s, bucket=bucket, priority=priority.name)
        until = self._clock.now() + timedelta(seconds=verdict.paused_s)
        return BudgetPaused(until=until, retry_after_s=wait_s, bucket=bucket, priority=priority.name)

    async def answered(self, kind: CallKind) -> None:
        """The service answered a request of this kind. If it went through a pause, that is over for everybody."""
        if not self._trying.pop(kind, None):
            return
        limits = self.scope.buckets(kind, self._limits)

        def step(texts: Mapping[str, str], now: float) -> tuple[Mapping[str, str], None]:
            return _texts(resumed(_loaded(texts, limits), limits, now)), None

        await self.store.update(list(limits), step)

    async def pause(self, kind: CallKind, seconds: float) -> None:
        """Hold the buckets that a 429 on this kind speaks of, for everybody who shares them (case C6). To who
        tried it speaks of those that were paused: through the others the service has answered since."""
        tried = self._trying.pop(kind, None)
        limits = self.scope.paused_by(kind, self._limits)
        limits = {name: limit for name, limit in limits.items() if not tried or name in tried}

        def step(texts: Mapping[str, str], now: float) -> tuple[Mapping[str, str], None]:
            return _texts(paused(_loaded(texts, limits), limits, seconds, now)), None

        await self.store.update(list(limits), step)

    async def predict_s(self, kind: CallKind, priority: Priority, requests: int = 1) -> float:
        """Seconds until that many requests are through if nobody else asks: the wait, and the ETA of a walk."""
        limits = self.scope.buckets(kind, self._limits)

        def step(texts: Mapping[str, str], now: float) -> tuple[Mapping[str, str], float]:
            return {}, predict_s(_loaded(texts, limits), limits, priority, now, requests)

        return await self.store.update(list(limits), step)


def _loaded(texts: Mapping[str, str], limits: Mapping[str, Limit]) -> dict[str, Bucket]:
    return {name: Bucket.load(texts.get(name)) for name in limits}


def _texts(buckets: Mapping[str, Bucket]) -> dict[str, str]:
    return {name: bucket.dump() for name, bucket in buckets.items()}


def _taking(limits: Mapping[str, Limit], priority: Priority) -> Step[Granted | Wait]:
    def step(texts: Mapping[str, str], now: float) -> tuple[Mapping[str, str], Granted | Wait]:
        verdict = decide(_loaded(texts, limits), limits, priority, now)
        if isinstance(verdict, Granted):
            return _texts(verdict.changed), verdict
        return {}, verdict

    return step
