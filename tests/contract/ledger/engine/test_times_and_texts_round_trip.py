"""Columns: times to the microsecond, in UTC, never without a zone; texts of any letters, up to their bounds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, StatementError

from consumer.ledger import Database
from consumer.ledger.handling import events, outbox
from consumer.ledger.handling.outbox import Emitted
from consumer.plugin import Emission
from tests.contract.ledger.facts import NOW, event

FAR_EAST = timezone(timedelta(hours=14))
FAR_WEST = timezone(-timedelta(hours=11, minutes=30))


async def kept(database: Database, at: datetime) -> datetime:
    emission = Emission(id="drv_1", type="timer.due", key="order:1", data={}, not_before=at)
    async with database.transaction() as session:
        await outbox.put(session, [Emitted(emission=emission, cause=event(1), handler="shop:project")], NOW)
    async with database.reading() as session:
        [row] = await outbox.due(session, datetime(9998, 1, 1, tzinfo=UTC), 1)
    not_before: datetime = row.not_before
    return not_before


@pytest.mark.parametrize(
    "at",
    [
        datetime(2026, 1, 1, 23, 59, 59, 999999, tzinfo=UTC),
        datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=FAR_EAST),
        datetime(2026, 12, 31, 23, 30, tzinfo=FAR_WEST),
        datetime(2026, 3, 29, 1, 30, tzinfo=UTC),
        datetime.fromtimestamp(0, UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        datetime(9997, 12, 31, tzinfo=UTC),
    ],
)
async def test_a_time_comes_back_as_the_same_moment_in_utc(database: Database, at: datetime) -> None:
    found = await kept(database, at)
    assert found == at
    assert found.utcoffset() == timedelta(0)
    assert found.microsecond == at.microsecond


async def test_moments_are_compared_as_moments_whatever_their_zone(database: Database) -> None:
    before = datetime(2025, 12, 1, tzinfo=UTC)
    emissions = {
        "drv_east": datetime(2026, 1, 2, 1, 0, tzinfo=FAR_EAST),
        "drv_utc": datetime(2026, 1, 1, 11, 0, 0, 1, tzinfo=UTC),
        "drv_west": datetime(2026, 1, 1, 0, 0, tzinfo=FAR_WEST),
    }
    async with database.transaction() as session:
        for name, at in emissions.items():
            emission = Emission(id=name, type="timer.due", key="order:1", data={}, not_before=at)
            await outbox.put(session, [Emitted(emission=emission, cause=event(1), handler="shop:project")], before)
    async with database.reading() as session:
        due = await outbox.due(session, datetime(2026, 1, 1, 13, 0, tzinfo=timezone(timedelta(hours=2))), 10)
    assert [row.event_id for row in due] == ["drv_east"]


async def test_a_time_without_a_zone_is_refused(database: Database) -> None:
    with pytest.raises(StatementError, match="without a zone"):
        await kept(database, datetime(2026, 1, 1))  # noqa: DTZ001 - what must not be stored
    with pytest.raises(StatementError, match="without a zone"):
        async with database.reading() as session:
            await outbox.due(session, datetime(2026, 1, 1), 1)  # noqa: DTZ001 - what must not be asked for


@pytest.mark.parametrize("letters", ["é", "ß", "物", "\N{PILE OF POO}", "\u202e", "'", "\\", '"', "%", "\n", "\x01"])
async def test_ids_of_any_letters_up_to_255_characters(database: Database, letters: str) -> None:
    number = "x" * 50 + letters * 201
    given = event(number, key="order:" + letters * 255)
    assert len(given.id) == 255
    async with database.transaction() as session:
        assert await events.record(session, [given], NOW)
    async with database.reading() as session:
        assert await events.known(session, [("default", given.id), ("default", given.id[:-1])]) == {
            ("default", given.id)
        }
        assert (await events.load(session, [("default", given.id)]))["default", given.id].key == given.key


async def test_ids_that_differ_in_case_accents_or_blanks_are_different(database: Database) -> None:
    names = ["abc", "ABC", "abc ", "ábc", "a\u0301bc", "abc\t"]
    async with database.transaction() as session:
        assert len(await events.record(session, [event(name) for name in names], NOW)) == len(names)


@pytest.mark.parametrize("database_url", [pytest.param("postgresql", marks=pytest.mark.postgres)], indirect=True)
async def test_a_nul_is_refused_by_postgresql_whole(database: Database) -> None:
    """Locators never find an id with a NUL; should one come by another way, nothing of its batch is stored."""
    with pytest.raises(DBAPIError):
        async with database.transaction() as session:
            await events.record(session, [event(1), event("2\0")], NOW)
    async with database.reading() as session:
        assert await session.scalar(text("SELECT count(*) FROM events")) == 0
