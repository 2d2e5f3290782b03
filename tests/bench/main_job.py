"""The main job, against a consumer that does the same with a commit per message: a registered order is paid, becomes
PAID, `fulfilment.requested` goes out and comes back, the merchant's effect is called and its success is stored.

What counts is the CPU time of the worker's own process, which hardly depends on what else the machine does. The log is
embedded, the effect does nothing. With `--profile` the worker's functions are listed by what they cost.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import orjson
import uvloop
from sqlalchemy import Table, insert, text, update

from consumer.broker import Broker, EmbeddedBroker
from consumer.broker.base import next_offsets
from consumer.clock import SystemClock
from consumer.columns import insert_into
from consumer.events import Event, Locators, Source, Trust, build_event
from consumer.ledger import Database
from consumer.ledger.engine import schema
from consumer.ledger.handling import runs
from consumer.ledger.tables import EventRow, OutboxRow
from consumer.plugin import Context, handles
from consumer.work.execution.contexts import Contexts
from consumer.work.registry import load_registry
from handlers.fulfilment.tables import ORDERS
from tests.bench.ratio import Ratio, one_core
from tests.support.ports import eventually
from tests.support.postgres import create_database, postgres_server
from tests.work.workshop import TOPIC, Workshop, make_topics, message

SHIP = "bench:ship_paid"
ROUNDS = 3
WITHIN_S = 300
BAR = 2.5
AMOUNT, CUSTOMER = "25.00", "customer-1"
AT = datetime(2026, 1, 1, tzinfo=UTC)
BASELINE = "a consumer that commits per message"


@dataclass(frozen=True)
class Size:
    """How many orders each of the two handles, how often."""

    ours: int = 3_000
    baseline: int = 1_000
    rounds: int = ROUNDS


@dataclass(frozen=True)
class Cost:
    """What a number of orders took: CPU seconds of this process, and seconds by the clock."""

    orders: int
    cpu_s: float
    wall_s: float

    @property
    def cpu_ms_per_1000(self) -> float:
        """CPU milliseconds for a thousand orders."""
        return self.cpu_s / self.orders * 1e6

    @property
    def rate(self) -> float:
        """Orders a second."""
        return self.orders / self.wall_s


@handles("fulfilment.requested", name=SHIP, concurrency=64)
async def ship(event: Event, ctx: Context) -> None:
    """Nothing."""


def measure(folder: Path, postgres: str, size: Size | None = None) -> list[Ratio]:
    """Alternate between the two, each on a ledger and a log of its own; orders for a second of CPU."""
    one_core(0)
    size = size or Size()
    found = []
    for name in ("SQLite", "PostgreSQL"):
        rounds = []
        for number in range(size.rounds + 1):
            ours = uvloop.run(_ours(folder, _url(name, folder, postgres), size.ours))
            baseline = uvloop.run(_baseline(folder, _url(name, folder, postgres), size.baseline))
            if number:  # the first round warms up
                rounds.append((ours, baseline))
        _tell(name, rounds)
        per_second = [(1e6 / ours.cpu_ms_per_1000, 1e6 / base.cpu_ms_per_1000) for ours, base in rounds]
        found.append(Ratio(f"main job: {name}, orders for a second of CPU", BASELINE, per_second, BAR))
    return found


def _tell(name: str, rounds: Sequence[tuple[Cost, Cost]]) -> None:
    sides = {"main job": [ours for ours, _ in rounds], "a commit per message": [base for _, base in rounds]}
    for who, costs in sides.items():
        cpu, rate = median(one.cpu_ms_per_1000 for one in costs), median(one.rate for one in costs)
        sys.stdout.write(f"{name:<11} {who:<22} {cpu:>8.0f} ms of CPU per 1,000 {rate:>8.0f}/s\n")
    sys.stdout.flush()


def _url(name: str, folder: Path, postgres: str) -> str:
    return f"sqlite+aiosqlite:///{folder / uuid.uuid4().hex}.db" if name == "SQLite" else create_database(postgres)


@asynccontextmanager
async def _prepared(folder: Path, url: str, count: int) -> AsyncIterator[tuple[Database, Broker]]:
    """A ledger that knows the orders, and a log with the webhook of each."""
    database, broker = Database(url), EmbeddedBroker(folder / f"{uuid.uuid4().hex}.log")
    await schema.upgrade(database)
    await broker.start()
    try:
        await make_topics(broker)
        async with database.transaction() as session:
            await session.execute(insert(ORDERS), [_registered(number) for number in range(count)])
        await broker.publish_many(TOPIC, [message(_order_paid(number)) for number in range(count)])
        yield database, broker
    finally:
        await broker.stop()
        await database.stop()


def _registered(number: int) -> dict[str, object]:
    return {
        "application": "default",
        "order_id": f"order-{number}",
        "observed_version": 0,
        "registered_at": AT,
        "session_id": f"cs_{number}",
        "customer": CUSTOMER,
        "expected_amount": AMOUNT,
    }


def _order_paid(number: int) -> Event:
    order = {"id": f"ord_{number}", "order_id": f"order-{number}", "status": "PAID", "amount": AMOUNT,
             "customer_reference": CUSTOMER}  # fmt: skip
    raw = orjson.dumps({"id": f"evt_{number}", "type": "order.paid", "created_at": AT.isoformat(),
                        "data": {"object": order}})  # fmt: skip
    return build_event(
        raw, Locators(), application="default", trust=Trust.SIGNED, source=Source.WEBHOOK, received_at=AT
    )


async def _ours(folder: Path, url: str, count: int, profile: cProfile.Profile | None = None) -> Cost:
    async with _prepared(folder, url, count) as (database, broker):
        registry = load_registry(extra={"bench": sys.modules[__name__]})
        shop = Workshop(database, broker, [], registry=registry, contexts=Contexts(SystemClock()))
        began_s, cpu_s = time.perf_counter(), time.process_time()
        if profile is not None:
            profile.enable()
        async with shop.working():
            await eventually(lambda: _is_shipped(database, count), within_s=WITHIN_S, every_s=0.1)
            cost = Cost(count, time.process_time() - cpu_s, time.perf_counter() - began_s)
        if profile is not None:
            profile.disable()
        return cost


async def _is_shipped(database: Database, count: int) -> bool:
    """Whether every order's request came in and nothing waits."""
    async with database.reading() as session:
        newest = (await session.execute(text("SELECT max(seq) FROM events"))).scalar_one()
        return bool(newest) and newest >= 2 * count and not await runs.count_by_status(session)


async def _baseline(folder: Path, url: str, count: int) -> Cost:
    """What one writes without a framework: for each webhook a transaction that knows a duplicate by its unique key,
    makes the order PAID and says what is to be done; then the effect, and a transaction that marks it."""
    async with _prepared(folder, url, count) as (database, broker):
        subscription = broker.subscribe([TOPIC], "bench")
        await subscription.start()
        try:
            began_s, cpu_s, done = time.perf_counter(), time.process_time(), 0
            while done < count:
                records = await subscription.poll(100, 0.5)
                for record in records:
                    await _one(database, orjson.loads(record.value))
                await subscription.commit(next_offsets(records))
                done += len(records)
            return Cost(count, time.process_time() - cpu_s, time.perf_counter() - began_s)
        finally:
            await subscription.stop()


async def _one(database: Database, body: dict[str, object]) -> None:
    now, order = datetime.now(UTC), _object_of(body)
    async with database.transaction() as session:
        table: Table = EventRow.__table__
        row = {"application": "default", "id": body["id"], "type": body["type"], "key": f"order:{order['order_id']}",
               "trust": "signed", "source": "webhook", "raw": orjson.dumps(body), "received_at": now,
               "recorded_at": now, "delivery_id": ""}  # fmt: skip
        new = await session.execute(
            insert_into(table, database.dialect).values(row).on_conflict_do_nothing().returning(table.c.seq)
        )
        if new.first() is None:
            return
        paid = {"paid_at": now, "requested_at": now, "amount": order["amount"], "proof_event_id": body["id"]}
        one = (ORDERS.c.application == "default") & (ORDERS.c.order_id == order["order_id"])
        await session.execute(update(ORDERS).where(one, ORDERS.c.paid_at.is_(None)).values(**paid))
        outbox: Table = OutboxRow.__table__
        asked = {"application": "default", "event_id": f"drv_{body['id']}", "type": "fulfilment.requested",
                 "key": f"order:{order['order_id']}", "data": orjson.dumps(order), "not_before": now,
                 "created_at": now, "cause": body["id"], "handler": "naive"}  # fmt: skip
        await session.execute(insert(outbox).values(asked))
    await _nothing()
    async with database.transaction() as session:
        done = outbox.c.event_id == f"drv_{body['id']}"
        await session.execute(update(outbox).where(outbox.c.application == "default", done).values(published_at=now))


def _object_of(body: dict[str, object]) -> dict[str, str]:
    data = body["data"]
    assert isinstance(data, dict)
    found: dict[str, str] = data["object"]
    return found


async def _nothing() -> None:
    """The effect."""


def _profiled(folder: Path, postgres: str, database: str, count: int, lines: int) -> None:
    for profile in (None, cProfile.Profile()):  # the first run warms up
        cost = uvloop.run(_ours(folder, _url(database, folder, postgres), count, profile))
    assert profile is not None
    sys.stdout.write(f"{database}: {cost.cpu_ms_per_1000:.0f} ms of CPU per 1,000 under the profiler\n")
    shown = pstats.Stats(profile, stream=sys.stdout)
    for order in ("tottime", "cumulative"):
        shown.sort_stats(order).print_stats(lines)


def main() -> None:
    """By hand: `python -m tests.bench.main_job [--profile SQLite]`."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.main_job", description=__doc__)
    parser.add_argument("--profile", choices=("SQLite", "PostgreSQL"))
    parser.add_argument("--orders", type=int, default=Size.ours)
    parser.add_argument("--baseline", type=int, default=Size.baseline, help="orders of the baseline")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--lines", type=int, default=45)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench") as folder, postgres_server() as postgres:
        if asked.profile:
            _profiled(Path(folder), postgres, asked.profile, asked.orders, asked.lines)
        else:
            measure(Path(folder), postgres, Size(asked.orders, asked.baseline, asked.rounds))


if __name__ == "__main__":
    main()
