"""A process that opens the embedded log and leaves again takes nothing with it that others wrote."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from pathlib import Path

from consumer.broker import EmbeddedBroker, Message, TopicConfig

COME_AND_GO = """
import asyncio, sys
from pathlib import Path
from consumer.broker import EmbeddedBroker

async def main():
    broker = EmbeddedBroker(Path(sys.argv[1]))
    await broker.start()
    await broker.stop()

asyncio.run(main())
"""
TOPIC = "left-alone"


# case: G13
async def test_what_was_acknowledged_before_and_after_is_there(tmp_path: Path) -> None:
    """Found by a deploy during traffic: the one who left deleted a write-ahead log that the other still wrote to."""
    path = tmp_path / "log.db"
    broker = EmbeddedBroker(path)
    await broker.start()
    await broker.ensure_topics([TopicConfig(name=TOPIC, partitions=1, retention_s=None, max_record_bytes=1000)])
    for number in range(3):
        await broker.publish(TOPIC, Message(key=b"k", value=b"%d" % number))
        visitor = await asyncio.create_subprocess_exec(sys.executable, "-c", COME_AND_GO, str(path))
        assert await asyncio.wait_for(visitor.wait(), 30) == 0
    await broker.stop()

    reopened = EmbeddedBroker(path)
    await reopened.start()
    member = reopened.subscribe([TOPIC], "reader")
    await member.start()
    found: list[bytes] = []
    async with asyncio.timeout(20):
        while len(found) < 3:
            found += [record.value for record in await member.poll(10, 0.5)]
    await member.stop()
    await reopened.stop()
    assert found == [b"0", b"1", b"2"]
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
