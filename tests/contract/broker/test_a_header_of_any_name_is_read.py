"""Kafka keeps any bytes as the name of a header. A record that has one whose name is no text is read all the same, by
members and by whoever looks: it stops nobody, and what else it is decides what becomes of it."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c

from consumer.broker import Broker, TopicConfig
from consumer.broker.kafka.header_names import readable
from tests.contract.broker.conftest import Log, message, read, values
from tests.support.kafka import KafkaServer

HEADERS = [[("good", b"1")], [("NAME", b"2"), ("next", None)], []]
NO_TEXT = b"\xff\xfeME"
RECORDS_AT, KIND_AT = 61, 21
GZIP = 1

Found = tuple[bytes | None, list[tuple[str, bytes | None]]]


def batch(*, packed: int = 0) -> bytes:
    """Three records; a header of the second has a name that is no text."""
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=0, is_transactional=0, producer_id=-1, producer_epoch=-1, base_sequence=-1,
        batch_size=10_000,
    )  # fmt: skip
    for number, headers in enumerate(HEADERS):
        builder.append(number, number, b"order:1", b"v%d" % number, headers)
    made = bytes(builder.build()).replace(b"NAME", NO_TEXT)
    assert NO_TEXT in made
    head, records = bytearray(made[:RECORDS_AT]), made[RECORDS_AT:]
    records = gzip.compress(records) if packed else records
    struct.pack_into(">i", head, 8, len(head) + len(records) - 12)
    struct.pack_into(">h", head, KIND_AT, packed)
    return checked(bytes(head) + records)


def checked(made: bytes) -> bytes:
    """With the checksum that is right for it."""
    found = bytearray(made)
    struct.pack_into(">I", found, 17, calc_crc32c(made[KIND_AT:]))
    return bytes(found)


def records_in(found: bytes) -> list[Found]:
    opened = DefaultRecordBatch(found)
    assert opened.validate_crc()
    return [(record.value, list(record.headers)) for record in opened]


@pytest.mark.parametrize("packed", [0, GZIP])
def test_the_bytes_of_a_name_that_are_no_text_are_question_marks_and_all_else_is_as_it_was(packed: int) -> None:
    made = batch(packed=packed)
    with pytest.raises(UnicodeDecodeError):
        records_in(made)
    found = readable(made + made)
    assert len(found) % 2 == 0
    for half in (found[: len(found) // 2], found[len(found) // 2 :]):
        assert records_in(half) == [
            (b"v0", [("good", b"1")]), (b"v1", [("??ME", b"2"), ("next", None)]), (b"v2", []),
        ]  # fmt: skip


@pytest.mark.parametrize(
    "spoilt",
    [
        lambda made: made[:-1] + b"x",  # its checksum is another's
        lambda made: made[:40],  # it was cut
        lambda made: checked(made[:KIND_AT] + b"\x00\x07" + made[KIND_AT + 2 :]),  # packed as nobody packs
        lambda made: checked(made[:KIND_AT] + b"\x00\x01" + made[KIND_AT + 2 :]),  # it is no gzip
        lambda made: made[:16] + b"\x01" + made[17:],  # of a version that had no headers
        lambda _: b"",
    ],
)
def test_what_is_broken_otherwise_stays_as_it_is(spoilt: Callable[[bytes], bytes]) -> None:
    assert readable(spoilt(batch())) == spoilt(batch())


# case: I22
@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize("log", ["kafka"], indirect=True)
async def test_it_stops_neither_a_member_nor_who_looks(log: Log, broker: Broker, kafka_broker: KafkaServer) -> None:
    topic, group = await log.topic(broker, partitions=1), log.group()
    await broker.publish(topic, message("before"))
    await put(kafka_broker, topic, batch())
    wanted = TopicConfig(name=topic, partitions=1, retention_s=None, max_record_bytes=100_000)
    [looked] = await broker.look([wanted])
    assert looked.newest_at is not None
    member = broker.subscribe([topic], group)
    await member.start()
    found = await read(member, 4)
    assert values(found) == ["before", "v0", "v1", "v2"]
    assert [record.offset for record in found] == [0, 1, 2, 3]
    assert found[2].headers == {"??ME": b"2", "next": b""}
    await member.commit({found[0].partition: 1})
    await member.stop()
    [report] = await broker.look_at_groups({group: topic})
    assert (report.records, report.oldest_at is not None) == (3, True)


async def put(server: KafkaServer, topic: str, made: bytes) -> None:
    """As another client would: aiokafka has no such names."""
    producer = AIOKafkaProducer(bootstrap_servers=server.url.removeprefix("kafka://"))
    await producer.start()
    try:
        await producer.client._wait_on_metadata(topic)
        leader = producer.client.cluster.leader_for_partition(TopicPartition(topic, 0))
        answer = await producer.client.send(leader, ProduceRequest(None, -1, 5000, [(topic, [(0, made)])]))
        [(_, [(_, code, *_)])] = answer.topics
        assert code == 0
    finally:
        await producer.stop()
