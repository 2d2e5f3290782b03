"""A handler ends the worker's process on one event, whoever comes to it: real workers, started again each time they
die, find out which run it is and go on with the others, who shared its transactions."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from sqlalchemy import func, select

from consumer.broker import EmbeddedBroker
from consumer.ledger import Database
from consumer.ledger.engine import schema
from consumer.ledger.tables import RunRow
from consumer.work.dispatch.left_behind import ENDED_MAX
from tests.support.merchant.plugin import install_plugin
from tests.support.ports import eventually
from tests.support.process import ConsumerProcess, ended
from tests.work.execution.test_a_blocking_transaction_is_cut_off import environ_of
from tests.work.workshop import make_topics, message, service_event

RUNS = RunRow.__table__
ORDERS = 20
LEASE_S = 5.0
"""Of a claim, and until what ended a worker is tried again: 15 s each in earnest, which is nothing but waiting here."""
PLUGIN = f"""
import os
from consumer.plugin import Context, Event, handles
from consumer.work.dispatch import dispatcher, left_behind

dispatcher.CLAIM_LEASE_S = left_behind.AGAIN_S = {LEASE_S}

@handles("shop.ends", name="ends:ends", transactional=True, first_wait_s=0.1, max_wait_s=0.2)
async def ends(event: Event, ctx: Context) -> None:
    os._exit(9)

@handles("shop.order", name="ends:projects", transactional=True)
async def projects(event: Event, ctx: Context) -> None:
    pass

@handles("shop.order", name="ends:ships")
async def ships(event: Event, ctx: Context) -> None:
    pass
"""


async def _counted(database: Database) -> dict[tuple[str, str], int]:
    each = (RUNS.c.handler, RUNS.c.status)
    async with database.reading() as session:
        found = await session.execute(select(*each, func.count()).group_by(*each))
        return {(handler, str(status)): count for handler, status, count in found}


@pytest.mark.slow
async def test_it_is_found_out_and_the_others_go_on(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path}/ledger.db"
    database, broker = Database(url), EmbeddedBroker(tmp_path / "log.db")
    await schema.upgrade(database)
    await broker.start()
    await make_topics(broker)
    found = [service_event(f"evt_{number}", "shop.order", f"order-{number}") for number in range(ORDERS)]
    found.insert(ORDERS // 2, service_event("evt_ends", "shop.ends", "order-odd"))
    await broker.publish_many("payments.events", [message(one) for one in found])
    work = ConsumerProcess(
        "work", environ_of(url, f"embedded:{tmp_path}/log.db") | install_plugin(tmp_path, "ends", PLUGIN), tmp_path
    )
    work.spawn()
    codes: list[int] = []

    async def all_is_settled() -> bool:
        try:
            codes.append(work.wait(0))
        except subprocess.TimeoutExpired:
            pass
        else:
            work.spawn()
        return await _counted(database) == {
            ("ends:ends", "dead"): 1, ("ends:projects", "succeeded"): ORDERS, ("ends:ships", "succeeded"): ORDERS,
        }  # fmt: skip

    with ended(work):
        await eventually(all_is_settled, within_s=240, every_s=0.2, what="the odd one is dead, the others are done")
    assert set(codes) == {9}
    assert ENDED_MAX < len(codes) <= ENDED_MAX + 4
    await broker.stop()
    await database.stop()
