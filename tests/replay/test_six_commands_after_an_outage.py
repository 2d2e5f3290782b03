"""An hour's outage of what a handler depends on, then a bug: from `status` to a clean `invariants` in six commands,
typed as a person types them."""

from __future__ import annotations

import asyncio
import os
import re
from collections import Counter
from pathlib import Path

import pytest

from consumer.broker import EmbeddedBroker
from consumer.ledger import Database
from consumer.ledger.engine import schema
from consumer.ledger.handling import queue
from tests.support.merchant.plugin import install_plugin
from tests.support.ports import eventually
from tests.support.process import ConsumerProcess, command
from tests.work.workshop import make_topics, message, order_paid

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

EVENTS = int(os.environ.get("CONSUMER_TEST_OUTAGE", "200"))
PLUGIN = """
import os
from pathlib import Path
from consumer.plugin import handles

@handles("fulfilment.requested", name="shop:ship", first_wait_s=0.2, attempts=2, pause_after=0)
async def ship(event, ctx):
    match Path(os.environ["SHOP_STATE"]).read_text():
        case "away":
            raise ConnectionRefusedError("the warehouse is away")
        case "bug":
            raise KeyError("street")
    file = os.open(os.environ["SHOP_FILE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{event.order_id} {ctx.idempotency_key}\\n".encode())
    os.close(file)
"""


# case: R10, R11, R4
async def test_from_status_to_clean_invariants(tmp_path: Path) -> None:
    state, shipped = tmp_path / "state.txt", tmp_path / "shipped.txt"
    environ = {
        "CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/ledger.db",
        "CONSUMER_BROKER_URL": f"embedded:{tmp_path}/log.db",
        "CONSUMER_LOG_LEVEL": "error",
        "CONSUMER_HANDLER_OPTIONS": '{"fulfilment": {"matching": "off"}}',
        "CONSUMER_EXPECT": "work",
        "SHOP_FILE": str(shipped),
        "SHOP_STATE": str(state),
    }
    state.write_text("away")
    database = Database(environ["CONSUMER_DATABASE_URL"])
    await schema.upgrade(database)
    broker = EmbeddedBroker(tmp_path / "log.db")
    await broker.start()
    await make_topics(broker)
    environ |= install_plugin(tmp_path, "shop", PLUGIN)
    work = ConsumerProcess("work", environ | {"PYTHONPATH": str(tmp_path)}, tmp_path)

    async def stands(status: str, count: int) -> bool:
        async with database.reading() as session:
            return (await queue.count_by_status(session)).get(("shop:ship", status), 0) == count

    try:
        work.spawn()
        await work.ready()
        for number in range(EVENTS):
            await broker.publish("payments.events", message(order_paid(number)))
        await eventually(lambda: stands("retrying", EVENTS), within_s=300, what="all wait for the warehouse")
        state.write_text("bug")  # it is back, and the new version of the plugin has a bug
        await eventually(lambda: stands("dead", EVENTS), within_s=300, what="all are dead")
        state.write_text("mended")

        typed: list[str] = []

        async def types(line: str) -> tuple[int, str]:
            typed.append(line)
            words = line.removeprefix("consumer ").split()
            done = await asyncio.to_thread(command, *words, environ=environ, within_s=60 + EVENTS / 10)
            return done.returncode, done.stdout + done.stderr

        code, told = await types("consumer status")
        assert code != 0
        assert "`consumer replay plan`" in told, told
        code, told = await types("consumer replay plan")
        assert f"{EVENTS} run(s) of {EVENTS} event(s)" in told, told
        found = re.search(r"next: (consumer replay apply \S+ --reason) …", told)
        assert found is not None, told
        code, told = await types(f"{found[1]} mended --yes")
        assert (code, f"succeeded  {EVENTS}" in told or "applied" in told) == (0, True), told
        code, told = await types("consumer invariants")
        assert (code, "all of it is explained" in told) == (0, True), told
        assert len(typed) <= 6
        parcels = Counter(line.split()[0] for line in shipped.read_text().splitlines())
        assert parcels == Counter({f"order-{number}": 1 for number in range(EVENTS)})
    finally:
        work.stop()
        await broker.stop()
        await database.stop()
