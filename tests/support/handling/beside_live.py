"""Live orders beside a replay that is killed again and again: how long they wait, before it and while it is applied."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import orjson
from sqlalchemy import text

from consumer.broker import EmbeddedBroker
from consumer.ledger import Database
from consumer.ledger.engine import schema
from consumer.ledger.handling import events
from tests.support.merchant.plugin import install_plugin
from tests.support.ports import eventually
from tests.support.process import INHERITED, ConsumerProcess, command
from tests.work.workshop import make_topics, message, order_paid

LIVE_EVERY_S = 0.1
PLUGIN = """
import os, time
from consumer.plugin import handles

@handles("order.paid", name="shop:ship", first_wait_s=0.05)
async def ship(event, ctx):
    file = os.open(os.environ["SHOP_FILE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{event.id} {ctx.is_replay} {time.time()}\\n".encode())
    os.close(file)
"""


@dataclass(frozen=True, kw_only=True)
class Beside:
    """`replayed`: event to how often it was shipped as a replay. `without`, `during`: how long live orders waited that
    came while no apply ran, and while one did, in seconds. `took_s`: how long applies ran. `done`: what the last
    said."""

    replayed: Counter[str]
    without: list[float]
    during: list[float]
    took_s: float
    done: dict[str, Any]

    def problem(self, count: int) -> str | None:
        """What is wrong, if of `count` events any was skipped or done twice, or came otherwise than planned."""
        twice = [event for event, times in self.replayed.items() if times > 1]
        if len(self.replayed) != count or twice:
            return f"{count - len(self.replayed)} of {count} were skipped, {len(twice)} done twice: {twice[:10]}"
        as_planned = (self.done["as_planned"], self.done["items"]) == (True, {"taken": count})
        return None if as_planned else f"not as planned: {self.done}"

    def __str__(self) -> str:
        without, during = _told(self.without), _told(self.during)
        return f"live orders without: {without}; during the replay of {self.took_s:.0f} s: {during}"


def p99(waits: list[float]) -> float:
    """The longest but of one in a hundred."""
    return sorted(waits)[len(waits) * 99 // 100]


def _told(waits: list[float]) -> str:
    return f"{len(waits)}, p50 {median(waits):.3f} s, p99 {p99(waits):.3f} s"


async def replayed_beside_live(
    folder: Path, *, count: int, kills: int, before: int, rest_s: float = 0.0
) -> Beside:  # fmt: skip
    """An event for each of `count` orders came before the plugin that ships them was there; `before` live orders are
    waited for, then a plan is applied, and killed so often. It is begun again after `rest_s`: then there are as many
    live orders without it, between those beside it, however busy the machine is by and by."""
    file = folder / "shop.txt"
    environ = {
        "CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{folder}/ledger.db",
        "CONSUMER_BROKER_URL": f"embedded:{folder}/log.db",
        "CONSUMER_LOG_LEVEL": "error",
        "SHOP_FILE": str(file),
    }
    database = Database(environ["CONSUMER_DATABASE_URL"])
    work = ConsumerProcess("work", environ | {"PYTHONPATH": str(folder)}, folder)
    broker = EmbeddedBroker(folder / "log.db")
    await schema.upgrade(database)
    await broker.start()
    await make_topics(broker)
    try:
        async with database.transaction() as session:
            await events.record(session, [order_paid(number) for number in range(count)], datetime.now(UTC))
        environ |= install_plugin(folder, "shop", PLUGIN)
        work.spawn()
        await work.ready()
        planned = command("replay", "plan", "--handler", "shop:ship", "--json", environ=environ)
        plan = orjson.loads(planned.stdout)
        assert (plan["runs"], plan["actions"]) == (count, {"start": count}), planned.stderr

        live = asyncio.create_task(_live(broker))
        await eventually(lambda: len(_lines(file)) >= before, within_s=60 + before, what="live orders are shipped")
        applied: list[tuple[float, float]] = []
        for kill in range(kills):
            began = time.time()
            process = await applying(environ, plan["id"])
            wanted = count * (kill + 1) // (kills + 2) - random.randrange(50)
            await eventually(partial(_taken, database, wanted), within_s=60 + count / 20, what=f"{wanted} are taken")
            process.send_signal(signal.SIGKILL)
            await process.wait()
            applied.append((began, time.time()))
            await asyncio.sleep(rest_s)
        began = time.time()
        last = await applying(environ, plan["id"])
        out, err = await asyncio.wait_for(last.communicate(), 120 + count / 20)
        applied.append((began, time.time()))
        live.cancel()
        assert last.returncode == 0, err
        lines = _lines(file)
    finally:
        work.stop()
        await broker.stop()
        await database.stop()
    came = {event_id: int(event_id[8:]) / 1e6 for event_id, *_ in lines if event_id.startswith("evt_live")}
    waited = {event_id: float(at) - came[event_id] for event_id, _, at in lines if event_id in came}
    return Beside(
        replayed=Counter(event_id for event_id, is_replay, _ in lines if is_replay == "True"),
        without=[wait_s for one, wait_s in waited.items() if not _within(came[one], applied)],
        during=[wait_s for one, wait_s in waited.items() if _within(came[one], applied)],
        took_s=sum(ended - began for began, ended in applied),
        done=orjson.loads(out),
    )


async def applying(environ: dict[str, str], plan: str) -> asyncio.subprocess.Process:
    """`consumer replay apply`, started."""
    kept = {name: os.environ[name] for name in INHERITED if name in os.environ}
    words = ("replay", "apply", plan, "--reason", "the plugin is new", "--yes", "--json", "--rate", "400")
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "consumer", *words, env=kept | environ, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


def _within(at: float, windows: Sequence[tuple[float, float]]) -> bool:
    return any(began <= at < ended for began, ended in windows)


def _lines(file: Path) -> list[list[str]]:
    """Whole lines of what the shop wrote: event, whether it was a replay, when."""
    text_ = file.read_text() if file.exists() else ""
    return [line.split() for line in text_.splitlines(keepends=True) if line.endswith("\n")]


async def _live(broker: EmbeddedBroker) -> None:
    """An order now and then; its id says when it came."""
    while True:
        await broker.publish("payments.events", message(order_paid(f"live{time.time_ns() // 1000}")))
        await asyncio.sleep(LIVE_EVERY_S)


async def _taken(database: Database, wanted: int) -> bool:
    async with database.reading() as session:
        taken = await session.scalar(text("SELECT count(*) FROM plan_items WHERE status = 'taken'"))
    return int(taken or 0) >= wanted
