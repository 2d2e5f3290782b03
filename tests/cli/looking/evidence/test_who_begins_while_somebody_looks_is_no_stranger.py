"""The log is asked after the ledger: a process that began in between reads already, and is one of us."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.broker import GroupReport
from consumer.cli.looking import status
from consumer.cli.looking.log import LogLook
from consumer.cli.plugins import registry_of
from consumer.ledger import Database, processes
from consumer.ledger.processes import Pulse
from consumer.settings import Settings
from consumer.work.registry import Registry
from tests.support.desk import Desk

GROUP, TOPIC = "payments.work", "payments.events"


async def begins(url: str, name: str) -> None:
    database, now = Database(url), datetime.now(UTC)
    pulse = Pulse(process=name, role="work", host="shop", pid=1, version="1", started_at=now, ready=True, since=now)
    try:
        async with database.transaction() as session:
            await processes.beat(session, [pulse], now)
    finally:
        await database.stop()


@pytest.mark.parametrize("also", [(), ("somebody",)], ids=["only us", "a stranger, too"])
@pytest.mark.usefixtures("upgraded")
def test_status_looks_at_the_processes_again(
    desk: Desk, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, also: tuple[str, ...]
) -> None:
    # case: O6
    url = environ["CONSUMER_DATABASE_URL"]
    asyncio.run(begins(url, "shop-1"))

    async def asked(_: object) -> LogLook:
        await begins(url, "shop-2")
        return LogLook(groups=[GroupReport(group=GROUP, topic=TOPIC, members=2, clients=("shop-1", "shop-2", *also))])

    monkeypatch.setattr(status, "ask", asked)
    said = desk.call("status").stdout
    assert ("[group_shared]" in said) == bool(also)
    assert "(shop-" not in said


@pytest.mark.usefixtures("upgraded")
def test_who_asks_what_is_locked_has_ended_his_own_reading(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may ask for six seconds: a reading that is open so long keeps an ALTER TABLE waiting, and all behind it."""
    # case: O2
    begun: list[int] = []
    reading, unlocked = Database.reading, Database.require_unlocked
    found: list[tuple[int, int]] = []
    loaded: list[object] = []

    @asynccontextmanager
    async def counted(self: Database) -> AsyncIterator[AsyncSession]:
        begun.append(1)
        try:
            async with reading(self) as session:
                yield session
        finally:
            begun.pop()

    async def asked(self: Database) -> None:
        found.append((len(begun), len(loaded)))
        await unlocked(self)

    def noted(settings: Settings) -> Registry:
        loaded.append(settings)
        return registry_of(settings)

    monkeypatch.setattr(status, "registry_of", noted)
    monkeypatch.setattr(Database, "reading", counted)
    monkeypatch.setattr(Database, "require_unlocked", asked)
    desk.call("status")
    assert found == [(0, 1)], "no reading is open, and the plugins' tables are known"
