"""FastAPI, on uvicorn with httptools and uvloop: the same as `aiohttp_aiokafka.py`.
`python -m tests.bench.peers.receive.fastapi_aiokafka KAFKA TOPIC` prints its port and serves."""

from __future__ import annotations

import socket
import sys

import uvicorn
import uvloop
from aiokafka import AIOKafkaProducer
from fastapi import FastAPI, HTTPException, Request

from tests.bench.peers.receive.verified import order_of


async def main(kafka: str, topic: str) -> None:
    """Serve until it is ended."""
    producer = AIOKafkaProducer(bootstrap_servers=kafka, acks="all")

    async def receive(application: str, request: Request) -> dict[str, str]:
        body = await request.body()
        order = order_of(request.headers, body)
        if order is None:
            raise HTTPException(401)
        await producer.send_and_wait(topic, body, key=order.encode())
        return {"status": "accepted"}

    receive.__annotations__ = {"application": str, "request": Request, "return": dict[str, str]}
    app = FastAPI()
    app.post("/webhooks/{application}")(receive)
    await producer.start()
    config = uvicorn.Config(app, http="httptools", loop="none", log_level="warning", access_log=False, lifespan="off")
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listening:
        sys.stdout.write(f"{listening.getsockname()[1]}\n")
        sys.stdout.flush()
        await uvicorn.Server(config).serve(sockets=[listening])


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2]))
