"""How many deliveries lie in quarantine, and since when one waits to be confirmed, are figures per application, which
go back to 0."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import delete
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.app.alarms import ledger_figures
from consumer.clock import SystemClock
from consumer.ledger import Database
from consumer.ledger.reading import hints, quarantine
from consumer.ledger.tables import HintRow, QuarantineRow
from consumer.reason import Reason
from consumer.telemetry.metrics import Metrics
from tests.contract.ledger.facts import NOW, delivery
from tests.support.ports import eventually


def shown(metrics: Metrics, application: str) -> float | None:
    return metrics.registry.get_sample_value("consumer_quarantine_open", {"application": application})


async def until(metrics: Metrics, application: str, value: float) -> None:
    async with asyncio.timeout(20):
        while shown(metrics, application) != value:  # noqa: ASYNC110 - the gauge is seen from outside
            await asyncio.sleep(0.005)


async def test_the_gauge_follows_the_ledger(sqlite_ledger: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    # case: O6
    monkeypatch.setattr(ledger_figures, "LOOK_EVERY_S", 0.02)
    metrics, stop = Metrics(), asyncio.Event()
    async with sqlite_ledger.transaction() as session:
        kept = [(delivery(number), Reason.FLOODED) for number in range(3)]
        await quarantine.put(session, [*kept, (delivery(1, application="second"), Reason.NOT_JSON)], NOW)
    watch = asyncio.create_task(ledger_figures.watch_ledger_figures(sqlite_ledger, metrics, SystemClock(), stop, 0, ()))
    await until(metrics, "default", 3)
    assert shown(metrics, "second") == 1
    async with sqlite_ledger.transaction() as session:
        await session.execute(delete(QuarantineRow))
    await until(metrics, "default", 0)
    assert shown(metrics, "second") == 0
    stop.set()
    await watch


async def test_the_age_of_the_oldest_hint_follows_the_ledger(
    sqlite_ledger: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case: O6, O3, I29
    monkeypatch.setattr(ledger_figures, "LOOK_EVERY_S", 0.02)
    metrics, stop, clock = Metrics(), asyncio.Event(), SystemClock()
    long_ago = replace(delivery(1), received_at=clock.now() - timedelta(hours=2))
    other = replace(delivery(3, application="second"), received_at=clock.now())
    async with sqlite_ledger.transaction() as session:
        await hints.keep(session, [long_ago, replace(delivery(2), received_at=clock.now()), other], clock.now())

    def age_s(application: str) -> float | None:
        return metrics.registry.get_sample_value("consumer_confirm_oldest_seconds", {"application": application})

    watch = asyncio.create_task(ledger_figures.watch_ledger_figures(sqlite_ledger, metrics, clock, stop, 0, ()))
    await eventually(lambda: age_s("default") == pytest.approx(7200, abs=60), within_s=20)
    assert age_s("second") == pytest.approx(0, abs=60)
    async with sqlite_ledger.transaction() as session:
        await session.execute(delete(HintRow))
    await eventually(lambda: (age_s("default"), age_s("second")) == (0, 0), within_s=20)
    stop.set()
    await watch


async def test_what_the_look_meets_ends_no_role(sqlite_ledger: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    # case: O1
    monkeypatch.setattr(ledger_figures, "LOOK_EVERY_S", 0.02)
    metrics, stop, counted = Metrics(), asyncio.Event(), quarantine.count_each
    looks: list[AsyncSession] = []

    async def fails_first(session: AsyncSession) -> dict[str, int]:
        looks.append(session)
        if len(looks) == 1:
            raise RuntimeError("nobody foresaw this")
        return await counted(session)

    async with sqlite_ledger.transaction() as session:
        await quarantine.put(session, [(delivery(1), Reason.FLOODED)], NOW)
    monkeypatch.setattr(quarantine, "count_each", fails_first)
    watch = asyncio.create_task(ledger_figures.watch_ledger_figures(sqlite_ledger, metrics, SystemClock(), stop, 0, ()))
    await until(metrics, "default", 1)
    stop.set()
    await watch
