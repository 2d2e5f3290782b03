"""A log that has lost the end of what was read, as its member finds (the contract of the logs): the ledger is told
before the group goes back, however often that takes, and what it knew of the log's places is known anew."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import pytest
from sqlalchemy.ext.asyncio import AsyncSession
from structlog.testing import capture_logs

from consumer.broker import Broker, Record
from consumer.broker.embedded.member import EmbeddedSubscription
from consumer.errors import LedgerUnavailable
from consumer.ledger import Database, log_memory, log_positions
from consumer.ledger.log_memory import TopicMemory
from consumer.plugin import Context, Event, handles
from consumer.work.rounds import poll_loop
from tests.support.ports import eventually
from tests.work.workshop import TOPIC, Workshop, order_paid


@handles("order.paid", transactional=True, name="test:fine")
async def fine(event: Event, ctx: Context) -> None:
    """Does nothing."""


# case: O7, G5
async def test_until_the_ledger_has_it(
    sqlite_ledger: Database, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poll_loop, "RETRY_MOST_S", 0.05)
    shop, poll, note = Workshop(sqlite_ledger, broker, [fine]), EmbeddedSubscription.poll, log_memory.note_replaced
    is_lost, told = False, 0

    async def losing(self: EmbeddedSubscription, max_records: int, timeout_s: float) -> Sequence[Record]:
        nonlocal is_lost, told
        if is_lost and self.assignment():
            told += 1
            await self._membership.replaced(self.assignment())
            is_lost = False
        return await poll(self, max_records, timeout_s)

    async def failing(session: AsyncSession, topic: str, now: datetime) -> None:
        await note(session, topic, now)
        if told == 1:
            raise LedgerUnavailable("as it was to be committed")

    async def remembered() -> tuple[TopicMemory, int]:
        async with sqlite_ledger.reading() as session:
            places = await log_positions.load(session, [TOPIC])
            return await log_memory.load(session, TOPIC), sum(places.values())

    monkeypatch.setattr(EmbeddedSubscription, "poll", losing)
    monkeypatch.setattr(log_memory, "note_replaced", failing)
    with capture_logs() as said:
        async with shop.working():
            await shop.publish(*(order_paid(number) for number in range(20)))
            await eventually(lambda: shop.all_succeeded(20))
            async with sqlite_ledger.transaction() as session:
                await log_memory.keep(session, TopicMemory(topic=TOPIC, topic_id="its", ends=(99,)))
            is_lost = True
            await eventually(lambda: not is_lost)
            await shop.publish(*(order_paid(number) for number in range(20, 40)))
            await eventually(lambda: shop.all_succeeded(40))
    memory, places = await remembered()
    assert told == 2
    assert memory.replaced_at is not None
    assert (memory.topic_id, memory.ends, memory.owes) == ("its", (), True)
    assert places == 40
    [line] = [one for one in said if one["event"] == "log_replaced"]
    assert (line["log_level"], line["topic"], line["group"], line["partitions"]) == ("error", TOPIC, "work", [0, 1, 2])
    assert not [one for one in said if one["event"] in ("ledger_restored", "log_read_again")]
