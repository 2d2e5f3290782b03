"""Pause rules: when a handler stops itself. A bad deploy must not empty the topic into the dead letters. Pure.

Per handler and process: dead runs in a row, the share of dead ones among the newest, attempts in a row that hung in
a transaction, loops lost or blocked. Each has a limit, and passing it gives the reason for which the handler is
paused, until an operator resumes it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from consumer.ledger.tables import RunStatus
from consumer.plugin import Handler

WINDOW = 100
RATIO = 0.5
HANGS_MAX = 5
BLOCKS_MAX = 5
CUTS_MAX = 3
CALM = 1000
LOST_MAX = 3
ABANDONED_MAX = 20


@dataclass
class Record:
    """What is remembered of one handler."""

    newest: deque[bool] = field(default_factory=lambda: deque(maxlen=WINDOW))
    dead_in_a_row: int = 0
    hangs_in_a_row: int = 0
    blocks: int = 0
    cuts: int = 0
    calm: int = 0

    def succeeded(self, status: RunStatus) -> None:
        """After many successes what happened once is no reason any more."""
        self.calm += status is RunStatus.SUCCEEDED
        if self.calm >= CALM:
            self.blocks = self.cuts = self.calm = 0


class PauseRules:
    """Watches results; says when to pause, once per handler until `forget`."""

    def __init__(self) -> None:
        self._records: dict[str, Record] = {}
        self._stopped: set[str] = set()

    def forget(self, handler: str) -> None:
        """The handler was resumed: it starts with a clean record."""
        self._records.pop(handler, None)
        self._stopped.discard(handler)

    def saw(self, handler: Handler, status: RunStatus, *, hung: bool = False) -> str | None:
        """A run came to `status` (`hung`: a transactional attempt was cut off); why to pause the handler, or None."""
        record = self._records.setdefault(handler.name, Record())
        record.hangs_in_a_row = record.hangs_in_a_row + 1 if hung else 0
        if hung and record.hangs_in_a_row >= HANGS_MAX:
            return self._stop(handler.name, f"hung in its transaction {HANGS_MAX} times in a row")
        if status not in (RunStatus.SUCCEEDED, RunStatus.DEAD):
            return None
        record.succeeded(status)
        is_dead = status is RunStatus.DEAD
        record.newest.append(is_dead)
        record.dead_in_a_row = record.dead_in_a_row + 1 if is_dead else 0
        return self._judge(handler, record) if is_dead and handler.pause_after else None

    def blocked(self, handler: str) -> str | None:
        """A transactional handler blocked the worker's own loop."""
        record = self._records.setdefault(handler, Record())
        record.blocks += 1
        return (
            self._stop(handler, f"blocked the event loop {BLOCKS_MAX} times") if record.blocks >= BLOCKS_MAX else None
        )

    def cut(self, handler: str) -> str | None:
        """A transactional handler blocked the worker's own loop until it was cut off: all waited for that long."""
        record = self._records.setdefault(handler, Record())
        record.cuts += 1
        record.calm = 0
        if record.cuts < CUTS_MAX:
            return None
        return self._stop(handler, f"blocked the worker until it was cut off, {CUTS_MAX} times")

    def deadly(self, handler: str) -> str | None:
        """Processes ended while it ran, on more than one event."""
        return self._stop(handler, "the process ends while it runs, again and again, on more than one event")

    def lost(self, handler: str, loops: int) -> str | None:
        """An effect handler has not given back that many loops."""
        return self._stop(handler, f"blocked {loops} event loops for good") if loops >= LOST_MAX else None

    def abandoned(self, handler: str, running: int) -> str | None:
        """That many attempts still run although they were cancelled."""
        if running < ABANDONED_MAX:
            return None
        return self._stop(handler, f"{running} attempts ignore their cancellation")

    def _judge(self, handler: Handler, record: Record) -> str | None:
        limit = handler.pause_after
        if record.dead_in_a_row >= limit:
            return self._stop(handler.name, f"{record.dead_in_a_row} runs dead in a row")
        seen, dead = len(record.newest), sum(record.newest)
        if seen >= min(2 * limit, WINDOW) and dead > limit and dead > RATIO * seen:
            return self._stop(handler.name, f"{dead} of the newest {seen} runs dead")
        return None

    def _stop(self, handler: str, reason: str) -> str | None:
        if handler in self._stopped:
            return None
        self._stopped.add(handler)
        return reason
