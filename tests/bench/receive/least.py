"""The least that a webhook costs beside reading it: its HMAC, its JSON, and a produce that is acknowledged, by the
cheapest producer there is, which is ours. `python -m tests.bench.receive.least KAFKA TOPIC CONNECTIONS` reads how many
from stdin, and prints the CPU seconds."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import sys
import time
from collections.abc import Iterator

import orjson
import uvloop

from consumer.broker import Broker, Message, TopicConfig, open_broker
from tests.support.load import SECRET, Sending, paid_orders

_KEY = base64.b64decode(SECRET.removeprefix("whsec_"))


async def _send(broker: Broker, topic: str, sendings: Iterator[Sending]) -> None:
    for sending in sendings:
        head = f"{sending.headers['webhook-id']}.{sending.headers['webhook-timestamp']}."
        signature = base64.b64encode(hmac.digest(_KEY, head.encode() + sending.body, hashlib.sha256)).decode()
        if not hmac.compare_digest(f"v1,{signature}", sending.headers["webhook-signature"]):
            raise ValueError("the signature is wrong")
        order = orjson.loads(sending.body)["data"]["object"]["order_id"]
        await broker.publish(topic, Message(key=order.encode(), value=sending.body, headers={}))


async def _rounds(kafka: str, topic: str, connections: int) -> None:
    """One for each line of stdin."""
    broker = open_broker(kafka)
    await broker.start()
    try:
        await broker.ensure_topics([TopicConfig(name=topic, partitions=6, retention_s=3600, max_record_bytes=1 << 20)])
        while line := await asyncio.to_thread(sys.stdin.readline):
            sendings = paid_orders(int(line), 0)
            began_s, queue = time.process_time(), iter(sendings)
            await asyncio.gather(*(_send(broker, topic, queue) for _ in range(connections)))
            sys.stdout.write(f"{time.process_time() - began_s}\n")
            sys.stdout.flush()
    finally:
        await broker.stop()


if __name__ == "__main__":
    uvloop.run(_rounds(sys.argv[1], sys.argv[2], int(sys.argv[3])))
