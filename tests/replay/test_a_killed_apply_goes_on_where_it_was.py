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

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

EVENTS = int(os.environ.get("CONSUMER_TEST_REPLAYED", "600"))
KILLS = 3
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
        for kill in range(KILLS):
            process = await applying(environ, plan["id"])
            wanted = EVENTS * (kill + 1) // (KILLS + 2) - random.randrange(50)
            await eventually(partial(_taken, database, wanted), within_s=60, what=f"{wanted} are taken")
            process.send_signal(signal.SIGKILL)
            await process.wait()
        last = await applying(environ, plan["id"])
        out, err = await asyncio.wait_for(last.communicate(), 120)
        live.cancel()
        done = orjson.loads(out)
        assert (last.returncode, done["as_planned"], done["items"]) == (0, True, {"taken": EVENTS}), err
        lines = [line.split() for line in file.read_text().splitlines()]
        replayed = Counter(event_id for event_id, is_replay, _ in lines if is_replay == "True")
        assert len(replayed) == EVENTS
        assert set(replayed.values()) == {1}
        waits = sorted(
            float(at) - int(event_id[8:]) / 1e6 for event_id, _, at in lines if event_id.startswith("evt_live")
        )
        print(
            f"live: {len(waits)} orders, p50 {waits[len(waits) // 2]:.3f} s, p99 {waits[len(waits) * 99 // 100]:.3f} s"
        )
        assert waits[len(waits) // 2] < 2.0, "live orders go before the replay"
    finally:
        work.stop()
        await broker.stop()
        await database.stop()


async def _live(broker: EmbeddedBroker) -> None:
    """An order now and then; its id says when it came."""
    while True:
        await broker.publish("payments.events", message(order_paid(f"live{time.time_ns() // 1000}")))
        await asyncio.sleep(0.1)


async def _taken(database: Database, wanted: int) -> bool:
    async with database.reading() as session:
        taken = await session.scalar(text("SELECT count(*) FROM plan_items WHERE status = 'taken'"))
    return int(taken or 0) >= wanted
