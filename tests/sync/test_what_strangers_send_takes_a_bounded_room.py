"""Hints and quarantine: bytes are bounded per application, strangers' are packed, and the oldest make room."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import orjson
import pytest
from sqlalchemy import text
from sqlalchemy.dialects import sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.columns import PACKED, PackedBytes, unpacked, unpacked_within
from consumer.console.find import find
from consumer.console.mentions import by_waiting
from consumer.events import Delivery
from consumer.ledger import Database
from consumer.ledger.reading import hints, quarantine, room, samples
from consumer.ledger.size import size_bytes
from consumer.reason import Reason
from consumer.sync.confirm.hints import HintConsumer
from tests.sync.conftest import DELIVERIES, World, counted_by, delivery

KIB = 1024


def intake(world: World, max_bytes: int) -> HintConsumer:
    return HintConsumer(
        world.broker, world.database, topic=DELIVERIES, applications={"default", "club"}, clock=world.clock,
        metrics=world.metrics, max_bytes=max_bytes, batch=50,
    )  # fmt: skip


async def taken_in(world: World, max_bytes: int) -> None:
    stage = intake(world, max_bytes)
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
        each = room.size_of(junk(1, Reason.NOT_JSON)[0])
        assert (await quarantine.unproved_bytes(session))["default"] == 50 * each
        assert await quarantine.prune(session, "default", 20 * each) == (20, 20 * each)
        assert (await quarantine.unproved_bytes(session))["default"] == 30 * each
        rows = await quarantine.newest(session, limit=100)
    assert {row.delivery_id for row in rows} == {"dlv_1", "dlv_2", *(f"dlv_{n}" for n in range(30, 60))}


def stuffed(number: int, raw: bytes = b"", problem: Reason | None = None) -> Delivery:
    """A small body with headers as large as are kept, of characters that take several bytes each."""
    found = delivery(raw or b'{"id":"evt_%d"}' % number, number, event_id=f"evt_{number}", problem=problem)
    headers = {f"webhook-x-{n}": "\ufffd" * 40 for n in range(12)}
    return Delivery(**{**vars(found), "headers": headers})


async def measured(session: AsyncSession) -> int:
    """Bytes of hints and quarantine on the disk, indexes included."""
    if session.get_bind().dialect.name == "sqlite":
        return await size_bytes(session)
    asked = "SELECT pg_total_relation_size('hints') + pg_total_relation_size('quarantine')"
    return int((await session.execute(text(asked))).scalar_one())


@pytest.mark.parametrize("kind", ["stuffed", "tiny"])
async def test_what_strangers_sent_is_counted_as_what_it_takes(database: Database, kind: str) -> None:
    # case: I22
    def one(number: int) -> Delivery:
        raw = b'{"id":"evt_%d"}' % number
        return stuffed(number, raw) if kind == "stuffed" else delivery(raw, number, event_id=f"evt_{number}")

    given = [one(number) for number in range(2000)]
    now = given[0].received_at
    async with database.transaction() as session:
        before = await measured(session)
        await hints.keep(session, given, now)
        await quarantine.put(session, [(found, Reason.FLOODED) for found in given], now)
    async with database.reading() as session:
        taken = await measured(session) - before
        waiting = (await hints.held(session))["default"]
        lying = (await quarantine.unproved_bytes(session))["default"]
    assert waiting == (2000, lying)
    assert lying == sum(map(room.size_of, given))
    assert taken <= 1.2 * (waiting[1] + lying)


async def test_headers_of_hints_take_up_their_room(world: World, database: Database) -> None:
    # case: I22
    world = replace(world, database=database)
    await world.deliver(*[stuffed(number) for number in range(200)])
    await taken_in(world, max_bytes=100 * KIB)
    async with world.database.reading() as session:
        rows = await samples.waiting(session, "default", 1000)
    assert rows
    assert sum(len(row.body) + len(row.headers.encode()) for row in rows) <= 100 * KIB


async def test_more_than_one_step_removes_is_pruned_in_one_round(
    world: World, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case: I22
    monkeypatch.setattr(quarantine, "PRUNED_AT_ONCE", 30)
    assert await after_a_round(replace(world, database=database), 100 * KIB) <= 100 * KIB


async def test_a_round_of_pruning_ends_in_time_and_the_next_one_begins_at_once(
    world: World, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case: I22
    monkeypatch.setattr(quarantine, "PRUNED_AT_ONCE", 30)
    monkeypatch.setattr("consumer.sync.confirm.quarantine_pruning.PRUNE_FOR_S", 0.0)
    each = room.size_of(stuffed(100))
    left = await after_a_round(replace(world, database=database), 100 * KIB)
    assert left == 371 * each - 30 * each
    assert await after_a_round(replace(world, database=database), 100 * KIB, rounds=20) <= 100 * KIB


async def after_a_round(world: World, max_bytes: int, rounds: int = 1) -> int:
    """What strangers' deliveries take after one more came; more `rounds` pass without any."""
    junk = [(stuffed(100 + number, problem=Reason.NOT_JSON), Reason.NOT_JSON) for number in range(370)]
    async with world.database.transaction() as session:
        await quarantine.put(session, junk, world.clock.now())
    await world.deliver(stuffed(999, problem=Reason.NOT_JSON))
    stage = intake(world, max_bytes)
    try:
        while not await stage.once():
            pass
        for _ in range(rounds - 1):
            await stage.once(timeout_s=0.01)
    finally:
        await stage.close()
    async with world.database.reading() as session:
        return (await quarantine.unproved_bytes(session))["default"]


@pytest.mark.parametrize("raw", [b"", b"short", b"x" * 100_000, PACKED, PACKED + b"x" * 9, os.urandom(5000)])
async def test_packed_bytes_come_back_as_they_were(database: Database, raw: bytes) -> None:
    # case: I10
    one = delivery(raw, 1, problem=Reason.NOT_JSON)
    async with database.transaction() as session:
        await quarantine.put(session, [(one, Reason.NOT_JSON)], one.received_at)
        [kept] = await quarantine.newest(session)
        row = await quarantine.get(session, kept.id)
        stored = (await session.execute(text("SELECT length(raw) FROM quarantine"))).scalar_one()
    assert row is not None
    assert (row.raw, kept.size) == (raw, stored)
    assert stored <= len(raw) + len(PACKED) + 20
    assert len(raw) < 50_000 or stored < 1000


def test_what_was_stored_unpacked_is_read_as_it_is() -> None:
    assert unpacked(b"{}") == b"{}"


@pytest.mark.parametrize("raw", [b"", b"short", b"x" * 1000, PACKED + b"x" * 993, os.urandom(1000)])
def test_no_more_is_unpacked_than_is_wanted(raw: bytes) -> None:
    stored = PackedBytes().process_bind_param(raw, sqlite.dialect())
    assert stored is not None
    assert unpacked_within(stored, len(raw)) == raw
    assert len(raw) == 0 or unpacked_within(stored, len(raw) - 1) is None


# case: I10, I22, F24
async def test_whoever_looks_at_what_strangers_sent_has_no_megabytes_of_zeros_in_memory(database: Database) -> None:
    """Each is a thousand bytes on the wire, in the log and in the ledger."""
    zeros = orjson.dumps({"id": "evt_x", "pad": "0" * (1024 * KIB)})
    forged = [delivery(zeros, number, event_id=f"evt_{number}") for number in range(40)]
    now = forged[0].received_at
    async with database.transaction() as session:
        await hints.keep(session, forged, now)
        await quarantine.put(session, [(one, Reason.FLOODED) for one in forged], now)
    small = [delivery(b'{"id":"evt_%d"}' % number, 100 + number, event_id=f"evt_{number}") for number in range(40)]
    async with database.reading() as session:
        with traced() as peak:
            assert len(await quarantine.newest(session, limit=1000)) == 40
            assert len(await hints.of_events(session, "default", [str(one.event_id) for one in forged])) == 40
            assert len(await hints.differing(session, small)) == 40
            assert (
                await samples.waiting(session, "default", 100) == await samples.quarantined(session, "default", 9) == []
            )
            assert await by_waiting(session, "evt_x", None) == []
            assert await find(session, "evt_1") != []
    assert peak() < 4 * 1024 * KIB


@contextmanager
def traced() -> Iterator[Callable[[], int]]:
    """Tells how many bytes were taken at most."""
    tracemalloc.start()
    try:
        found = list[int]()
        yield lambda: found[0]
        found.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
