"""In `dev` and `demo` months may pass in a moment: what commands see and write is of the same time as the roles'."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest

from consumer.app import App
from consumer.cli.developing.dev import SandboxTime, Timekeeper
from consumer.ledger import Database, processes
from consumer.sandbox import SandboxClock
from consumer.settings import Role, load_settings
from tests.support.desk import Desk
from tests.support.ports import eventually

HANDLER = "fulfilment:order_paid"
MINUTE = timedelta(minutes=1)


@pytest.mark.usefixtures("upgraded")
async def test_who_types_a_command_lives_in_the_simulators_time(environ: dict[str, str]) -> None:
    desk, clock, stop = Desk(environ), SandboxClock(), asyncio.Event()
    database = Database(environ["CONSUMER_DATABASE_URL"])

    async def is_ready() -> bool:
        async with database.reading() as session:
            return any(one.ready for one in await processes.listed(session))

    async with App(load_settings(environ, Role.WORK), clock=SandboxTime(clock)) as app:
        keeper = Timekeeper(app, clock)
        app.beside(keeper.run, "clock", 1, check=keeper.check)
        await app.work()
        running = asyncio.create_task(app.run(stop))
        await eventually(is_ready, within_s=60)
        clock.advance_to(clock.now() + timedelta(days=30))
        await eventually(keeper.check, within_s=30)
        found = await asyncio.to_thread(desk.call, "status", "--json")
        assert '"no_work"' not in found.stdout, "it lived a month ago, and a moment ago"
        paused = await asyncio.to_thread(desk.call, "handlers", "pause", HANDLER, "--reason", "a drill")
        assert paused.returncode == 0, paused.stderr
        listed = await asyncio.to_thread(desk.ask, "handlers", "list")
        [since] = [one["paused_at"] for one in listed["handlers"] if one["name"] == HANDLER]
        trail = await asyncio.to_thread(desk.ask, "audit", "list")
        for at in (since, trail["entries"][0]["at"]):
            assert abs(datetime.fromisoformat(at) - clock.now()) < MINUTE
        stop.set()
        await running
    await database.stop()
