"""Parts that look again and again for ever say what they find at growing intervals, and its end: a driven day each."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from consumer.app.alarms.accounting import Accounting
from consumer.app.heartbeat import Heartbeat
from consumer.app.upkeep.retention import Retention
from consumer.app.upkeep.sealing import LOOK_EVERY_S, seal_trail
from consumer.clock import DrivenClock
from consumer.console.invariants.report import Report
from consumer.errors import LedgerUnavailable
from consumer.ledger import Database
from consumer.ledger.archiving import passes
from consumer.ledger.trail import sealing
from consumer.telemetry.internal import Readiness
from consumer.telemetry.metrics import Metrics
from consumer.telemetry.otlp import OtlpExporter
from tests.archive.test_nothing_is_lost_however_it_ends import filled
from tests.support.ports import eventually


def told(logs: Sequence[Mapping[str, Any]], word: str) -> list[tuple[str, int]]:
    return [(one["event"], one["times"]) for one in logs if one["event"].startswith(word)]


def broken(*codes: str) -> Report:
    found = Report(application="shop")
    found.broken.update(codes)
    return found


def test_what_is_broken_of_money_and_access() -> None:
    # case: O1
    clock = DrivenClock()
    accounting = Accounting(Any, Metrics(), clock, ["shop"], {})  # type: ignore[arg-type]  # it is not asked
    with capture_logs() as logs:
        for _ in range(12):
            accounting._show(broken("hold_unseen"))
            clock.advance(120)
        accounting._show(broken("hold_unseen", "underpaid"))
        accounting._show(broken())
        accounting._show(broken())
    word = "invariants_broken"
    assert told(logs, word) == [(word, 1), (word, 2), (word, 3), (word, 5), (word, 9), (word, 13), (f"{word}_over", 13)]
    assert {one["application"] for one in logs} == {"shop"}
    assert logs[-2]["broken"] == {"hold_unseen": 1, "underpaid": 1}, "what is new is said at once"


async def test_a_trail_that_cannot_be_sealed(sqlite_ledger: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    # case: O1
    clock, stop, fails = DrivenClock(), asyncio.Event(), True

    async def seal(_: object) -> int:
        if fails:
            raise LedgerUnavailable
        return 0

    monkeypatch.setattr(sealing, "seal", seal)
    with capture_logs() as logs:
        task = asyncio.create_task(seal_trail(sqlite_ledger, clock, stop))
        for look in range(42):
            await eventually(lambda: clock.sleepers == 1)
            fails = look < 40
            clock.advance(LOOK_EVERY_S)
        stop.set()
        await task
    word = "trail_not_sealed"
    assert told(logs, word) == [(word, 1), (word, 13), (word, 37), (f"{word}_over", 41)]


async def test_archives_that_cannot_be_written(sqlite_ledger: Database, tmp_path: Path) -> None:
    # case: B35, O1
    folder, clock = tmp_path / "kept", DrivenClock()
    folder.write_text("a file")
    await filled(sqlite_ledger, 50)
    terms = {"folder": folder, "age": timedelta(days=1), "clock": clock, "metrics": Metrics()}
    one = Retention(sqlite_ledger, holder="one", **terms)  # type: ignore[arg-type]  # as they are named
    two = Retention(sqlite_ledger, holder="two", **terms)  # type: ignore[arg-type]  # as they are named
    with capture_logs() as logs:
        for _ in range(6):
            await one._look()
            clock.advance(300)
        folder.unlink()
        await two._look()
        await one._look()
        await one._look()
    word = "archive_failed"
    assert told(logs, word) == [*((word, times) for times in (1, 2, 3, 4, 6)), (f"{word}_over", 6)]
    async with sqlite_ledger.reading() as session:
        assert (await passes.load(session)).done_at is not None, "another process did it"


async def test_a_check_that_breaks() -> None:
    # case: O1
    clock, breaks = DrivenClock(), True

    async def check() -> bool:
        if breaks:
            raise ZeroDivisionError
        return True

    readiness = Readiness(clock, {"odd": check})
    readiness.started()
    with capture_logs() as logs:
        for _ in range(20):
            assert not (await readiness.answers())[0]
            clock.advance(5)
        breaks = False
        assert (await readiness.answers())[0]
    word = "readiness_check_failed"
    assert told(logs, word) == [(word, 1), (word, 13), (f"{word}_over", 20)]


async def test_each_heartbeat_looks_also_where_there_is_no_ledger(tmp_path: Path) -> None:
    # case: O1
    url = f"sqlite+aiosqlite:///{tmp_path}/nowhere/ledger.db"
    heart = Heartbeat(url, readiness=Readiness(DrivenClock()), metrics=Metrics(), clock=DrivenClock(), process="one")
    looks: list[None] = []
    heart.looks.append(lambda: looks.append(None))
    await heart.beat()
    await heart.beat()
    await heart.stop()
    assert len(looks) == 2


def test_traces_that_nobody_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    # case: O1
    exporter, is_away = OtlpExporter("http://127.0.0.1:9"), True

    def sent(*_: object, **__: object) -> AbstractContextManager[None]:
        if is_away:
            raise OSError("refused")
        return nullcontext()

    monkeypatch.setattr(urllib.request, "urlopen", sent)
    with capture_logs() as logs:
        for _ in range(5):
            exporter.export([])
        is_away = False
        exporter.export([])
        exporter.export([])
    assert told(logs, "traces_not_sent") == [("traces_not_sent", 1), ("traces_not_sent_over", 5)]
