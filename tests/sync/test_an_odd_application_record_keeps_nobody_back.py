"""Whatever the service shows of the application itself (its fields are not documented), its events are read."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import delete

from consumer.errors import WrongApplication
from consumer.ledger.tables import BookmarkRow
from consumer.sync.backfill.report import BackfillOptions
from consumer.sync.identity import ID_PLACES
from tests.hostile.texts import ODD_TEXTS
from tests.sync.conftest import World
from tests.sync.test_commands_walk_beside_a_leader import sync

ODD: tuple[Any, ...] = (*ODD_TEXTS, None, True, 2**70, 1e300, -1, [], ["x"], {"id": "a"}, {})


def shown(place: str, odd: Any) -> dict[str, Any]:
    *around, last = place.strip("/").split("/")
    record = {last: odd}
    return {around[0]: record} if around else record


# case: B32, U1
@pytest.mark.parametrize("place", ID_PLACES)
async def test_events_are_read_beside_it_and_it_is_known_again(world: World, place: str) -> None:
    listed = [world.service.event(number, order_id=f"A-{number}") for number in range(3)]
    world.service.lists["/v1/events"] = lambda cursor, limit: {"items": listed, "next_cursor": None}
    for number, odd in enumerate(ODD):
        world.service.records["/v1/application"] = shown(place, odd)
        one = sync(world, f"holder-{number}")
        for _ in range(2):
            report = await one.backfill_once(BackfillOptions(full=True))
            assert (report.listed, report.strange) == (3, 0), odd
        async with world.database.transaction() as session:
            await session.execute(delete(BookmarkRow))


# case: B32, U26
async def test_a_record_that_shows_one_more_id_is_still_the_same_applications(world: World) -> None:
    world.service.lists["/v1/events"] = lambda cursor, limit: {"items": [], "next_cursor": None}
    before = {"application": {"id": "svc_app_1"}, "name": "shop"}
    for record in (before, {**before, "id": 7}, {"id": "svc_app_1"}):
        world.service.records["/v1/application"] = record
        await sync(world, "holder").backfill_once(BackfillOptions())
    world.service.records["/v1/application"] = {"id": 7, "application": {"id": "svc_app_2"}}
    with pytest.raises(WrongApplication):
        await sync(world, "holder").backfill_once(BackfillOptions())
