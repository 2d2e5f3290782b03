"""Faults of a real Kafka: silent, killed, absent, misconfigured. Each test has a broker of its own or shares one."""

from __future__ import annotations

import asyncio
import shutil
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.conn import AIOKafkaConnection

from consumer.broker import KafkaBroker, KafkaSecurity, Partition, TopicConfig
from consumer.broker.kafka import member as kafka_member
from consumer.broker.kafka import publisher as kafka_publisher
from consumer.broker.kafka.connection import KafkaConnection
from consumer.broker.kafka.lanes import partition_of
from consumer.broker.kafka.topics import FoundTopic, KafkaTopics
from consumer.errors import (
    BrokerError,
    BrokerUnavailable,
    LogCompressed,
    LogNotReplicated,
    PartitionAway,
    RecordRefused,
    RecordTooLarge,
    TopicMisconfigured,
    TopicUnknown,
)
from tests.contract.broker.conftest import message, read, read_all, values
from tests.support.kafka import KafkaServer, kafka_server
from tests.support.ports import answers, eventually, free_port
from tests.support.proxy import TcpProxy

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

TOPIC = TopicConfig(name="t", partitions=2, retention_s=None, max_record_bytes=100_000)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[KafkaServer]:
    """A broker of this test's own: it will be treated badly."""
    with kafka_server(tmp_path / "kafka") as found:
        yield found


@pytest.fixture
async def broker(server: KafkaServer) -> AsyncIterator[KafkaBroker]:
    """A started KafkaBroker with topic `t`."""
    found = KafkaBroker([f"127.0.0.1:{server.port}"], heartbeat_s=0.3, session_s=6.0)
    await found.start()
    await found.ensure_topics([TOPIC])
    yield found
    server.resume()
    await found.stop(5.0)


def leftovers() -> list[str]:
    """Tasks besides this test's own."""
    return [repr(task) for task in asyncio.all_tasks() if task is not asyncio.current_task()]


async def test_a_silent_broker_is_told_in_time_and_everything_goes_on_after(
    server: KafkaServer, broker: KafkaBroker
) -> None:
    # case: I2, I3
    member = broker.subscribe(["t"], "g")
    await member.start()
    await broker.publish("t", message("before"))
    assert values(await read(member, 1)) == ["before"]
    server.pause()
    began = time.monotonic()
    outcomes = await asyncio.gather(
        *(broker.publish("t", message("during", f"k{number}"), timeout_s=1.0) for number in range(300)),
        return_exceptions=True,
    )
    assert {type(outcome) for outcome in outcomes} == {BrokerUnavailable}
    assert time.monotonic() - began < 2.5
    assert await answers(broker) is False
    polled = time.monotonic()
    assert list(await member.poll(10, 0.5)) == []
    assert time.monotonic() - polled < 2.0
    server.resume()
    await broker.publish("t", message("after"), timeout_s=15.0)
    assert await answers(broker) is True
    found = values(await read(member, 1))
    while "after" not in found:
        found += values(await read(member, 1))


async def test_a_producer_that_is_stuck_is_replaced(
    server: KafkaServer, broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_publisher, "STUCK_AFTER_S", 0.5)
    await broker.publish("t", message("before"))
    publisher = broker._publisher
    assert publisher is not None
    first = publisher.client
    server.pause()
    with pytest.raises(BrokerUnavailable):
        await broker.publish("t", message("during"), timeout_s=3.0)
    await eventually(lambda: publisher.client is not first, within_s=10)
    server.resume()
    await eventually(lambda: publisher.client is not None, within_s=20)
    await broker.publish("t", message("after"), timeout_s=15.0)
    member = broker.subscribe(["t"], "g")
    await member.start()
    found = values(await read(member, 2))
    while found[-1] != "after":
        found += values(await read(member, 1))


async def test_acknowledged_records_survive_kill_9_and_the_same_broker_and_member_go_on(
    server: KafkaServer, broker: KafkaBroker
) -> None:
    # case: G5, G13, O7
    member = broker.subscribe(["t"], "g")
    await member.start()
    acknowledged: set[str] = set()
    stopped = False

    async def publish(name: str) -> None:
        number = 0
        while not stopped:
            value = f"{name}/{number}"
            try:
                await broker.publish("t", message(value, name), timeout_s=2.0)
                acknowledged.add(value)
            except BrokerUnavailable:
                pass
            number += 1

    publishers = [asyncio.create_task(publish(f"k{number}")) for number in range(20)]
    await eventually(lambda: len(acknowledged) > 200, within_s=20)
    server.kill()
    await asyncio.get_running_loop().run_in_executor(None, server.start)
    before = len(acknowledged)
    await eventually(lambda: len(acknowledged) > before + 200, within_s=40, what="publishing goes on")
    stopped = True
    await asyncio.gather(*publishers)
    found: set[str] = set()
    deadline = time.monotonic() + 40
    while not acknowledged <= found:
        assert time.monotonic() < deadline, f"{len(acknowledged - found)} acknowledged records were not read"
        found |= set(values(list(await member.poll(500, 0.5))))

    async def commits() -> bool:
        """The broker may not know the member any more: it learns that by its next beat, or by this, and joins anew."""
        await member.poll(500, 0.1)
        owned = member.assignment()
        return bool(owned) and await member.commit(dict.fromkeys(owned, 1), timeout_s=20) == owned

    await eventually(commits, within_s=60, what="it commits as a member again")


async def test_a_broker_absent_at_start_is_told_and_start_works_when_it_is_there(tmp_path: Path) -> None:
    port = free_port()
    broker = KafkaBroker([f"127.0.0.1:{port}"], start_within_s=1.0)
    began = time.monotonic()
    with pytest.raises(BrokerUnavailable):
        await broker.start()
    assert time.monotonic() - began < 4.0
    assert await answers(broker) is False
    await eventually(lambda: not leftovers(), within_s=3)
    with kafka_server(tmp_path / "kafka", port=port):
        await broker.start()
        await broker.ensure_topics([TOPIC])
        await broker.publish("t", message("there"))
        await broker.stop()


async def test_stop_is_bounded_while_the_broker_is_silent_and_leaves_no_task(
    server: KafkaServer, broker: KafkaBroker
) -> None:
    # case: I4
    member = broker.subscribe(["t"], "g")
    await member.start()
    await broker.publish("t", message("x"))
    server.pause()
    waiting = [asyncio.create_task(broker.publish("t", message("y", f"k{n}"), timeout_s=60)) for n in range(50)]
    await asyncio.sleep(0.1)
    began = time.monotonic()
    await broker.stop(3.0)
    assert time.monotonic() - began < 8.0
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {BrokerUnavailable}
    await eventually(lambda: not leftovers(), within_s=5, what=f"no task is left: {leftovers()}")


async def test_slow_acknowledgements_only_slow_down_and_blocked_ones_may_become_duplicates(tmp_path: Path) -> None:
    # case: I3
    async with TcpProxy(0) as proxy:
        with kafka_server(tmp_path / "kafka", advertised_port=proxy.port) as server:
            proxy.target_port = server.port
            broker = KafkaBroker([f"127.0.0.1:{proxy.port}"])
            await broker.start()
            await broker.ensure_topics([TOPIC])
            proxy.delay_s = 0.3
            began = time.monotonic()
            await asyncio.gather(*(broker.publish("t", message(f"slow/{number}", "k")) for number in range(100)))
            assert 0.25 < time.monotonic() - began < 5.0
            proxy.delay_s = 0.0
            proxy.block()
            with pytest.raises(BrokerUnavailable):
                await broker.publish("t", message("blocked", "k"), timeout_s=0.5)
            proxy.unblock()
            await broker.publish("t", message("after", "k"), timeout_s=15.0)
            member = broker.subscribe(["t"], "g")
            await member.start()
            found = values(await read(member, 101))
            while found[-1] != "after":
                found += values(await read(member, 1))
            assert found[:100] == [f"slow/{number}" for number in range(100)]
            assert found[100:] in (["after"], ["blocked", "after"])
            await broker.stop()


async def test_refused_connections_are_survived(tmp_path: Path) -> None:
    async with TcpProxy(0) as proxy:
        with kafka_server(tmp_path / "kafka", advertised_port=proxy.port) as server:
            proxy.target_port = server.port
            broker = KafkaBroker([f"127.0.0.1:{proxy.port}"])
            await broker.start()
            await broker.ensure_topics([TOPIC])
            await broker.publish("t", message("before"))
            await proxy.refuse()
            with pytest.raises(BrokerUnavailable):
                await broker.publish("t", message("refused"), timeout_s=0.5)
            assert await answers(broker) is False
            await proxy.accept()
            await broker.publish("t", message("after"), timeout_s=15.0)
            await broker.stop()


async def test_a_consumer_that_stands_still_is_replaced(broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_member, "STALLED_AFTER_S", 0.5)
    monkeypatch.setattr(kafka_member, "WATCH_EVERY_S", 0.1)
    revoked: list[frozenset[Partition]] = []

    async def note(partitions: frozenset[Partition]) -> None:
        revoked.append(partitions)

    member = broker.subscribe(["t"], "g", on_revoked=note)
    await member.start()
    await broker.publish("t", message("before"))
    found = await read(member, 1)
    await member.commit({found[0].partition: 1})
    first = member._consumer
    assert first is not None
    first._fetcher._fetch_task.cancel()  # what aiokafka #1037 looks like from outside
    await broker.publish("t", message("on its way"))  # a fetch that waits in the broker may still bring one record
    assert values(await read(member, 1, within_s=20)) == ["on its way"]
    await broker.publish("t", message("after"))
    found = await read(member, 1, within_s=20)
    while found[-1].value != b"after":  # what was not committed is read again
        found += await read(member, 1, within_s=20)
    assert member._consumer is not first
    assert len(revoked) == 1


async def test_a_consumer_whose_coordination_died_is_told_once_and_replaced(broker: KafkaBroker) -> None:
    member = broker.subscribe(["t"], "g")
    await member.start()
    first = member._consumer
    assert first is not None
    first._coordinator._coordination_task.cancel()
    await eventually(lambda: first._coordinator._coordination_task.done())
    with pytest.raises(BrokerUnavailable):
        await member.poll(10, 1.0)
    await broker.publish("t", message("after"))
    assert values(await read(member, 1, within_s=20)) == ["after"]
    assert member._consumer is not first


async def test_tls_and_sasl(tmp_path: Path) -> None:
    with kafka_server(tmp_path / "kafka", user=("app", "a-secret-word")) as server, silence(takes=True) as hangs:
        address = [f"127.0.0.1:{server.port}"]

        def security(password: str) -> KafkaSecurity:
            return KafkaSecurity(
                security_protocol="SASL_SSL", ca_file=server.ca_file, username="app", password=password
            )

        several = KafkaConnection(
            servers=(f"127.0.0.1:{hangs}", *address), client_id="c", security=security("a-secret-word")
        )
        assert list((await several.reached()).servers) == address, "asked without a login"
        broker = KafkaBroker(address, security=security("a-secret-word"))
        await broker.start()
        await broker.ensure_topics([TOPIC])
        await broker.publish("t", message("sealed"))
        member = broker.subscribe(["t"], "g")
        await member.start()
        assert values(await read(member, 1)) == ["sealed"]
        await broker.stop()
        for refused in (security("wrong"), KafkaSecurity(security_protocol="SSL", ca_file=server.ca_file)):
            with pytest.raises(BrokerUnavailable) as told:
                await KafkaBroker(address, security=refused, start_within_s=1.0).start()
            assert "wrong" not in told.value.line()


async def test_a_topic_that_could_lose_records_is_refused_with_every_reason(kafka_broker: KafkaServer) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=f"127.0.0.1:{kafka_broker.port}")
    await admin.start()
    await admin.create_topics(
        [
            NewTopic(
                name="wrong",
                num_partitions=1,
                replication_factor=1,
                topic_configs={"cleanup.policy": "compact", "retention.ms": "1000", "max.message.bytes": "5000"},
            )
        ]
    )
    await admin.close()
    broker = KafkaBroker([f"127.0.0.1:{kafka_broker.port}"])
    await broker.start()
    with pytest.raises(TopicMisconfigured) as told:
        await broker.ensure_topics(
            [TopicConfig(name="wrong", partitions=1, retention_s=None, max_record_bytes=100_000)]
        )
    for name in ("cleanup.policy", "retention.ms", "max.message.bytes"):
        assert name in told.value.message
    await broker.stop()


async def test_a_new_topic_has_the_settings_that_lose_nothing(kafka_broker: KafkaServer) -> None:
    broker = KafkaBroker([f"127.0.0.1:{kafka_broker.port}"])
    await broker.start()
    await broker.ensure_topics([TopicConfig(name="right", partitions=0, retention_s=60, max_record_bytes=2_000_000)])
    found = await KafkaTopics(KafkaConnection(servers=(f"127.0.0.1:{kafka_broker.port}",), client_id="t")).describe(
        "right"
    )
    assert found is not None
    assert found.partitions == 12
    assert found.settings is not None
    assert found.settings["cleanup.policy"] == "delete"
    assert found.settings["retention.ms"] == "60000"
    assert found.settings["retention.bytes"] == "-1"
    assert found.settings["unclean.leader.election.enable"] == "false"
    assert int(found.settings["max.message.bytes"]) >= 2_000_000
    await broker.stop()


# cause: InvalidReplicationFactorError
async def test_a_topic_is_not_made_with_fewer_copies_than_were_asked_for(kafka_broker: KafkaServer) -> None:
    broker = KafkaBroker([f"127.0.0.1:{kafka_broker.port}"])
    await broker.start()
    wanted = TopicConfig(name="copied", partitions=1, retention_s=60, max_record_bytes=100_000, copies=2)
    with pytest.raises(LogNotReplicated) as told:
        await broker.ensure_topics([wanted])
    assert told.value.retryable, "a broker that is away comes back"
    await broker.ensure_topics([replace(wanted, copies=1)])
    await broker.stop()


# case: O6
async def test_a_topic_made_anew_with_fewer_partitions_takes_every_key_again(kafka_broker: KafkaServer) -> None:
    address = f"127.0.0.1:{kafka_broker.port}"
    broker, admin = KafkaBroker([address]), AIOKafkaAdminClient(bootstrap_servers=address)
    await broker.start()
    await broker.ensure_topics([TopicConfig(name="fewer", partitions=12, retention_s=None, max_record_bytes=100_000)])
    keys = [message("x", f"k{number}") for number in range(20)]
    await broker.publish_many("fewer", keys)
    await admin.start()

    async def is_gone() -> bool:
        return "fewer" not in await admin.list_topics()

    async def takes_every_key() -> bool:
        try:
            await broker.publish_many("fewer", keys, timeout_s=2.0)
        except BrokerUnavailable:
            return False
        return True

    await admin.delete_topics(["fewer"])
    await eventually(is_gone, within_s=30, every_s=0.2)
    await admin.create_topics([NewTopic("fewer", 1, 1)])
    await admin.close()
    await eventually(takes_every_key, within_s=60, every_s=0.2, what="every key is taken")
    await broker.stop(5.0)


# case: I1, I30
@pytest.mark.parametrize(("is_known", "error"), [(True, RecordRefused), (False, RecordTooLarge)])
async def test_a_record_that_a_lowered_limit_refuses_is_taken_when_it_is_raised_again(
    kafka_broker: KafkaServer, is_known: bool, error: type[BrokerError]
) -> None:
    """It was told to be too large for ever: a paid order went to quarantine, and a webhook was answered 413. Only where
    we may not read the limit nobody can tell that it was lowered."""
    name = f"lowered-{is_known}"
    address = f"127.0.0.1:{kafka_broker.port}"
    broker, admin = KafkaBroker([address]), AIOKafkaAdminClient(bootstrap_servers=address)
    await broker.start()
    await broker.ensure_topics([replace(TOPIC, name=name)])
    broker._topics[name].is_bound_known = is_known
    await admin.start()

    async def heard() -> type[BrokerError] | None:
        try:
            await broker.publish(name, message("x" * 5000))
        except BrokerError as told:
            return type(told)
        return None

    async def is_refused() -> bool:
        return await heard() is error

    async def is_taken() -> bool:
        return await heard() is None

    async def limit(max_bytes: int) -> None:
        settings = {"max.message.bytes": str(max_bytes)}
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, settings)])

    await limit(1000)
    await eventually(is_refused, within_s=20, every_s=0.2)
    await limit(2_000_000)
    await eventually(is_taken, within_s=20, every_s=0.2)
    await admin.close()
    await broker.stop(5.0)


# case: I1, I30
async def test_what_a_lowered_limit_still_takes_is_taken_beside_one_that_it_refuses(kafka_broker: KafkaServer) -> None:
    """A batch of several was refused as a whole, for ever, and what was on its way to other partitions failed."""
    name, address = "beside", f"127.0.0.1:{kafka_broker.port}"
    broker, admin = KafkaBroker([address]), AIOKafkaAdminClient(bootstrap_servers=address)
    await broker.start()
    await broker.ensure_topics([replace(TOPIC, name=name)])
    await admin.start()
    await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, {"max.message.bytes": "1000"})])
    await admin.close()

    async def is_refused() -> bool:
        try:
            await broker.publish(name, message("x" * 5000))
        except RecordRefused:
            return True
        return False

    await eventually(is_refused, within_s=20, every_s=0.2)
    member = broker.subscribe([name], "beside")
    await member.start()
    await read_all(member)
    small = [message(f"{number:03}" + "x" * 300, f"order:{number % 5}") for number in range(40)]
    beside = asyncio.gather(*(broker.publish(name, message("y", f"other:{number}")) for number in range(20)))
    sent = [*small[:20], message("x" * 5000, "order:1"), *small[20:]]
    with pytest.raises(RecordRefused) as told:
        await broker.publish_many(name, sent)
    await beside
    found, went = await read_all(member), [sent[place] for place in sorted(told.value.durable)]
    assert went == [one for one in small if one.key != b"order:1" or one in small[:20]], "none of a key overtakes it"
    assert len(found) == len(went) + 20
    for key in {one.key for one in small}:
        assert [one.value for one in found if one.key == key] == [one.value for one in went if one.key == key]
    await member.stop()
    await broker.stop(5.0)


# case: O9, G5
async def test_partitions_without_a_leader_hold_up_their_own_records_and_keep_no_process_from_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that started then took nothing, as if there were no such topic; of many that were published together
    nobody knew which are durable. Each publisher and each member asked who leads them some thousand times a second."""
    asked = _requests_of(monkeypatch)
    other, wanted = tmp_path / "other", replace(TOPIC, name="headless", partitions=4)
    other.mkdir()
    sent = [message("x", f"k{number}") for number in range(40)]

    async def durable(broker: KafkaBroker) -> frozenset[int]:
        try:
            await broker.publish_many(wanted.name, sent)
        except BrokerUnavailable as error:
            return error.durable
        return frozenset(range(len(sent)))

    with kafka_server(tmp_path / "kafka", other_disk=other) as server:
        address = f"127.0.0.1:{server.port}"
        broker, late, sudden = KafkaBroker([address]), KafkaBroker([address]), KafkaBroker([address])
        await broker.start()
        await broker.ensure_topics([wanted])
        assert await durable(broker) == set(range(40))
        member = broker.subscribe([wanted.name], "g")
        await member.start()
        assert len(await read(member, 40)) == 40
        shutil.rmtree(other / "data")
        (other / "data").write_text("no folder")

        async def are_headless() -> bool:
            await durable(broker)
            [report] = await broker.look([wanted])
            return any("no leader" in one for one in report.wrong)

        await eventually(are_headless, within_s=60, every_s=0.2, what="a disk is lost")
        went = await durable(broker)
        assert 0 < len(went) < 40
        parts = [{partition_of(sent[place].key, 4) for place in some} for some in (went, set(range(40)) - went)]
        assert not parts[0] & parts[1], "each partition takes all of its records or none"
        await late.start()
        await late.ensure_topics([wanted])
        await sudden.start()
        assert set(await asyncio.gather(durable(late), durable(sudden))) == {went}
        headless = [sent[place] for place in sorted(set(range(40)) - went)]
        asked.clear()
        told = await asyncio.gather(
            late.publish_many(wanted.name, headless[:1]),  # alone it is told from a broker that is away
            sudden.publish_many(wanted.name, headless),
            broker.publish(wanted.name, headless[0], timeout_s=10.0),
            *(broker.publish(wanted.name, sent[min(went)], timeout_s=1.0) for _ in range(3)),
            return_exceptions=True,
        )
        assert told[3:] == [None] * 3, "the others go on meanwhile"
        assert [(type(one), getattr(one, "durable", None)) for one in told[:3]] == [(PartitionAway, frozenset())] * 3
        assert {one.code for one in told[:3] if isinstance(one, PartitionAway)} == {BrokerUnavailable.code}
        assert len(asked) < 2_000, "in ten seconds, four clients: each asked 4,000 times a second"
        await member.stop(5.0)
        await asyncio.gather(*(one.stop(5.0) for one in (broker, late, sudden)))


def _requests_of(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What all clients ask from now on, as it comes."""
    asked: list[str] = []
    send = AIOKafkaConnection.send

    def noted(self: Any, request: Any, *how: Any, **more: Any) -> Any:
        asked.append(type(request).__name__)
        return send(self, request, *how, **more)

    monkeypatch.setattr(AIOKafkaConnection, "send", noted)
    return asked


# case: O6
async def test_all_that_ask_for_a_topic_at_once_share_one_look(
    kafka_broker: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each opened a connection of its own, until there were no descriptors left."""
    broker, looks = KafkaBroker([f"127.0.0.1:{kafka_broker.port}"]), list[str]()
    describe = KafkaTopics.describe

    async def counted(self: KafkaTopics, name: str) -> FoundTopic | None:
        looks.append(name)
        if len(looks) > 1:
            await asyncio.Event().wait()  # as long as nobody ends it
        return await describe(self, name)

    monkeypatch.setattr(KafkaTopics, "describe", counted)
    await broker.start()
    found = await asyncio.gather(
        *(broker.publish("missing", message(str(number))) for number in range(50)), return_exceptions=True
    )
    assert {type(one) for one in found} == {TopicUnknown}
    assert looks == ["missing"]
    waiting = [asyncio.create_task(broker.publish("missing", message("x"))) for _ in range(2)]
    await eventually(lambda: len(looks) == 2)
    waiting[0].cancel()
    await broker.stop(5.0)
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(one) for one in outcomes] == [asyncio.CancelledError, BrokerUnavailable]


# case: O2
# cause: UnsupportedCodecError
async def test_a_topic_that_compresses_as_we_cannot_read_is_named_by_who_reads_and_by_who_looks(
    kafka_broker: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiokafka.codec.cramjam", None)  # whoever runs the tests may have it
    address = f"127.0.0.1:{kafka_broker.port}"
    broker, admin = KafkaBroker([address]), AIOKafkaAdminClient(bootstrap_servers=address)
    wanted = TopicConfig(name="squeezed", partitions=1, retention_s=None, max_record_bytes=100_000)
    await broker.start()
    await broker.ensure_topics([wanted])
    await admin.start()
    await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, "squeezed", {"compression.type": "zstd"})])
    await admin.close()

    async def is_wrong() -> bool:
        [report] = await broker.look([wanted])
        return any("compression.type=zstd" in one for one in report.wrong)

    await eventually(is_wrong, within_s=20, every_s=0.2)
    await broker.publish("squeezed", message("x"))
    member = broker.subscribe(["squeezed"], "squeezers")
    await member.start()
    with pytest.raises(LogCompressed):
        await read(member, 1)
    with pytest.raises(LogCompressed):
        await broker.look_at_groups({"squeezers": "squeezed"})
    await broker.stop(5.0)


# case: O2
@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
async def test_what_somebody_else_compressed_is_read(kafka_broker: KafkaServer, codec: str) -> None:
    """A tool that mirrors topics, or an administrator's: its record would stop the partition."""
    address = f"127.0.0.1:{kafka_broker.port}"
    broker, other = KafkaBroker([address]), AIOKafkaProducer(bootstrap_servers=address, compression_type=codec)
    topic = f"others-{codec}"
    await broker.start()
    await broker.ensure_topics([TopicConfig(name=topic, partitions=1, retention_s=None, max_record_bytes=100_000)])
    await other.start()
    await other.send_and_wait(topic, b"x" * 1000, key=b"k")
    await other.stop()
    member = broker.subscribe([topic], topic)
    await member.start()
    [found] = await read(member, 1)
    assert found.value == b"x" * 1000
    await broker.stop(5.0)


# case: O2
@pytest.mark.parametrize("takes", [False, True], ids=["gone", "hangs"])
async def test_machines_that_do_not_answer_keep_nobody_from_the_one_that_does(
    kafka_broker: KafkaServer, takes: bool
) -> None:
    with silence(takes=takes) as first, silence(takes=takes) as second:
        servers = [f"127.0.0.1:{port}" for port in (first, kafka_broker.port, second)]
        for _ in range(3):  # they are asked in any order
            broker = KafkaBroker(servers)
            async with asyncio.timeout(20):
                await broker.start()
                await broker.ensure_topics([replace(TOPIC, name="reached")])
                await broker.look([replace(TOPIC, name="reached")])
                await broker.look_at_groups({"nobody": "reached"})
                member = broker.subscribe(["reached"], "reachers")
                await member.start()
            await broker.stop(5.0)


# case: I10
@pytest.mark.parametrize("ending", ["commit_transaction", "abort_transaction"])
async def test_the_mark_of_a_transaction_is_no_record_that_waits(kafka_broker: KafkaServer, ending: str) -> None:
    address, name = f"127.0.0.1:{kafka_broker.port}", ending.partition("_")[0]
    broker, other = KafkaBroker([address]), AIOKafkaProducer(bootstrap_servers=address, transactional_id=name)
    await broker.start()
    await broker.ensure_topics([replace(TOPIC, name=name, partitions=1)])
    member = broker.subscribe([name], name)
    await member.start()
    await other.start()
    await other.begin_transaction()
    await other.send_and_wait(name, b"theirs", partition=0)
    await getattr(other, ending)()
    await other.stop()
    [record] = await read(member, 1)
    assert (await member.lag())[record.partition].records > 0, "it was not dealt with yet"
    await member.commit({record.partition: record.offset + 1})

    async def nothing_waits() -> bool:
        assert list(await member.poll(10, 0.1)) == []
        return (await member.lag())[record.partition].records == 0

    await eventually(nothing_waits, within_s=20, every_s=0.1)
    await broker.publish(name, message("ours"))
    assert values(await read(member, 1)) == ["ours"]
    assert (await member.lag())[record.partition].records > 0
    await broker.stop(5.0)


# case: O2
async def test_a_broker_that_sends_us_where_nobody_is_says_where(tmp_path: Path) -> None:
    nowhere = free_port()
    with kafka_server(tmp_path / "kafka", advertised_port=nowhere) as server:
        broker = KafkaBroker([f"127.0.0.1:{server.port}"], start_within_s=1.0)
        for look in (broker.start(), broker.check(), broker.look([TOPIC]), broker.look_at_groups({"g": "t"})):
            with pytest.raises(BrokerUnavailable, match=f"sends us on to 127.0.0.1:{nowhere}, where nobody is"):
                await look


@contextmanager
def silence(*, takes: bool = False) -> Iterator[int]:
    """A port that answers no connection, as a machine does that is gone: its queue is full. One that `takes` them says
    nothing on them, as a machine does that hangs."""
    with ExitStack() as held:
        listener = held.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(100 if takes else 0)
        for _ in range(0 if takes else 3):
            waiting = held.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]
