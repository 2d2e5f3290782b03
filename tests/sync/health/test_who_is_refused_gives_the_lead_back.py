"""GivingWay: a leader that is refused lets another lead, if there is one; and neither takes the lead from the other for
nothing."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from consumer.errors import LedgerUnavailable
from consumer.ledger import Database, processes
from consumer.ledger.engine.database_time import shared_time
from consumer.ledger.processes import DIED, READS, Pulse
from consumer.sync.health import giving_way
from consumer.sync.health.giving_way import PATIENCE_MAX_S, PATIENCE_S, GivingWay
from tests.support.ports import eventually
from tests.sync.conftest import World


async def living(
    world: World, process: str, *, reads: str = "default", ready: bool = True, ago_s: float = 0, died: bool = False
) -> None:
    """This `sync` told then that it lives."""
    async with world.database.transaction() as session:
        now = await shared_time(session) - timedelta(seconds=ago_s)
        said = {READS: reads} | ({DIED: "of something"} if died else {})
        pulse = Pulse(
            process=process,
            role="sync",
            host="h",
            pid=1,
            version="1",
            started_at=now,
            ready=ready,
            since=now,
            said=said,
        )
        await processes.beat(session, [pulse], now)


@pytest.fixture
def mine(world: World) -> GivingWay:
    return GivingWay(world.app, holder="mine")


async def refused(world: World) -> None:
    await world.app.client.circuit.refused(0)


async def leads(mine: GivingWay, world: World, for_s: float) -> float | None:
    """Seconds after which it gives way; None if it does not in `for_s`."""
    ending, began_s = asyncio.Event(), world.clock.monotonic()

    async def stopped() -> None:
        while not ending.is_set() and world.clock.monotonic() - began_s < for_s:  # noqa: ASYNC110 - the clock tells
            await asyncio.sleep(0)
        ending.set()

    async with asyncio.timeout(20):
        stopping = asyncio.create_task(stopped())
        gave_way = await mine.run(ending)
        await stopping
    return world.clock.monotonic() - began_s if gave_way else None


async def test_after_a_minute_where_another_lives(mine: GivingWay, world: World) -> None:
    # case: S3, B26
    await living(world, "mine")
    await living(world, "other", reads="shop default")
    assert await leads(mine, world, 300) is None, "nobody is refused"
    assert not mine.has_given_way
    await refused(world)
    after_s = await leads(mine, world, 300)
    assert after_s is not None
    assert PATIENCE_S <= after_s <= PATIENCE_S + giving_way.LOOK_EVERY_S
    assert mine.has_given_way


@pytest.mark.parametrize(
    "told",
    [{"process": "mine"}, {"reads": "shop"}, {"ready": False}, {"ago_s": 60.0}, {"died": True}],
    ids=["itself", "reads another", "not ready", "long ago", "died"],
)
async def test_not_where_none_could_do_better(mine: GivingWay, world: World, told: dict[str, object]) -> None:
    # case: S5, B26
    await living(world, **({"process": "other"} | told))  # type: ignore[arg-type]  # as `told` names them
    await refused(world)
    assert await leads(mine, world, 300) is None


async def test_not_while_the_ledger_is_away(mine: GivingWay, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # case: B26
    await refused(world)

    def gone(_: Database) -> None:
        raise LedgerUnavailable(reason="gone")

    monkeypatch.setattr(Database, "reading", gone)
    assert await leads(mine, world, 300) is None


async def test_where_both_are_refused_the_turns_grow_and_end_at_ten_minutes(mine: GivingWay, world: World) -> None:
    # case: S5, B26
    await living(world, "other")
    await refused(world)
    turns = []
    for _ in range(6):
        await living(world, "other")
        after_s = await leads(mine, world, 2000)
        assert after_s is not None
        turns.append(after_s)
        world.clock.advance(after_s)  # the other's turn
    assert turns == sorted(turns)
    assert turns[-1] <= PATIENCE_MAX_S + giving_way.LOOK_EVERY_S
    world.clock.advance(6 * 3600)  # the other was well, and is restarted
    await living(world, "other")
    again_s = await leads(mine, world, 2000)
    assert again_s is not None
    assert again_s <= PATIENCE_S + giving_way.LOOK_EVERY_S


async def test_who_is_accepted_again_keeps_the_lead(mine: GivingWay, world: World) -> None:
    # case: S6, B26
    await living(world, "other")
    await refused(world)
    assert await leads(mine, world, PATIENCE_S - 20) is None
    await world.app.client.circuit.accepted()
    assert await leads(mine, world, 300) is None


async def test_who_gave_way_hears_by_itself_that_it_is_accepted(mine: GivingWay, world: World) -> None:
    """It makes no other call: `status` and the alert went on until it was restarted."""
    # case: S6, B26
    await living(world, "other")
    await refused(world)
    assert await leads(mine, world, 300) is not None
    stop = asyncio.Event()
    asking = asyncio.create_task(mine.ask_again(stop))
    await eventually(lambda: not mine.has_given_way)
    stop.set()
    await asking


async def test_who_was_accepted_meanwhile_is_as_patient_as_at_first(mine: GivingWay, world: World) -> None:
    # case: S6, B26
    await living(world, "other")
    await refused(world)
    for _ in range(3):
        await living(world, "other")
        assert await leads(mine, world, 2000) is not None
    await world.app.client.circuit.accepted()
    assert await leads(mine, world, 3600) is None
    await refused(world)
    await living(world, "other")
    after_s = await leads(mine, world, 2000)
    assert after_s is not None
    assert after_s <= PATIENCE_S + giving_way.LOOK_EVERY_S
