"""From the webhook to its effect: milliseconds between a signed webhook and the start of the merchant's handler, at
steady rates, by one `serve` and one `work`. Each webhook has its time, whether the ones before were answered or not:
who is late shows it. Both times are of the machine's one monotonic clock."""

from __future__ import annotations

import sys
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import quantiles
from urllib.parse import urlsplit

import orjson
import uvloop

from tests.bench.processes.stacks import both, upgraded
from tests.bench.ratio import Ratio
from tests.bench.receive.steady import Steady
from tests.support.load import SECRET, paid_orders
from tests.support.merchant.plugin import install_plugin
from tests.support.ports import eventually
from tests.support.process import ConsumerProcess, ended

BARS_MS = {200: 60.0, 500: 100.0, 1_000: 250.0}
"""Orders a second, and what 99 of 100 must stay under."""
LASTS_S = 10
WARM_UP = 20
WITHIN_S = 120.0
_PLUGIN = """
import os, time
from consumer.plugin import Context, Event, handles

_FILE = os.open({path!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

@handles("fulfilment.requested", name="warehouse:ship", first_wait_s=0.2, concurrency=32)
async def ship(event: Event, ctx: Context) -> None:
    os.write(_FILE, f"{{event.order_id}} {{time.perf_counter()}}\\n".encode())
"""


def measure(folder: Path, postgres: str, kafka: str) -> list[Ratio]:
    """Both stacks, each on a log and a ledger of its own; "a second" in the table is one over the milliseconds."""
    found = []
    for name, place, urls in both(folder, postgres, kafka):
        for rate, p99_ms in uvloop.run(_at_each_rate(place, urls, name)).items():
            what = f"webhook to effect: {name}, {rate}/s, 99 of 100"
            bar_ms = BARS_MS[rate]
            found.append(Ratio(what, f"within {bar_ms:g} ms", [(1_000 / p99_ms, 1_000 / bar_ms)], 1.0))
    return found


class Notebook:
    """Where the effect notes, order by order, when it was called: a line costs the cores that are measured a hundredth
    of what a request to a merchant's server costs them, and that server."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "called"
        self.at: dict[str, float] = {}
        self._read = 0

    def plugin(self) -> str:
        """The source of a plugin that notes here."""
        return _PLUGIN.format(path=str(self._path))

    def look(self) -> int:
        """How many orders were called for by now; the first call of each counts."""
        if self._path.exists():
            with self._path.open("rb") as lines:
                lines.seek(self._read)
                new = lines.read()
            new = new[: new.rfind(b"\n") + 1]
            self._read += len(new)
            for line in new.decode().splitlines():
                order, at = line.split()
                self.at.setdefault(order, float(at))
        return len(self.at)


async def _at_each_rate(folder: Path, urls: Mapping[str, str], name: str) -> dict[int, float]:
    notebook = Notebook(folder)
    async with _serving(folder, urls, notebook) as port:
        first, found = 0, {}
        for rate in (WARM_UP, *BARS_MS):
            sendings = paid_orders(rate * LASTS_S, 0, first=first)
            first += len(sendings)
            steady = Steady(port, sendings, rate)
            await steady.sent()
            await eventually(lambda: notebook.look() >= first, within_s=WITHIN_S, every_s=0.05)  # noqa: B023 - awaited
            if rate not in BARS_MS:
                continue
            orders = [f"order-{sending.event_id.removeprefix('evt_')}" for sending in sendings]
            took_ms = [(notebook.at[order] - steady.due_s(number)) * 1_000 for number, order in enumerate(orders)]
            cuts = quantiles(took_ms, n=100)
            found[rate] = cuts[98]
            sys.stdout.write(f"{name:<22} {rate:>5}/s   p50 {cuts[49]:>7.0f} ms   p99 {cuts[98]:>7.0f} ms\n")
            sys.stdout.flush()
    return found


@asynccontextmanager
async def _serving(folder: Path, urls: Mapping[str, str], notebook: Notebook) -> AsyncIterator[int]:
    """The port where webhooks are taken, by processes of a ledger and a log of their own."""
    environ = {
        **urls,
        "CONSUMER_TOPIC_PREFIX": f"latency-{uuid.uuid4().hex[:8]}",
        "CONSUMER_AUTHENTICITY": "signature",
        "CONSUMER_WEBHOOK_SECRETS": SECRET,
        "CONSUMER_HANDLER_OPTIONS": orjson.dumps({"fulfilment": {"matching": "off"}}).decode(),
        **install_plugin(folder, "warehouse_plugin", notebook.plugin()),
    }
    await upgraded(environ)
    serve, work = ConsumerProcess("serve", environ, folder), ConsumerProcess("work", environ, folder)
    with ended(serve, work):
        for process in (serve, work):
            process.spawn()
            await process.ready()
        yield urlsplit(serve.addresses["public_url"]).port or 0
