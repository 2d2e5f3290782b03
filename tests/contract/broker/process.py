"""A member or a publisher in a process of its own, driven by lines on its stdin; run by the tests beside it.

python -m tests.contract.broker.process publish URL TOPIC     publishes for ever, prints each number acknowledged
python -m tests.contract.broker.process hold URL TOPIC GROUP  polls one batch, prints it, commits it when told to
"""

from __future__ import annotations

import asyncio
import sys
from itertools import count
from pathlib import Path

from consumer.broker import Broker, EmbeddedBroker, KafkaBroker, Message
from consumer.telemetry.logs import configure_logging


def _open(url: str) -> Broker:
    if url.startswith("embedded:"):
        return EmbeddedBroker(Path(url.removeprefix("embedded:")), heartbeat_s=0.2, session_s=1.5)
    return KafkaBroker([url.removeprefix("kafka://")], heartbeat_s=0.3, session_s=1.5)


async def publish(url: str, topic: str, name: str) -> None:
    """Eight publishers at once; a value is printed only after its acknowledgement."""
    broker = _open(url)
    await broker.start()
    numbers = count()

    async def one() -> None:
        for number in numbers:
            value = f"{name}/{number}"
            await broker.publish(topic, Message(key=b"order:%d" % (number % 16), value=value.encode()), timeout_s=20)
            print(value, flush=True)

    await asyncio.gather(*(one() for _ in range(8)))


async def hold(url: str, topic: str, group: str) -> None:
    """Read records, say so, wait for a line, then commit what was read: the zombie's part."""
    broker = _open(url)
    await broker.start()
    member = broker.subscribe([topic], group)
    await member.start()
    while not (records := await member.poll(5, 5.0)):
        pass
    print(len(records), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    last = records[-1]
    stored = await member.commit({last.partition: last.offset + 1})
    print("stored" if stored else "refused", flush=True)
    await broker.stop(5.0)


if __name__ == "__main__":
    configure_logging("info", one_shot=True)  # to stderr: the lines on stdout are for the test
    part, *words = sys.argv[1:]
    asyncio.run(publish(*words) if part == "publish" else hold(*words))
