"""A Kafka client that does not stop in time is given up: whoever looks at the log gets an answer, never its end. One
that had to be replaced is tried again until it starts, whatever keeps it from that: nobody restarts a process."""

from __future__ import annotations

import asyncio
import gc
import shutil
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import certifi
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.errors import GroupCoordinatorNotAvailableError, MessageSizeTooLargeError
from structlog.testing import capture_logs

from consumer.broker import KafkaBroker, Message
from consumer.broker.kafka import broker, connection, consumer, lanes, member, publisher
from consumer.broker.kafka.connection import KafkaConnection, KafkaSecurity
from consumer.broker.membership import Membership
from consumer.clock import SystemClock
from consumer.errors import BrokerError, BrokerLoginRefused, BrokerUnavailable
from consumer.telemetry.internal import Readiness
from tests.contract.broker.conftest import Log, message, read, values
from tests.support.kafka import KafkaServer
from tests.support.ports import eventually


class Network:
    """What aiokafka does: it awaits tasks of its own that somebody has cancelled."""

    async def close(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        waiter.cancel()
        await waiter


class Endless:
    def __init__(self) -> None:
        self.client = Network()

    async def stop(self) -> None:
        await asyncio.Event().wait()


# case: I22
async def test_who_waits_for_its_end_is_not_cancelled_with_it() -> None:
    await connection.end(Endless(), 0.01)
    current = asyncio.current_task()
    assert current is not None
    assert not current.cancelling()


# case: I10
@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize("log", ["kafka"], indirect=True)
async def test_a_strangers_transaction_that_hangs_holds_nobody_up_and_its_mark_waits_for_nobody(
    log: Log, kafka_broker: KafkaServer
) -> None:
    """Whoever reads committed records only reads nothing that lies behind it."""
    broker = await log.open()
    topic, group = await log.topic(broker, partitions=1), log.group()
    member = broker.subscribe([topic], group)
    await member.start()
    address = kafka_broker.url.removeprefix("kafka://")
    stranger = AIOKafkaProducer(bootstrap_servers=address, transactional_id=topic)
    await stranger.start()
    await stranger.begin_transaction()
    await stranger.send_and_wait(topic, b"theirs", partition=0)
    await broker.publish(topic, message("ours"))
    found = await read(member, 2)
    assert values(found) == ["theirs", "ours"]
    await member.commit({found[-1].partition: found[-1].offset + 1})
    await stranger.abort_transaction()
    await stranger.stop()

    async def is_marked() -> bool:
        [report] = await broker.look_at_groups({group: topic})
        assert report.records == 0, "a mark is no record"
        return report.ends[0] > found[-1].offset + 1

    await eventually(is_marked, within_s=20, every_s=0.2)
    await broker.publish(topic, message("later"))
    [report] = await broker.look_at_groups({group: topic})
    assert report.records > 0
    assert values(await read(member, 1)) == ["later"]


# case: I22
@pytest.mark.kafka
@pytest.mark.parametrize("log", ["kafka"], indirect=True)
async def test_an_offset_that_fails_to_be_stored_after_nobody_waits_for_it_leaves_no_error_behind(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """aiokafka shields it: what is cut off goes on, and Python told of its end with a traceback."""
    broker = await log.open()
    topic = await log.topic(broker, partitions=1)
    member = broker.subscribe([topic], log.group())
    await member.start()
    await broker.publish(topic, message("one"))
    [found] = await read(member, 1)
    answered, told, before = asyncio.Event(), list[dict[str, Any]](), asyncio.all_tasks()

    async def refused(*_: object) -> None:
        await answered.wait()
        raise GroupCoordinatorNotAvailableError

    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    with monkeypatch.context() as patched:
        patched.setattr(GroupCoordinator, "_send_req", refused)
        with pytest.raises(BrokerUnavailable):
            await member.commit({found.partition: found.offset + 1}, timeout_s=0.2)
        answered.set()
        await eventually(lambda: asyncio.all_tasks() <= before, what="what was given up has ended")
    gc.collect()
    await asyncio.sleep(0)
    assert told == []
    assert await member.commit({found.partition: found.offset + 1})


class Client:
    """Of aiokafka's: it starts unless it is told not to."""

    made = 0
    refusal: BaseException | None = None

    def __init__(self, **_: Any) -> None:
        type(self).made += 1
        self.client = SimpleNamespace(cluster=SimpleNamespace(update_metadata=None), _metadata_update=None, send=None)
        self._client = self.client

    def subscribe(self, *_: Any, **__: Any) -> None: ...

    async def start(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    async def stop(self) -> None: ...

    async def getmany(self, timeout_ms: int, **_: Any) -> dict[Any, Any]:
        await asyncio.sleep(timeout_ms / 1000)
        return {}


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> type[Client]:
    class Fresh(Client): ...

    monkeypatch.setattr(publisher, "AIOKafkaProducer", Fresh)
    monkeypatch.setattr(consumer, "AIOKafkaConsumer", Fresh)
    monkeypatch.setattr(publisher, "RENEW_WAIT_S", 0.01)
    monkeypatch.setattr(member, "RESTART_WAIT_S", 0.01)
    return Fresh


# case: I1, I22
async def test_a_producer_while_its_certificates_are_exchanged(client: type[Client], tmp_path: Path) -> None:
    authorities, away = tmp_path / "ca.pem", tmp_path / "away.pem"
    shutil.copy(certifi.where(), authorities)
    security = KafkaSecurity(security_protocol="SSL", ca_file=authorities)
    address = KafkaConnection(servers=("127.0.0.1:1",), client_id="tests", security=security)
    found = publisher.KafkaPublisher(address, max_pending=10, max_pending_bytes=1000)
    await found.start(5)
    authorities.rename(away)
    with capture_logs() as said:
        found._renew(found._producer, "a batch failed")
        await eventually(lambda: [line for line in said if line["event"] == "producer_not_started_again"])
    assert (found.client, client.made) == (None, 1)
    away.rename(authorities)
    await eventually(lambda: found.client is not None)
    await found.stop(1)


async def _there(*_: Any) -> None: ...


# case: G5
async def test_a_member_while_a_broker_has_no_request_in_common_with_it(
    client: type[Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def reachable(_: Iterable[Any]) -> None:
        return None

    monkeypatch.setattr(consumer, "why_unreachable", reachable)
    address = KafkaConnection(servers=("127.0.0.1:1",), client_id="tests")
    membership = Membership(topics=("t",), group="work", heartbeat_s=1, session_s=5)
    found = member.KafkaSubscription(address, membership, clock=SystemClock(), exists=_there)
    await found.start()
    client.refusal = NotImplementedError("no version of the request in common")
    found._broken = "the cluster does not answer"
    found._alarm.set()
    await eventually(lambda: client.made >= 3)
    client.refusal = None
    await eventually(lambda: found._consumer is not None and found._broken is None)
    await found.stop(1)


# case: O3
async def test_one_that_is_replaced_again_and_again_fills_no_log(client: type[Client]) -> None:
    address = KafkaConnection(servers=("127.0.0.1:1",), client_id="tests")
    writes = publisher.KafkaPublisher(address, max_pending=10, max_pending_bytes=1000)
    membership = Membership(topics=("t",), group="work", heartbeat_s=1, session_s=5)
    reads = member.KafkaSubscription(address, membership, clock=SystemClock(), exists=_there)
    await writes.start(5)
    await reads.start()
    with capture_logs() as said:
        for _ in range(5):
            before = writes._producer, reads._consumer
            writes._renew(writes._producer, "a batch failed")
            reads._broken = "UnsupportedCodecError"
            reads._alarm.set()
            await eventually(lambda: writes._producer not in (None, before[0]))  # noqa: B023 - it ends in this round
            await eventually(lambda: reads._consumer not in (None, before[1]) and reads._broken is None)  # noqa: B023 - the same
    assert [line["event"] for line in said] == ["producer_replaced", "member_replaced"]
    await reads.stop(1)
    await writes.stop(1)


@pytest.mark.parametrize("together", [False, True])
async def test_who_gave_up_while_it_is_away_leaves_no_body_behind(
    client: type[Client], monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    """What it may keep waiting was given back, and the bodies stayed: twelve lanes held 64 MiB and more each."""
    # case: I22
    away = publisher.KafkaPublisher(
        KafkaConnection(servers=("x:1",), client_id="t"), max_pending=100, max_pending_bytes=1000
    )
    monkeypatch.setattr(away, "_running", True)  # its producer is being replaced
    topic = lanes.TopicLanes("t", 1, 1_000, 1_000_000)
    some = [Message(key=b"k", value=b"x" * 300, headers={"id": b"1"})] * 3
    for _ in range(5):
        if together:
            outcomes = await away.send_many(topic, some, 0.01)
        else:
            sent = (away.send(topic, one, 0.01) for one in some)
            outcomes = cast("list[BrokerError | None]", await asyncio.gather(*sent, return_exceptions=True))
        assert {type(one) for one in outcomes} == {BrokerUnavailable}
    [lane] = topic.lanes
    assert len(lane.pending) == 15
    assert not any(item.value or item.headers for item in lane.pending)


class Limited:
    """A producer of a topic that takes batches of `limit` records; `lots`: how many each had that it took, `refused`:
    those that it did not."""

    limit, lots, refused = 100, list[int](), list[int]()

    def __init__(self) -> None:
        self.client = SimpleNamespace(cluster=SimpleNamespace(partitions_for_topic=lambda _: {0, 1}))

    def create_batch(self) -> Any:
        """A batch that takes everything, and counts it."""
        kept = list[Any]()

        def append(**record: Any) -> bool:
            kept.append(record)
            return True

        return SimpleNamespace(kept=kept, append=append)

    async def send_batch(self, builder: Any, *_: Any, **__: Any) -> asyncio.Future[None]:
        """It is refused, or acknowledged at once."""
        if len(builder.kept) > self.limit:
            self.refused.append(len(builder.kept))
            raise MessageSizeTooLargeError
        self.lots.append(len(builder.kept))
        acknowledged: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(acknowledged.set_result, None)
        return acknowledged

    async def stop(self) -> None: ...


# case: I1, I30
async def test_batches_grow_again_when_a_lowered_limit_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """They stayed as small as they had come to be until the process was started again."""
    monkeypatch.setattr(publisher, "RENEW_WAIT_S", 0.01)
    monkeypatch.setattr(publisher, "ROUND_AT_MOST_S", 0)  # nobody else comes whom a round could take along
    monkeypatch.setattr(publisher.KafkaPublisher, "_connect", lambda _: asyncio.sleep(0, Limited()))
    monkeypatch.setattr(Limited, "lots", [])
    monkeypatch.setattr(Limited, "refused", [])
    address = KafkaConnection(servers=("127.0.0.1:1",), client_id="tests")
    writes = publisher.KafkaPublisher(address, max_pending=1000, max_pending_bytes=1_000_000)
    await writes.start(5)
    loop = asyncio.get_running_loop()
    calls = {"create_future": loop.create_future, "call_soon": loop.call_soon, "call_later": loop.call_later}
    clock = SimpleNamespace(time=lambda: 1000.0, **calls)
    writes._loop = cast(Any, clock)
    topic = lanes.TopicLanes("t", 1, 10_000, 1_000_000)

    async def lots() -> list[int]:
        Limited.lots.clear()
        await writes.send_many(topic, [Message(key=b"k", value=b"x" * 99) for _ in range(64)], 20)
        return list(Limited.lots)

    assert await lots() == [64]
    monkeypatch.setattr(Limited, "limit", 8)
    assert await lots() == [8] * 8
    clock.time = lambda: 1000.0 + lanes.GROWS_EVERY_S
    assert await lots() == [8] * 8, "one larger batch was tried, and refused"
    Limited.refused.clear()
    for minute in range(2, 300):
        clock.time = partial(float, 1000.0 + minute * 60)
        await lots()
    assert len(Limited.refused) <= 10, "where the limit stays, that is tried ever more rarely"
    monkeypatch.setattr(Limited, "limit", 100)
    for minute in range(300, 370):
        clock.time = partial(float, 1000.0 + minute * 60)
        last = await lots()
    assert last == [64], "and where it was raised, once an hour has passed they grow every minute"
    await writes.stop(1)


# case: O2
@pytest.mark.parametrize("known", [True, False], ids=["a cause is known", "none is"])
async def test_why_a_cluster_does_not_answer_is_known_before_who_asks_goes_away(
    monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """Both waited for two seconds: `/readyz` said of every slow cluster that it took too long, and never why."""

    async def silent() -> bool:
        await asyncio.Event().wait()
        return True

    async def why(_: KafkaConnection) -> BrokerError | None:
        return BrokerLoginRefused() if known else BrokerUnavailable() if await silent() else None

    monkeypatch.setattr(broker, "why_unreachable", why)
    slow = KafkaBroker(["x:1"])
    monkeypatch.setattr(slow, "_publisher", SimpleNamespace(client=SimpleNamespace(force_metadata_update=silent)))
    readiness = Readiness(SystemClock(), {"broker": slow.check})
    readiness.started()
    assert await readiness.answers() == (False, "not_ready", {"broker": "failed"})
    code, said = readiness.problems["broker"]
    assert code == (BrokerLoginRefused.code if known else BrokerUnavailable.code)
    assert known or said == "the broker does not answer"
