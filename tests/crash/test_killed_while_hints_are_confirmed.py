"""`kill -9` on the way from a delivery nobody can verify to a confirmed event: none is lost, none acts twice."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from consumer.broker import EmbeddedBroker
from consumer.settings import Role
from tests.crash.points import SYNC_POINTS, Point
from tests.crash.scene import Scene, sayings
from tests.sync.service import scripted_service

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture
async def scene(tmp_path: Path, sqlite_template: Path) -> AsyncIterator[Scene]:
    """The embedded log and SQLite, and a service that knows every event by its id but lists none yet."""
    async with scripted_service() as service:
        for event in sayings():
            service.records[f"/v1/events/{event.id}"] = orjson.loads(event.raw)
        for name in ("events", "orders", "subscriptions", "payments"):
            service.lists[f"/v1/{name}"] = lambda _cursor, _limit: {"items": [], "next_cursor": None}
        shutil.copyfile(sqlite_template, tmp_path / "ledger.db")
        found = Scene(
            tmp_path,
            broker_url=f"embedded:{tmp_path}/log.db",
            database_url=f"sqlite+aiosqlite:///{tmp_path}/ledger.db",
        )
        found.environ |= {
            "CONSUMER_AUTHENTICITY": "api",
            "CONSUMER_HANDLER_OPTIONS": '{"fulfilment": {"matching": "off"}}',
            "SVC_BASE_URL": service.address,
            "SVC_APP_ID": "svc_app_test",
            "SVC_APP_SECRET": "svc_sk_live_test",
        }
        await found.prepare(EmbeddedBroker(tmp_path / "log.db"), as_deliveries=True)
        yield found
        await found.database.stop()


# case: G5, G13
@pytest.mark.parametrize("point", SYNC_POINTS, ids=str)
async def test_at_one_point(scene: Scene, point: Point) -> None:
    await scene.dies(point, role=Role.SYNC)
    await scene.recovers(Role.SYNC, Role.WORK)
    await scene.prove(in_order=False)  # in which order hints are confirmed is not promised
