"""Hints and quarantine: bytes are bounded per application, strangers' are packed, and the oldest make room."""

from __future__ import annotations

import os

import orjson
import pytest
from sqlalchemy import text

from consumer.columns import PACKED, PackedBytes
from consumer.events import Delivery
from consumer.ledger import Database
from consumer.ledger.reading import hints, quarantine
from consumer.reason import Reason
from consumer.sync.confirm.hints import HintConsumer
from tests.sync.conftest import DELIVERIES, World, counted_by, delivery

KIB = 1024


async def taken_in(world: World, max_bytes: int) -> None:
    stage = HintConsumer(
        world.broker, world.database, topic=DELIVERIES, applications={"default", "club"}, clock=world.clock,
        metrics=world.metrics, max_bytes=max_bytes, batch=50,
    )  # fmt: skip
    try:
        while not await stage.once():
            pass
        while await stage.once(timeout_s=0.05):
            world.clock.advance(11)
    finally:
        await stage.close()


def hint(number: int, application: str = "default") -> Delivery:
    raw = orjson.dumps({"id": f"evt_{number}", "type": "order.paid", "pad": os.urandom(2 * KIB).hex()})
    found = delivery(raw, number, event_id=f"evt_{number}")
    return Delivery(**{**vars(found), "id": f"dlv_{application}_{number}", "application": application})


async def test_the_hints_of_one_application_leave_the_others_their_room(world: World) -> None:
    # case: I22, G8
    await world.deliver(*[hint(number) for number in range(100)])
    await world.deliver(*[hint(number, "club") for number in range(5)])
    await taken_in(world, max_bytes=100 * KIB)
    async with world.database.reading() as session:
        held = await hints.held(session)
        rows = await quarantine.newest(session, reason=Reason.FLOODED, limit=1000)
    assert held["default"][1] <= 100 * KIB
    assert held["club"][0] == 5
    assert {row.application for row in rows} == {"default"}
    assert counted_by(world.metrics, "unproved_bytes", "default", "hints") > 0


async def test_the_oldest_that_strangers_sent_make_room_and_the_services_word_stays(database: Database) -> None:
    # case: I10, I22
    def junk(number: int, reason: Reason) -> tuple[Delivery, Reason]:
        return delivery(os.urandom(KIB), number, problem=reason), reason

    now = delivery(b"", 1).received_at
    async with database.transaction() as session:
        kept = [junk(1, Reason.TOO_LARGE), junk(2, Reason.NOT_STORABLE)]
        await quarantine.put(session, [*kept, *(junk(n, Reason.NOT_JSON) for n in range(10, 60))], now)
        assert (await quarantine.unproved_bytes(session))["default"] == 50 * KIB
        assert await quarantine.prune(session, "default", 20 * KIB) == 20
        assert (await quarantine.unproved_bytes(session))["default"] == 30 * KIB
        rows = await quarantine.newest(session, limit=100)
    assert {row.delivery_id for row in rows} == {"dlv_1", "dlv_2", *(f"dlv_{n}" for n in range(30, 60))}


@pytest.mark.parametrize("raw", [b"", b"short", b"x" * 100_000, PACKED, PACKED + b"x" * 9, os.urandom(5000)])
async def test_packed_bytes_come_back_as_they_were(database: Database, raw: bytes) -> None:
    # case: I10
    one = delivery(raw, 1, problem=Reason.NOT_JSON)
    async with database.transaction() as session:
        await quarantine.put(session, [(one, Reason.NOT_JSON)], one.received_at)
        [row] = await quarantine.newest(session)
        stored = (await session.execute(text("SELECT length(raw) FROM quarantine"))).scalar_one()
    assert row.raw == raw
    assert stored <= len(raw) + len(PACKED) + 20
    assert len(raw) < 50_000 or stored < 1000


def test_what_was_stored_unpacked_is_read_as_it_is() -> None:
    from sqlalchemy.dialects import sqlite

    assert PackedBytes().process_result_value(b"{}", sqlite.dialect()) == b"{}"
