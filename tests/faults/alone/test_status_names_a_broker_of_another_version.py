"""A broker that speaks none of the protocol's versions that we speak is told as that."""

from __future__ import annotations

import asyncio
import json
import struct
from pathlib import Path

import pytest

from tests.support.desk import Desk

METADATA, FAR_NEWER = 3, 99


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Whatever it is asked: of requests for metadata it takes a version far newer than ours."""
    try:
        while True:
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            _, _, correlation = struct.unpack(">hhi", (await reader.readexactly(size))[:8])
            told = struct.pack(">ihihhh", correlation, 0, 1, METADATA, FAR_NEWER, FAR_NEWER)
            writer.write(struct.pack(">i", len(told)) + told)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


# cause: NotImplementedError
@pytest.mark.timeout(120)
async def test_it_is_named_as_what_it_is(tmp_path: Path) -> None:
    server = await asyncio.start_server(_answer, "127.0.0.1", 0)
    async with server:
        desk = Desk(
            {
                "CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/consumer.db",
                "CONSUMER_BROKER_URL": f"kafka://127.0.0.1:{server.sockets[0].getsockname()[1]}",
            }
        )
        assert (await asyncio.to_thread(desk.call, "db", "upgrade")).returncode == 0
        done = await asyncio.to_thread(desk.call, "status", "--json")
    assert done.stdout, done.stderr
    told = {one["code"]: one["text"] for one in json.loads(done.stdout)["findings"]}
    assert "Apache Kafka 3 or 4" in told.get("broker_incompatible", ""), told
