"""Restore: the ledger is put back to where it stood an hour ago, beside Kafka and a service that went on.

What is typed is what `deploy/backup.md` says. `serve` goes on, and is started anew at the end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from consumer.ledger import Database
from tests.chaos.campaign import Outcome
from tests.chaos.hour import Hour, live_through
from tests.chaos.outages import WARM_ORDERS, prove, say, unhealthy, unsettled, until
from tests.promises.deployment import Deployment, deployment, started
from tests.support.postgres import create_database, dumped, restored
from tests.support.process import command

WITHIN_S = 1800.0
ROLES = ("work", "sync", "console")


async def restore(folder: Path, *, broker_url: str, postgres: str, hour: Hour) -> Outcome:
    """A backup is made, the hour passes and all of it is handled; then the backup is what the ledger is. Raises
    AssertionError when something does not come about in time."""
    began = time.monotonic()
    then, now = [await asyncio.to_thread(create_database, postgres) for _ in range(2)]
    backup = folder / "ledger.dump"
    async with (
        deployment(
            folder, broker_url=broker_url, database_url=then, config=hour.config(), CONSUMER_SYNC_INTERVAL_S="60"
        ) as found,
        started(serve := found.process("serve")),
    ):
        found.hear(at_work=True)
        async with _at_work(found, "before", *ROLES):
            for _ in range(WARM_ORDERS):
                found.pay_order()
            await found.shipped(within_s=120)
            await dumped(then, backup)
            say(f"restore: the backup is made, {hour.seconds} s at {hour.per_s} events/s pass")
            passed = await live_through(found, hour, accepted=True, wait_s=0.0, say=say)
            await until("settled", lambda: unsettled(found), time.monotonic(), WITHIN_S)
            asked = sum(found.warehouse.calls.values())
        found.pay_order()  # while the ledger is away
        await found.database.stop()
        await restored(backup, now)
        found.environ["CONSUMER_DATABASE_URL"] = now
        found.database = Database(now)
        forgotten = len(found.paid) - await found.count("fulfilment_order WHERE paid_at IS NOT NULL")
        ends = [("exit code of `db upgrade`", 0, await _typed(found, "db", "upgrade"))]
        over = time.monotonic()
        say(f"restore: the ledger is an hour old and lacks {forgotten:,} orders")
        await asyncio.to_thread(serve.stop)  # it tells the ledger that it lives, and knows the old one only
        async with _at_work(found, "after", "serve", *ROLES):
            await until("settled", lambda: unsettled(found), over, WITHIN_S)
            await until("healthy", lambda: unhealthy(found), over, WITHIN_S)
            say(f"restore: all settled and healthy {time.monotonic() - over:.0f} s after; the warehouse was asked "
                f"{sum(found.warehouse.calls.values()) - asked:,} times")  # fmt: skip
            await found.sandbox.sender.stop()
            ends.append(("exit code of `reconcile --dry-run`", 0, await _typed(found, "reconcile", "--dry-run")))
        lacked = ("orders that the restored ledger lacked", passed.orders + 1, forgotten)
        rows = [lacked, *ends, *await prove(found, passed)]
    return Outcome(rows, time.monotonic() - began)


@asynccontextmanager
async def _at_work(found: Deployment, when: str, *roles: str) -> AsyncIterator[None]:
    async with started(*(found.process(role, f"{role}-{when}") for role in roles)):
        yield


async def _typed(found: Deployment, *words: str) -> int:
    done = await asyncio.to_thread(command, *words, environ=found.environ, within_s=600)
    return done.returncode
