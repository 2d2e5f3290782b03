"""Leader: work that only one process at a time does, under a lease in the ledger with a fencing token (case B26)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import structlog

from consumer.clock import Clock, rest, until_tick
from consumer.errors import AnotherLeads, ConsumerError, LeaseLost, code_of
from consumer.ledger import Database
from consumer.ledger.leases import LEASE_S
from consumer.ledger.tenure import Tenure
from consumer.runtime.loop import STOP_GRACE_S, StageFailure
from consumer.telemetry.logs import Condition

LOG = structlog.get_logger()
T = TypeVar("T")

Work = Callable[[asyncio.Event], Coroutine[Any, Any, None]]
"""Runs until its event is set. It may be cancelled at any point when the lease is lost."""


class Leader:
    """Competes for one role and runs the work while it holds it.

    `holder` is unique per process and start. A lease lasts `lease_s` seconds and is renewed three times as often, so
    another process takes over at most `lease_s` plus a third of it after this one died, and at once after a clean
    stop. The work is cancelled a moment before the lease can run out, whatever the database does meanwhile.
    `holds_file`: but for work that may hold SQLite's file longer than that. Nobody takes a lease there meanwhile: it is
    lost when another is seen to have it.
    """

    def __init__(
        self,
        database: Database,
        *,
        role: str,
        holder: str,
        clock: Clock,
        lease_s: float = LEASE_S,
        holds_file: bool = False,
    ) -> None:
        self.role = role
        self._holds_file = holds_file
        self._clock = clock
        self._renew_s = lease_s / 3
        self._tenure = Tenure(database, role=role, holder=holder, clock=clock, lease_s=lease_s)
        self._stands_aside = False
        self._failure = StageFailure(f"lease {role}")
        self._broke = Condition(
            "leading_failed", level="error", monotonic=clock.monotonic, quiet_s=3 * lease_s, lease=role
        )

    @property
    def leads(self) -> bool:
        """Whether this process holds the role now."""
        return self._tenure.holds

    @property
    def token(self) -> int:
        """The fencing token to store with what the role writes. Raises LeaseLost when another may lead by now."""
        return self._tenure.token

    async def run(self, stop: asyncio.Event, work: Work) -> None:
        """Compete, lead, hand over; until `stop`. Work that fails is started anew while the lease is held; work that
        ended after `stand_aside` is not until another had a lease's time to take it."""
        while not stop.is_set():
            if await self._take():
                try:
                    await self._lead(stop, work)
                finally:
                    await self._give_back()
                if self._stands_aside:
                    self._stands_aside = False
                    await rest(self._clock, self._tenure.lease_s, stop)
            else:
                await rest(self._clock, self._renew_s, stop)

    def stand_aside(self) -> None:
        """Said by the work before it ends: another is to lead, if there is one."""
        self._stands_aside = True

    async def once(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do a bounded piece of work if the role is free now; raises AnotherLeads when another process leads, and what
        keeps the ledger from telling.

        Raises LeaseLost when the role is lost half way; the work is cancelled then.
        """
        if not await self._tenure.take(self._renew_s):
            raise AnotherLeads(role=self.role)
        try:
            doing = asyncio.create_task(work())
            await self._keep_while(doing, asyncio.Event())
            if doing.cancelled():
                raise LeaseLost(role=self.role)
            return doing.result()
        finally:
            await self._give_back()

    async def _lead(self, stop: asyncio.Event, work: Work) -> None:
        LOG.info("leads", lease=self.role)
        ending = asyncio.Event()
        doing = asyncio.create_task(work(ending))
        try:
            await self._keep_while(doing, stop)
            ending.set()
            if self.leads and not doing.done():
                await asyncio.wait((doing,), timeout=STOP_GRACE_S + 1)
        finally:
            doing.cancel()
            [outcome] = await asyncio.gather(doing, return_exceptions=True)
        if isinstance(outcome, Exception):
            self._broke.lasts(code_of(outcome), exc_info=outcome)
            await rest(self._clock, self._renew_s, stop)

    async def _keep_while(self, doing: asyncio.Task[Any], stop: asyncio.Event) -> None:
        """Renew until the work is done, `stop` is set, or the lease is lost (then the work is cancelled)."""
        done, renewed = asyncio.Event(), True
        doing.add_done_callback(lambda _: done.set())
        try:
            while not doing.done() and not stop.is_set():
                await rest(
                    self._clock,
                    until_tick(self._clock, self._renew_s) if renewed else min(self._renew_s, self._tenure.left_s),
                    stop,
                    done,
                )
                if doing.done() or stop.is_set():
                    continue
                renewed = (renewed or self.leads) and await self._take()
                self._broke.lapse()
                if not renewed and not self.leads:
                    LOG.warning("no_longer_leads", lease=self.role)
                    return
        finally:
            if not doing.done() and not (stop.is_set() and self.leads):
                doing.cancel()
                await asyncio.gather(doing, return_exceptions=True)

    async def _take(self) -> bool:
        """Take or renew the lease; False when another holds it, or when the database does not answer in time.

        What is held is not asked for beyond its end: the work must be over by then.
        """
        try:
            taken = await self._tenure.take(min(self._renew_s, self._tenure.left_s or self._renew_s))
        except ConsumerError as error:
            if self._holds_file:
                return True
            self._failure.failed(error)
            return False
        self._failure.well()
        return taken

    async def _give_back(self) -> None:
        try:
            await self._tenure.give_back()
        except ConsumerError as error:
            self._failure.failed(error)  # it runs out by itself
