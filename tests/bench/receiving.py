"""Receiving: `consumer serve` (signature, Kafka, acks=all) against a bare aiohttp handler that only reads the body, at
64 and 256 connections; and against the sum of that handler and the least that signature, JSON and produce cost.

Requests per second of one core: the requests answered, by the processor time the server's process took for them. The
load generator, Kafka and the server share two cores here, and wall time would measure who got how much of them.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import uvloop

from tests.bench.ratio import Measured, Ratio, processor_s
from tests.bench.receive.client import send_all
from tests.support.load import SECRET, Sending, paid_orders
from tests.support.process import ConsumerProcess, ended

REQUESTS = 6_000
BARS = {64: 0.65, 256: 0.85}
"""Connections, and the share of the bare handler's rate that is asked for."""
ROUNDS = 5
BARE = "a bare aiohttp handler that only reads the body"
LEAST = "that, and the least of HMAC, JSON and a produce"


@dataclass(frozen=True)
class _Round:
    """Requests for a second of CPU."""

    ours: float
    bare: float
    least: float

    @property
    def sum(self) -> float:
        """Of the bare handler and the least of the rest together."""
        return 1 / (1 / self.bare + 1 / self.least)


def measure(folder: Path, kafka_url: str) -> list[Measured]:
    """Alternate between them; each is kept to the first core, load and broker have the rest."""
    cores, sendings = sorted(os.sched_getaffinity(0)), paid_orders(REQUESTS, 0)
    environ = {
        "CONSUMER_BROKER_URL": kafka_url,
        "CONSUMER_TOPIC_PREFIX": f"bench-{uuid.uuid4().hex[:8]}",
        "CONSUMER_AUTHENTICITY": "signature",
        "CONSUMER_WEBHOOK_SECRETS": SECRET,
    }
    serve, found = ConsumerProcess("serve", environ, folder), list[Measured]()
    with ended(serve), _python("tests.bench.receive.bare") as bare:
        serve.spawn()
        asyncio.run(serve.ready())
        ours_port, bare_port = urlsplit(serve.addresses["public_url"]).port or 0, int(_line(bare))
        _pin(cores, serve.pid, bare.pid)
        for connections, bar in BARS.items():
            topic = f"bench-{uuid.uuid4().hex[:8]}"
            with _python("tests.bench.receive.least", kafka_url, topic, str(connections)) as least:
                _pin(cores, least.pid)
                rounds = [
                    _Round(
                        ours=_per_core_second(serve.pid, ours_port, sendings, connections),
                        bare=_per_core_second(bare.pid, bare_port, sendings, connections),
                        least=_least(least),
                    )
                    for _ in range(ROUNDS + 1)
                ][1:]  # the first round warms up
            what = f"receive: {connections} connections"
            found.append(Ratio(what, BARE, [(one.ours, one.bare) for one in rounds], bar))
            found.append(Ratio(what, LEAST, [(one.ours, one.sum) for one in rounds], 0))
    return found


def _per_core_second(pid: int, port: int, sendings: Sequence[Sending], connections: int) -> float:
    before = processor_s(pid)
    uvloop.run(send_all(port, sendings, connections))
    return len(sendings) / (processor_s(pid) - before)


def _least(process: subprocess.Popen[str]) -> float:
    assert process.stdin is not None
    process.stdin.write(f"{REQUESTS}\n")
    process.stdin.flush()
    return REQUESTS / float(_line(process))


@contextmanager
def _python(module: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A module of ours in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=10)


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def _pin(cores: Sequence[int], *processes: int) -> None:
    if len(cores) > 1:
        for process in processes:
            os.sched_setaffinity(process, {cores[0]})
        os.sched_setaffinity(0, set(cores[1:]))
