"""Receiving, against peers: `consumer serve` beside three that check the signature, read the order's id, produce to
Kafka (acks=all) and wait, as small programs. Requests for a second of the server's CPU; each is kept to one core."""

from __future__ import annotations

import asyncio
import os
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import uvloop

from consumer.broker import TopicConfig, open_broker
from tests.bench.peers import programs
from tests.bench.ratio import Cost, Measured, Ratio, processor_s
from tests.bench.receive.client import send_all
from tests.bench.receive.servers import Server, line, ours, pin, running
from tests.support.load import Sending, paid_orders

REQUESTS, CONNECTIONS, ROUNDS = 12_000, 64, 5
BAR = 1.0
OURS, GO = "ours", "Go, net/http and franz-go"


def measure(folder: Path, kafka: str) -> list[Measured]:
    """All in turn; the first round warms up."""
    cores, sendings = sorted(os.sched_getaffinity(0)), paid_orders(REQUESTS, 0)
    with ExitStack() as stack:
        servers = _servers(folder, kafka, stack)
        pin(cores, *(server.pid for server in servers.values()))
        rounds = [{who: _cost(one, sendings) for who, one in servers.items()} for _ in range(ROUNDS + 1)][1:]
    for who in servers:
        cpu, rate = median(one[who].cpu_ms_per_1000 for one in rounds), median(one[who].rate for one in rounds)
        sys.stdout.write(f"receive, {who:<28} {cpu:>7.1f} ms of CPU per 1,000 {rate:>8.0f}/s\n")
    return [
        Ratio("peers: receive, 64 connections", who, _against(who, rounds), 0 if who == GO else BAR)
        for who in servers
        if who != OURS
    ]


def _against(who: str, rounds: Sequence[Mapping[str, Cost]]) -> list[tuple[float, float]]:
    return [(one[OURS].per_cpu_second, one[who].per_cpu_second) for one in rounds]


def _cost(server: Server, sendings: Sequence[Sending]) -> Cost:
    cpu_s, began_s = processor_s(server.pid), time.perf_counter()
    uvloop.run(send_all(server.port, sendings, CONNECTIONS))
    return Cost(len(sendings), processor_s(server.pid) - cpu_s, time.perf_counter() - began_s)


def _servers(folder: Path, kafka: str, stack: ExitStack) -> dict[str, Server]:
    found = {OURS: stack.enter_context(ours(folder, kafka))}
    peers: dict[str, Sequence[str]] = {}
    if programs.python():
        peers["aiohttp, HMAC, send_and_wait"] = programs.words("receive.aiohttp_aiokafka")
        peers["FastAPI"] = programs.words("receive.fastapi_aiokafka")
    if program := programs.go_receive(folder):
        peers[GO] = [str(program)]
    topic = asyncio.run(_topic(kafka)) if peers else ""
    for who, words in peers.items():
        process = stack.enter_context(running([*words, kafka.removeprefix("kafka://"), topic], programs.environ()))
        found[who] = Server(process.pid, int(line(process)))
    return found


async def _topic(kafka: str) -> str:
    broker, topic = open_broker(kafka), f"peers-{uuid.uuid4().hex[:8]}"
    await broker.start()
    await broker.ensure_topics([TopicConfig(name=topic, partitions=6, retention_s=3600, max_record_bytes=1 << 20)])
    await broker.stop()
    return topic
