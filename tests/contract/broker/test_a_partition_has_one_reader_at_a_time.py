"""What a rebalance promises, on each kind of log."""

from __future__ import annotations

import asyncio

from consumer.broker import Broker, Partition, Record, Subscription
from tests.contract.broker.conftest import Log, message, read, read_all, values
from tests.support.ports import eventually


class Member:
    """A member that polls all the time and remembers what happened."""

    def __init__(self, broker: Broker, topic: str, group: str, story: list[str], name: str, drain: float = 0.0) -> None:
        self.name = name
        self.story = story
        self.drain = drain
        self.records: list[Record] = []
        self.commits = False
        self.lost: frozenset[Partition] = frozenset()
        self.subscription: Subscription = broker.subscribe(
            [topic], group, on_assigned=self.assigned, on_revoked=self.revoked, drain_s=5.0
        )
        self.task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.subscription.start()
        self.task = asyncio.create_task(self.run())

    async def run(self) -> None:
        while True:
            self.records.extend(await self.subscription.poll(100, 0.2))

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait({self.task})
        await self.subscription.stop()

    async def assigned(self, partitions: frozenset[Partition]) -> None:
        self.story += [f"{self.name} got {partition.number}" for partition in sorted(partitions)]

    async def revoked(self, partitions: frozenset[Partition]) -> None:
        seen = len(self.records)
        await asyncio.sleep(self.drain)
        assert len(self.records) == seen, "no record is handed out while draining"
        if self.commits:
            offsets: dict[Partition, int] = {}
            for record in self.records:
                offsets[record.partition] = record.offset + 1
            stored = await self.subscription.commit(
                {partition: offset for partition, offset in offsets.items() if partition in partitions}
            )
            assert stored == partitions & offsets.keys()
        self.story += [f"{self.name} let {partition.number} go" for partition in sorted(partitions)]


async def shared(members: list[Member], count: int) -> bool:
    """Whether the members read `count` partitions together, none twice and each at least one."""
    sets = [member.subscription.assignment() for member in members]
    return all(sets) and len(frozenset().union(*sets)) == count == sum(len(found) for found in sets)


async def test_two_members_share_the_partitions_and_every_record_is_read_once(log: Log, broker: Broker) -> None:
    topic, group, story = await log.topic(broker), log.group(), list[str]()
    members = [Member(broker, topic, group, story, name) for name in "ab"]
    await asyncio.gather(*(member.start() for member in members))
    await eventually(lambda: shared(members, 4), within_s=20)
    await broker.publish_many(topic, [message(str(number), f"k{number}") for number in range(200)])
    await eventually(lambda: sum(len(member.records) for member in members) >= 200, within_s=20)
    found = values(members[0].records + members[1].records)
    assert sorted(found, key=int) == [str(number) for number in range(200)]
    assert all(member.records for member in members)
    await asyncio.gather(*(member.stop() for member in members))


async def test_partitions_move_only_after_on_revoked_has_returned_and_its_commit_counts(
    log: Log, broker: Broker
) -> None:
    topic, group, story = await log.topic(broker), log.group(), list[str]()
    first = Member(broker, topic, group, story, "a", drain=0.5)
    first.commits = True
    await first.start()
    await broker.publish_many(topic, [message(str(number), f"k{number}") for number in range(100)])
    await eventually(lambda: len(first.records) == 100, within_s=20)
    other = await log.open()
    second = Member(other, topic, group, story, "b")
    await second.start()
    await eventually(lambda: shared([first, second], 4), within_s=20)
    moved = second.subscription.assignment()
    assert moved
    for partition in moved:
        assert story.index(f"a let {partition.number} go") < story.index(f"b got {partition.number}")
    await asyncio.sleep(0.5)
    assert second.records == [], "what the first committed while it drained is not read again"
    await first.stop()
    await second.stop()


async def test_when_a_member_leaves_the_others_take_over(log: Log, broker: Broker) -> None:
    # case: O8
    topic, group, story = await log.topic(broker), log.group(), list[str]()
    members = [Member(broker, topic, group, story, name) for name in "ab"]
    await asyncio.gather(*(member.start() for member in members))
    await eventually(lambda: shared(members, 4), within_s=20)
    await members[0].stop()
    await eventually(lambda: len(members[1].subscription.assignment()) == 4, within_s=20)
    await broker.publish_many(topic, [message(str(number), f"k{number}") for number in range(40)])
    await eventually(lambda: len(members[1].records) >= 40, within_s=20)
    await members[1].stop()


async def test_a_member_without_partitions_takes_over_when_there_are_some(log: Log, broker: Broker) -> None:
    topic, group, story = await log.topic(broker, partitions=1), log.group(), list[str]()
    members = [Member(broker, topic, group, story, name) for name in "ab"]
    await asyncio.gather(*(member.start() for member in members))
    await eventually(lambda: sum(len(member.subscription.assignment()) for member in members) == 1, within_s=20)
    busy, idle = sorted(members, key=lambda member: -len(member.subscription.assignment()))
    assert await idle.subscription.lag() == {}
    await busy.stop()
    await eventually(lambda: len(idle.subscription.assignment()) == 1, within_s=20)
    await broker.publish(topic, message("for the other"))
    await eventually(lambda: values(idle.records) == ["for the other"], within_s=20)
    await idle.stop()


async def test_a_drain_that_takes_too_long_is_cancelled_and_the_rebalance_goes_on(log: Log, broker: Broker) -> None:
    topic, group = await log.topic(broker), log.group()
    cancelled = asyncio.Event()

    async def hang(_: frozenset[Partition]) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    first = broker.subscribe([topic], group, on_revoked=hang, drain_s=0.5)
    await first.start()
    polling = asyncio.create_task(read_all(first, 8.0))
    await eventually(lambda: len(first.assignment()) == 4, within_s=20)
    second = broker.subscribe([topic], group)
    await second.start()
    other = asyncio.create_task(read_all(second, 8.0))
    await eventually(lambda: second.assignment(), within_s=20)
    assert cancelled.is_set()
    for task in (polling, other):
        task.cancel()
    await asyncio.wait({polling, other})
    await first.stop()
    await second.stop()


async def test_a_listener_that_fails_stops_nothing(log: Log, broker: Broker) -> None:
    topic, group = await log.topic(broker), log.group()

    async def fail(_: frozenset[Partition]) -> None:
        raise RuntimeError("a bug in a listener")

    member = broker.subscribe([topic], group, on_assigned=fail, on_revoked=fail)
    await member.start()
    await broker.publish(topic, message("read all the same"))
    assert values(await read(member, 1)) == ["read all the same"]
