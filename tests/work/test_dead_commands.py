"""`consumer dead …` and `consumer handlers …` as an operator calls them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from consumer.broker import Broker
from consumer.ledger import Database
from consumer.plugin import Context, Event, handles
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


# case: H9
async def test_pause_and_resume(desk: Desk) -> None:
    await asyncio.to_thread(_pause_and_resume, desk)


def _pause_and_resume(desk: Desk) -> None:
    assert desk.ask("handlers", "pause", "test:picky", "--reason", "looking")["state"] == "paused"
    assert desk.ask("handlers", "resume", "test:picky", "--reason", "looked")["state"] == "running"
    assert "no such handler" in desk.ask("handlers", "pause", "test:nobody", "--reason", "x", code=1)
