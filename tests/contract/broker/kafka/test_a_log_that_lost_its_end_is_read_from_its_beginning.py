"""A log that lost its end, to a power cut or to an older disk, while the group's offsets outlived it: however far it
has grown again, no record is skipped, and whoever reads is told. What lost nothing is not read again."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiokafka.protocol.fetch import FetchRequest

from consumer.broker import KafkaBroker, Partition, Record, TopicConfig
from consumer.broker.base import next_offsets
from consumer.broker.kafka.member import KafkaSubscription
from consumer.broker.kafka.progress import Progress
from consumer.clock import SystemClock
from consumer.errors import LedgerUnavailable
from tests.contract.broker.conftest import message, read, read_all, values
from tests.support.kafka import KafkaServer, kafka_server

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

BEFORE, LOST = 10, 10
GROWN = {"less far": 5, "exactly as far": LOST, "further": 15}
LIVES, WHOLE, WHOLE_LIVES = "lives", "whole", "whole-lives"
CHECKPOINTS = (
    "recovery-point-offset-checkpoint", "replication-offset-checkpoint", "log-start-offset-checkpoint",
    "cleaner-offset-checkpoint", ".kafka_cleanshutdown",
)  # fmt: skip


def name_of(case: str) -> str:
    """Of its topic, and of its group."""
    return case.replace(" ", "-")


class Members:
    """One for each topic, and what each was told."""

    def __init__(self, broker: KafkaBroker) -> None:
        self._broker = broker
        self.told: list[Partition] = []
        self.fails = False

    async def of(self, case: str) -> KafkaSubscription:
        member = self._broker.subscribe([name_of(case)], name_of(case), on_replaced=self._replaced)
        await member.start()
        return member

    async def _replaced(self, partitions: frozenset[Partition]) -> None:
        if self.fails:
            self.fails = False
            raise LedgerUnavailable
        self.told += partitions

    async def takes(self, member: KafkaSubscription, count: int) -> list[Record]:
        """So many, and commits them."""
        records = await read(member, count)
        await member.commit(next_offsets(records))
        return records


async def publish(broker: KafkaBroker, case: str, what: str, count: int) -> None:
    await broker.publish_many(name_of(case), [message(f"{what} {number}") for number in range(count)])


def lose(server: KafkaServer, copy: Path, is_lost: Callable[[str], bool]) -> None:
    """The server is away: these topics are as they were when the copy was made."""
    [data] = server.disks
    for folder in [one for one in data.iterdir() if one.is_dir() and is_lost(one.name.rpartition("-")[0])]:
        shutil.rmtree(folder)
        shutil.copytree(copy / folder.name, folder)
    for file in CHECKPOINTS:
        (data / file).unlink(missing_ok=True)


def holding(member: KafkaSubscription, until: asyncio.Event) -> None:
    """It fetches nothing before that."""
    client: Any = member._consumer._client  # type: ignore[union-attr]  # it is started
    send = client.send

    async def sent(node: Any, request: Any, **how: Any) -> Any:
        if isinstance(request, FetchRequest):
            await until.wait()
        return await send(node, request, **how)

    client.send = sent


# case: G5
def test_a_batch_that_was_in_hand_as_it_went_back_does_not_move_it_past_what_comes_again() -> None:
    progress, place = Progress(SystemClock()), Partition("t", 0)
    progress.delivered(place, 0, 0, 20)
    progress.committed({place: 20})
    progress.rewound(place, 0)
    assert not progress.advances(place, 20)
    progress.delivered(place, 0, 0, 5)
    assert (progress.advances(place, 5), progress.advances(place, 20)) == (True, False)


# case: O7, G5
async def test_whether_or_not_it_has_grown_past_the_place(tmp_path: Path) -> None:
    with kafka_server(tmp_path) as server:
        broker = KafkaBroker([server.url.removeprefix("kafka://")], heartbeat_s=0.2, session_s=30.0)
        await broker.start()
        cases = [*GROWN, LIVES, WHOLE, WHOLE_LIVES]
        await broker.ensure_topics(
            [TopicConfig(name=name_of(one), partitions=1, retention_s=None, max_record_bytes=100_000) for one in cases]
        )
        members, held = Members(broker), asyncio.Event()
        held.set()
        reading = {case: await members.of(case) for case in cases}
        for case in cases:
            await publish(broker, case, "before", BEFORE)
            await members.takes(reading[case], BEFORE)
        await asyncio.to_thread(server.stop)
        shutil.copytree(server.disks[0], tmp_path / "copy")
        await asyncio.to_thread(server.start)
        for case in cases:
            await publish(broker, case, "lost", LOST)
            await members.takes(reading[case], LOST)
        assert not members.told, "it was stopped and started, and lost nothing"
        for case in (*GROWN, WHOLE):
            await reading[case].stop()
        for case in (LIVES, WHOLE_LIVES):
            holding(reading[case], held)
        held.clear()
        await asyncio.to_thread(server.kill)
        lose(server, tmp_path / "copy", lambda topic: topic in [name_of(one) for one in (*GROWN, LIVES)])
        await asyncio.to_thread(server.start)

        other = KafkaBroker([server.url.removeprefix("kafka://")])
        await other.start()
        for case, count in (GROWN | {LIVES: 15, WHOLE: 3, WHOLE_LIVES: 3}).items():
            await publish(other, case, "new", count)
        await other.stop()
        held.set()

        for case, count in (GROWN | {LIVES: 15}).items():
            members.told.clear()
            members.fails = case == "further"
            member = reading[case] if case == LIVES else await members.of(case)
            if members.fails:
                with pytest.raises(LedgerUnavailable):
                    await read(member, 1)
            found = values(await read(member, BEFORE + count))
            assert found[-count:] == [f"new {number}" for number in range(count)], case
            assert found[0] == "before 0", case
            assert members.told == [Partition(name_of(case), 0)], case
        members.told.clear()
        for case in (WHOLE, WHOLE_LIVES):
            member = reading[case] if case == WHOLE_LIVES else await members.of(case)
            assert values(await read_all(member, 3.0)) == ["new 0", "new 1", "new 2"]
        assert not members.told
        await broker.stop()
