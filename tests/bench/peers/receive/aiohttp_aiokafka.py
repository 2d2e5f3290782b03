"""aiohttp: the signature checked, the webhook sent to Kafka and waited for (`send_and_wait`, acks=all), then 200.
`python -m tests.bench.peers.receive.aiohttp_aiokafka KAFKA TOPIC` prints its port and serves."""

from __future__ import annotations

import asyncio
import sys

import uvloop
from aiohttp import web
from aiokafka import AIOKafkaProducer

from tests.bench.peers.receive.verified import order_of


async def main(kafka: str, topic: str) -> None:
    """Serve until it is ended."""
    producer = AIOKafkaProducer(bootstrap_servers=kafka, acks="all")

    async def receive(request: web.Request) -> web.Response:
        body = await request.read()
        order = order_of(request.headers, body)
        if order is None:
            raise web.HTTPUnauthorized
        await producer.send_and_wait(topic, body, key=order.encode())
        return web.json_response({"status": "accepted"})

    app = web.Application()
    app.router.add_post("/webhooks/{application}", receive)
    await producer.start()
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    sys.stdout.write(f"{runner.addresses[0][1]}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2]))
