"""Whoever asks the log learns how far a group is, who reads, and which topic it is; nothing is changed by asking."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from consumer.broker import Broker, EmbeddedBroker
from tests.contract.broker.conftest import Log, message, read
from tests.support.ports import eventually


async def test_what_waits_and_who_reads_is_told_without_being_a_member(log: Log, broker: Broker) -> None:
    topic, group = await log.topic(broker), log.group()
    began = datetime.now(UTC)
    await broker.publish_many(topic, [message(str(number), key=f"order:{number}") for number in range(20)])
    [unread] = await broker.look_at_groups({group: topic})
    assert (unread.members, unread.records, unread.beyond, unread.lost) == (0, 20, False, 0)
    assert unread.oldest_at is not None
    assert abs(unread.oldest_at - began) < timedelta(seconds=30)
    assert sum(unread.ends) == 20

    member = broker.subscribe([topic], group)
    await member.start()
    records = await read(member, 20)
    offsets = {record.partition: record.offset + 1 for record in records}
    await member.commit(offsets)
    [done] = await broker.look_at_groups({group: topic})
    assert (done.members, done.records, done.oldest_at) == (1, 0, None)
    assert done.topic_id == unread.topic_id
    await member.stop()

    async def nobody() -> bool:
        [report] = await broker.look_at_groups({group: topic})
        return report.members == 0

    await eventually(nobody, within_s=20, every_s=0.2, what="the member has left")


async def test_a_topic_that_is_not_there_is_left_out(log: Log, broker: Broker) -> None:
    assert list(await broker.look_at_groups({"nobody": "t-nowhere"})) == []


# case: O6
async def test_all_who_use_a_log_know_it_as_the_same(log: Log, broker: Broker, tmp_path: Path) -> None:
    other = await log.open()
    assert other.identity == broker.identity is not None
    elsewhere = EmbeddedBroker(tmp_path / "elsewhere.db")
    assert elsewhere.identity is None
    await elsewhere.start()
    assert elsewhere.identity not in (None, broker.identity)
    for one in (elsewhere, other):
        await one.stop()
        assert one.identity is None
