"""Where the log has more than a batch, the next one is read and understood while the database stores this one. What was
read ahead and is another's by then, or is read again from further back, is taken by nobody twice and in no other order.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from consumer.broker import Broker, open_broker
from consumer.broker.base import Partition, Record
from consumer.errors import BrokerUnavailable
from consumer.events import Event
from consumer.ledger import Database
from consumer.plugin import Context, handles
from consumer.work.ingest import ingest
from consumer.work.ingest.next_batch import NextBatch
from consumer.work.worker import WorkerConfig
from tests.support.kafka import KafkaServer
from tests.support.ports import eventually
from tests.work.workshop import AT, TOPIC, Workshop, make_topics, order_paid

ZERO, ONE = Partition("events", 0), Partition("events", 1)
KEYS, EVENTS = 12, 240


def record(partition: Partition, offset: int) -> Record:
    return Record(partition=partition, offset=offset, key=b"", value=b"", headers={}, published_at=AT)


FIRST = [record(ZERO, 0), record(ONE, 0)]
SECOND = [record(ZERO, 1), record(ONE, 1)]


class Log:
    """What the log has, when the test says so."""

    def __init__(self) -> None:
        self.asked = 0
        self.answers: asyncio.Queue[Any] = asyncio.Queue()

    async def poll(self, size: int, timeout_s: float) -> Sequence[Record]:
        """See Subscription."""
        self.asked += 1
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]  # what the test put there


class Reader:
    """A log, and what reads it in batches of two."""

    def __init__(self) -> None:
        self.log, self.understood = Log(), list[Sequence[Record]]()
        self.next = NextBatch(2, self._understand)

    async def _understand(self, records: Sequence[Record]) -> None:
        self.understood.append(records)

    async def poll(self) -> Sequence[Record]:
        """The next batch."""
        return await self.next.poll(self.log, 1.0)  # type: ignore[arg-type]  # a stand-in

    async def read_ahead(self, behind: Sequence[Record], *found: Any) -> None:
        """While these are taken, the log has that."""
        self.next.read_ahead(self.log, 1.0, behind=behind)  # type: ignore[arg-type]  # a stand-in
        for one in found:
            self.log.answers.put_nowait(one)
        for _ in range(5):
            await asyncio.sleep(0)


async def test_behind_a_whole_batch_the_next_is_read_and_understood_before_it_is_asked_for() -> None:
    reader = Reader()
    await reader.read_ahead(FIRST, SECOND)
    assert (reader.log.asked, reader.understood) == (1, [SECOND])
    assert await reader.poll() == SECOND
    assert reader.log.asked == 1
    reader.log.answers.put_nowait(FIRST)
    assert await reader.poll() == FIRST
    assert (reader.log.asked, reader.understood) == (2, [SECOND])


async def test_behind_less_than_a_batch_nothing_is_read() -> None:
    reader = Reader()
    await reader.read_ahead(FIRST[:1])
    assert reader.log.asked == 0


async def test_what_was_read_of_a_partition_that_went_is_not_given_and_what_comes_of_it_later_is() -> None:
    reader = Reader()
    await reader.read_ahead(FIRST, SECOND)
    reader.next.drop({ZERO})
    assert await reader.poll() == [SECOND[1]]
    await reader.read_ahead(FIRST)
    reader.next.drop({ZERO})  # before anything was read: whoever has it now has it from further back
    reader.log.answers.put_nowait(SECOND)
    assert await reader.poll() == SECOND


async def test_what_keeps_it_from_reading_is_raised_where_the_batch_is_asked_for() -> None:
    reader = Reader()
    await reader.read_ahead(FIRST, BrokerUnavailable("away"))
    with pytest.raises(BrokerUnavailable):
        await reader.poll()
    reader.log.answers.put_nowait(SECOND)
    assert await reader.poll() == SECOND


async def test_ledger_and_log_are_compared_when_nothing_is_being_read() -> None:
    reader = Reader()
    await reader.next.settled()
    await reader.read_ahead(FIRST)
    waiting = asyncio.create_task(reader.next.settled())
    await asyncio.sleep(0)
    assert not waiting.done()
    reader.log.answers.put_nowait(SECOND)
    await waiting
    reader.next.drop({ONE})
    assert await reader.poll() == [SECOND[0]]


@pytest.mark.parametrize("ahead", [False, True])
async def test_who_stops_waits_for_no_record(ahead: bool) -> None:
    # case: O8
    reader = Reader()
    reader.next.wait_no_longer()  # nobody waits
    if ahead:
        await reader.read_ahead(FIRST)
    polling = asyncio.create_task(reader.poll())
    await asyncio.sleep(0)
    reader.next.wait_no_longer()
    reader.next.wait_no_longer()
    async with asyncio.timeout(10):
        assert not await polling
    assert reader.log.asked == 1


async def test_at_the_end_nothing_is_read_any_more() -> None:
    reader = Reader()
    await reader.read_ahead(FIRST)
    await reader.next.stop()
    reader.log.answers.put_nowait(SECOND)
    assert await reader.poll() == SECOND
    assert reader.log.asked == 2


# --- on a real log ---------------------------------------------------------------------------------------------------


@handles("order.paid", name="notes", transactional=True)
async def notes(event: Event, ctx: Context) -> None:
    """Takes a moment, in which others go on."""
    await asyncio.sleep(0)


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.slow])])
async def log(request: pytest.FixtureRequest, broker: Broker) -> AsyncIterator[Broker]:
    """Of either kind, with the workers' topics."""
    if request.param == "embedded":
        yield broker
        return
    server: KafkaServer = request.getfixturevalue("kafka_broker")
    found = open_broker(server.url)
    await found.start()
    await make_topics(found)
    yield found
    await found.stop()


async def test_members_come_and_go_over_a_backlog_and_each_event_is_taken_once_in_its_order(
    database: Database, log: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case: G5
    ahead = list[int]()
    understand = ingest.Ingest.understand

    async def watched(self: ingest.Ingest, records: Sequence[Record]) -> None:
        ahead.append(len(records))
        await understand(self, records)

    monkeypatch.setattr(ingest.Ingest, "understand", watched)
    config = WorkerConfig(topic=TOPIC, group="members", batch=4, drain_s=5)
    shop = Workshop(database, log, [notes], config=config)
    await shop.publish(*[order_paid(number, f"order-{number % KEYS}") for number in range(EVENTS)])
    with capture_logs() as said:
        async with shop.working():
            await eventually(lambda: _more_than(shop, EVENTS // 4), within_s=60)
            async with shop.working() as other:
                await eventually(lambda: other.polls, within_s=60)
                await eventually(lambda: _more_than(shop, EVENTS // 2), within_s=60)
        async with shop.working():
            await eventually(lambda: shop.all_succeeded(EVENTS), within_s=60)
    of_key: dict[str, list[int]] = {}
    for run in await shop.runs("notes"):
        of_key.setdefault(run.key, []).append(int(run.event_id.removeprefix("evt_")))
    assert of_key == {f"order:order-{key}": list(range(key, EVENTS, KEYS)) for key in range(KEYS)}
    assert ahead, "it was read ahead"
    assert not [line for line in said if line["event"] == "ledger_restored"], "who drops a batch is not restored"


async def _more_than(shop: Workshop, wanted: int) -> bool:
    return len(await shop.runs()) > wanted
