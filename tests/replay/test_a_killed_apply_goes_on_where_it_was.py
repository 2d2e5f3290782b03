"""`kill -9` in the middle of `replay apply`, again and again, while live orders come in: resumed, none skipped, none
doubled; and the live ones hardly wait."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median

import orjson
import pytest
from sqlalchemy import text

from consumer.broker import EmbeddedBroker
from consumer.ledger import Database
from consumer.ledger.engine import schema
from consumer.ledger.handling import events
from tests.support.merchant.plugin import install_plugin
from tests.support.ports import eventually
from tests.support.process import INHERITED, ConsumerProcess, command
from tests.work.workshop import make_topics, message, order_paid

EVENTS = int(os.environ.get("CONSUMER_TEST_REPLAYED", "600"))
KILLS = 3
BEFORE = max(20, EVENTS // 100)
"""Live orders that are waited for before the plan is applied: what is normal."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240 + EVENTS // 20)]
PLUGIN = """
import os, time
from consumer.plugin import handles

@handles("order.paid", name="shop:ship", first_wait_s=0.05)
async def ship(event, ctx):
    file = os.open(os.environ["SHOP_FILE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{event.id} {ctx.is_replay} {time.time()}\\n".encode())
    os.close(file)
"""


async def applying(environ: dict[str, str], plan: str) -> asyncio.subprocess.Process:
    """`consumer replay apply`, started."""
    kept = {name: os.environ[name] for name in INHERITED if name in os.environ}
    words = ("replay", "apply", plan, "--reason", "the plugin is new", "--yes", "--json", "--rate", "400")
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "consumer", *words, env=kept | environ, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


# case: R7, R8
async def test_none_is_skipped_none_is_doubled(tmp_path: Path) -> None:
    file = tmp_path / "shop.txt"
    environ = {
        "CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/ledger.db",
        "CONSUMER_BROKER_URL": f"embedded:{tmp_path}/log.db",
        "CONSUMER_LOG_LEVEL": "error",
        "SHOP_FILE": str(file),
    }
    database = Database(environ["CONSUMER_DATABASE_URL"])
    work = ConsumerProcess("work", environ | {"PYTHONPATH": str(tmp_path)}, tmp_path)
    broker = EmbeddedBroker(tmp_path / "log.db")
    await schema.upgrade(database)
    await broker.start()
    await make_topics(broker)
    try:
        async with database.transaction() as session:  # what came before the plugin was there
            await events.record(session, [order_paid(number) for number in range(EVENTS)], datetime.now(UTC))
        environ |= install_plugin(tmp_path, "shop", PLUGIN)
        work.spawn()
        await work.ready()
        planned = command("replay", "plan", "--handler", "shop:ship", "--json", environ=environ)
        plan = json.loads(planned.stdout)
        assert (plan["runs"], plan["actions"]) == (EVENTS, {"start": EVENTS}), planned.stderr

        live = asyncio.create_task(_live(broker))
        await eventually(lambda: len(_lines(file)) >= BEFORE, within_s=60 + BEFORE, what="live orders are shipped")
        began = time.time()
        for kill in range(KILLS):
            process = await applying(environ, plan["id"])
            wanted = EVENTS * (kill + 1) // (KILLS + 2) - random.randrange(50)
            await eventually(partial(_taken, database, wanted), within_s=60 + EVENTS / 50, what=f"{wanted} are taken")
            process.send_signal(signal.SIGKILL)
            await process.wait()
        last = await applying(environ, plan["id"])
        out, err = await asyncio.wait_for(last.communicate(), 120 + EVENTS / 50)
        live.cancel()
        done = orjson.loads(out)
        assert (last.returncode, done["as_planned"], done["items"]) == (0, True, {"taken": EVENTS}), err
        lines = _lines(file)
        replayed = Counter(event_id for event_id, is_replay, _ in lines if is_replay == "True")
        assert len(replayed) == EVENTS
        assert set(replayed.values()) == {1}
        came = {event_id: int(event_id[8:]) / 1e6 for event_id, *_ in lines if event_id.startswith("evt_live")}
        waited = {event_id: float(at) - came[event_id] for event_id, _, at in lines if event_id in came}
        before = [waited[one] for one in came if came[one] < began]
        during = [waited[one] for one in came if came[one] >= began]
        print(f"live orders before: {_told(before)}; during the replay: {_told(during)}")
        assert median(during) < 2.0, "live orders go before the replay"
    finally:
        work.stop()
        await broker.stop()
        await database.stop()


def _lines(file: Path) -> list[list[str]]:
    """Whole lines of what the shop wrote: event, whether it was a replay, when."""
    text_ = file.read_text() if file.exists() else ""
    return [line.split() for line in text_.splitlines(keepends=True) if line.endswith("\n")]


def _told(waits: list[float]) -> str:
    ordered = sorted(waits)
    return f"{len(ordered)}, p50 {median(ordered):.3f} s, p99 {ordered[len(ordered) * 99 // 100]:.3f} s"


async def _live(broker: EmbeddedBroker) -> None:
    """An order now and then; its id says when it came."""
    while True:
        await broker.publish("payments.events", message(order_paid(f"live{time.time_ns() // 1000}")))
        await asyncio.sleep(0.1)


async def _taken(database: Database, wanted: int) -> bool:
    async with database.reading() as session:
        taken = await session.scalar(text("SELECT count(*) FROM plan_items WHERE status = 'taken'"))
    return int(taken or 0) >= wanted
