"""Scaling: workers join and leave their group under load; how long an order waits for its handler meanwhile."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path

import aiohttp

from consumer.ledger import Database
from consumer.ledger.engine import schema
from tests.support.load import SECRET, paid_orders
from tests.support.merchant.plugin import install_plugin
from tests.support.ports import eventually
from tests.support.process import ConsumerProcess, ended

FEW, MANY = 2, 8
PARTITIONS = 16
AT_ONCE = 16
STEADY_S, SETTLE_S = 8.0, 4.0
HANDLED_WITHIN_S = 120.0
AT_MOST_S = 2.0
"""Longest wait at the 99th percentile."""

PLUGIN = '''
import time
from consumer.plugin import Context, Event, handles

@handles("order.paid", name="shop:note")
async def note(event: Event, ctx: Context) -> None:
    """A line, written at once and whole."""
    with open(ctx.options["noted"], "ab", buffering=0) as out:
        out.write(f"{event.id} {time.time()}\\n".encode())
'''


@dataclass(frozen=True)
class Phase:
    """What orders waited, in seconds, that were answered 200 in one part of the time."""

    name: str
    seconds: float
    waits: Sequence[float]

    def share(self, share: float) -> float:
        """So long at most, for this share of them."""
        return sorted(self.waits)[min(len(self.waits) - 1, int(len(self.waits) * share))]

    @property
    def row(self) -> str:
        """Its line of the table."""
        times = " | ".join(f"{one:.2f}" for one in (self.share(0.5), self.share(0.99), max(self.waits)))
        return f"| {self.name} | {self.seconds:.0f} | {len(self.waits)} | {times} |"


@dataclass(frozen=True)
class Scaled:
    """What came of it. `handled`: how often each order was."""

    phases: Sequence[Phase]
    sent: int
    handled: Counter[str]

    @property
    def good(self) -> bool:
        """Whether each order was handled once, and of a hundred 99 waited for no longer than they may."""
        return self.is_exact and self.worst_s <= AT_MOST_S

    @property
    def is_exact(self) -> bool:
        """Whether no order was lost, or handled twice."""
        return set(self.handled.values()) == {1} and len(self.handled) == self.sent

    @property
    def worst_s(self) -> float:
        """The 99th percentile of the worst phase."""
        return max(one.share(0.99) for one in self.phases)

    def table(self) -> str:
        """As text."""
        head = "| workers | s | orders | p50 s | p99 s | longest pause s |\n|---|---|---|---|---|---|"
        twice = sum(times > 1 for times in self.handled.values())
        rows = "\n".join(one.row for one in self.phases)
        return f"{head}\n{rows}\n{self.sent} orders, {self.sent - len(self.handled)} lost, {twice} handled twice"


@dataclass
class Load:
    """Orders, paid one after the other at a steady pace; when each was answered 200."""

    address: str
    per_s: float
    answered: dict[str, float] = field(default_factory=dict)

    async def run(self, over: asyncio.Event) -> None:
        """Until `over`."""
        began = time.monotonic()
        async with aiohttp.ClientSession() as http, asyncio.TaskGroup() as group:
            for place in range(AT_ONCE):
                group.create_task(self._send(http, began + place / self.per_s, over, place))

    async def _send(self, http: aiohttp.ClientSession, began: float, over: asyncio.Event, place: int) -> None:
        for number in count():
            due_s = began + number * AT_ONCE / self.per_s - time.monotonic()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, due_s)):
                    await over.wait()
            if over.is_set():
                return
            [sending] = paid_orders(1, 0, first=number * AT_ONCE + place)
            async with http.post(self.address, data=sending.body, headers=sending.headers) as answer:
                assert answer.status == 200, await answer.text()
            self.answered[sending.event_id] = time.time()


async def scaling(folder: Path, *, broker_url: str, database_url: str, per_s: float = 10.0) -> Scaled:
    """One `serve`, and under load `FEW` workers, `MANY`, and `FEW` again. They come one after the other: what a process
    takes to begin, it takes from those that work, as long as all share a machine. They leave together."""
    noted = folder / "noted"
    database = Database(database_url)
    await schema.upgrade(database)
    await database.stop()
    environ = {
        "CONSUMER_BROKER_URL": broker_url,
        "CONSUMER_DATABASE_URL": database_url,
        "CONSUMER_TOPIC_PREFIX": f"scaling-{uuid.uuid4().hex[:8]}",
        "CONSUMER_TOPIC_PARTITIONS": str(PARTITIONS),
        "CONSUMER_AUTHENTICITY": "signature",
        "CONSUMER_WEBHOOK_SECRETS": SECRET,
        "CONSUMER_HANDLER_OPTIONS": f'{{"shop_plugin": {{"noted": "{noted}"}}}}',
        **install_plugin(folder, "shop_plugin", PLUGIN),
    }
    serve = ConsumerProcess("serve", environ, folder)
    workers = [ConsumerProcess("work", environ, folder, f"work-{number}") for number in range(MANY)]
    with ended(serve, *workers):
        await _ready(serve, *workers[:FEW])
        load, over = Load(f"{serve.addresses['public_url']}/webhooks/default", per_s), asyncio.Event()
        sending = asyncio.create_task(load.run(over))
        spans = await _scaled(workers)
        over.set()
        await sending
        await eventually(
            lambda: len(_noted(noted)) >= len(load.answered), within_s=HANDLED_WITHIN_S, what="all is handled"
        )
        handled = _noted(noted)
    return Scaled(
        [Phase(name, end - begin, _waits(load, handled, begin, end)) for name, begin, end in spans],
        len(load.answered),
        Counter(name for name, times in handled.items() for _ in times),
    )


async def _scaled(workers: Sequence[ConsumerProcess]) -> list[tuple[str, float, float]]:
    """Names of the phases, and when they began and ended."""
    more, marks = workers[FEW:], [time.time()]

    async def until(seconds: float) -> None:
        await asyncio.sleep(seconds)  # a phase lasts so long: it is measured, not waited for
        marks.append(time.time())

    await until(STEADY_S)
    for one in more:
        await _ready(one)
    await until(SETTLE_S)
    await until(STEADY_S)
    ends = await asyncio.gather(*(asyncio.to_thread(one.stop) for one in more))
    assert set(ends) == {0}
    await until(SETTLE_S)
    names = (str(FEW), f"{FEW} to {MANY}", str(MANY), f"{MANY} to {FEW}")
    return [(name, *span) for name, span in zip(names, pairwise(marks), strict=True)]


async def _ready(*processes: ConsumerProcess) -> None:
    for process in processes:
        process.spawn()
    for process in processes:
        await process.ready(within_s=120)


def _noted(path: Path) -> dict[str, list[float]]:
    """Event id to when it was handled; each time."""
    found: dict[str, list[float]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        name, at = line.split()
        found.setdefault(name, []).append(float(at))
    return found


def _waits(load: Load, handled: dict[str, list[float]], begin: float, end: float) -> list[float]:
    return [handled[name][0] - at for name, at in load.answered.items() if begin <= at < end and name in handled]
