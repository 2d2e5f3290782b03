"""A dry run foretells what the walk does, counts each event once, and stores nothing."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import select

from consumer.ledger.tables import BookmarkRow
from consumer.sync.api import ApplicationApi
from consumer.sync.backfill.report import BackfillOptions, BackfillReport
from tests.sync.backfilling import backfill
from tests.sync.conftest import Simulated, SteppedClock, World, counted_by, pass_time, simulated

DRY = BackfillOptions(dry_run=True)


@pytest.fixture
def world(world: World, service_side: Simulated) -> World:
    world.api = service_side.api
    return world


def told(report: BackfillReport) -> tuple[int, ...]:
    return (report.pages, report.listed, report.known, report.published, report.recovered, report.history)


async def stored(world: World) -> dict[str, bytes]:
    async with world.database.reading() as session:
        return {row.walk: row.state for row in await session.scalars(select(BookmarkRow))}


@pytest.mark.parametrize("order", ["newest_first", "oldest_first"])
async def test_it_says_what_the_walk_then_does_history_and_bookmark_included(
    world: World, clock: SteppedClock, order: str
) -> None:
    # case: B30, B31
    async with simulated(clock, events_order=order) as service_side:
        world.api = service_side.api
        service_side.emit(1200)
        pass_time(world, service_side, hours=5)
        tried = await backfill(world).once(DRY)
        assert (tried.published, tried.history >= 100, await stored(world)) == (0, True, {})
        assert counted_by(world.metrics, "events_history", "default") == 0, "nothing was left alone yet"
        assert told(await backfill(world).once()) == told(tried)
        service_side.emit(130)
        pass_time(world, service_side, seconds=70)
        before = await stored(world)
        tried = await backfill(world, token=2).once(DRY)
        assert (tried.published, tried.pages < 6, await stored(world)) == (130, True, before)
        assert await world.published() == []
        assert told(await backfill(world, token=2).once()) == told(tried)
        assert len(await world.published()) == 130


async def test_the_whole_list_is_looked_at_when_it_is_asked_for(world: World, service_side: Simulated) -> None:
    # case: B31
    service_side.emit(1200)
    pass_time(world, service_side, hours=5)
    await backfill(world).once()
    tried = await backfill(world).once(BackfillOptions(full=True, dry_run=True))
    assert (tried.listed, tried.published, tried.history) == (1200, 1200, 0)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (BackfillOptions(full=True, dry_run=True), "published"),
        (BackfillOptions(full=True), "published"),
        (DRY, "history"),
        (BackfillOptions(), "history"),
        (BackfillOptions(seed=True, dry_run=True), "published"),
    ],
    ids=["full dry run", "full", "dry run", "walk", "seed dry run"],
)
async def test_an_event_on_two_pages_is_counted_once(
    world: World, api: ApplicationApi, options: BackfillOptions, word: str
) -> None:
    # case: B11, B30, B31
    world.api = api
    began = world.clock.now() - timedelta(hours=9)
    items = [
        {**world.service.event(number), "created_at": (began + timedelta(seconds=number)).isoformat()}
        for number in range(1200)
    ]
    refused: list[str] = []

    def page(cursor: str | None, limit: int) -> dict[str, object] | int:
        if cursor == "700" and not refused:
            refused.append(cursor)
            return 400
        start = int(cursor or 0)
        return {"items": items[start : start + limit], "next_cursor": str(start + limit) if start < 1100 else None}

    world.service.lists["/v1/events"] = page
    report = await backfill(world).once(options)
    assert (refused, report.refused) == (["700"], 1)
    counted = {name: getattr(report, name) for name in ("published", "history")}
    assert counted == {"published": 0, "history": 0} | {word: 1200}
