"""`kill -9` between any two steps of the work: after a restart every order has one parcel, nothing lost, none late."""

from __future__ import annotations

import random
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from consumer.broker import EmbeddedBroker, KafkaBroker
from tests.crash.points import Point, work_points
from tests.crash.scene import Scene

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

EMBEDDED = work_points(
    "consumer.broker.embedded.member:EmbeddedSubscription", "consumer.broker.embedded.broker:EmbeddedBroker"
)
KAFKA = work_points("consumer.broker.kafka.member:KafkaSubscription", "consumer.broker.kafka.broker:KafkaBroker")


@pytest.fixture
async def scene(tmp_path: Path, sqlite_template: Path) -> AsyncIterator[Scene]:
    """The embedded log and SQLite."""
    shutil.copyfile(sqlite_template, tmp_path / "ledger.db")
    found = Scene(
        tmp_path,
        broker_url=f"embedded:{tmp_path}/log.db",
        database_url=f"sqlite+aiosqlite:///{tmp_path}/ledger.db",
    )
    await found.prepare(EmbeddedBroker(tmp_path / "log.db"))
    yield found
    await found.database.stop()


# case: G5, F30
@pytest.mark.parametrize("point", EMBEDDED, ids=str)
async def test_at_one_point(scene: Scene, point: Point) -> None:
    await scene.dies(point)
    await scene.recovers()
    await scene.prove()


# case: G5, F30
async def test_again_and_again(scene: Scene) -> None:
    """Each restart dies as well, wherever it is by then; it must not need a quiet moment to get on."""
    points = [point for point in EMBEDDED if point.call == 1 and point.when == "before"]
    early = [point for point in points if point.target.endswith(("Ingest.take", "events:record"))]
    await scene.dies(*early, *early)
    await scene.recovers()
    await scene.prove()


# case: G5, F30
@pytest.mark.kafka
@pytest.mark.postgres
async def test_on_kafka_and_postgresql(tmp_path: Path, kafka_url: str, postgres_url: str) -> None:
    """The points that differ there: transactions that another connection sees, offsets that a group keeps."""
    names = {
        "everything written, not committed": 1,
        "batch committed, offsets not": 1,
        "after the effect, before its handler returns": 1,
        "marks written, not committed": 1,
        "published, not marked": 1,
    }
    scene = Scene(
        tmp_path,
        broker_url=kafka_url,
        database_url=postgres_url,
        topic_prefix=f"crash-{random.randrange(1 << 32):08x}",
    )
    try:
        await scene.prepare(KafkaBroker([kafka_url.removeprefix("kafka://")]))
        await scene.dies(*(point for point in KAFKA if names.get(point.name) == point.call))
        await scene.recovers()
        await scene.prove()
    finally:
        await scene.database.stop()
