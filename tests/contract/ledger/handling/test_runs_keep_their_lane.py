"""Runs of one lane (application, handler, key) go one after the other; lanes do not hold each other up."""

from __future__ import annotations

import asyncio

import pytest

from consumer.ledger import Database
from consumer.ledger.handling import lanes, runs
from consumer.ledger.tables import RunStatus
from tests.contract.ledger.facts import (
    HANDLER,
    NOW,
    claim,
    end,
    finish,
    lane,
    later,
    persistently,
    row,
    run,
    statuses,
    store,
)
from tests.support.ledger.parked import release_stranded


async def blocked(database: Database, *keys: tuple[str, str]) -> set[tuple[str, str, str]]:
    async with database.reading() as session:
        return await lanes.blocked(session, set(keys))


async def test_only_the_lane_of_an_unresolved_run_is_blocked(database: Database) -> None:
    await store(
        database,
        run(1, key="order:a"),
        run(2, key="order:b", status=RunStatus.SUCCEEDED, blocking=False),
        run(3, key="order:c", status=RunStatus.DEAD),
        run(4, key="order:d", status=RunStatus.DEAD, blocking=False),
        run(5, key="order:e", status=RunStatus.PARKED),
        run(6, key="order:a", application="second", status=RunStatus.SKIPPED, blocking=False),
    )
    every = [("default", f"order:{letter}") for letter in "abcde"] + [("second", "order:a")]
    assert await blocked(database, *every) == {("default", HANDLER, f"order:{letter}") for letter in "ace"}
    assert await blocked(database, ("second", "order:a"), ("default", "order:b")) == set()
    assert await blocked(database) == set()


# case: H1
async def test_a_run_that_is_there_is_left_as_it_is(database: Database) -> None:
    await store(database, run(1, status=RunStatus.SUCCEEDED, blocking=False))
    await store(database, run(1), run(1, handler="shop:mail"), run(1, application="second"))
    assert (await row(database, 1)).status == "succeeded"
    assert (await row(database, 1, "shop:mail")).status == "retrying"


async def test_only_the_head_of_a_lane_is_claimed(database: Database) -> None:
    await store(database, run(1), run(2), run(3), run(4, key="order:2"), run(5, key="order:2"))
    assert [one.event_id for one in await claim(database)] == ["evt_1", "evt_4"]


async def test_a_claimed_head_still_holds_its_lane(database: Database) -> None:
    await store(database, run(1), run(2))
    await claim(database)
    assert await claim(database, "two") == []


async def test_the_lane_of_another_application_or_handler_is_another_lane(database: Database) -> None:
    await store(database, run(1), run(2, application="second"), run(3, handler="shop:mail"))
    assert [one.application for one in await claim(database)] == ["default", "second"]
    assert len(await claim(database, handler="shop:mail")) == 1


async def test_a_success_lets_the_next_go_and_only_the_next(database: Database) -> None:
    await store(database, *lane(1, 2, 3))
    await end(database, "one", finish((await claim(database))[0]))
    assert await statuses(database, (1, 2, 3)) == ["succeeded", "retrying", "parked"]
    assert (await row(database, 2)).next_at == later(1)
    assert [one.event_id for one in await claim(database, at_s=1)] == ["evt_2"]


@pytest.mark.parametrize(
    ("status", "blocking", "next_s", "then"),
    [
        (RunStatus.RETRYING, True, 60.0, "parked"),
        (RunStatus.DEAD, True, None, "parked"),
        (RunStatus.DEAD, False, None, "retrying"),
        (RunStatus.SKIPPED, False, None, "retrying"),
    ],
)
async def test_what_a_failure_does_to_the_lane(
    database: Database, status: RunStatus, blocking: bool, next_s: float | None, then: str
) -> None:
    await store(database, *lane(1, 2))
    await end(database, "one", finish((await claim(database))[0], status, blocking=blocking, next_s=next_s))
    assert await statuses(database, (1, 2)) == [status.value, then]


async def test_many_lanes_finish_at_once_and_each_lets_its_own_next_go(database: Database) -> None:
    keys = [f"order:{number}" for number in range(0, 400, 2)]
    await store(
        database, *(one for number, key in enumerate(keys) for one in lane(2 * number, 2 * number + 1, key=key))
    )
    claimed = await claim(database, limit=500)
    assert len(claimed) == 200
    await end(database, "one", *(finish(one) for one in claimed))
    assert [one.seq for one in await claim(database, at_s=1, limit=500)] == list(range(1, 400, 2))


async def test_a_later_run_that_succeeded_does_not_hold_an_earlier_one(database: Database) -> None:
    await store(database, run(2, status=RunStatus.SUCCEEDED, blocking=False), run(1))
    assert [one.event_id for one in await claim(database)] == ["evt_1"]


async def test_a_run_left_parked_behind_nothing_is_released(database: Database) -> None:
    """Two workers met: one parked its run behind a head that the other finished in the same moment."""
    await store(
        database,
        run(1, status=RunStatus.SUCCEEDED, blocking=False),
        run(2, status=RunStatus.PARKED),
        run(3, status=RunStatus.PARKED),
        run(4, key="order:2"),
        run(5, key="order:2", status=RunStatus.PARKED),
    )
    async with database.transaction() as session:
        assert (await lanes.stranded(session)).stranded
        assert await release_stranded(session, later(1)) == 1
        assert not (await lanes.stranded(session)).stranded
        assert await release_stranded(session, later(1)) == 0
    assert await statuses(database, (2, 3, 5)) == ["retrying", "parked", "parked"]


async def test_release_is_bounded(database: Database) -> None:
    await store(database, *(run(number, key=f"order:{number}", status=RunStatus.PARKED) for number in range(7)))
    found = []
    for _ in range(3):
        async with database.transaction() as session:
            found.append(await runs.release(session, await lanes.stranded(session, limit=3), NOW))
    assert found == [3, 3, 1]


@pytest.mark.parametrize("database_url", [pytest.param("postgresql", marks=pytest.mark.postgres)], indirect=True)
async def test_the_meeting_of_two_workers_strands_nothing_for_good(database: Database, other: Database) -> None:
    """Neither sees the other's half before it commits; on SQLite writers cannot meet at all."""
    await store(database, run(1))
    head = (await claim(database))[0]
    async with database.transaction() as intake:
        assert await lanes.blocked(intake, {("default", "order:1")})
        await runs.add(intake, [run(2, status=RunStatus.PARKED)], NOW)
        await end(other, "one", finish(head))
    assert await statuses(database, (1, 2)) == ["succeeded", "parked"]
    async with database.transaction() as session:
        assert (await lanes.stranded(session)).stranded
        assert await release_stranded(session, NOW) == 1
    assert [one.event_id for one in await claim(database)] == ["evt_2"]


async def test_workers_that_work_a_lane_together_keep_its_order(database: Database, other: Database) -> None:
    """Whoever claims, whoever finishes: within each lane runs are claimed in the order of arrival."""
    numbers = list(range(1, 61))
    await store(database, *(one for start in range(1, 61, 10) for one in lane(*numbers[start - 1 : start + 9],
                                                                              key=f"order:{start}")))  # fmt: skip
    worked: list[tuple[str, int]] = []

    async def worker(name: str, ledger: Database) -> None:
        while len(worked) < 60:
            async with asyncio.timeout(30):
                claimed = await persistently(
                    ledger,
                    lambda session: runs.claim(
                        session, handler=HANDLER, worker=name, limit=2, now=later(1), lease_s=1000
                    ),
                )
            worked.extend((one.key, one.seq) for one in claimed)
            await asyncio.sleep(0)
            if claimed:
                await persistently(
                    ledger,
                    lambda session, done=claimed: runs.finish(  # type: ignore[misc]  # binds this round's runs
                        session, [finish(one) for one in done], worker=name, now=later(0.5)
                    ),
                )

    await asyncio.gather(*(worker(f"w{number}", (database, other)[number % 2]) for number in range(4)))
    for start in range(1, 61, 10):
        assert [seq for key, seq in worked if key == f"order:{start}"] == list(range(start, start + 10))
