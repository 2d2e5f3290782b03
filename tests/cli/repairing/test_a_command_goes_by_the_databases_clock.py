"""A command that repairs goes by the clock of the database, as the roles do: an operator's machine may be wrong."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.app.commands.walking import open_syncing
from consumer.broker import Broker
from consumer.ledger import Database
from consumer.ledger.engine import database_time
from consumer.plugin import Context, Event, handles
from consumer.settings import Role, load_settings
from tests.support.desk import Desk
from tests.support.ports import eventually
from tests.work.workshop import Workshop, order_paid

BEHIND = timedelta(hours=3)
SLACK = timedelta(minutes=1)
SERVICE = {
    "SVC_BASE_URL": "http://127.0.0.1:9",
    "SVC_APP_ID": "svc_app_shop",
    "SVC_APP_SECRET": "svc_sk_live_0123456789",
}


@pytest.fixture
def environ(environ: dict[str, str]) -> dict[str, str]:
    """With credentials that nobody is asked about."""
    return environ | SERVICE


def it_is_earlier_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the database's clock is BEHIND this machine's."""

    async def earlier(_: AsyncSession) -> datetime:
        return datetime.now(UTC) - BEHIND

    in_a_file = str(database_time._IN_A_FILE).replace("'now'", f"'now', '-{BEHIND.total_seconds():.0f} seconds'")
    monkeypatch.setattr(database_time, "_IN_A_FILE", text(in_a_file))
    monkeypatch.setattr("consumer.checks.doctor.database_time", earlier)


async def refuse_in_the_past(_: web.Request) -> web.StreamResponse:
    """A service whose clock agrees with the database's; a refusal tells the time, too."""
    told = format_datetime(datetime.now(UTC) - BEHIND, usegmt=True)
    return web.json_response({"message": "no", "statusCode": 401}, status=401, headers={"Date": told})


def is_there(at: datetime | str) -> bool:
    moment = datetime.fromisoformat(at) if isinstance(at, str) else at
    return abs(moment - datetime.now(UTC) + BEHIND) < SLACK


# case: R10
async def test_what_is_redriven_is_due_at_once(
    sqlite_ledger: Database, broker: Broker, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @handles("order.paid", attempts=1, name="test:broken")
    async def broken(event: Event, ctx: Context) -> None:
        raise ValueError("not yet")

    shop, desk = Workshop(sqlite_ledger, broker, [broken]), Desk(environ)
    await shop.publish(order_paid(1))
    async with shop.working():
        await eventually(lambda: shop.count("test:broken", "dead", 1))
    await broker.stop()
    it_is_earlier_there(monkeypatch)
    await asyncio.to_thread(desk.ask, "dead", "redrive", "--all", "--reason", "repaired", "--yes")
    [run] = await shop.runs("test:broken")
    assert run.next_at is not None
    assert is_there(run.next_at)


# case: R1
async def test_a_plan_is_of_the_databases_time(
    sqlite_ledger: Database, broker: Broker, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.stop()
    desk = Desk(environ)
    it_is_earlier_there(monkeypatch)
    plan = (await asyncio.to_thread(desk.ask, "replay", "plan", "--since", "1h"))["id"]
    shown = await asyncio.to_thread(desk.ask, "replay", "show", plan)
    assert is_there(shown["created_at"])
    assert is_there(datetime.fromisoformat(shown["filters"]["since"]) + timedelta(hours=1))
    for act in ("apply", "cancel"):
        plan = (await asyncio.to_thread(desk.ask, "replay", "plan"))["id"]
        await asyncio.to_thread(desk.ask, "replay", act, plan, "--reason", "a drill", "--yes")
        assert is_there((await asyncio.to_thread(desk.ask, "replay", "show", plan))["ended_at"])


# case: F8
async def test_what_is_said_is_said_at_the_databases_time(
    sqlite_ledger: Database, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    it_is_earlier_there(monkeypatch)
    words = ("say", "fulfilment.marked_paid", "A1", "--unknown", "--reason", "paid by wire", "--yes")
    await asyncio.to_thread(Desk(environ).ask, *words)
    async with sqlite_ledger.reading() as session:
        assert is_there(f"{await session.scalar(text('SELECT created_at FROM outbox'))}+00:00")


async def test_an_anchor_is_of_the_databases_time(
    sqlite_ledger: Database, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    it_is_earlier_there(monkeypatch)
    assert is_there((await asyncio.to_thread(Desk(environ).ask, "audit", "anchor"))["at"])


async def test_a_walk_of_the_last_hour_is_of_the_databases_last_hour(
    sqlite_ledger: Database, broker: Broker, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has come by this machine's clock may not have come yet; how long ago is reckoned from there, too."""
    await broker.stop()
    it_is_earlier_there(monkeypatch)
    desk, here = Desk(environ), datetime.now(UTC)
    done = await asyncio.to_thread(desk.call, "backfill", "--dry-run", "--since", (here - BEHIND / 2).isoformat())
    assert "has not come yet" in done.stderr
    words = ("backfill", "--seed", "--dry-run", "--since", (here - BEHIND * 1.5).isoformat(), "--until", "1h")
    done = await asyncio.to_thread(desk.call, *words)
    assert "later than" not in done.stderr
    words = ("backfill", "--seed", "--dry-run", "--since", (here - BEHIND).isoformat(), "--until", "1h")
    done = await asyncio.to_thread(desk.call, *words)
    assert "--until must be later than --since" in done.stderr


async def test_a_doctor_sees_what_is_wrong_with_this_machine_alone(
    sqlite_ledger: Database, broker: Broker, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service agrees with the database: it is this machine's clock that is told."""
    await broker.stop()
    it_is_earlier_there(monkeypatch)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", refuse_in_the_past)
    async with TestServer(app) as service:
        url = str(service.make_url("")).rstrip("/")
        done = await asyncio.to_thread(Desk(environ | {"SVC_BASE_URL": url}).call, "doctor", "--json")
    found = json.loads(done.stdout)
    grades = {check["name"]: check["grade"] for check in found["checks"]}
    assert (grades["clock"], grades["default: clock"]) == ("fail", "ok")


async def test_who_walks_the_list_agrees_with_the_roles(
    sqlite_ledger: Database, broker: Broker, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.stop()
    it_is_earlier_there(monkeypatch)
    async with open_syncing(load_settings(environ, Role.OPERATE), publishes=False) as syncing:
        assert is_there(syncing.clock.now())
