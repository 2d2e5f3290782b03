"""A process that opens the embedded log and leaves again takes nothing with it that others wrote."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from consumer.broker import EmbeddedBroker, Message, TopicConfig

VISIT = """
import asyncio, sys, uuid
from pathlib import Path
from consumer.broker import EmbeddedBroker

async def main():
    broker = EmbeddedBroker(Path(sys.argv[1]))
    await broker.start()
    member = broker.subscribe(["left-alone"], uuid.uuid4().hex)
    await member.start()
    found = []
    while records := await member.poll(100, 1.0):
        found += [record.value.decode() for record in records]
    print(" ".join(found))
    await member.stop()
    await broker.stop()

asyncio.run(main())
"""
TOPIC = "left-alone"


# case: G13
@pytest.mark.slow
async def test_every_visitor_sees_all_that_was_acknowledged(tmp_path: Path) -> None:
    """Found by a deploy during traffic: the one who left deleted a write-ahead log that the other still wrote to."""
    path = tmp_path / "log.db"
    broker = EmbeddedBroker(path)
    await broker.start()
    await broker.ensure_topics([TopicConfig(name=TOPIC, partitions=1, retention_s=None, max_record_bytes=1000)])
    for number in range(3):
        await broker.publish(TOPIC, Message(key=b"k", value=b"%d" % number))
        assert await _visit(path) == [str(one) for one in range(number + 1)]
    await broker.stop()
    assert await _visit(path) == ["0", "1", "2"]


async def _visit(path: Path) -> list[str]:
    """What another process finds that comes, reads everything, and leaves."""
    visitor = await asyncio.create_subprocess_exec(
        sys.executable, "-c", VISIT, str(path), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await asyncio.wait_for(visitor.communicate(), 30)
    assert visitor.returncode == 0
    return out.decode().split()
