"""At half load: how long a webhook waits for its 200 while half as many come as one process can take, one by one at
their times, whether the ones before were answered or not. Beside it the bare aiohttp handler at the same rate, which
shows what the machine and the sender take of it."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles

import uvloop

from tests.bench.ratio import Bound, Measured
from tests.bench.receive.client import send_all
from tests.bench.receive.servers import Server, ours_and_bare
from tests.bench.receive.steady import Steady
from tests.support.load import Sending, paid_orders

REQUESTS, CONNECTIONS, ROUNDS = 12_000, 64, 5
LASTS_S = 3.0
MOST_MS = 5.0


def measure(folder: Path, kafka_url: str) -> list[Measured]:
    """The highest rate first, by the clock; then rounds of ours and the bare one in turn."""
    sendings = paid_orders(REQUESTS, 0)
    with ours_and_bare(folder, kafka_url) as (ours, bare):
        full = median(_rate(ours, sendings) for _ in range(ROUNDS))
        some = sendings[: int(full / 2 * LASTS_S)]
        rounds = [[_p99_ms(one, some, full / 2) for one in (ours, bare)] for _ in range(ROUNDS)]
    ours_ms, bare_ms = (median(one) for one in zip(*rounds, strict=True))
    sys.stdout.write(f"receive, half load ({full / 2:.0f}/s): p99 {ours_ms:.1f} ms, bare {bare_ms:.1f} ms\n")
    return [Bound(f"receive: p99 at half load, {full / 2:.0f}/s", ours_ms, MOST_MS, "ms")]


def _rate(server: Server, sendings: Sequence[Sending]) -> float:
    began_s = time.perf_counter()
    uvloop.run(send_all(server.port, sendings, CONNECTIONS))
    return len(sendings) / (time.perf_counter() - began_s)


def _p99_ms(server: Server, sendings: Sequence[Sending], rate: float) -> float:
    return quantiles(uvloop.run(Steady(server.port, sendings, rate).sent()), n=100)[98] * 1_000
