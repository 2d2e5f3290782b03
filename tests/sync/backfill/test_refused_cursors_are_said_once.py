"""A service that refuses its own cursors: an alarm of its own, counted and said once, and walks that go on."""

from __future__ import annotations

from typing import Any

import pytest
import structlog

from consumer.ledger import Database
from consumer.payments import CursorsRefused
from consumer.sync.backfill.report import BackfillOptions
from consumer.sync.backfill.stage import Backfill
from consumer.sync.role import ApplicationSync
from tests.sync.conftest import World, counted_by


@pytest.fixture
def sqlite_ledger(database: Database) -> Database:
    """Of each kind: a bookmark is kept by each in its own way."""
    return database


class Listed:
    """250 events with times, newest first; `refuses` says which cursors are answered 400."""

    def __init__(self, world: World) -> None:
        self.refuses: set[str] = set()
        self._items = [
            {
                **world.service.event(number),
                "created_at": f"2025-12-31T23:{59 - number // 60:02}:{59 - number % 60:02}Z",
            }
            for number in range(250)
        ]
        world.service.lists["/v1/events"] = self.page

    def page(self, cursor: str | None, limit: int) -> dict[str, Any] | int:
        if cursor in self.refuses:
            return 400
        start = int(cursor or 0)
        following = str(start + limit) if start + limit < len(self._items) else None
        return {"items": self._items[start : start + limit], "next_cursor": following}


@pytest.fixture
def listed(world: World) -> Listed:
    return Listed(world)


def backfill(world: World) -> Backfill:
    return Backfill(world.app, world.settlement())


async def test_cursors_that_stay_refused_have_a_code_are_counted_each_walk_and_said_once(
    world: World, listed: Listed
) -> None:
    # case: B11, O6
    listed.refuses = {"100", "200"}
    stage = backfill(world)
    with structlog.testing.capture_logs() as logs:
        for number in range(1, 4):
            with pytest.raises(CursorsRefused) as caught:
                await stage.once()
            assert caught.value.code == "cursors_refused"
            assert counted_by(world.metrics, "cursors_refused", "default") == number, (
                "once a walk, and also when it fails"
            )
    [said] = [one for one in logs if one.get("code") == "cursors_refused"]
    assert (said["application"], said["log_level"]) == ("default", "warning")
    listed.refuses = set()
    with structlog.testing.capture_logs() as logs:
        await stage.once()
        await stage.once()
    assert [one["event"] for one in logs if one.get("application") == "default" and "cursor" in one["event"]] == [
        "cursors_refused_over"
    ]
    assert counted_by(world.metrics, "cursors_refused", "default") == 3
    assert len(await world.published()) == 250


async def test_a_cursor_refused_once_on_the_way_is_counted_and_nothing_is_missed(world: World, listed: Listed) -> None:
    # case: B11
    listed.refuses = {"200"}
    stage = backfill(world)
    found = []

    def mend(_: object) -> None:
        found.append(world.service.calls["/v1/events"])
        if len(found) == 3:  # the head again, after the refusal
            listed.refuses = set()

    report = await stage.once(on_progress=mend)
    assert (report.refused, report.published) == (1, 250)
    assert counted_by(world.metrics, "cursors_refused", "default") == 1


async def test_status_tells_refused_cursors_apart_from_other_odd_answers(world: World, listed: Listed) -> None:
    # case: B11, O6
    listed.refuses = {"100"}
    one = ApplicationSync(world.api, world.database, world.publisher, clock=world.clock, holder="one")
    with pytest.raises(CursorsRefused) as caught:
        await one.backfill_once(BackfillOptions(full=True))
    one.backfill.failure.failed(caught.value)
    assert one.failures == {"backfill": "cursors_refused"}
