"""Versions of reads only go up; a later observation is never overwritten by an older one (case A40)."""

from __future__ import annotations

import asyncio
import random

from sqlalchemy import text

from consumer.ledger import Database
from consumer.ledger.engine.database_time import shared_time
from consumer.ledger.reading import observations, read_requests
from consumer.ledger.reading.observations import Observed
from tests.contract.ledger.facts import later, persistently
from tests.support.ports import eventually


def seen(version: int, object_id: str = "o1", *, kind: str = "order", application: str = "default") -> Observed:
    return Observed(
        application=application,
        kind=kind,
        object_id=object_id,
        version=version,
        digest=f"{version:064d}",
        read_at=later(version),
        state=f"PAID {version}",
        shape="f" * 16,
    )


async def keep(database: Database, *observed: Observed) -> None:
    await persistently(database, lambda session: observations.keep(session, observed))


async def version_of(database: Database, object_id: str = "o1") -> int:
    async with database.reading() as session:
        return (await observations.last(session, "default", "order", [object_id]))[object_id].version


async def test_versions_count_up_from_the_databases_time(database: Database) -> None:
    found = []
    async with database.transaction() as session:
        began = (await shared_time(session)).timestamp() * 1_000_000
    for count in (1, 1, 5, 1):
        async with database.transaction() as session:
            found.append(await read_requests.next_version(session, count))
    first, second, third, fourth = found
    assert began <= first < second < third
    assert fourth >= third + 5, "five were taken at once"


# case: A40
async def test_a_restored_ledger_gives_no_version_again(database: Database) -> None:
    async with database.transaction() as session:
        before = await read_requests.next_version(session)
        given = await read_requests.next_version(session, 100)
        await session.execute(text("UPDATE sequences SET value = :value"), {"value": before})

    async def is_newer() -> bool:
        async with database.transaction() as session:
            return await read_requests.next_version(session) > given + 99

    await eventually(is_newer)  # the clock has moved on: a tenth of a millisecond


# case: A40
async def test_versions_are_never_given_twice(database: Database, other: Database) -> None:
    taken: list[tuple[int, int]] = []

    async def taker(ledger: Database, chance: random.Random) -> None:
        own = 0
        for _ in range(15):
            count = chance.randint(1, 4)
            first = await persistently(ledger, lambda session, some=count: read_requests.next_version(session, some))  # type: ignore[misc]  # binds this round's count
            assert first > own, "each taker sees them go up"
            own = first
            taken.append((first, count))

    await asyncio.gather(*(taker((database, other)[number % 2], random.Random(number)) for number in range(6)))
    numbers = sorted(number for first, count in taken for number in range(first, first + count))
    assert len(set(numbers)) == len(numbers), "disjoint"


# case: A40
async def test_an_older_observation_does_not_overwrite_a_newer_one(database: Database) -> None:
    await keep(database, seen(5))
    await keep(database, seen(4))
    await keep(database, seen(5, "o2"), seen(3, "o2"), seen(7, "o2"), seen(6, "o2"))
    assert (await version_of(database), await version_of(database, "o2")) == (5, 7)
    await keep(database, seen(6))
    async with database.reading() as session:
        assert await observations.last(session, "default", "order", ["o1", "o3"]) == {"o1": seen(6)}
        found = await observations.last(session, "default", "order", ["o1", "o2", "o3"])
        assert {name: one.digest for name, one in found.items()} == {"o1": seen(6).digest, "o2": seen(7).digest}


# case: A40
async def test_the_newest_wins_however_many_write_at_once(database: Database, other: Database) -> None:
    versions = list(range(1, 41))

    async def writer(ledger: Database, mine: list[int]) -> None:
        for version in mine:
            await keep(ledger, seen(version), seen(41 - version, "o2"))

    random.Random(1).shuffle(versions)
    await asyncio.gather(*(writer((database, other)[number % 2], versions[number::4]) for number in range(4)))
    assert (await version_of(database), await version_of(database, "o2")) == (40, 40)


# case: G8
async def test_kinds_and_applications_are_apart(database: Database) -> None:
    await keep(database, seen(1), seen(9, kind="subscription"), seen(9, application="second"))
    assert await version_of(database) == 1


async def test_nothing_is_fine(database: Database) -> None:
    await keep(database)
    async with database.reading() as session:
        assert await observations.last(session, "default", "order", []) == {}
