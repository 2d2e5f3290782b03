"""Load by strangers: 5,000 slow, half-open, oversize, compressed and forged requests a minute for ten minutes, beside
ten real webhooks a second: the real ones are answered at once and handled, disk and memory are bounded.

Authenticity `api`, the default: anybody may send what must be looked at. Log and ledger are files or servers, with all
limits as they are.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import aiohttp
from aiohttp import web

from consumer.receive.unproved import BURST_MINUTES
from consumer.receive.web import Limits
from consumer.settings.fields import Settings
from tests.chaos.storage import Storage
from tests.promises.deployment import Deployment, deployment, started
from tests.support.loopback import LoopbackServer
from tests.support.ports import eventually
from tests.support.process import ConsumerProcess

MIB = 2**20
PER_MINUTE = 5_000
ORDERS_PER_S = 5.0
"""Each is two webhooks: `order.paid` and `checkout.session.completed`."""
PASSED_ON = ("webhook", "content-type")
SAMPLE_EVERY_S = 2.0
HANDLED_WITHIN_S = 60.0
P99_WITHIN_S = 0.5
FLAT_MIB = 32
CACHE_MIB = 16
"""For each connection to log or ledger: SQLite's page cache and statements, and what malloc keeps for its thread. None
on servers."""
KEPT_BYTES = int(Settings.model_fields["unproved_max_bytes"].default)
"""Of waiting hints, and of the quarantine."""
REAL_EVENT_BYTES = 16 * 1024
"""What a real webhook may add to log and ledger, indexes and its order's rows included."""


@dataclass(frozen=True)
class Figure:
    """Something measured, and what it may be at most."""

    what: str
    found: float
    most: float | None = None
    unit: str = ""

    @property
    def good(self) -> bool:
        """Whether it is within its bound."""
        return self.most is None or self.found <= self.most


@dataclass(frozen=True)
class Strangers:
    """How it went. `course`: the memory of each role, in tenths of the time."""

    figures: list[Figure]
    answers: Counter[str]
    course: list[str]

    @property
    def good(self) -> bool:
        """Whether every figure is within its bound."""
        return all(figure.good for figure in self.figures)

    def table(self) -> str:
        """The figures and the strangers' answers as text."""
        lines = [
            f"{'' if one.good else 'MISSED '}{one.what}: {one.found:.6g} {one.unit}".rstrip()
            + ("" if one.most is None else f" (at most {one.most:.6g})")
            for one in self.figures
        ]
        told = ", ".join(f"{what}: {count}" for what, count in sorted(self.answers.items()))
        return "\n".join([*lines, *self.course, f"strangers were answered {told}"])


class Passage(LoopbackServer):
    """Where the service sends its webhooks: hands each to the consumer as it is, and notes how that was answered."""

    def __init__(self, target: str, http: aiohttp.ClientSession) -> None:
        super().__init__(self._pass_on, "/webhooks")
        self.target = target
        self._http = http
        self.seconds: list[float] = []
        self.statuses: Counter[int] = Counter()

    async def _pass_on(self, request: web.BaseRequest) -> web.Response:
        body = await request.read()
        headers = {name: value for name, value in request.headers.items() if name.lower().startswith(PASSED_ON)}
        began = time.perf_counter()
        try:
            async with self._http.post(self.target, data=body, headers=headers) as answer:
                await answer.read()
                status = answer.status
        except (aiohttp.ClientError, TimeoutError):
            status = 0
        self.seconds.append(time.perf_counter() - began)
        self.statuses[status] += 1
        return web.Response(status=status or 502)


@dataclass
class Watch:
    """What the roles' processes take, sampled; and when each order was shipped."""

    found: Deployment
    processes: Sequence[ConsumerProcess]
    memory: dict[str, list[int]] = field(default_factory=dict)
    connections: dict[str, int] = field(default_factory=dict)
    descriptors: int = 0
    paid_at: dict[str, float] = field(default_factory=dict)
    shipped_s: dict[str, float] = field(default_factory=dict)

    async def run(self) -> None:
        """Until it is cancelled."""
        sampled = 0.0
        while True:
            now = time.monotonic()
            for order in self.found.paid[len(self.paid_at) :]:
                self.paid_at[order] = now
            for order in self.found.warehouse.keys.keys() - self.shipped_s.keys():
                self.shipped_s[order] = now - self.paid_at.get(order, now)
            if now - sampled >= SAMPLE_EVERY_S:
                sampled = now
                self._sample()
            await asyncio.sleep(0.1)

    def _sample(self) -> None:
        for one in self.processes:
            fields = Path(f"/proc/{one.pid}/statm").read_text().split()
            self.memory.setdefault(one.role, []).append(int(fields[1]) * os.sysconf("SC_PAGE_SIZE"))
            opened = [_target(one) for one in Path(f"/proc/{one.pid}/fd").iterdir()]
            files = sum(path.endswith((".db", ".db-wal")) for path in opened) // 2
            self.connections[one.role] = max(self.connections.get(one.role, 0), files)
            if one.role == "serve":
                self.descriptors = max(self.descriptors, len(opened))

    def course(self) -> list[str]:
        """The memory of each role by tenths of the time, in MiB."""
        tenths = {role: [had[len(had) * tenth // 10] for tenth in range(10)] for role, had in self.memory.items()}
        return [f"memory of {role}: {' '.join(str(one // MIB) for one in had)} MiB" for role, had in tenths.items()]

    def grown(self, role: str) -> int:
        """Bytes from the second fifth of the time to the last one: the first is for warming up."""
        samples = self.memory[role]
        fifth = max(1, len(samples) // 5)
        return int(median(samples[-fifth:]) - median(samples[fifth : 2 * fifth]))


async def strangers(
    folder: Path,
    storage: Storage,
    *,
    seconds: float = 600.0,
    per_minute: int = PER_MINUTE,
    limit_s: float = 300.0,
    **more: str,
) -> Strangers:
    """Play it, and say what was found. `more`: settings."""
    async with deployment(folder, **storage.places, config=None, **{"CONSUMER_SYNC_INTERVAL_S": "60", **more}) as found:
        serve, work, sync = (found.process(role) for role in ("serve", "work", "sync"))
        async with started(serve, work, sync), _passage(found, serve) as passage:
            watch = Watch(found, (serve, work, sync))
            watching = asyncio.create_task(watch.run())
            before = await storage.sizes(found)
            answers = await _under_load(found, passage.target, seconds, per_minute)
            await found.shipped(within_s=limit_s)
            await eventually(lambda: len(watch.shipped_s) == len(found.paid), what="the watch saw the last parcel")
            watching.cancel()
            after = await storage.sizes(found)
            figures = _figures(found, passage, watch, {name: after[name] - before[name] for name in after}, seconds)
    return Strangers(figures, answers, watch.course())


@asynccontextmanager
async def _passage(found: Deployment, serve: ConsumerProcess) -> AsyncIterator[Passage]:
    timeout = aiohttp.ClientTimeout(total=30)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=64)) as http:
        passage = Passage(f"{serve.addresses['public_url']}/webhooks/default", http)
        async with passage:
            found.sandbox.set_webhook_url(passage.url)
            yield passage


async def _under_load(found: Deployment, address: str, seconds: float, per_minute: int) -> Counter[str]:
    over = asyncio.Event()
    paying = asyncio.create_task(found.pay_orders_until(over, ORDERS_PER_S))
    sending = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.hostile.strangers", address,
        "--seconds", str(seconds), "--per-minute", str(per_minute),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(seconds + 300):
            told, _ = await sending.communicate()
    finally:
        over.set()
        await paying
        if sending.returncode is None:
            sending.kill()
    return Counter(json.loads(told))


def _figures(found: Deployment, passage: Passage, watch: Watch, grown: dict[str, int], seconds: float) -> list[Figure]:
    took, waits = sorted(passage.seconds), sorted(watch.shipped_s.values())
    real = passage.statuses.total()
    for_real = real * REAL_EVENT_BYTES
    twice = sum(1 for parcels in found.warehouse.parcels.values() if parcels != 1)
    return [
        Figure("real webhooks", real),
        Figure("real webhooks not answered 200", real - passage.statuses[200], 0),
        Figure("real webhooks, p50", _share(took, 0.50), None, "s"),
        Figure("real webhooks, p99", _share(took, 0.99), P99_WITHIN_S, "s"),
        Figure("orders paid", len(found.paid)),
        Figure("orders not shipped, or twice", len(set(found.paid) - set(found.warehouse.parcels)) + twice, 0),
        Figure("from paid to shipped, p50", _share(waits, 0.50), None, "s"),
        Figure("from paid to shipped, the longest", waits[-1], HANDLED_WITHIN_S, "s"),
        Figure("the log grew by", grown["log"] / MIB, (_log_most(seconds) + for_real) / MIB, "MiB"),
        Figure("the ledger grew by", grown["ledger"] / MIB, (2 * KEPT_BYTES + for_real) / MIB, "MiB"),
        *(
            Figure(f"memory of {role} grew by", watch.grown(role) / MIB, FLAT_MIB + CACHE_MIB * files, "MiB")
            for role, files in watch.connections.items()
        ),
        *(Figure(f"memory of {role}, most", max(had) / MIB, None, "MiB") for role, had in watch.memory.items()),
        Figure("descriptors of serve, most", watch.descriptors),
    ]


def _target(descriptor: Path) -> str:
    """What an open descriptor leads to; nothing for one that was closed meanwhile."""
    try:
        return str(descriptor.readlink())
    except OSError:
        return ""


def _share(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def _log_most(seconds: float) -> float:
    """What the settings let be stored of unproved webhooks in this time."""
    return Limits().unproved_bytes_per_minute * (BURST_MINUTES + seconds / 60)
