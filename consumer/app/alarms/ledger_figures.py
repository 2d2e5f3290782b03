"""Ledger figures: the business's own alarms as metrics: orders paid and not fulfilled, since when (case O5); and what
waits for an operator's decision (cases F20, F28, A32, A36), to be confirmed, or lies in quarantine; how large the
ledger is; and what else `status` says of the ledger's figures."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection

from consumer.clock import Clock, is_set_within
from consumer.console.alarms import standing
from consumer.console.alarms.late_decisions import late_decisions
from consumer.console.alarms.queues import queues
from consumer.console.alarms.unfulfilled import unfulfilled
from consumer.console.alarms.unread import overdue
from consumer.ledger import Database, health, processes
from consumer.ledger.engine.database_time import shared_time
from consumer.ledger.reading import hints, quarantine
from consumer.ledger.size import size_bytes
from consumer.telemetry.logs import Condition
from consumer.telemetry.metrics import Metrics

LOOK_EVERY_S = 15.0


async def watch_ledger_figures(
    database: Database,
    metrics: Metrics,
    clock: Clock,
    stop: asyncio.Event,
    unproved_max_bytes: int = 0,
    applications: Collection[str] = (),
) -> None:
    """Look now and then, until `stop`. `unproved_max_bytes`: see `standing`. `applications`: those of the settings, of
    which nothing that waits is 0, and not unknown."""
    shown, kept, hinted, asked = (set(applications) for _ in range(4))
    queued: set[tuple[str, str, str]] = set()
    unknown = Condition("unfulfilled_unknown")
    while not stop.is_set():
        try:
            shown = await _show(database, metrics, clock, shown)
            queued = await _show_queues(database, metrics, queued)
            kept = await _show_quarantine(database, metrics, kept)
            hinted = await _show_hints(database, metrics, clock, hinted)
            asked = await _show_reads(database, metrics, asked)
            await _show_standing(database, metrics, unproved_max_bytes)
            async with database.reading() as session:
                metrics.ledger_bytes.set(await size_bytes(session))
        except Exception as error:  # noqa: BLE001 - what only looks ends no role, whatever it meets
            unknown.lasts(error)
        else:
            unknown.over()
        await is_set_within(stop, LOOK_EVERY_S)


async def _show(database: Database, metrics: Metrics, clock: Clock, shown: set[str]) -> set[str]:
    """Set the gauges; an application that has none any more goes back to 0."""
    counts: defaultdict[str, int] = defaultdict(int, dict.fromkeys(shown, 0))
    ages: defaultdict[str, float] = defaultdict(float, dict.fromkeys(shown, 0.0))
    async with database.reading() as session:
        for waiting in await unfulfilled(session):
            counts[waiting.application] += waiting.count
            age_s = (clock.now() - waiting.oldest_at).total_seconds()
            ages[waiting.application] = max(ages[waiting.application], age_s)
    for application, count in counts.items():
        metrics.paid_unfulfilled.labels(application).set(count)
        metrics.paid_unfulfilled_seconds.labels(application).set(ages[application])
    return set(counts)


async def _show_queues(
    database: Database, metrics: Metrics, shown: set[tuple[str, str, str]]
) -> set[tuple[str, str, str]]:
    """Set the gauges of open findings; a queue that is empty again goes back to 0."""
    async with database.reading() as session:
        found = {(one.application, one.plugin, one.kind): one.count for one in await queues(session)}
    for labels in shown - found.keys():
        metrics.findings.labels(*labels).set(0)
    for labels, count in found.items():
        metrics.findings.labels(*labels).set(count)
    return set(found)


async def _show_quarantine(database: Database, metrics: Metrics, shown: set[str]) -> set[str]:
    """Set the gauges; an application of which nothing is left goes back to 0."""
    async with database.reading() as session:
        found = await quarantine.count_each(session)
    for application in shown | found.keys():
        metrics.quarantine_open.labels(application).set(found.get(application, 0))
    return set(found)


async def _show_hints(database: Database, metrics: Metrics, clock: Clock, shown: set[str]) -> set[str]:
    """Set the gauges; an application of which no delivery waits to be asked for any more goes back to 0. One that the
    service denies waits as well, and harms nobody: it may be forged."""
    async with database.reading() as session:
        found = await hints.oldest_unasked_each(session)
    now = clock.now()
    for application in shown | found.keys():
        age_s = (now - found.get(application, now)).total_seconds()
        metrics.hint_seconds.labels(application).set(max(0.0, age_s))
    return set(found)


async def _show_reads(database: Database, metrics: Metrics, shown: set[str]) -> set[str]:
    """Set the gauges; an application of which no read is due any more goes back to 0."""
    async with database.reading() as session:
        now = await shared_time(session)
        found = {one.application: (now - one.since).total_seconds() for one in await overdue(session, now)}
    for application in shown | found.keys():
        metrics.read_seconds.labels(application).set(found.get(application, 0.0))
    return set(found)


async def _show_standing(database: Database, metrics: Metrics, unproved_max_bytes: int) -> None:
    """Set the gauge of each code that `status` would say of these figures."""
    async with database.reading() as session:
        figures = await health.figures(session, await shared_time(session))
        late = await late_decisions(session, figures.at)
        wrong = standing.wrong(figures, unproved_max_bytes, await processes.listed(session), late)
    for code in standing.CODES:
        metrics.status_code.labels(code, "").set(code in wrong)
