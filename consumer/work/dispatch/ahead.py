"""Ahead: runs of effect handlers that are claimed and wait here for room to start.

A claim costs a few statements, for one run as for hundreds. So more are claimed than may run at once: what the handler
does in a quarter of a second, by how long its attempts took. A handler that is slow, or new, has none ahead: others may
have room for them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from consumer.events import Event
from consumer.ledger.handling.runs import ClaimedRun
from consumer.plugin import Handler

AHEAD_MAX = 256
WITHIN_S = 0.25
PATIENCE_S = 2.0
WEIGHT = 0.2
SURE_S = 10.0
"""So long a claim is surely ours: less than its lease, by more than clocks differ."""


@dataclass
class Ahead:
    """What waits, by handler, oldest first; times by a monotonic clock."""

    _waiting: dict[str, deque[tuple[ClaimedRun, Event, float]]] = field(default_factory=dict)
    _since: dict[str, float] = field(default_factory=dict)
    _seconds: dict[str, float] = field(default_factory=dict)
    _failing: set[str] = field(default_factory=set)

    def __len__(self) -> int:
        return sum(len(waiting) for waiting in self._waiting.values())

    def count(self, handler: str) -> int:
        """How many wait."""
        return len(self._waiting.get(handler, ()))

    def handlers(self) -> list[str]:
        """Those that have some waiting."""
        return [name for name, waiting in self._waiting.items() if waiting]

    def took(self, handler: str, seconds: float) -> None:
        """An attempt succeeded, and took so long."""
        self._failing.discard(handler)
        before = self._seconds.get(handler, seconds)
        self._seconds[handler] = before + WEIGHT * (seconds - before)

    def failed(self, handler: str) -> None:
        """An attempt failed: before the next succeeds none wait, so that a pause stops what it is for."""
        self._failing.add(handler)

    def is_failing(self, handler: str) -> bool:
        """Whether the last attempt that ended failed."""
        return handler in self._failing

    def wanted(self, handler: Handler) -> int:
        """How many are to be claimed now, beside those that have room: none as long as half of them wait."""
        seconds = self._seconds.get(handler.name)
        if handler.transactional or seconds is None or self.is_failing(handler.name):
            return 0
        most = min(AHEAD_MAX, int(handler.concurrency * WITHIN_S / max(seconds, 0.001)))
        missing = min(most - self.count(handler.name), AHEAD_MAX - len(self))
        return missing if missing > most // 2 else 0

    def put(self, run: ClaimedRun, event: Event, now_s: float) -> None:
        """It is claimed, and waits."""
        waiting = self._waiting.setdefault(run.handler, deque())
        if not waiting:
            self._since[run.handler] = now_s
        waiting.append((run, event, now_s))

    def pop(self, handler: str, now_s: float) -> tuple[ClaimedRun, Event]:
        """The next one."""
        waiting = self._waiting[handler]
        self._since[handler] = now_s
        run, event, _ = waiting.popleft()
        return run, event

    def is_stuck(self, handler: str, now_s: float) -> bool:
        """Whether none of them could start for a while."""
        return self.count(handler) > 0 and now_s - self._since[handler] > PATIENCE_S

    def may_be_lost(self, handler: str, now_s: float, renewed_s: float) -> bool:
        """Whether the claim of one of them may have ended: who was stopped for a while, or could not renew it, does not
        know who works on it now. `renewed_s`: when all claims were renewed last."""
        oldest_s = next((claimed_s for _, _, claimed_s in self._waiting.get(handler, ())), now_s)
        return now_s - max(oldest_s, renewed_s) > SURE_S

    def clear(self, handler: str) -> list[ClaimedRun]:
        """Those that waited, which do not any more; none wait again before an attempt has ended."""
        self._seconds.pop(handler, None)
        return [run for run, _, _ in self._waiting.pop(handler, ())]
