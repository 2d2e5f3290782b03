"""Pause rules: when a handler stops itself. A bad deploy must not empty the topic into the dead letters. Pure.

Per handler, application and process: dead runs in a row, and the share of dead ones among the newest; what pauses it
for that application alone. Per handler and process: the same of several applications together, attempts in a row that
hung in a transaction, loops lost or blocked. Each has a limit, and passing it gives the reason for which the handler is
paused, until an operator resumes it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field

from consumer.ledger.handling.handlers import ALL
from consumer.ledger.tables import RunStatus
from consumer.plugin import Handler
from consumer.work.transition import is_of_several

WINDOW = 100
RATIO = 0.5
HANGS_MAX = 5
BLOCKS_MAX = 5
CUTS_MAX = 3
CALM = 1000
LOST_MAX = 3
ABANDONED_MAX = 20


@dataclass
class Deaths:
    """What is remembered of one handler's runs of one application."""

    newest: deque[bool] = field(default_factory=lambda: deque(maxlen=WINDOW))
    in_a_row: int = 0

    def saw(self, *, is_dead: bool) -> None:
        """A run ended."""
        self.newest.append(is_dead)
        self.in_a_row = self.in_a_row + 1 if is_dead else 0


@dataclass
class Record:
    """What is remembered of one handler."""

    deaths: defaultdict[str, Deaths] = field(default_factory=lambda: defaultdict(Deaths))
    row: list[str] = field(default_factory=list)
    newest: deque[str | None] = field(default_factory=lambda: deque(maxlen=WINDOW))
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
    """Watches results; says when to pause, once per handler, or handler and application, until `forget`."""

    def __init__(self) -> None:
        self._records = defaultdict[str, Record](Record)
        self._stopped: set[tuple[str, str]] = set()

    def forget(self, handler: str, application: str = ALL) -> None:
        """The handler was resumed, or for this application alone: it starts with a clean record."""
        if application != ALL:
            record = self._records[handler]
            record.deaths.pop(application, None)
            record.row = [one for one in record.row if one != application]
            record.newest = deque((one for one in record.newest if one != application), maxlen=WINDOW)
            self._stopped.discard((handler, application))
            return
        self._records.pop(handler, None)
        self._stopped = {stopped for stopped in self._stopped if stopped[0] != handler}

    def hung(self, handler: str, *, hung: bool) -> str | None:
        """A transactional attempt was cut off, or an attempt was not; why to pause the handler, or None."""
        record = self._records[handler]
        record.hangs_in_a_row = record.hangs_in_a_row + 1 if hung else 0
        if record.hangs_in_a_row < HANGS_MAX:
            return None
        return self._stop(handler, f"hung in its transaction {HANGS_MAX} times in a row")

    def saw(self, handler: Handler, status: RunStatus, application: str = ALL) -> str | None:
        """A run came to `status`; why to pause the handler for its application, or None."""
        if status not in (RunStatus.SUCCEEDED, RunStatus.DEAD):
            return None
        record = self._records[handler.name]
        record.succeeded(status)
        deaths = record.deaths[application]
        deaths.saw(is_dead=status is RunStatus.DEAD)
        if status is not RunStatus.DEAD or not handler.pause_after or (reason := _judge(handler, deaths)) is None:
            return None
        return self._stop(handler.name, reason, application)

    def saw_of_several(self, handler: Handler, status: RunStatus, application: str) -> str | None:
        """The same, where several applications are set up: why to pause the handler for all of them, or None. What dies
        in a row for several is no shop's own fault. Those for which it is paused already do not count."""
        record = self._records[handler.name]
        if status is RunStatus.SUCCEEDED:
            record.row.clear()
            record.newest.append(None)
        limit, paused = handler.pause_after, {one for name, one in self._stopped if name == handler.name}
        if status is not RunStatus.DEAD or not limit or application in paused:
            return None
        record.row.append(application)
        record.newest.append(application)
        row = [one for one in record.row if one not in paused]
        newest = [one for one in record.newest if one not in paused]
        dead = [one for one in newest if one is not None]
        if is_of_several(row, limit):
            return self._stop(handler.name, f"{len(row)} runs dead in a row, of {len(set(row))} applications")
        if _are_most(len(newest), len(dead), limit) and is_of_several(dead, limit):
            told = f"{len(dead)} of the newest {len(newest)} runs dead, of {len(set(dead))} applications"
            return self._stop(handler.name, told)
        return None

    def blocked(self, handler: str) -> str | None:
        """A transactional handler blocked the worker's own loop."""
        record = self._records[handler]
        record.blocks += 1
        return (
            self._stop(handler, f"blocked the event loop {BLOCKS_MAX} times") if record.blocks >= BLOCKS_MAX else None
        )

    def cut(self, handler: str) -> str | None:
        """A transactional handler blocked the worker's own loop until it was cut off: all waited for that long."""
        record = self._records[handler]
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
        """That many attempts go on although they are over, as tasks or in threads."""
        if running < ABANDONED_MAX:
            return None
        return self._stop(handler, f"{running} attempts ignore their cancellation, or hang in threads")

    def _stop(self, handler: str, reason: str, application: str = ALL) -> str | None:
        if not self._stopped.isdisjoint({(handler, ALL), (handler, application)}):
            return None
        self._stopped.add((handler, application))
        return reason


def _judge(handler: Handler, deaths: Deaths) -> str | None:
    limit = handler.pause_after
    if deaths.in_a_row >= limit:
        return f"{deaths.in_a_row} runs dead in a row"
    seen, dead = len(deaths.newest), sum(deaths.newest)
    return f"{dead} of the newest {seen} runs dead" if _are_most(seen, dead, limit) else None


def _are_most(seen: int, dead: int, limit: int) -> bool:
    return seen >= min(2 * limit, WINDOW) and dead > limit and dead > RATIO * seen
