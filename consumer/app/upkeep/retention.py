"""Retention: once a day, the bodies of settled events that are older than `CONSUMER_RETENTION` go to archives."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import structlog

from consumer import __version__
from consumer.archive.prune import Prune, Pruned
from consumer.clock import Clock, rest
from consumer.errors import AnotherLeads, ArchiveWaits, ConsumerError
from consumer.ledger import Database
from consumer.ledger.archiving import passes
from consumer.ledger.engine.database_time import shared_time
from consumer.ledger.leases import ARCHIVES
from consumer.runtime.leader import Leader
from consumer.telemetry.logs import Condition
from consumer.telemetry.metrics import Metrics

EVERY: Final = timedelta(days=1)
LATE: Final = timedelta(days=2)
"""No pass has come to its end for so long: it hangs, in a folder on a server that is away, or a plan that was left half
applied keeps it waiting."""
NOT_ENDED: Final = "archive_not_ended"
LOOK_EVERY_S: Final = 300.0
SET_BACK: Final = timedelta(minutes=1)
"""A last pass that is further ahead ended before the clock was set back: it does not tell when the next one is due."""

_log = structlog.get_logger(__name__)


class Retention:
    """`age`: how old an event is whose body may go to `folder`. Several processes may run it: one does it."""

    def __init__(
        self, database: Database, *, folder: Path, age: timedelta, holder: str, clock: Clock, metrics: Metrics
    ) -> None:
        self._database = database
        self._folder = folder
        self._age = age
        self._clock = clock
        self._metrics = metrics
        self._leader = Leader(database, role=ARCHIVES, holder=holder, clock=clock)
        self._blind = Condition("archive_not_looked_at", monotonic=clock.monotonic)
        self._failed = Condition("archive_failed", level="error", monotonic=clock.monotonic)

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`. A pass that failed is tried again at the next look; `status` says so meanwhile."""
        stopping = asyncio.create_task(stop.wait())
        while not stop.is_set():
            looking = asyncio.create_task(self._look())
            both = (looking, stopping)
            while not (await asyncio.wait(both, timeout=LOOK_EVERY_S, return_when=asyncio.FIRST_COMPLETED))[0]:
                await self._note_late()
            looking.cancel()  # a pass that is stopped has lost nothing
            [outcome] = await asyncio.gather(looking, return_exceptions=True)
            if isinstance(outcome, Exception):
                self._blind.lasts(outcome)
            elif outcome is None:
                self._blind.over()
            await rest(self._clock, LOOK_EVERY_S, stop)
        await stopping

    async def _note_late(self) -> None:
        """Beside a pass that is under way."""
        try:
            await self._last()
        except ConsumerError as error:
            self._blind.lasts(error)

    async def _last(self) -> tuple[passes.LastPass, datetime]:
        """How the last pass ended, shown; that none does any more is kept for `status`. And what time it is."""
        async with self._database.reading() as session:
            last, now = await passes.load(session), await shared_time(session)
        since = last.done_at or last.began_at
        if last.code is None and since is not None and now - since > LATE:
            last = replace(last, code=NOT_ENDED)
            self._failed.lasts(NOT_ENDED)
            await self._keep(last)
        self._show(last)
        return last, now

    async def _look(self) -> None:
        last, now = await self._last()
        if last.done_at is None or not -SET_BACK < now - last.done_at < EVERY:
            with suppress(AnotherLeads):
                await self._leader.once(self._pass)

    async def _pass(self) -> None:
        async with self._database.transaction() as session:
            last, now = await passes.load(session), await shared_time(session)
            began_at = last.began_at or now
            await passes.keep(session, replace(last, began_at=began_at))
        prune = Prune(
            self._database,
            self._folder,
            clock=self._clock,
            written_by=__version__,
            by="retention",
            may_go_on=lambda: self._leader.token,
        )
        try:
            done = await prune.run(now - self._age)
        except ArchiveWaits as error:
            _log.info("archive_waits", **error.fields)
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends no reading of the service
            self._failed.lasts(error, error=type(error).__name__)
            await self._keep(passes.LastPass(began_at=began_at, done_at=last.done_at, code=_code(error)))
            return
        await self._keep(passes.LastPass(began_at=began_at, done_at=now))
        self._tell(done)

    async def _keep(self, found: passes.LastPass) -> None:
        async with self._database.transaction() as session:
            await passes.keep(session, found)
        self._show(found)

    def _show(self, found: passes.LastPass) -> None:
        if found.code is None:  # also when another process has done it
            self._failed.over()
        self._metrics.archive_failing.set(found.code is not None)
        self._metrics.archive_done_at.set(found.done_at.timestamp() if found.done_at else 0)

    def _tell(self, done: Pruned) -> None:
        self._metrics.archived.inc(done.events)
        _log.info("archive_done", events=done.events, bytes=done.bytes, kept=done.kept, files=list(done.files)[:20])


def _code(error: Exception) -> str:
    return error.code if isinstance(error, ConsumerError) else "internal"
