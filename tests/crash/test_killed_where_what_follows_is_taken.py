"""`kill -9` between any two steps where what an event leads to is taken with it: after a restart every order has one
parcel, nothing is lost, and the log has what others read there."""

from __future__ import annotations

import random
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from consumer.broker import EmbeddedBroker, KafkaBroker
from tests.crash.points import Point, onward_points
from tests.crash.scene import Scene

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

POINTS = onward_points(
    "consumer.broker.embedded.member:EmbeddedSubscription", "consumer.broker.embedded.broker:EmbeddedBroker"
)
KAFKA = onward_points("consumer.broker.kafka.member:KafkaSubscription", "consumer.broker.kafka.broker:KafkaBroker")


@pytest.fixture
async def scene(tmp_path: Path, sqlite_template: Path) -> AsyncIterator[Scene]:
    """The embedded log and SQLite."""
    shutil.copyfile(sqlite_template, tmp_path / "ledger.db")
    found = Scene(
        tmp_path,
        broker_url=f"embedded:{tmp_path}/log.db",
        database_url=f"sqlite+aiosqlite:///{tmp_path}/ledger.db",
    )
    found.smoothly()
    await found.prepare(EmbeddedBroker(tmp_path / "log.db"))
    yield found
    await found.database.stop()


# case: G5, F30
@pytest.mark.parametrize("point", POINTS, ids=str)
async def test_at_one_point(scene: Scene, point: Point) -> None:
    await scene.dies(point)
    await scene.recovers()
    await scene.prove()


# case: G5, F30
@pytest.mark.kafka
@pytest.mark.postgres
async def test_on_kafka_and_postgresql(tmp_path: Path, kafka_url: str, postgres_url: str) -> None:
    """The points that differ there: transactions that another connection sees, offsets that a group keeps."""
    names = ("recorded beside its cause, not handled", "committed, not handed over", "done, not published")
    scene = Scene(
        tmp_path,
        broker_url=kafka_url,
        database_url=postgres_url,
        topic_prefix=f"crash-{random.randrange(1 << 32):08x}",
    )
    scene.smoothly()
    try:
        await scene.prepare(KafkaBroker([kafka_url.removeprefix("kafka://")]))
        await scene.dies(*(point for point in KAFKA if point.name in names and point.call == 1))
        await scene.recovers()
        await scene.prove()
    finally:
        await scene.database.stop()
