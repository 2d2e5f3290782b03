"""Rolling deploy: handlers that a newer version of the code brought, seen by an older process (cases O9, R14).

While a rolling deploy lasts, some events come to processes that do not have the new handler yet. They keep a run for it
all the same, which waits for a process that has it. They look once a second; who brings a new handler takes no event
before they have looked, so that none is missed that comes once it is ready.

A handler that only older processes still have is on its way out, and nothing is kept for it. A process that was started
while both were there tells the two apart by when they were first seen: what came after everything it has itself, and
not long ago, is a newer version's. When in doubt it keeps a run too many: one that waits is seen, one that was never
made is lost. That is so for a handler that is taken back within a day of its first appearance.

It keeps, too, what handlers of its broken plugins, and those that its CONSUMER_HANDLERS leaves out while others run
them, will want. Where it runs a handler that the others lack, and that does the same (`successors.py`), the other's run
is stored as skipped: who takes the event does it, under one name.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.clock import Clock
from consumer.ledger.handling import handlers
from consumer.ledger.handling.handlers import LIVE_S
from consumer.ledger.tables import HandlerRow
from consumer.plugin import Handler
from consumer.work.ingest import successors
from consumer.work.ingest.successors import Version
from consumer.work.registry import Registry, handler_of

LOOK_EVERY_S = 1.0
ROLLOUT_S = 86_400.0

_log = structlog.get_logger(__name__)


def brings_new(registry: Registry, known: Sequence[HandlerRow], now: datetime) -> bool:
    """Whether this process has a handler that others, which are at work, have not heard of yet. `known`: as of before
    it was registered. Pure."""
    since = now - timedelta(seconds=LIVE_S)
    live = {row.name for row in known if row.last_seen_at >= since}
    return bool(live) and any(handler.name not in live for handler in registry.handlers)


class RollingDeploy:
    """Which registry a process has to keep runs by: its own, and what came after it."""

    def __init__(self, registry: Registry, clock: Clock) -> None:
        self._own = registry
        self._registry = registry
        self._clock = clock
        self._started_at = clock.now()
        self._look_at = clock.monotonic()
        self._mine = {handler.name for handler in registry.handlers + registry.absent}
        self._absent: list[Handler] = []
        self._left_out = {handler.name for handler in registry.left_out}
        self._broken = {plugin.plugin for plugin in registry.broken}
        self._gone: set[str] = set()
        self._known: frozenset[str] = frozenset()

    async def registry(self, session: AsyncSession) -> Registry:
        """The registry as of now; looks into the ledger at most once a second."""
        if self._clock.monotonic() >= self._look_at:
            self._look_at = self._clock.monotonic() + LOOK_EVERY_S
            if kept := self._kept(await handlers.everyone(session)):
                self._keep(kept, await successors.versions(session))
            else:
                self._absent, self._registry = [], self._own
        return self._registry

    def _kept(self, rows: Sequence[HandlerRow]) -> list[Handler]:
        """Those that this process does not run, and keeps runs for."""
        since = self._clock.now() - timedelta(seconds=LIVE_S)
        others = [row for row in rows if row.name not in self._mine]
        live = {row.name for row in others if row.last_seen_at >= since}
        since_own = max((row.first_seen_at for row in rows if row.name in self._mine), default=self._started_at)
        lately = max(since_own, self._started_at - timedelta(seconds=ROLLOUT_S))
        # Alive since before this process: older than its own code, or brought by newer code while that was rolled out
        # and this process started again. One that came back after it was gone is new again.
        newer = [
            row
            for row in others
            if row.name in live and (row.first_seen_at > min(lately, self._started_at) or row.name in self._gone)
        ]
        self._gone |= {row.name for row in others} - live
        names = frozenset(row.name for row in newer)
        for name in sorted(names - self._known):
            _log.info("handler_of_a_newer_version", handler=name)
        self._known = names
        wanted = names | {name for name in live if name in self._left_out} | self._of_broken(others)
        return [handler_of(row) for row in others if row.name in wanted and row.types]

    def _of_broken(self, others: Sequence[HandlerRow]) -> set[str]:
        """Of each broken plugin what it had when it could be loaded last, not all that it ever had."""
        found: set[str] = set()
        for plugin in self._broken:
            rows = [row for row in others if row.plugin == plugin]
            since = max((row.last_seen_at for row in rows), default=self._started_at) - timedelta(seconds=LIVE_S)
            found |= {row.name for row in rows if row.last_seen_at >= since}
        return found

    def _keep(self, kept: Sequence[Handler], told: Sequence[Version]) -> None:
        ours = [one for one in kept if one.name in self._left_out]  # installed beside what runs here: no other's name
        others = successors.without_forerunners([one for one in kept if one.name not in self._left_out], told)
        absent = [*ours, *others]
        instead = {
            one.name: mine
            for one in others
            if (mine := [own for own in self._own.handlers if successors.stand_for_each_other(own, one, told)])
        }
        if (absent, instead) == (self._absent, self._registry.instead):
            return
        for name in sorted(instead.keys() - self._registry.instead.keys()):
            names = [own.name for own in instead[name]]
            _log.warning("handler_may_be_renamed", handler=name, does_it_here=names)
        self._absent = absent
        self._registry = self._own.keeping(absent, instead)
