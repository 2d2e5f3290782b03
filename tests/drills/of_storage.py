"""Drills of what is stored: the log, the ledger, the archives, and what strangers send."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

import aiohttp
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from consumer.sandbox.config import DEFAULT_WEBHOOK_SECRET
from tests.drills.scene import Drill, Scene, drill

AT_ONCE, EVERY_S = 8, 0.5
LONG_S = 480.0
"""Over thirty webhooks have to be refused, and each is held for seconds first."""
SET_ON_TOPIC = 1
"""So Kafka says that a setting is neither its own default nor the broker's."""
SIGNED = {"CONSUMER_AUTHENTICITY": "signature", "CONSUMER_WEBHOOK_SECRETS": DEFAULT_WEBHOOK_SECRET}


def _locked(path: Path) -> sqlite3.Connection:
    lock = sqlite3.connect(path, isolation_level=None, timeout=20)
    lock.execute("BEGIN EXCLUSIVE")
    return lock


async def _unlock(scene: Scene) -> None:
    assert scene.lock is not None
    await scene.be_quiet()
    with closing(scene.lock) as lock:
        lock.execute("ROLLBACK")


async def _lock_log(scene: Scene) -> None:
    """Another process holds the file of the log: nothing can be made durable. Webhooks keep coming, and an operator's
    word waits in the outbox."""
    scene.lock = _locked(scene.found.folder / "log.db")
    scene.noise = asyncio.create_task(_webhooks(scene))
    said = ("--set", "session_id=cs_drill", "--set", "order_id=drill")
    await scene.type("say", "checkout.registered", "drill", *said, "--reason", "a drill", "--yes")


async def _webhooks(scene: Scene) -> None:
    """A few at once, as the service sends them; each is answered 503 after some seconds."""
    url = scene.processes["serve"].addresses["public_url"] + "/webhooks"
    number = 0
    async with aiohttp.ClientSession() as http:
        while True:
            numbers = range(number, number + AT_ONCE)
            await asyncio.gather(*(_send(http, url, f"evt_drill_{one}") for one in numbers))
            number += AT_ONCE
            await asyncio.sleep(EVERY_S)


async def _send(http: aiohttp.ClientSession, url: str, event_id: str) -> None:
    body = {"id": event_id, "type": "order.paid", "data": {"object": {"id": "x"}}}
    with suppress(aiohttp.ClientError, TimeoutError):
        async with http.post(url, json=body, timeout=aiohttp.ClientTimeout(total=20)) as answer:
            await answer.read()


async def _lock_ledger(scene: Scene) -> None:
    """Another process holds the ledger: events, proved by their signature, wait in the log."""
    scene.lock = _locked(scene.ledger)
    scene.pay(3)


async def _delete_topic(scene: Scene) -> None:
    """Somebody deletes the topic of what was given up."""
    name = scene.topic("events.dead")
    with closing(sqlite3.connect(scene.found.folder / "log.db", timeout=20)) as log, log:
        log.execute("DELETE FROM partitions WHERE topic = ?", (name,))
        assert log.execute("DELETE FROM topics WHERE name = ?", (name,)).rowcount == 1


async def _compact_topic(scene: Scene) -> None:
    """Somebody has Kafka keep the newest record of each key only."""
    scene.kept = await _topic_settings(scene)
    await _set_topic(scene, scene.kept | {"cleanup.policy": "compact"})


async def _topic_as_before(scene: Scene) -> None:
    await _set_topic(scene, scene.kept)
    scene.kept = {}


async def _topic_settings(scene: Scene) -> dict[str, str]:
    """Those that were set on the topic itself."""
    async with _admin(scene) as admin:
        [answer] = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, scene.topic("events"))])
        [(_, _, _, _, entries)] = answer.resources
        return {name: value for name, value, _, source, *_ in entries if source == SET_ON_TOPIC}


async def _set_topic(scene: Scene, settings: dict[str, str]) -> None:
    async with _admin(scene) as admin:
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, scene.topic("events"), settings)])


@asynccontextmanager
async def _admin(scene: Scene) -> AsyncIterator[AIOKafkaAdminClient]:
    servers = scene.found.environ["CONSUMER_BROKER_URL"].removeprefix("kafka://")
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


async def _fill_archive(scene: Scene) -> None:
    """Retention is switched on, there is something old, and the folder of the archives is no folder."""
    folder = scene.found.folder / "archives"
    folder.write_text("something else has this name")
    scene.in_ledger("UPDATE events SET recorded_at = '2020-01-01 00:00:00.000000'")
    await scene.restart("sync", CONSUMER_RETENTION="1d", CONSUMER_ARCHIVE_DIR=str(folder))


async def _mend_archive(scene: Scene) -> None:
    """Make room; a restart looks at once, instead of five minutes later."""
    folder = scene.found.folder / "archives"
    folder.unlink()
    await scene.restart("sync")


STORAGE: tuple[Drill, ...] = (
    drill(
        "the log takes nothing",
        "ReceiveFailing", "ReceiveFailingSlowly", "ReceiveEroding", "BrokerAway", "LogUnavailable", "OutboxStuck",
        strike=_lock_log, cure=_unlock, lingers=("ReceiveFailing", "ReceiveFailingSlowly", "ReceiveEroding"),
        fires_within_s=LONG_S,
    ),
    drill(
        "the ledger is locked",
        "LedgerUnavailable", "Stale", "StaleSlowly", "RunsOverdue",
        strike=_lock_ledger, cure=_unlock, settings=SIGNED,
    ),
    drill("a topic is deleted", "TopicsMissing", strike=_delete_topic, cure=lambda scene: scene.restart("work")),
    drill(
        "a topic is set so that it loses records", "TopicMisconfigured",
        strike=_compact_topic, cure=_topic_as_before, on_kafka=True,
    ),
    drill(
        "sync uses topics of another prefix", "PrefixesDiffer",
        strike=lambda scene: scene.restart("sync", CONSUMER_TOPIC_PREFIX="elsewhere"),
        cure=lambda scene: scene.as_before("sync"),
    ),
    drill(
        "sync uses another log", "LogsDiffer",
        strike=lambda scene: scene.restart("sync", CONSUMER_BROKER_URL=f"embedded:{scene.found.folder}/elsewhere.db"),
        cure=lambda scene: scene.as_before("sync"),
    ),
    drill("the archives cannot be written", "ArchiveFailing", strike=_fill_archive, cure=_mend_archive),
)  # fmt: skip
