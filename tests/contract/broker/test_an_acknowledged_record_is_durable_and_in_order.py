"""What publishing promises, on each kind of log."""

from __future__ import annotations

import asyncio
import time

import pytest

from consumer.broker import Broker, Message, TopicConfig
from consumer.errors import BrokerUnavailable, RecordTooLarge, TopicUnknown
from tests.contract.broker.conftest import Log, message, read, read_all, values
from tests.support.ports import answers, eventually


async def test_an_acknowledged_record_is_there_after_a_restart(log: Log) -> None:
    # case: I1, G13
    first = await log.open()
    topic = await log.topic(first)
    for number in range(10):
        await first.publish(topic, message(str(number)))
    await first.stop()

    second = await log.open()
    member = second.subscribe([topic], log.group())
    await member.start()
    assert values(await read(member, 10)) == [str(number) for number in range(10)]


async def test_key_value_and_headers_are_kept_byte_for_byte(log: Log, broker: Broker) -> None:
    topic = await log.topic(broker, partitions=1)
    every_byte = bytes(range(256))
    sent = [
        Message(key=every_byte, value=every_byte * 3, headers={"all": every_byte, "empty": b"", "größe": b"\x00\xff"}),
        Message(key=b"", value=b"", headers={}),
        Message(key=b"k", value=b'{"a":"\xc3\x28"}', headers={"application": b"default"}),
    ]
    await broker.publish_many(topic, sent)
    member = broker.subscribe([topic], log.group())
    await member.start()
    found = await read(member, 3)
    assert [(record.key, record.value, dict(record.headers)) for record in found] == [
        (item.key, item.value, dict(item.headers)) for item in sent
    ]
    assert [record.offset for record in found] == [0, 1, 2]


async def test_records_of_one_key_come_in_the_order_they_were_acknowledged(log: Log, broker: Broker) -> None:
    topic = await log.topic(broker)

    async def publish_in_turn(key: str) -> None:
        for number in range(20):
            await broker.publish(topic, message(f"{key}/{number}", key))

    keys = [f"order:{number}" for number in range(25)]
    await asyncio.gather(*(publish_in_turn(key) for key in keys))
    member = broker.subscribe([topic], log.group())
    await member.start()
    found = await read(member, 500)
    for key in keys:
        assert [record.value for record in found if record.key == key.encode()] == [
            f"{key}/{number}".encode() for number in range(20)
        ]
    assert len({record.partition for record in found}) == 4


async def test_publish_many_keeps_the_order_of_each_key(log: Log, broker: Broker) -> None:
    topic = await log.topic(broker)
    sent = [message(str(number), f"order:{number % 7}") for number in range(5_000)]
    await broker.publish_many(topic, sent)
    member = broker.subscribe([topic], log.group())
    await member.start()
    found = await read(member, 5_000)
    for key in {item.key for item in sent}:
        assert [record.value for record in found if record.key == key] == [
            item.value for item in sent if item.key == key
        ]


async def test_one_key_always_goes_to_one_partition_also_after_a_restart(log: Log) -> None:
    first = await log.open()
    topic = await log.topic(first)
    await first.publish(topic, message("before", "subscription:9"))
    await first.stop()
    second = await log.open()
    await second.ensure_topics([])
    await second.publish(topic, message("after", "subscription:9"))
    member = second.subscribe([topic], log.group())
    await member.start()
    assert len({record.partition for record in await read(member, 2)}) == 1


async def test_a_record_beyond_the_topics_limit_is_refused_and_one_at_the_limit_is_taken(
    log: Log, broker: Broker
) -> None:
    # case: I30
    topic = await log.topic(broker, max_record_bytes=700_000)
    with pytest.raises(RecordTooLarge):
        await broker.publish(topic, Message(key=b"k", value=b"x" * 700_000))
    await broker.publish(topic, Message(key=b"k", value=b"x" * 699_999))
    member = broker.subscribe([topic], log.group())
    await member.start()
    assert [len(record.value) for record in await read(member, 1)] == [699_999]
    assert await read_all(member) == []


async def test_one_of_many_that_is_too_large_holds_up_what_comes_behind_it_under_its_key_and_nothing_else(
    log: Log, broker: Broker
) -> None:
    # case: I30, G5
    topic = await log.topic(broker, max_record_bytes=700_000)
    large = Message(key=b"order:1", value=b"x" * 700_000)
    with pytest.raises(RecordTooLarge) as told:
        await broker.publish_many(topic, [message("1"), large, message("2"), message("3", "order:2"), large])
    assert told.value.durable == {0, 3}
    member = broker.subscribe([topic], log.group())
    await member.start()
    assert sorted(values(await read_all(member))) == ["1", "3"]


async def test_large_records_at_once_share_no_batch_that_is_too_large(log: Log, broker: Broker) -> None:
    topic = await log.topic(broker, partitions=1)
    await asyncio.gather(*(broker.publish(topic, message("x" * 90_000, f"k{number}")) for number in range(40)))
    member = broker.subscribe([topic], log.group())
    await member.start()
    assert len(await read(member, 40)) == 40


async def test_an_unknown_topic_is_refused_and_not_created(log: Log, broker: Broker) -> None:
    for _ in range(2):
        with pytest.raises(TopicUnknown):
            await broker.publish("no-such-topic", message("lost?"))
    with pytest.raises(TopicUnknown):
        await broker.subscribe(["no-such-topic"], log.group()).start()


async def test_a_blocked_log_is_told_within_the_time_limit_and_works_again_after(log: Log, broker: Broker) -> None:
    # case: I2, I3
    topic = await log.topic(broker)
    await broker.publish(topic, message("before"))
    async with log.blocked():
        began = time.monotonic()
        with pytest.raises(BrokerUnavailable):
            await broker.publish(topic, message("during"), timeout_s=0.5)
        with pytest.raises(BrokerUnavailable):
            await broker.publish_many(topic, [message("during")] * 3, timeout_s=0.5)
        assert time.monotonic() - began < 3.0
    await broker.publish(topic, message("after"), timeout_s=15.0)
    member = broker.subscribe([topic], log.group())
    await member.start()
    found = values(await read(member, 2))
    while found[-1] != "after":
        found += values(await read(member, 1))
    assert found[0] == "before"  # "during" may have become durable late: a duplicate is the caller's to expect


async def test_what_waits_is_bounded_and_beyond_the_bound_it_fails_at_once(log: Log) -> None:
    # case: I22
    broker = await log.open(max_pending=50)
    topic = await log.topic(broker)
    await broker.publish(topic, message("warm"))
    async with log.blocked():
        waiting = [asyncio.create_task(broker.publish(topic, message("x"), timeout_s=1.5)) for _ in range(200)]
        refused = await eventually(
            lambda: [task for task in waiting if task.done()], within_s=1.0, what="some are refused at once"
        )
        assert 140 <= len(refused) <= 150
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {BrokerUnavailable}
    await broker.publish(topic, message("after"), timeout_s=15.0)


async def test_a_cancelled_publish_harms_no_other(log: Log, broker: Broker) -> None:
    topic = await log.topic(broker, partitions=1)
    tasks = [asyncio.create_task(broker.publish(topic, message(str(number)))) for number in range(100)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    kept = [str(number) for number, outcome in enumerate(outcomes) if outcome is None]
    assert len(kept) >= 50
    member = broker.subscribe([topic], log.group())
    await member.start()
    found = values(await read(member, len(kept)))
    assert set(kept) <= set(found + values(await read_all(member)))


async def test_before_start_and_after_stop_it_is_unavailable(log: Log, broker: Broker) -> None:
    topic = await log.topic(broker)
    await broker.stop()
    await broker.stop()
    with pytest.raises(BrokerUnavailable):
        await broker.publish(topic, message("x"))
    with pytest.raises(BrokerUnavailable):
        await broker.publish_many(topic, [message("x")])
    with pytest.raises(BrokerUnavailable):
        broker.subscribe([topic], log.group())
    assert await answers(broker) is False
    await broker.start()
    await broker.start()
    await broker.publish(topic, message("again"))
    assert await answers(broker) is True


async def test_stop_lets_what_is_on_its_way_arrive(log: Log) -> None:
    # case: I4
    broker = await log.open()
    topic = await log.topic(broker)
    sending = [broker.publish(topic, message(str(number)), timeout_s=60) for number in range(200)]
    waiting = [asyncio.create_task(one) for one in sending]
    await asyncio.sleep(0)
    await broker.stop(60)  # a busy machine's Kafka may take longer than the default for a topic's first batch
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert outcomes == [None] * 200
    again = await log.open()
    member = again.subscribe([topic], log.group())
    await member.start()
    assert len(await read(member, 200)) == 200


async def test_making_topics_again_changes_nothing(log: Log, broker: Broker) -> None:
    topic = await log.topic(broker, partitions=3)
    await broker.publish(topic, message("kept"))
    again = await log.open()
    await again.ensure_topics([TopicConfig(name=topic, partitions=9, retention_s=None, max_record_bytes=100_000)])
    member = again.subscribe([topic], log.group())
    await member.start()
    assert values(await read(member, 1)) == ["kept"]
    assert len(member.assignment()) == 3
