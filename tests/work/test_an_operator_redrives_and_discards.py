"""`consumer dead …` and `consumer handlers …` as an operator calls them."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from consumer.broker import Broker
from consumer.ledger import Database
from consumer.ledger.handling import handlers
from consumer.ledger.tables import HandlerRow, RunRow
from consumer.plugin import Context, Event, declared, handles
from tests.support.desk import Desk
from tests.support.ports import eventually
from tests.work.workshop import Workshop, order_paid


@pytest.fixture
async def desk(sqlite_ledger: Database, broker: Broker, tmp_path: Path) -> Desk:
    """A ledger with two dead runs and one that succeeded."""

    @handles("order.paid", attempts=1, name="test:picky")
    async def picky(event: Event, ctx: Context) -> None:
        if event.order_id != "order-3":
            raise ValueError("no")

    shop = Workshop(sqlite_ledger, broker, [picky])
    await shop.publish(*[order_paid(number) for number in (1, 2, 3)])
    async with shop.working():
        await eventually(lambda: shop.count("test:picky", "dead", 2))
        await eventually(lambda: shop.count("test:picky", "succeeded", 1))
    return Desk({"CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/ledger.db"})


# case: R10, R12
async def test_list_discard_undo_redrive(desk: Desk) -> None:
    await asyncio.to_thread(_list_discard_undo_redrive, desk)


def _list_discard_undo_redrive(desk: Desk) -> None:
    listed = desk.ask("dead", "list", "--handler", "test:picky")["dead"]
    assert sorted((one["event_id"], one["status"]) for one in listed) == [("evt_1", "dead"), ("evt_2", "dead")]
    (fingerprint,) = {one["fingerprint"] for one in listed}

    page = desk.ask("dead", "list", "--limit", "1")
    assert (len(page["dead"]), page["total"], page["kinds"]) == (1, 2, 1)
    assert "1 more: these are the first 1" in desk.call("dead", "list", "--limit", "1").stdout
    assert f"near={fingerprint}" in desk.ask(
        "dead", "redrive", "--fingerprint", fingerprint[:-1], "--reason", "x", "--yes", code=2
    )

    # Nothing happens by accident: a reason, a filter and consent are wanted.
    assert "--reason" in desk.ask("dead", "discard", "--all", "--yes", code=2)
    assert "a filter, or --all" in desk.ask("dead", "discard", "--reason", "x", "--yes", code=2)
    assert "--yes" in desk.ask("dead", "discard", "--reason", "x", "--all", code=2)
    assert len(desk.ask("dead", "list")["dead"]) == 2

    gone = desk.ask("dead", "discard", "--order", "order-1", "--reason", "a test order", "--yes")
    assert (gone["found"], gone["changed"]) == (1, 1)
    assert [one["event_id"] for one in desk.ask("dead", "list", "--discarded")["dead"]] == ["evt_1"]
    back = desk.ask("dead", "discard", "--undo", "--event", "evt_1", "--reason", "it was real", "--yes")
    assert back["changed"] == 1
    again = desk.ask("dead", "redrive", "--fingerprint", fingerprint, "--reason", "repaired", "--yes")
    assert again["changed"] == 2
    assert desk.ask("dead", "list")["dead"] == []
    runs = desk.ask("events", "show", "evt_1")["runs"]
    assert [(run["status"], run["attempts"]) for run in runs] == [("retrying", 0)]


# case: H7, R12
async def test_the_runs_of_a_handler_that_is_gone(desk: Desk, sqlite_ledger: Database) -> None:
    """Two are dead; one is redriven, and then the deploy is rolled back to one without the handler."""
    await asyncio.to_thread(desk.ask, "dead", "redrive", "--order", "order-1", "--reason", "repaired", "--yes")
    async with sqlite_ledger.transaction() as session:
        old = declared(still_there)
        assert old is not None
        await handlers.register(session, [old], datetime.now(UTC))
        rows = HandlerRow.__table__
        ago = datetime.now(UTC) - timedelta(minutes=10)
        await session.execute(update(rows).where(rows.c.name == "test:picky").values(last_seen_at=ago))
        await session.execute(update(RunRow).where(RunRow.__table__.c.next_at.is_not(None)).values(next_at=ago))
    await asyncio.to_thread(_gone, desk)


# case: R12, F33
async def test_one_that_waits_is_given_up_by_its_event_and_its_handler(desk: Desk) -> None:
    """An order that is given back while its handler is still trying."""
    await asyncio.to_thread(_given_up_while_it_waits, desk)


def _given_up_while_it_waits(desk: Desk) -> None:
    desk.ask("dead", "redrive", "--order", "order-1", "--reason", "repaired", "--yes")
    for others in (("--event", "evt_1"), ("--handler", "test:picky", "--order", "order-1")):
        assert desk.ask("dead", "discard", *others, "--reason", "x", "--yes")["found"] == 0, "it is not dead"
    named = ("--event", "evt_1", "--handler", "test:picky", "--reason", "given back", "--yes")
    assert desk.ask("dead", "discard", *named)["changed"] == 1
    assert [run["status"] for run in desk.ask("events", "show", "evt_1")["runs"]] == ["skipped"]
    assert desk.ask("dead", "discard", "--undo", *named)["changed"] == 1
    assert [run["status"] for run in desk.ask("events", "show", "evt_1")["runs"]] == ["parked"]


@handles("order.paid", name="test:still-there")
async def still_there(event: Event, ctx: Context) -> None:
    return None


def how_it_stands(desk: Desk) -> dict[str, Any]:
    """What `status` says, whatever its exit code is."""
    found: dict[str, Any] = json.loads(desk.call("status", "--json").stdout)
    return found


def _gone(desk: Desk) -> None:
    status = how_it_stands(desk)
    assert (status["status"], status["gone_handlers"]) == ("degraded", {"test:picky": 1})
    assert {one["code"] for one in status["findings"]} >= {"handlers_gone", "dead_runs"}

    # Waiting ones are given up by the name of their handler only, and like everything else, with consent.
    assert "--yes" in desk.ask("dead", "discard", "--handler", "test:picky", "--reason", "x", code=2)
    assert desk.ask("dead", "discard", "--order", "order-1", "--reason", "x", "--yes")["found"] == 0
    gone = desk.ask("dead", "discard", "--handler", "test:picky", "--reason", "rolled back", "--yes")
    assert (gone["found"], gone["changed"]) == (2, 2)
    assert sorted((one["event_id"], one["status"]) for one in gone["runs"]) == [
        ("evt_1", "retrying"),
        ("evt_2", "dead"),
    ]
    shown = desk.ask("dead", "list", "--discarded")["dead"]
    assert sorted((one["event_id"], one["status"], one["code"]) for one in shown) == [
        ("evt_1", "discarded", "discarded_waiting"),
        ("evt_2", "discarded", "discarded"),
    ]
    assert how_it_stands(desk)["gone_handlers"] == {}

    back = desk.ask("dead", "discard", "--undo", "--handler", "test:picky", "--reason", "it comes back", "--yes")
    assert back["changed"] == 2
    assert [one["event_id"] for one in desk.ask("dead", "list")["dead"]] == ["evt_2"]
    assert how_it_stands(desk)["gone_handlers"] == {"test:picky": 1}


# case: H9
async def test_pause_and_resume(desk: Desk) -> None:
    await asyncio.to_thread(_pause_and_resume, desk)


def _pause_and_resume(desk: Desk) -> None:
    assert desk.ask("handlers", "pause", "test:picky", "--reason", "looking")["state"] == "paused"
    assert desk.ask("handlers", "resume", "test:picky", "--reason", "looked")["state"] == "running"
    assert "no such handler" in desk.ask("handlers", "pause", "test:nobody", "--reason", "x", code=1)
