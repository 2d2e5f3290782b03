"""Faults of the log that is Kafka."""

from __future__ import annotations

import asyncio
import shutil

from aiokafka import AIOKafkaConsumer

from tests.faults.cluster import GROUP, PASSWORD, TOPIC
from tests.faults.scene import Fault, Scene, fault, fill
from tests.support.ports import eventually

READERS = ("serve", "work", "sync")
BROUGHT_WITHIN_S = 360.0


def _denied(kind: int, name: str, operation: str, code: str) -> Fault:
    """A grant is taken away while everything runs."""

    async def strike(scene: Scene) -> None:
        await scene.brokers.deny(kind, scene.topic(name), operation)
        scene.pay(3)

    async def cure(scene: Scene) -> None:
        await scene.brokers.allow(kind, scene.topic(name), operation)

    what = {TOPIC: "topic", GROUP: "group"}[kind]
    return fault("Kafka", f"denies {operation} on {what} {name}", code, strike=strike, cure=cure)


async def _share(scene: Scene) -> None:
    """Somebody debugs with a client that takes half of the partitions, and commits what it took."""
    topic, group = scene.topic("events"), scene.topic("work")
    servers = scene.brokers.server.inside_server
    stranger = AIOKafkaConsumer(topic, bootstrap_servers=servers, group_id=group, auto_commit_interval_ms=500)
    await stranger.start()

    async def take() -> None:
        async for _ in stranger:
            pass

    scene.kept["stranger"] = stranger, asyncio.create_task(take())
    scene.pay(6)


async def _leave(scene: Scene) -> None:
    stranger, taking = scene.kept.pop("stranger")
    taking.cancel()
    await stranger.stop()


async def _kill(scene: Scene) -> None:
    scene.brokers.server.kill()


async def _start(scene: Scene) -> None:
    scene.brokers.server.start()


async def _pause(scene: Scene) -> None:
    scene.brokers.server.pause()


async def _resume(scene: Scene) -> None:
    scene.brokers.server.resume()


async def _refuse(scene: Scene) -> None:
    await scene.brokers.proxy.refuse()


async def _accept(scene: Scene) -> None:
    await scene.brokers.proxy.accept()


async def _slow(scene: Scene) -> None:
    scene.brokers.proxy.delay_s = 8
    scene.pay(3)


async def _quick(scene: Scene) -> None:
    scene.brokers.proxy.delay_s = 0


async def _fill(scene: Scene) -> None:
    fill(scene.brokers.server.folder)
    scene.pay(10)


async def _make_room(scene: Scene) -> None:
    """A broker without a disk ends: it is started again."""
    (scene.brokers.server.folder / "filler").unlink()
    await scene.brokers.restart()


async def _fill_other_disk(scene: Scene) -> None:
    """Half of the partitions lose their only replica; the broker lives."""
    fill(scene.brokers.server.disks[1].parent)
    scene.pay(10)


async def _empty_other_disk(scene: Scene) -> None:
    (scene.brokers.server.disks[1].parent / "filler").unlink()
    await scene.brokers.restart()


async def _delete_unread(scene: Scene) -> None:
    """`work` is down for longer than the topic keeps what it has."""
    await scene.stop("work")
    scene.pay(5)
    await eventually(lambda: _something_waits(scene), within_s=60, every_s=1.0, what="records wait for work")
    await scene.brokers.delete_records(scene.topic("events"))
    await scene.start("work")


async def _something_waits(scene: Scene) -> bool:
    topic, servers = scene.topic("events"), scene.brokers.server.inside_server
    reader = AIOKafkaConsumer(topic, bootstrap_servers=servers, group_id=scene.topic("work"), enable_auto_commit=False)
    await reader.start()
    try:
        ends = await reader.end_offsets(reader.assignment())
        return any([(await reader.committed(part) or 0) < end for part, end in ends.items()])
    finally:
        await reader.stop()


async def _new_password(scene: Scene) -> None:
    """At the broker; what is connected stays so until the broker is started anew."""
    await scene.brokers.change_password("not-ours-any-more")
    await scene.brokers.restart()


async def _old_password(scene: Scene) -> None:
    await scene.brokers.change_password(PASSWORD)


async def _wrong_ca(scene: Scene) -> None:
    """A deployment with the certificates of another cluster."""
    other = scene.found.folder / "other-ca.pem"
    if not other.exists():
        import certifi

        shutil.copy(certifi.where(), other)
    await scene.restart(*READERS, CONSUMER_KAFKA_CA_FILE=str(other))


async def _right_ca(scene: Scene) -> None:
    await scene.as_before(*READERS)


async def _plain(scene: Scene) -> None:
    """A deployment with another mechanism than the broker's users have."""
    await scene.restart(*READERS, CONSUMER_KAFKA_SASL_MECHANISM="PLAIN")


async def _delete_events(scene: Scene) -> None:
    await scene.brokers.delete_topics(scene.topic("events"))
    scene.pay(3)


async def _restart_readers(scene: Scene) -> None:
    await scene.stop(*READERS)
    await scene.start(*READERS)


async def _all_is_brought(scene: Scene) -> None:
    """By itself: the events are missed for three minutes, then read by their ids."""
    await scene.found.settled(within_s=BROUGHT_WITHIN_S)


async def _empty(scene: Scene) -> None:
    await scene.brokers.restart_empty()


OF_KAFKA = (
    _denied(GROUP, "work", "READ", "group_forbidden"),
    _denied(GROUP, "confirm", "READ", "group_forbidden"),
    _denied(TOPIC, "deliveries", "WRITE", "topic_forbidden"),
    _denied(TOPIC, "events", "WRITE", "topic_forbidden"),
    _denied(TOPIC, "events", "READ", "topic_forbidden"),
    _denied(TOPIC, "deliveries", "READ", "topic_forbidden"),
    fault("Kafka", "refused", "broker_away", strike=_refuse, cure=_accept),
    fault("Kafka", "dead", "broker_away", strike=_kill, cure=_start),
    fault("Kafka", "hung", "broker_away", strike=_pause, cure=_resume),
    fault("Kafka", "slow (8 s an answer)", "broker_away", "webhooks_refused", strike=_slow, cure=_quick),
    fault("Kafka", "with another password", "broker_login_refused", strike=_new_password, cure=_old_password),
    fault("Kafka", "by a mechanism it does not take", "broker_login_refused", strike=_plain, cure=_right_ca),
    fault("Kafka", "with another certificate", "broker_tls_failed", strike=_wrong_ca, cure=_right_ca),
    fault("Kafka", "without topic events", "topics_missing", "log_replaced", "topic_unknown",
          strike=_delete_events, cure=_restart_readers),
    fault("Kafka", "replaced by an empty one", "topics_missing", "log_replaced",
          strike=_empty, cure=_restart_readers),
    fault("Kafka", "with a stranger in group work, who commits", "group_shared", strike=_share, cure=_leave),
    fault("Kafka", "with one of its two disks full", "topic_misconfigured",
          strike=_fill_other_disk, cure=_empty_other_disk, says="a disk there failed or is full"),
    fault("Kafka", "deleted what nobody had read", "log_records_lost", strike=_delete_unread, cure=_all_is_brought),
    fault("Kafka", "on a full disk", "log_disk_full", "broker_away", strike=_fill, cure=_make_room),
)  # fmt: skip
