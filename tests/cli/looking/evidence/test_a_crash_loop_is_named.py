"""A role that dies soon after each start is named; a deploy, however it rolls, is not."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from consumer.app import App
from consumer.app.heartbeat import Heartbeat
from consumer.cli.looking.evidence.alive import alive
from consumer.cli.looking.status_finding import Finding, Grade
from consumer.clock import SystemClock
from consumer.console.alarms.lives import loops
from consumer.errors import BrokerUnavailable, SettingsError
from consumer.ledger import Database, processes
from consumer.ledger.engine.database_time import shared_time
from consumer.ledger.processes import DIED, LISTED_MAX, REPLACED_AFTER, Process, Pulse
from consumer.settings import Role, load_settings
from consumer.telemetry.internal import Readiness
from consumer.telemetry.metrics import Metrics
from tests.support.ports import eventually

NOW = datetime(2026, 5, 1, tzinfo=UTC)
S = timedelta(seconds=1)


def life(began: int, seen: int, **changes: Any) -> Process:
    """A worker that began so many seconds ago and was seen last so many seconds ago."""
    one = Process(
        process=f"shop-1-{began}",
        role="work",
        host="shop-1",
        pid=began,
        version="0.1.0",
        started_at=NOW - began * S,
        seen_at=NOW - seen * S,
        ready=True,
        since=NOW - began * S,
    )
    return replace(one, **changes)


def restarts(*lives: Process) -> list[Finding]:
    return [one for one in alive(lives, NOW, expected=None) if one.code == "role_restarts"]


LOOP = (life(9000, 61), life(60, 41), life(39, 20), life(18, 3))
"""It ran for long, then it died every twenty seconds."""


# case: O2
def test_one_that_dies_every_twenty_seconds_is_stuck_within_the_minute() -> None:
    [finding] = restarts(*LOOP)
    assert finding.grade is Grade.STUCK
    assert "`work` died 2 times" in finding.text
    assert "after 19 s (pid 39 on shop-1)" in finding.text


def test_beside_another_that_goes_on_it_degrades() -> None:
    [finding] = restarts(*LOOP, life(8000, 2, process="other", host="shop-2"))
    assert finding.grade is Grade.DEGRADED


def test_one_that_could_say_why_is_quoted() -> None:
    last = replace(LOOP[2], said={DIED: "broker_unavailable: The broker does not answer."})
    [finding] = restarts(*LOOP[:2], last, LOOP[3])
    assert "broker_unavailable: The broker does not answer." in finding.text


def test_a_supervisor_that_waits_longer_and_longer_hides_nothing() -> None:
    """Kubernetes waits up to five minutes: most of the time nobody is there."""
    [finding] = restarts(life(9000, 700), life(650, 620), life(320, 290))
    assert finding.grade is Grade.STUCK


def test_it_is_over_when_the_last_one_lives_on() -> None:
    quick = (life(200, 181), life(180, 161))
    assert restarts(*quick, life(58, 1)) != []
    assert restarts(*quick, life(62, 1)) == []
    assert restarts(*quick, life(150, 30, stopped_at=NOW), life(20, 1)) == [], "and was replaced after it"
    slow = (life(860, 520), life(510, 170))
    assert restarts(*slow, life(160, 1)) != [], "it died after six minutes each time"


@pytest.mark.parametrize(
    "lives",
    [
        [life(9000, 300, stopped_at=NOW), life(290, 1)],
        [life(200, 150, stopped_at=NOW), life(149, 100, stopped_at=NOW), life(99, 50, stopped_at=NOW), life(49, 1)],
        [life(9000 + n, 30 * n + 31, process=f"old-{n}") for n in range(9)] + [life(30 * n + 29, 1) for n in range(9)],
        [life(300 + n, 100, process=f"at-once-{n}") for n in range(4)] + [life(90 + n, 1) for n in range(4)],
        [life(9000, 61), life(60, 2)],
        [life(60, 41), life(39, 20), life(18, 3, stopped_at=NOW)],
    ],
    ids=["a deploy", "many deploys", "a rolling deploy that kills", "all killed at once", "one kill", "stopped"],
)
def test_what_was_meant_is_no_loop(lives: list[Process]) -> None:
    assert restarts(*lives) == []


async def test_a_part_that_fails_leaves_its_reason_and_is_not_taken_for_a_stop(database_url: str) -> None:
    environ = {"CONSUMER_DATABASE_URL": database_url, "CONSUMER_BROKER_URL": "embedded:none"}

    database = Database(database_url)

    async def beats() -> list[Process]:
        async with database.reading() as session:
            return await processes.listed(session)

    async def fails(_: asyncio.Event) -> None:
        await eventually(beats, within_s=30, what="its heart has beaten")
        raise BrokerUnavailable

    async def is_well() -> bool:
        return True

    try:
        async with App(load_settings(environ, Role.CONSOLE)) as app:
            app._heartbeat.roles.add("console")
            app.beside(fails, "failing", 1, check=is_well)
            with pytest.raises(BrokerUnavailable):
                await app.run(asyncio.Event())
        [one] = await beats()
    finally:
        await database.stop()
    assert one.stopped_at is None
    assert one.said[DIED].startswith("broker_unavailable")


async def test_one_that_cannot_even_start_leaves_its_reason(database_url: str) -> None:
    """A new worker beside old ones: its supervisor starts it again and again, and all else looks well."""
    environ = {"CONSUMER_DATABASE_URL": database_url, "CONSUMER_BROKER_URL": "embedded:none"}
    database = Database(database_url)
    settings = load_settings({**environ, "CONSUMER_HANDLERS": "shop:nobody"}, Role.WORK)
    try:
        for _ in range(2):
            with pytest.raises(SettingsError):
                async with App(settings) as app:
                    await app.work()
        async with database.transaction() as session:
            now = await shared_time(session)
            await processes.beat(session, [pulse("old", now - timedelta(hours=5))], now)
            listed = await processes.listed(session)
    finally:
        await database.stop()
    assert [one.said[DIED].partition(":")[0] for one in listed if one.process != "old"] == ["settings_invalid"] * 2
    [loop] = loops(listed, now)
    assert (loop.role, loop.deaths, loop.alone) == ("work", 2, False)


async def test_a_loop_hides_no_other_role_and_leaves_no_heap(database: Database, database_url: str) -> None:
    async with database.transaction() as session:
        now = await shared_time(session)
        died = [pulse(f"one-{n}", now) for n in range(LISTED_MAX + 20)]
        await processes.beat(session, [replace(died[0], process="front", role="serve")], now - timedelta(hours=5))
        for one in died:
            await processes.beat(session, [one], now - REPLACED_AFTER - S)
    async with database.reading() as session:
        listed = await processes.listed(session)
    assert [one.process for one in listed if one.role == "serve"] == ["front"]
    heart = Heartbeat(
        database_url, readiness=Readiness(SystemClock()), metrics=Metrics(), clock=SystemClock(), process="new"
    )
    heart.roles.add("work")
    await heart._beat()
    await heart.stop()
    async with database.reading() as session:
        left = {one.process for one in await processes.listed(session)}
    assert left == {"front", "new"}


def pulse(process: str, now: datetime) -> Pulse:
    host = socket.gethostname()
    return Pulse(process=process, role="work", host=host, pid=1, version="1", started_at=now, ready=True, since=now)
