"""What a handler's author tells the operator stands wherever its failed runs are met, with its plugin or without it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from consumer.broker import Broker
from consumer.ledger import Database
from consumer.plugin import Context, Event, RetryLater, handles
from tests.support.desk import Desk
from tests.support.ports import eventually
from tests.work.workshop import Workshop, order_paid

SHIPS = "Is the warehouse open? https://wiki.shop.example/ship, then `dead redrive`"
MAILS = "https://wiki.shop.example/mail"


@pytest.fixture
async def desk(sqlite_ledger: Database, broker: Broker, tmp_path: Path) -> Desk:
    """A ledger with a dead run of one handler, a failing one of another, and one that only succeeded; no command has
    their plugin."""

    @handles("order.paid", attempts=1, name="test:ship", runbook=SHIPS)
    async def ship(event: Event, ctx: Context) -> None:
        raise ValueError("no")

    @handles("order.paid", name="test:mail", runbook=MAILS)
    async def mail(event: Event, ctx: Context) -> None:
        raise RetryLater(3600, "the mail server is away")

    @handles("order.paid", name="test:count", runbook="nobody needs this")
    async def count(event: Event, ctx: Context) -> None:
        return

    shop = Workshop(sqlite_ledger, broker, [ship, mail, count])
    await shop.publish(order_paid(1))
    async with shop.working():
        await eventually(lambda: shop.count("test:ship", "dead", 1))
        await eventually(lambda: shop.count("test:count", "succeeded", 1))

        async def put_off() -> bool:
            return any(run.code == "retry_later" for run in await shop.runs("test:mail"))

        await eventually(put_off)
    return Desk({"CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/ledger.db"})


# case: R10
async def test_by_every_command_that_tells_of_it(desk: Desk) -> None:
    def call(*words: str) -> str:
        return desk.call(*words).stdout

    listed = await asyncio.to_thread(call, "dead", "list")
    assert f"   runbook: {SHIPS}" in listed
    assert MAILS not in listed, "of what is not dead it is not the place"
    assert f"runbook of test:ship: {SHIPS}" in await asyncio.to_thread(call, "dead", "list", "--each")
    event = await asyncio.to_thread(call, "events", "show", "evt_1")
    assert f"runbook of test:mail: {MAILS}\nrunbook of test:ship: {SHIPS}" in event
    assert "nobody needs this" not in event
    status = await asyncio.to_thread(call, "status")
    assert f"  runbook of test:mail: {MAILS}\n  runbook of test:ship: {SHIPS}\n" in status
    assert "nobody needs this" not in status


# case: R10
async def test_by_their_json(desk: Desk) -> None:
    [one] = (dead := await asyncio.to_thread(desk.ask, "dead", "list"))["dead"]
    assert (one["runbook"], dead["groups"][0]["runbook"]) == (SHIPS, SHIPS)
    event = await asyncio.to_thread(desk.ask, "events", "show", "evt_1")
    told = {run["handler"]: run["runbook"] for run in event["runs"] if run["handler"].startswith("test:")}
    assert told == {"test:ship": SHIPS, "test:mail": MAILS, "test:count": None}


# case: H9
async def test_by_status_while_it_is_paused(desk: Desk) -> None:
    paused = await asyncio.to_thread(desk.call, "handlers", "pause", "test:count", "--reason", "stocktaking")
    assert paused.returncode == 0, paused.stderr
    assert "  runbook of test:count: nobody needs this\n" in (await asyncio.to_thread(desk.call, "status")).stdout
