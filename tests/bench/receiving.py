"""Receiving: `consumer serve` (signature, Kafka, acks=all) against a bare aiohttp handler that only reads the body, at
64 and 256 connections; and against the sum of that handler and the least that signature, JSON and produce cost.

Requests per second of one core: the requests answered, by the processor time the server's process took for them. The
load generator, Kafka and the server share two cores here, and wall time would measure who got how much of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop

from tests.bench.ratio import Measured, Ratio, processor_s
from tests.bench.receive.client import send_all
from tests.bench.receive.servers import Server, line, ours_and_bare, pin, running
from tests.support.load import Sending, paid_orders

REQUESTS = 6_000
BARS = {64: 0.65, 256: 0.85}
"""Connections, and the share of the bare handler's rate that is asked for."""
ROUNDS = 25
BARE = "a bare aiohttp handler that only reads the body"
LEAST_WORDS = (sys.executable, "-m", "tests.bench.receive.least")
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
    cores, sendings, found = sorted(os.sched_getaffinity(0)), paid_orders(REQUESTS, 0), list[Measured]()
    with ours_and_bare(folder, kafka_url) as (ours, bare):
        for connections, bar in BARS.items():
            topic = f"bench-{uuid.uuid4().hex[:8]}"
            with running([*LEAST_WORDS, kafka_url, topic, str(connections)]) as least:
                pin(cores, least.pid)
                rounds = [
                    _Round(
                        ours=_per_core_second(ours, sendings, connections),
                        bare=_per_core_second(bare, sendings, connections),
                        least=_least(least),
                    )
                    for _ in range(ROUNDS + 1)
                ][1:]  # the first round warms up
            what = f"receive: {connections} connections"
            found.append(Ratio(what, BARE, [(one.ours, one.bare) for one in rounds], bar))
            found.append(Ratio(what, LEAST, [(one.ours, one.sum) for one in rounds], 0))
    return found


def _per_core_second(server: Server, sendings: Sequence[Sending], connections: int) -> float:
    before = processor_s(server.pid)
    uvloop.run(send_all(server.port, sendings, connections))
    return len(sendings) / (processor_s(server.pid) - before)


def _least(process: subprocess.Popen[str]) -> float:
    assert process.stdin is not None
    process.stdin.write(f"{REQUESTS}\n")
    process.stdin.flush()
    return REQUESTS / float(line(process))
