"""What a walk beside the leader heals is the brake and the gap of the time when it began, and nothing newer."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from consumer.sync.backfill import silence
from consumer.sync.reconcile.state import ReconcileState, keep_state, note_beside, take_over
from tests.sync.conftest import World
from tests.sync.reconciling import remembered

AT = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
WALKED = ReconcileState(began=AT, ended=AT, baselined=True, payments_baselined=True)
BRAKED = replace(WALKED, braked=True)


async def stands(world: World, state: ReconcileState, gap_at: datetime | None = None) -> None:
    """The leader's last walk, and a gap that was found then."""
    async with world.database.transaction() as session:
        await keep_state(session, "default", state, token=1, now=AT)
        if gap_at is not None:
            await silence.note_gap(session, "default", at=gap_at, token=1)


async def healed(world: World) -> None:
    """A walk beside the leader, which began now, goes through."""
    before = await remembered(world)
    async with world.database.transaction() as session:
        await note_beside(session, "default", before, AT + HOUR)


async def taken_over(world: World) -> tuple[bool, datetime | None]:
    """Whether it is braked and where its gap is, as the leader takes it over, and as it is kept."""
    async with world.database.transaction() as session:
        state = await take_over(session, "default", token=1, now=AT + 2 * HOUR)
    kept = await remembered(world)
    assert (state.braked, state.gap_at, state.is_healed_in_part) == (kept.braked, kept.gap_at, kept.is_healed_in_part)
    return state.braked, state.gap_at


# case: B31
@pytest.mark.parametrize("state", [WALKED, BRAKED, ReconcileState()])
@pytest.mark.parametrize("gap_at", [None, AT + HOUR])
async def test_where_nobody_walked_beside_all_stands_as_it_was(
    world: World, state: ReconcileState, gap_at: datetime | None
) -> None:
    await stands(world, state, gap_at)
    assert await taken_over(world) == (state.braked, gap_at)


# case: B31
@pytest.mark.parametrize("state", [WALKED, BRAKED, ReconcileState()])
@pytest.mark.parametrize("gap_at", [None, AT + HOUR])
async def test_what_stood_when_it_began_is_healed(world: World, state: ReconcileState, gap_at: datetime | None) -> None:
    await stands(world, state, gap_at)
    await healed(world)
    assert await taken_over(world) == (False, None)
    assert await taken_over(world) == (False, None)


# case: B31
async def test_a_newer_brake_and_a_newer_gap_stay(world: World) -> None:
    await stands(world, BRAKED, AT + HOUR)
    await healed(world)
    async with world.database.transaction() as session:
        await silence.note_reconciled(session, "default", began=AT + HOUR, token=1)
        await silence.note_gap(session, "default", at=AT + 3 * HOUR, token=1)
    await stands(world, replace(BRAKED, began=AT + 2 * HOUR))
    assert await taken_over(world) == (True, AT + 3 * HOUR)


# case: B31
@pytest.mark.parametrize(
    ("state", "gap_at", "then"),
    [
        (WALKED, AT, None),
        (WALKED, AT - HOUR, None),
        (WALKED, AT + HOUR, AT + HOUR),
        (BRAKED, AT - HOUR, AT - HOUR),
        (ReconcileState(), AT - HOUR, AT - HOUR),
    ],
)
async def test_a_gap_that_a_walk_of_ours_had_closed_is_closed_again(
    world: World, state: ReconcileState, gap_at: datetime, then: datetime | None
) -> None:
    await stands(world, state, gap_at)
    assert (await taken_over(world))[1] == then
