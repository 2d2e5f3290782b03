"""Events: recorded once per (application, id), whoever records them, however often, in whatever batches."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.events import Event
from consumer.ledger import Database
from consumer.ledger.handling import events
from consumer.ledger.handling.events import EventKey
from consumer.ledger.tables import EventRow
from tests.contract.ledger.facts import NOW, event, later, persistently, undone


async def recorded(database: Database, batch: Sequence[Event]) -> Mapping[EventKey, int]:
    async def work(session: AsyncSession) -> Mapping[EventKey, int]:
        return await events.record(session, batch, NOW)

    return await persistently(database, work)


async def stored(database: Database) -> int:
    async with database.reading() as session:
        return int(await session.scalar(select(func.count()).select_from(EventRow.__table__)) or 0)


# case: G2, F2
async def test_a_second_recording_changes_nothing(database: Database) -> None:
    first = await recorded(database, [event(1, raw=b"first")])
    again = await recorded(database, [event(1, raw=b"second"), event(2)])
    assert set(first) == {("default", "evt_1")}
    assert set(again) == {("default", "evt_2")}
    async with database.reading() as session:
        assert (await events.load(session, [("default", "evt_1")]))["default", "evt_1"].raw == b"first"


# case: G2
async def test_the_same_id_twice_in_one_batch_is_one_event(database: Database) -> None:
    new = await recorded(database, [event(1), event(1), event(2), event(1)])
    assert set(new) == {("default", "evt_1"), ("default", "evt_2")}
    assert await stored(database) == 2


# case: G8, F25, U20
async def test_the_same_id_in_two_applications_is_two_events(database: Database) -> None:
    new = await recorded(database, [event(1), event(1, application="second")])
    assert set(new) == {("default", "evt_1"), ("second", "evt_1")}
    async with database.reading() as session:
        assert await events.known(session, [("third", "evt_1"), ("second", "evt_1")]) == {("second", "evt_1")}


# case: G2, F3
async def test_concurrent_recorders_of_the_same_events_record_each_once(database: Database, other: Database) -> None:
    everything = [event(number) for number in range(60)]

    async def recorder(ledger: Database, seed: int) -> list[EventKey]:
        shuffled = random.Random(seed).sample(everything, len(everything))
        return [key for start in range(0, 60, 20) for key in await recorded(ledger, shuffled[start : start + 20])]

    found = await asyncio.gather(*(recorder((database, other)[seed % 2], seed) for seed in range(6)))
    told_new = Counter(key for keys in found for key in keys)
    assert told_new == {(one.application, one.id): 1 for one in everything}
    assert await stored(database) == 60


# case: G2
async def test_overlapping_batches_report_each_event_as_new_once(database: Database, other: Database) -> None:
    everything = [event(number) for number in range(100)]
    batches = [everything[start : start + 40] for start in range(0, 80, 10)]
    found = await asyncio.gather(
        *(recorded((database, other)[number % 2], batch) for number, batch in enumerate(batches))
    )
    assert Counter(key for new in found for key in new) == {
        (one.application, one.id): 1 for batch in batches for one in batch
    }


async def test_an_event_whose_transaction_was_undone_is_new_again(database: Database) -> None:
    await undone(database, lambda session: events.record(session, [event(1)], NOW))
    assert set(await recorded(database, [event(1)])) == {("default", "evt_1")}


@pytest.mark.parametrize("count", [2, 500, 2_500])
async def test_seq_is_the_order_of_arrival_within_a_batch(database: Database, count: int) -> None:
    """Also for more rows than one statement takes (16 columns each, 32,766 parameters on SQLite)."""
    ids = random.Random(count).sample(range(count), count)
    await recorded(database, [event(ids[count // 2])])
    batch = [event(number) for number in ids]
    new = await recorded(database, batch)
    assert len(new) == count - 1
    in_order = [new[one.application, one.id] for one in batch if (one.application, one.id) in new]
    assert in_order == sorted(in_order)
    assert len(set(in_order)) == count - 1
    async with database.reading() as session:
        by_seq = await session.scalars(select(EventRow.__table__.c.id).order_by(EventRow.__table__.c.seq))
    assert list(by_seq)[1:] == [one.id for one in batch if (one.application, one.id) in new]


async def test_seq_goes_up_from_batch_to_batch(database: Database, other: Database) -> None:
    highest = 0
    for number in range(6):
        new = await recorded((database, other)[number % 2], [event(f"{number}_{one}") for one in range(3)])
        assert min(new.values()) > highest
        highest = max(new.values())


async def test_an_event_comes_back_as_it_went_in(database: Database) -> None:
    given = Event(
        application="a" * 64,
        id="evt_" + "x" * 251,
        type="order.paid",
        key="order:" + "ö" * 255,
        trust=event(1).trust,
        source=event(1).source,
        raw=b"\x00\xff not text \xf0\x9f\x92\xb6",
        received_at=later(0.000001),
        delivery_id="d" * 100,
        object_id="物" * 255,
        order_id="Größe 1/2 & \N{PILE OF POO}" * 10,
        subscription_id="s" * 255,
        customer="Zoë",
        occurred_at=later(-0.000001),
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    )
    await recorded(database, [given])
    async with database.reading() as session:
        assert await events.load(session, [(given.application, given.id)]) == {(given.application, given.id): given}


async def test_asking_for_nothing_and_recording_nothing_is_fine(database: Database) -> None:
    async with database.transaction() as session:
        assert await events.record(session, [], NOW) == {}
        assert await events.known(session, []) == frozenset()
        assert await events.load(session, []) == {}
