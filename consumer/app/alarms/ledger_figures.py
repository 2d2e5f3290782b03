"""Ledger figures: the business's own alarms as metrics: orders paid and not fulfilled, since when (case O5); and what
waits for an operator's decision (cases F20, F28, A32, A36), to be confirmed, or lies in quarantine; how large the
ledger is; and what else `status` says of the ledger's figures."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection

from sqlalchemy.ext.asyncio import AsyncSession

from consumer.clock import Clock, is_set_within
from consumer.console.alarms import standing
from consumer.console.alarms.late_decisions import late_decisions
from consumer.console.alarms.queues import queues
from consumer.console.alarms.unfulfilled import orders_of, unfulfilled
from consumer.console.alarms.unread import overdue
from consumer.ledger import Database, health, processes
from consumer.ledger.engine.database_time import shared_time
from consumer.ledger.reading import hints, quarantine
from consumer.ledger.size import size_bytes
from consumer.telemetry.logs import Condition
from consumer.telemetry.metrics import GaugeSeries, Metrics

LOOK_EVERY_S = 15.0


async def watch_ledger_figures(
    database: Database,
    metrics: Metrics,
    clock: Clock,
    stop: asyncio.Event,
    unproved_max_bytes: int,
    applications: Collection[str],
) -> None:
    """Look now and then, until `stop`. `unproved_max_bytes`: see `standing`. `applications`: those of the settings, of
    which nothing that waits is 0, and not unknown."""
    figures = LedgerFigures(metrics, clock, unproved_max_bytes, applications)
    unknown = Condition("unfulfilled_unknown")
    while not stop.is_set():
        with unknown.tried(Exception):  # what only looks ends no role, whatever it meets
            for look in figures.looks:
                async with database.reading() as session:
                    await look(session)
        await is_set_within(stop, LOOK_EVERY_S)


class LedgerFigures:
    """Sets the gauges. Each of `looks` reads for some of them."""

    def __init__(self, metrics: Metrics, clock: Clock, unproved_max_bytes: int, applications: Collection[str]) -> None:
        self._metrics = metrics
        self._clock = clock
        self._unproved_max_bytes = unproved_max_bytes
        begun = [(application,) for application in applications]
        self._unfulfilled = GaugeSeries(metrics.paid_unfulfilled, begun)
        self._unfulfilled_seconds = GaugeSeries(metrics.paid_unfulfilled_seconds, begun)
        self._findings = GaugeSeries(metrics.findings)
        self._quarantined = GaugeSeries(metrics.quarantine_open, begun)
        self._hint_seconds = GaugeSeries(metrics.hint_seconds, begun)
        self._read_seconds = GaugeSeries(metrics.read_seconds, begun)
        self.looks = (
            self._look_at_orders,
            self._look_at_findings,
            self._look_at_quarantine,
            self._look_at_hints,
            self._look_at_reads,
            self._look_at_standing,
            self._look_at_size,
        )

    async def _look_at_orders(self, session: AsyncSession) -> None:
        found, ages = await unfulfilled(session), defaultdict[tuple[str, ...], float](float)
        for waiting in found:
            ages[waiting.application,] = max(ages[waiting.application,], waiting.age_s(self._clock.now()))
        self._unfulfilled.show({(application,): count for application, count in orders_of(found).items()})
        self._unfulfilled_seconds.show(ages)

    async def _look_at_findings(self, session: AsyncSession) -> None:
        self._findings.show({(one.application, one.plugin, one.kind): one.count for one in await queues(session)})

    async def _look_at_quarantine(self, session: AsyncSession) -> None:
        self._quarantined.show({(name,): count for name, count in (await quarantine.count_each(session)).items()})

    async def _look_at_hints(self, session: AsyncSession) -> None:
        """Since when deliveries wait to be asked for. One that the service denies waits as well, and harms nobody: it
        may be forged."""
        found = await hints.oldest_unasked_each(session)
        now = self._clock.now()
        self._hint_seconds.show({(name,): max(0.0, (now - at).total_seconds()) for name, at in found.items()})

    async def _look_at_reads(self, session: AsyncSession) -> None:
        now = await shared_time(session)
        found = await overdue(session, now)
        self._read_seconds.show({(one.application,): (now - one.since).total_seconds() for one in found})

    async def _look_at_standing(self, session: AsyncSession) -> None:
        """Each code that `status` would say of these figures."""
        figures = await health.figures(session, await shared_time(session))
        late = await late_decisions(session, figures.at)
        wrong = standing.wrong(figures, self._unproved_max_bytes, await processes.listed(session), late)
        for code in standing.CODES:
            self._metrics.status_code.labels(code, "").set(code in wrong)

    async def _look_at_size(self, session: AsyncSession) -> None:
        self._metrics.ledger_bytes.set(await size_bytes(session))
