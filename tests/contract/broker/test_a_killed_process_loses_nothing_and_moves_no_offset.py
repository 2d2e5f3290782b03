"""Several processes on one log: crashes and zombies."""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import pytest

from tests.contract.broker.conftest import Log, message, read, read_all, values
from tests.support.ports import eventually

pytestmark = pytest.mark.slow


async def _spawn(log: Log, part: str, *words: str) -> Process:
    url = log.server.url if log.server is not None else f"embedded:{log.path}"
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.contract.broker.process",
        part,
        url,
        *words,
        stdin=PIPE,
        stdout=PIPE,
        cwd=Path(__file__).parents[3],
    )


async def _line(process: Process) -> str:
    assert process.stdout is not None
    return (await asyncio.wait_for(process.stdout.readline(), 30)).decode().strip()


async def test_nothing_acknowledged_is_lost_when_a_publishing_process_is_killed(log: Log) -> None:
    # case: G5, G13
    broker = await log.open()
    topic = await log.topic(broker)
    member = broker.subscribe([topic], log.group())
    await member.start()
    killed, ended = await asyncio.gather(
        _spawn(log, "publish", topic, "killed"), _spawn(log, "publish", topic, "ended")
    )
    acknowledged: dict[str, set[str]] = {"killed": set(), "ended": set()}

    async def listen(process: Process, name: str) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            if line.endswith(b"\n"):
                acknowledged[name].add(line.decode().strip())

    listening = [
        asyncio.create_task(listen(killed, "killed")),
        asyncio.create_task(listen(ended, "ended")),
    ]
    try:
        await eventually(lambda: min(len(numbers) for numbers in acknowledged.values()) > 300, within_s=40)
        killed.kill()
        await asyncio.wait_for(killed.wait(), 10)
        before = len(acknowledged["ended"])
        await eventually(lambda: len(acknowledged["ended"]) > before + 300, within_s=40, what="the other goes on")
    finally:
        for process in (killed, ended):
            if process.returncode is None:
                process.kill()
        await asyncio.gather(*listening, killed.wait(), ended.wait())
    found = values(await read(member, sum(map(len, acknowledged.values())), within_s=30))
    found += values(await read_all(member))
    assert acknowledged["killed"] | acknowledged["ended"] <= set(found)


async def test_a_zombie_moves_no_offset(log: Log) -> None:
    # case: G5
    broker = await log.open()
    topic, group = await log.topic(broker, partitions=1), log.group()
    await broker.publish_many(topic, [message(str(number)) for number in range(20)])
    zombie = await _spawn(log, "hold", topic, group)
    try:
        assert int(await _line(zombie)) == 5
        zombie.send_signal(signal.SIGSTOP)
        heir = broker.subscribe([topic], group)
        await asyncio.wait_for(heir.start(), 30)
        found = await read(heir, 20, within_s=30)
        assert await heir.commit({found[-1].partition: 20}) == {found[-1].partition}
        assert zombie.stdin is not None
        zombie.stdin.write(b"go\n")
        await zombie.stdin.drain()
        zombie.send_signal(signal.SIGCONT)
        polling = asyncio.create_task(read_all(heir, 10.0))  # a member must poll to take part in the rebalance
        assert await _line(zombie) in ("refused", "stored")
        await asyncio.wait_for(zombie.wait(), 30)
        polling.cancel()
        await asyncio.wait({polling})
        await heir.stop()
    finally:
        if zombie.returncode is None:
            zombie.kill()
            await zombie.wait()
    after = broker.subscribe([topic], group)
    await after.start()
    await broker.publish(topic, message("next"))
    assert values(await read(after, 1)) == ["next"], "the group stands where the living member committed"
