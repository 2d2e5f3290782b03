"""The campaign: webhooks under load, workers killed with SIGKILL on the way, and a table that proves the outcome."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import text

from consumer.ledger import Database
from consumer.ledger.engine import schema
from tests.support.load import SECRET, Report, paid_orders, send
from tests.support.merchant.plugin import install_plugin
from tests.support.merchant.warehouse import Warehouse
from tests.support.ports import eventually
from tests.support.process import ConsumerProcess, ended


@dataclass(frozen=True)
class Outcome:
    """What the campaign found, as rows of (what, expected, found)."""

    rows: list[tuple[str, object, object]]
    seconds: float

    @property
    def good(self) -> bool:
        """Whether every row is as expected."""
        return all(expected == found for _, expected, found in self.rows)

    def table(self) -> str:
        """The rows as text."""
        width = max(len(what) for what, _, _ in self.rows)
        lines = [f"{'':<{width}}  {'expected':>10}  {'found':>10}"]
        lines += [f"{what:<{width}}  {expected!s:>10}  {found!s:>10}" for what, expected, found in self.rows]
        return "\n".join([*lines, f"in {self.seconds:.1f} s"])


async def campaign(
    folder: Path, *, broker_url: str, database_url: str, webhooks: int, kills: int = 1, limit_s: float = 400.0
) -> Outcome:
    """`webhooks` signed deliveries, a third of them duplicates, to one `serve` and two `work`; a `work` is killed
    `kills` times on the way and started again."""
    began = time.monotonic()
    duplicates = webhooks // 3
    orders = webhooks - duplicates
    database = Database(database_url)
    try:
        await schema.upgrade(database)
        async with Warehouse() as warehouse:
            environ = {
                "CONSUMER_BROKER_URL": broker_url,
                "CONSUMER_DATABASE_URL": database_url,
                "CONSUMER_TOPIC_PREFIX": f"campaign-{uuid.uuid4().hex[:8]}",
                "CONSUMER_AUTHENTICITY": "signature",
                "CONSUMER_WEBHOOK_SECRETS": SECRET,
                **install_plugin(folder, "warehouse_plugin", warehouse.plugin()),
            }
            serve = ConsumerProcess("serve", environ, folder)
            workers = [ConsumerProcess("work", environ, folder, f"work-{number}") for number in (1, 2)]
            with ended(serve, *workers):
                report = await _under_fire(serve, workers, webhooks, duplicates, kills)
                await _until_shipped(warehouse, orders, limit_s)
                rows = await _prove(database, warehouse, report, orders, webhooks)
                rows += [(f"exit code of {one.name} after SIGTERM", 0, one.stop()) for one in (serve, *workers)]
    finally:
        await database.stop()
    return Outcome(rows, time.monotonic() - began)


async def _under_fire(
    serve: ConsumerProcess, workers: list[ConsumerProcess], webhooks: int, duplicates: int, kills: int
) -> Report:
    for process in (serve, *workers):
        process.spawn()
    for process in (serve, *workers):
        await process.ready()
    marks = [webhooks * number // (kills + 1) for number in range(1, kills + 1)]
    sent = 0
    reached = asyncio.Event()

    def progress(accepted: int) -> None:
        nonlocal sent
        sent = accepted
        if marks and accepted >= marks[0]:
            reached.set()

    async def kill_on_the_way() -> None:
        for number in range(kills):
            await reached.wait()
            marks.pop(0)
            reached.clear()
            victim = workers[number % len(workers)]
            victim.kill()
            victim.spawn()

    sending = send(
        f"{serve.addresses['public_url']}/webhooks/default",
        paid_orders(webhooks - duplicates, duplicates),
        on_progress=progress,
    )
    report, _ = await asyncio.gather(sending, kill_on_the_way())
    return report


async def _until_shipped(warehouse: Warehouse, orders: int, limit_s: float) -> None:
    try:
        await eventually(lambda: len(warehouse.keys) >= orders, within_s=limit_s, every_s=0.2)
    except AssertionError:
        return  # the table says what is missing


async def _prove(
    database: Database, warehouse: Warehouse, report: Report, orders: int, webhooks: int
) -> list[tuple[str, object, object]]:
    async def all_done() -> bool:
        return not await _count(database, "runs WHERE status <> 'succeeded'")

    await eventually(all_done, within_s=60, every_s=0.2, what="every run succeeded")
    parcels = Counter(warehouse.parcels.values())
    return [
        ("webhooks answered 200", webhooks, report.statuses[200]),
        ("distinct events accepted", orders, len(report.accepted)),
        ("order.paid in the ledger", orders, await _count(database, "events WHERE type = 'order.paid'")),
        ("orders paid", orders, await _count(database, "fulfilment_order WHERE paid_at IS NOT NULL")),
        ("fulfilment.requested in the ledger", orders,
         await _count(database, "events WHERE type = 'fulfilment.requested'")),
        ("orders with exactly one parcel", orders, parcels[1]),
        ("orders with more than one parcel", 0, sum(count for number, count in parcels.items() if number > 1)),
        ("orders without a parcel", 0, orders - sum(parcels.values())),
        ("runs that did not succeed", 0, await _count(database, "runs WHERE status <> 'succeeded'")),
    ]  # fmt: skip


async def _count(database: Database, what: str) -> int:
    async with database.reading() as session:
        return int((await session.execute(text(f"SELECT count(*) FROM {what}"))).scalar_one())
