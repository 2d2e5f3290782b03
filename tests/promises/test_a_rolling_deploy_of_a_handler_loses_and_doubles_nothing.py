"""A plugin's next version is rolled out under traffic: every run once, its version recorded, a new handler from the
start of the deploy on, retries begun by the old version finished by the new one."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from consumer.ledger import Database
from consumer.ledger.engine import schema
from tests.support.load import SECRET, Sending, paid_orders, send
from tests.support.merchant.plugin import install_plugin
from tests.support.ports import eventually
from tests.support.process import ConsumerProcess, ended

WAVE = 60
ODD = "7"  # what orders end with that the old version cannot ship

OLD = '''
import os
from consumer.plugin import Context, Event, handles

def told(who, event, ctx):
    """A line, written at once and whole."""
    with open(ctx.options["told"], "ab", buffering=0) as out:
        out.write(f"{who} {event.id} {ctx.code_version} {os.getpid()}\\n".encode())

@handles("order.paid", name="shop:ship", attempts=200, first_wait_s=0.3, wait_factor=1, max_wait_s=0.3,
         pause_after=0, breaker_after=0)
async def ship(event: Event, ctx: Context) -> None:
    if (event.order_id or "").endswith("7"):
        raise ValueError("not in this version")
    told("ship", event, ctx)

@handles("order.paid", name="shop:note", transactional=True)
async def note(event: Event, ctx: Context) -> None:
    ctx.note(event.key, "noted", {}, {"by": "old"})
'''

NEW = (
    OLD.replace(
        '    if (event.order_id or "").endswith("7"):\n        raise ValueError("not in this version")\n', ""
    ).replace('"by": "old"', '"by": "new"')
    + """
@handles("order.paid", name="shop:thank")
async def thank(event: Event, ctx: Context) -> None:
    told("thank", event, ctx)
"""
)


@dataclass
class Rollout:
    """What the test holds in its hands."""

    database: Database
    told: Path

    async def rows(self, statement: str) -> list[Any]:
        async with self.database.reading() as session:
            return list((await session.execute(text(statement))).all())

    async def count(self, what: str) -> int:
        return int((await self.rows(f"SELECT count(*) FROM {what}"))[0][0])

    def lines(self, who: str) -> list[tuple[str, str, str]]:
        """What a handler wrote down: event, code version, process."""
        found = [line.split() for line in self.told.read_text().splitlines()] if self.told.exists() else []
        return [(event, version, process) for name, event, version, process in found if name == who]


def waves() -> list[list[Sending]]:
    """Three, one after the other: before, during and after the deploy."""
    sendings = sorted(paid_orders(3 * WAVE, 0), key=lambda one: one.event_id)
    return [sendings[start : start + WAVE] for start in range(0, 3 * WAVE, WAVE)]


def ids(*sendings: Sending) -> set[str]:
    return {one.event_id for one in sendings}


async def roll_out(folder: Path, broker_url: str, database_url: str) -> None:
    database = Database(database_url)
    try:
        await schema.upgrade(database)
        rollout = Rollout(database, folder / "told")
        environ = {
            "CONSUMER_BROKER_URL": broker_url,
            "CONSUMER_DATABASE_URL": database_url,
            "CONSUMER_TOPIC_PREFIX": f"roll-{folder.name[-20:].replace('_', '-')}",
            "CONSUMER_AUTHENTICITY": "signature",
            "CONSUMER_WEBHOOK_SECRETS": SECRET,
            "CONSUMER_HANDLER_OPTIONS": f'{{"shop_plugin": {{"told": "{rollout.told}"}}}}',
        }
        serve = ConsumerProcess("serve", environ, folder)
        old, new = (
            ConsumerProcess("work", environ | plugin(folder / name, source), folder, f"work-{name}")
            for name, source in (("old", OLD), ("new", NEW))
        )
        with ended(serve, old, new):
            for process in (serve, old):
                process.spawn()
            for process in (serve, old):
                await process.ready()
            await play(rollout, f"{serve.addresses['public_url']}/webhooks", old, new)
        await assert_all_is_right(rollout)
    finally:
        await database.stop()


def plugin(folder: Path, source: str) -> dict[str, str]:
    folder.mkdir()
    return install_plugin(folder, "shop_plugin", source)


async def play(rollout: Rollout, address: str, old: ConsumerProcess, new: ConsumerProcess) -> None:
    before, during, after = waves()
    await send(address, before)
    odd = [one for one in before if one.event_id.endswith(ODD)]
    await eventually(
        lambda: len(rollout.lines("ship")) == len(before) - len(odd), within_s=30, what="the old one ships"
    )
    failing = "(SELECT DISTINCT event_id FROM attempts WHERE handler = 'shop:ship') AS failing"
    await eventually(lambda: counted(rollout, failing, len(odd)), within_s=30, what="the odd ones were tried")

    new.spawn()
    await new.ready()
    await eventually(lambda: takes_part(new), within_s=30, what="the new one has its share of the partitions")
    await send(address, during)
    noted = f"audit WHERE action = 'noted' AND reason IN {quoted(during)}"
    await eventually(lambda: counted(rollout, noted, len(during)), within_s=30, what="both take events")
    assert await asyncio.to_thread(old.stop) == 0, old.log
    await send(address, after)
    everything = len(before) + len(during) + len(after)
    done = "runs WHERE handler LIKE 'shop:%' AND status = 'succeeded'"
    wanted = 3 * everything - len(before)  # the new handler has no history
    await eventually(lambda: counted(rollout, done, wanted), within_s=40, every_s=0.1, what="all is done")


async def takes_part(worker: ConsumerProcess) -> bool:
    return await worker.figure('consumer_work_rebalances_total{change="assigned"}') > 0


async def counted(rollout: Rollout, what: str, wanted: int) -> bool:
    return await rollout.count(what) == wanted


def quoted(sendings: list[Sending]) -> str:
    return "(" + ", ".join(f"'{one.event_id}'" for one in sendings) + ")"


async def assert_all_is_right(rollout: Rollout) -> None:
    before, during, after = waves()
    everything = ids(*before, *during, *after)
    ship, thank = rollout.lines("ship"), rollout.lines("thank")
    assert Counter(event for event, _, _ in ship) == Counter(everything), "each shipped once"
    assert Counter(event for event, _, _ in thank) == Counter(ids(*during, *after)), "each thanked for once"
    assert await rollout.count("runs WHERE status <> 'succeeded'") == 0

    # Which version did it is in the ledger, and it is true.
    versions = dict(await rollout.rows("SELECT event_id, code_version FROM runs WHERE handler = 'shop:ship'"))
    assert versions == {event: version for event, version, _ in ship}
    old_version, new_version = (
        next(version for event, version, _ in ship if event in some)
        for some in (ids(*(one for one in before if not one.event_id.endswith(ODD))), ids(*after))
    )
    assert old_version != new_version
    assert {versions[event] for event in ids(*after)} == {new_version}, "the old one has left"

    # Retries that the old version began, the new one finished; each attempt says whose it was.
    odd = {event for event in ids(*before) if event.endswith(ODD)}
    attempts = await rollout.rows(
        "SELECT event_id, number, outcome, code_version FROM attempts WHERE handler = 'shop:ship' ORDER BY id"
    )
    for event in odd:
        own = [(number, outcome, version) for name, number, outcome, version in attempts if name == event]
        assert own[0][1:] == ("retrying", old_version), own
        assert own[-1][1:] == ("succeeded", new_version), own
        assert [number for number, _, _ in own] == list(range(1, len(own) + 1)), "none is missing, none is doubled"

    # Both versions took part while both were there, each event in one transaction of one of them.
    notes = await rollout.rows("SELECT reason, after FROM audit WHERE action = 'noted'")
    assert Counter(event for event, _ in notes) == Counter(everything)
    by = dict(notes)
    assert {by[event] for event in ids(*before)} == {'{"by":"old"}'}
    assert {by[event] for event in ids(*during)} == {'{"by":"old"}', '{"by":"new"}'}
    assert {by[event] for event in ids(*after)} == {'{"by":"new"}'}


# case: R14, O9, H6
@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.postgres
@pytest.mark.timeout(180)
async def test_on_kafka_and_postgresql(tmp_path: Path, kafka_url: str, postgres_url: str) -> None:
    await roll_out(tmp_path, kafka_url, postgres_url)


# case: R14, O9, H6
@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_on_the_embedded_default(tmp_path: Path) -> None:
    await roll_out(tmp_path, f"embedded:{tmp_path}/log.db", f"sqlite+aiosqlite:///{tmp_path}/consumer.db")
