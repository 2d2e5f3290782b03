"""What a group promises to its members, on each kind of log."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from consumer.broker import Broker, Partition, Record
from consumer.broker.base import next_offsets
from consumer.broker.embedded import claims
from consumer.broker.kafka.member import KafkaSubscription
from consumer.clock import DrivenClock
from consumer.errors import BrokerUnavailable
from tests.contract.broker.conftest import Log, message, read, read_all, values
from tests.support.ports import eventually


async def test_a_new_group_starts_at_the_oldest_record(log: Log, broker: Broker) -> None:
    topic = await log.topic(broker)
    await broker.publish(topic, message("first"))
    member = broker.subscribe([topic], log.group())
    await member.start()
    assert values(await read(member, 1)) == ["first"]


async def test_groups_read_independently(log: Log, broker: Broker) -> None:
    topic = await log.topic(broker)
    await broker.publish_many(topic, [message(str(number)) for number in range(5)])
    for group in (log.group(), log.group()):
        member = broker.subscribe([topic], group)
        await member.start()
        found = await read(member, 5)
        assert values(found) == ["0", "1", "2", "3", "4"]
        await member.commit({found[-1].partition: 5})
        await member.stop()


async def test_after_a_restart_a_group_goes_on_where_it_committed(log: Log) -> None:
    # case: G5
    first = await log.open()
    topic, group = await log.topic(first), log.group()
    await first.publish_many(topic, [message(str(number)) for number in range(10)])
    member = first.subscribe([topic], group)
    await member.start()
    found = await read(member, 10)
    partition = found[0].partition
    assert await member.commit({partition: 6}) == {partition}
    await member.stop()
    await first.stop()

    second = await log.open()
    member = second.subscribe([topic], group)
    await member.start()
    assert values(await read(member, 4)) == ["6", "7", "8", "9"]


async def test_what_was_not_committed_is_read_again(log: Log, broker: Broker) -> None:
    topic, group = await log.topic(broker), log.group()
    await broker.publish_many(topic, [message(str(number)) for number in range(3)])
    for _ in range(2):
        member = broker.subscribe([topic], group)
        await member.start()
        assert values(await read(member, 3)) == ["0", "1", "2"]
        await member.stop()


async def test_an_offset_never_goes_back(log: Log, broker: Broker) -> None:
    topic, group = await log.topic(broker, partitions=1), log.group()
    await broker.publish_many(topic, [message(str(number)) for number in range(10)])
    member = broker.subscribe([topic], group)
    await member.start()
    await read(member, 10)
    partition = Partition(topic, 0)
    assert await member.commit({partition: 8}) == {partition}
    assert await member.commit({partition: 2}) == {partition}
    await member.stop()
    again = broker.subscribe([topic], group)
    await again.start()
    assert values(await read(again, 2)) == ["8", "9"]
    # Also by a member that has read nothing yet, as one is that came back after its session ended.
    await again.stop()
    third = broker.subscribe([topic], group)
    await third.start()
    await eventually(lambda: third.assignment())
    await third.commit({partition: 1})
    await third.stop()
    fourth = broker.subscribe([topic], group)
    await fourth.start()
    assert values(await read(fourth, 2)) == ["8", "9"]


async def test_a_commit_for_a_foreign_partition_is_left_out(log: Log, broker: Broker) -> None:
    topic = await log.topic(broker, partitions=1)
    await broker.publish(topic, message("x"))
    member = broker.subscribe([topic], log.group())
    await member.start()
    await read(member, 1)
    assert await member.commit({Partition("other", 0): 1}) == frozenset()
    assert await member.commit({Partition("other", 0): 1, Partition(topic, 0): 1}) == {Partition(topic, 0)}
    assert await member.commit({}) == frozenset()


async def test_one_member_may_read_several_topics(log: Log, broker: Broker) -> None:
    one, two = await log.topic(broker), await log.topic(broker)
    await broker.publish(one, message("one"))
    await broker.publish(two, message("two"))
    member = broker.subscribe([one, two], log.group())
    await member.start()
    assert sorted(values(await read(member, 2))) == ["one", "two"]


async def test_poll_gives_at_most_what_was_asked_and_nothing_twice(log: Log, broker: Broker) -> None:
    topic = await log.topic(broker)
    await broker.publish_many(topic, [message(str(number), f"k{number}") for number in range(100)])
    member = broker.subscribe([topic], log.group())
    await member.start()
    found: list[Record] = []
    while len(found) < 100:
        records = await member.poll(7, 5.0)
        assert 0 < len(records) <= 7
        found.extend(records)
    assert sorted(values(found), key=int) == [str(number) for number in range(100)]
    assert await read_all(member, 0.3) == []


async def test_poll_ends_in_time_with_nothing_and_wakes_at_once_for_a_record(log: Log, broker: Broker) -> None:
    topic = await log.topic(broker)
    member = broker.subscribe([topic], log.group())
    await member.start()
    await eventually(lambda: len(member.assignment()) == 4)
    began = time.monotonic()
    assert list(await member.poll(10, 0.3)) == []
    assert 0.2 < time.monotonic() - began < 2.0
    polling = asyncio.create_task(member.poll(10, 20.0))
    await asyncio.sleep(0.05)
    began = time.monotonic()
    await broker.publish(topic, message("now"))
    assert values(list(await polling)) == ["now"]
    assert time.monotonic() - began < 2.0


async def test_a_cancelled_poll_loses_nothing(log: Log, broker: Broker) -> None:
    topic = await log.topic(broker, partitions=1)
    member = broker.subscribe([topic], log.group())
    await member.start()
    found: list[Record] = []
    for number in range(20):
        polling = asyncio.create_task(member.poll(10, 5.0))
        await asyncio.sleep(0.001 * (number % 5))
        await broker.publish(topic, message(str(number)))
        await asyncio.sleep(0.001 * (number % 3))
        polling.cancel()
        outcome = (await asyncio.gather(polling, return_exceptions=True))[0]
        if not isinstance(outcome, BaseException):
            found.extend(outcome)
    found.extend(await read(member, 20 - len(found)))
    assert values(found) == [str(number) for number in range(20)]


async def test_lag_counts_what_is_not_committed_and_its_age(log: Log) -> None:
    # case: O2
    clock = DrivenClock(datetime.now(UTC))
    broker = await log.open(clock=clock)
    topic = await log.topic(broker, partitions=1)
    partition = Partition(topic, 0)
    member = broker.subscribe([topic], log.group())
    await member.start()
    await eventually(lambda: member.assignment())
    assert (await member.lag())[partition].records == 0
    assert (await member.lag())[partition].oldest_s is None
    clock.advance((datetime.now(UTC) - clock.now()).total_seconds())  # Kafka stamps records by its own clock
    await broker.publish(topic, message("old"))
    clock.advance(30)
    await broker.publish_many(topic, [message("new")] * 4)
    await read(member, 5)
    clock.advance(10)
    lag = (await member.lag())[partition]
    assert lag.records == 5
    assert lag.oldest_s is not None
    assert 39.9 < lag.oldest_s < 41
    await member.commit({partition: 5})
    assert (await member.lag())[partition].records == 0
    await broker.publish(topic, message("newer"))
    lag = (await member.lag())[partition]
    assert lag.records == 1


async def test_stop_is_safe_twice_and_before_start_and_ends_a_waiting_poll(log: Log, broker: Broker) -> None:
    topic = await log.topic(broker)
    never = broker.subscribe([topic], log.group())
    await never.stop()
    member = broker.subscribe([topic], log.group())
    with pytest.raises(BrokerUnavailable):
        await member.poll(1, 0.1)
    await member.start()
    await member.start()
    polling = asyncio.create_task(member.poll(10, 30.0))
    await asyncio.sleep(0.05)
    began = time.monotonic()
    await member.stop()
    await member.stop()
    assert list(await polling) == []
    assert time.monotonic() - began < 5.0
    assert member.assignment() == frozenset()
    assert await member.commit({Partition(topic, 0): 0}) == frozenset()
    with pytest.raises(BrokerUnavailable):
        await member.poll(1, 0.1)


async def test_stopping_the_broker_stops_its_members(log: Log) -> None:
    broker = await log.open()
    topic = await log.topic(broker)
    member = broker.subscribe([topic], log.group())
    await member.start()
    await broker.stop()
    with pytest.raises(BrokerUnavailable):
        await member.poll(1, 0.1)


# case: O7
async def test_a_group_goes_back_only_to_what_lies_before_it(log: Log, broker: Broker) -> None:
    topic, group = await log.topic(broker, partitions=2), log.group()
    await broker.publish_many(topic, [message(str(number), key=f"order:{number}") for number in range(40)])
    member = broker.subscribe([topic], group)
    await member.start()
    found = await read(member, 40)
    ends = next_offsets(found)
    assert len(ends) == 2, "both partitions have records"
    await member.commit(ends)
    one, other = ends
    assert await member.stands() == ends
    assert await member.rewind({one: 3, other: ends[other]}) == {one}
    again = await read(member, ends[one] - 3)
    assert [record.offset for record in again] == list(range(3, ends[one]))
    assert {record.partition for record in again} == {one}
    assert await member.commit({one: 5}) == {one}
    assert (await member.lag())[one].records == ends[one] - 5, "the group itself went back"
    assert await member.rewind({one: 5, Partition("another", 0): 0}) == frozenset()
    assert await read_all(member, 0.5) == []
    await member.stop()

    later = broker.subscribe([topic], group)
    await later.start()
    assert [record.offset for record in await read(later, ends[one] - 5)] == list(range(5, ends[one]))


# case: O7
async def test_before_its_first_commit_a_group_stands_where_the_log_begins(log: Log, broker: Broker) -> None:
    topic = await log.topic(broker, partitions=2)
    member = broker.subscribe([topic], log.group())
    await member.start()
    await eventually(lambda: len(member.assignment()) == 2)
    assert await member.stands() == {Partition(topic, 0): 0, Partition(topic, 1): 0}


# case: O7
async def test_what_was_handed_out_behind_the_place_comes_again_in_order(log: Log, broker: Broker) -> None:
    topic, group = await log.topic(broker, partitions=1), log.group()
    await broker.publish_many(topic, [message(str(number)) for number in range(10)])
    member = broker.subscribe([topic], group)
    await member.start()
    (partition,) = next_offsets(found := await read(member, 10))
    await member.commit({partition: 10})
    await broker.publish_many(topic, [message(str(number)) for number in range(10, 20)])
    assert len(found) + len(await read(member, 10)) == 20, "handed out, and not committed"
    assert await member.rewind({partition: 2}) == {partition}
    assert values(await read(member, 18)) == [str(number) for number in range(2, 20)]


def _unheard_once(member: Any) -> None:
    """The next time the group is set back, it is, and the answer is lost."""
    on_kafka = isinstance(member, KafkaSubscription)
    holder, name = (member._consumer, "commit") if on_kafka else (member._file, "write")
    real = getattr(holder, name)

    async def done(*given: Any) -> Any:
        found = await real(*given)
        if on_kafka or given[0].func is claims.rewind:  # and not a heartbeat
            setattr(holder, name, real)
            raise TimeoutError if on_kafka else BrokerUnavailable("no answer")
        return found

    setattr(holder, name, done)


# case: O7
async def test_a_member_that_does_not_know_whether_the_group_went_back_goes_back_with_it(
    log: Log, broker: Broker
) -> None:
    topic, group = await log.topic(broker, partitions=1), log.group()
    await broker.publish_many(topic, [message(str(number)) for number in range(10)])
    member = broker.subscribe([topic], group)
    await member.start()
    (partition,) = next_offsets(await read(member, 10))
    await member.commit({partition: 10})
    _unheard_once(member)
    with pytest.raises(BrokerUnavailable):
        await member.rewind({partition: 2})
    assert await member.stands() == {partition: 2}, "the group went back, and the member was not told"
    assert await member.rewind({partition: 2}) == {partition}
    assert values(await read(member, 8)) == [str(number) for number in range(2, 10)]
    assert await member.rewind({partition: 2}) == frozenset(), "once"


# case: O7
async def test_a_member_goes_back_where_its_group_never_came(log: Log, broker: Broker) -> None:
    topic, group = await log.topic(broker, partitions=1), log.group()
    await broker.publish_many(topic, [message(str(number)) for number in range(10)])
    member = broker.subscribe([topic], group)
    await member.start()
    (partition,) = next_offsets(await read(member, 10))
    assert await member.rewind({partition: 4}) == frozenset(), "its group stands at the beginning"
    assert await member.rewind({partition: 4}, anyway={partition}) == {partition}
    assert values(await read(member, 6)) == [str(number) for number in range(4, 10)]
