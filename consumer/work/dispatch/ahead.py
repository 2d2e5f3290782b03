"""Ahead: runs of effect handlers that are claimed and wait here for room to start.

A claim costs a few statements, for one run as for hundreds. So more are claimed than may run at once: what the handler
did in a quarter of the last second. A handler that is slow, or new, has none ahead: others may have room for them. And
who is killed holds up no more than that.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from consumer.ledger.handling.lanes import RunId
from consumer.ledger.handling.runs import ClaimedRun
from consumer.plugin import Handler
from consumer.work.execution.claimed import Claimed

AHEAD_MAX = 256
SHARE = 0.25
PATIENCE_S = 2.0
SURE_S = 10.0
"""So long a claim is surely ours: less than its lease, by more than clocks differ."""


@dataclass
class Ahead:
    """What waits, by handler, oldest first; times by a monotonic clock."""

    _waiting: dict[str, deque[Claimed]] = field(default_factory=dict)
    _since: dict[str, float] = field(default_factory=dict)
    _ended: dict[str, deque[float]] = field(default_factory=dict)
    _failing: set[str] = field(default_factory=set)

    def __len__(self) -> int:
        return sum(len(waiting) for waiting in self._waiting.values())

    def count(self, handler: str) -> int:
        """How many wait."""
        return len(self._waiting.get(handler, ()))

    def ids(self) -> set[RunId]:
        """Those that wait."""
        return {one.run.id for waiting in self._waiting.values() for one in waiting}

    def handlers(self) -> list[str]:
        """Those that have some waiting."""
        return [name for name, waiting in self._waiting.items() if waiting]

    def applications(self, handler: str) -> set[str]:
        """Whose they are that wait."""
        return {one.run.application for one in self._waiting.get(handler, ())}

    def succeeded(self, handler: str, now_s: float) -> None:
        """An attempt ended well, now."""
        self._failing.discard(handler)
        self._ended.setdefault(handler, deque(maxlen=int(AHEAD_MAX / SHARE))).append(now_s)

    def failed(self, handler: str) -> None:
        """An attempt failed: before the next succeeds none wait, so that a pause stops what it is for."""
        self._failing.add(handler)

    def is_failing(self, handler: str) -> bool:
        """Whether the last attempt that ended failed."""
        return handler in self._failing

    def wanted(self, handler: Handler, now_s: float, unstored: int) -> int:
        """How many are to be claimed now, beside those that have room: none as long as half of them wait. `unstored`:
        so many of its attempts ended whose results wait to be stored; they hold up others just as well."""
        if handler.transactional or self.is_failing(handler.name):
            return 0
        ended = self._ended.get(handler.name, deque())
        while ended and now_s - ended[0] > 1.0:
            ended.popleft()
        most = int(len(ended) * SHARE)
        missing = min(most - unstored - self.count(handler.name), AHEAD_MAX - len(self))
        return missing if missing > most // 2 else 0

    def put(self, claimed: Claimed) -> None:
        """It waits."""
        waiting = self._waiting.setdefault(claimed.run.handler, deque())
        if not waiting:
            self._since[claimed.run.handler] = claimed.at_s
        waiting.append(claimed)

    def pop(self, handler: str, now_s: float) -> Claimed:
        """The next one."""
        self._since[handler] = now_s
        return self._waiting[handler].popleft()

    def is_stuck(self, handler: str, now_s: float) -> bool:
        """Whether none of them could start for a while."""
        return self.count(handler) > 0 and now_s - self._since[handler] > PATIENCE_S

    def may_be_lost(self, handler: str, now_s: float, renewed_s: float) -> bool:
        """Whether the claim of one of them may have ended: who was stopped for a while, or could not renew it, does not
        know who works on it now. `renewed_s`: when all claims were renewed last."""
        oldest_s = next((one.at_s for one in self._waiting.get(handler, ())), now_s)
        return now_s - max(oldest_s, renewed_s) > SURE_S

    def clear(self, handler: str) -> list[ClaimedRun]:
        """Those that waited, which do not any more; none wait again before attempts have ended."""
        self._ended.pop(handler, None)
        return [one.run for one in self._waiting.pop(handler, ())]
