"""A burst: 5,000 events on 500 keys, a handler that fails 30 % at random and 1 % for good, two workers, one killed.

Per-key order stays intact, each effect succeeds once, the dead are exactly the 1 %, and keys without failures are not
held up by those with: from the moment an event is due (recorded, and the one before it on its key done) until its
handler begins, by the handler's own records, at most a fraction of the run passes; where the killed worker had claimed
an event of the key, what its claim lasts comes on top. The figures are printed with `-s`.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from pathlib import Path
from statistics import median

import pytest
from aiohttp import web
from sqlalchemy import select, text

from consumer.broker import EmbeddedBroker
from consumer.ledger import Database
from consumer.ledger.engine import schema
from consumer.ledger.leases import CLAIM_LEASE_S
from consumer.ledger.tables import RunRow
from tests.support.loopback import LoopbackServer
from tests.support.merchant.plugin import install_plugin
from tests.support.ports import eventually
from tests.support.process import ConsumerProcess, ended
from tests.work.workshop import message, service_event

KEYS, PER_KEY, HEALTHY = 500, 10, 100
EVENTS = KEYS * PER_KEY
LIMIT_S = 180.0
# Every key has one due event at most, and whoever was tried goes to the back: so at worst an event waits while each
# other key has its turn, a tenth of the run or so (ten events a key). Twice that, and a second for the machine.
SHARE, SLACK_S = 0.2, 1.0

PLUGIN = """
import os, random, time
from consumer.plugin import Context, Event, Reject, handles

@handles("order.burst", name="burst:record", attempts=25, first_wait_s=0.05, wait_factor=1.3, max_wait_s=0.5,
         concurrency=32, on_dead="continue")
async def record(event: Event, ctx: Context) -> None:
    key, number = (int(part) for part in event.id.split("_")[1].split("-"))
    note("began", key, number)
    if (key * {per_key} + number) % 100 == 7:
        raise Reject("for good")
    if key >= {healthy} and random.random() < 0.3:
        raise RuntimeError("at random")
    effect = {{"key": key, "number": number, "idempotency_key": ctx.idempotency_key}}
    async with ctx.http.post({url!r}, json=effect) as answer:
        answer.raise_for_status()
    note("done", key, number)

def note(what: str, key: int, number: int) -> None:
    with open({records!r} + "." + str(os.getpid()), "a") as file:
        print(what, key, number, time.time(), file=file)
"""


class Book(LoopbackServer):
    """Where effects arrive: what came for each key, in order, and when."""

    def __init__(self) -> None:
        super().__init__(self._take)
        self.came: defaultdict[int, list[int]] = defaultdict(list)
        self.successes: dict[str, tuple[int, int]] = {}
        self.calls = 0

    async def _take(self, request: web.BaseRequest) -> web.Response:
        effect = await request.json()
        self.calls += 1
        self.came[effect["key"]].append(effect["number"])
        self.successes.setdefault(effect["idempotency_key"], (effect["key"], effect["number"]))
        return web.json_response({})


def is_for_good(key: int, number: int) -> bool:
    """The one in a hundred that never succeeds."""
    return (key * PER_KEY + number) % 100 == 7


# case: R10, G2, G5, H3
@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_order_effects_and_the_dead_are_exact(tmp_path: Path) -> None:
    database_url = f"sqlite+aiosqlite:///{tmp_path}/ledger.db"
    database = Database(database_url)
    await schema.upgrade(database)
    broker = EmbeddedBroker(tmp_path / "log.db")
    await broker.start()
    try:
        async with Book() as book:
            records = str(tmp_path / "records")
            plugin = PLUGIN.format(url=book.url, per_key=PER_KEY, healthy=HEALTHY, records=records)
            environ = {
                "CONSUMER_DATABASE_URL": database_url,
                "CONSUMER_BROKER_URL": f"embedded:{tmp_path}/log.db",
                "CONSUMER_AUTHENTICITY": "signature",
                "CONSUMER_WEBHOOK_SECRETS": "whsec_dGVzdC1zZWNyZXQtb2YtdGhlLWxvYWQtZ2VuZXJhdG9yISE=",
                "CONSUMER_LOG_LEVEL": "error",
                **install_plugin(tmp_path, "burst_plugin", plugin),
            }
            workers = [ConsumerProcess("work", environ, tmp_path, f"work-{number}") for number in (1, 2)]
            with ended(*workers):
                for worker in workers:
                    worker.spawn()
                for worker in workers:
                    await worker.ready()
                seconds, killed_at, held = await burst(broker, database, book, workers[0])
            await prove(database, book)
            delays = await delays_of(database, tmp_path)
            free = [s for key, waits in delays.items() if key not in held for s in waits]
            hit = [s for key, waits in delays.items() if key in held for s in waits]
            bound = SHARE * seconds + SLACK_S
            print(f"\n{EVENTS} events in {seconds:.1f} s ({EVENTS / seconds:.0f}/s), {book.calls} effect calls, "
                  f"killed after {killed_at} effects with claims on {len(held)} keys; due to begun on keys without "
                  f"failures: {len(free)} events, median {median(free):.2f} s, at most {max(free):.2f} s (bound "
                  f"{bound:.1f}); on {len(held & delays.keys())} of them the killed worker had claims: at most "
                  f"{max(hit, default=0):.2f} s (bound {bound + CLAIM_LEASE_S:.1f})")  # fmt: skip
            assert len(free) > HEALTHY * PER_KEY / 2
            assert max(free) < bound
            assert max(hit, default=0) < bound + CLAIM_LEASE_S
    finally:
        await broker.stop()
        await database.stop()


async def burst(
    broker: EmbeddedBroker, database: Database, book: Book, victim: ConsumerProcess
) -> tuple[float, int, set[int]]:
    """Publish all, kill a worker on the way; seconds until all were settled, effects before the kill, and the keys on
    which the killed worker had claims."""
    events = [
        service_event(f"evt_{key}-{number}", "order.burst", f"order-{key}")
        for number in range(PER_KEY)
        for key in range(KEYS)
    ]
    began = time.monotonic()
    await broker.publish_many("payments.events", [message(event) for event in events])
    await eventually(lambda: len(book.successes) > EVENTS // 5, within_s=LIMIT_S)
    killed_at = len(book.successes)
    victim.kill()
    held = await claimed_by(database, victim.pid)
    wanted = EVENTS - EVENTS // 100
    await eventually(lambda: len(book.successes) >= wanted, within_s=LIMIT_S, every_s=0.1)
    await eventually(lambda: settled(database), within_s=60, every_s=0.2)
    return time.monotonic() - began, killed_at, held


async def claimed_by(database: Database, pid: int) -> set[int]:
    statement = text("SELECT event_id FROM runs WHERE status = 'retrying' AND claimed_by LIKE :worker")
    async with database.reading() as session:
        found = await session.scalars(statement, {"worker": f"%-{pid}-%"})
        return {numbers_in(event_id)[0] for event_id in found}


def numbers_in(event_id: str) -> tuple[int, int]:
    key, number = event_id.removeprefix("evt_").split("-")
    return int(key), int(number)


async def delays_of(database: Database, folder: Path) -> dict[int, list[float]]:
    """Per key on which nothing fails: how long each of its events was due before its handler began."""
    began, done = records_in(folder)
    async with database.reading() as session:
        rows = (await session.execute(select(RunRow.__table__.c.event_id, RunRow.__table__.c.created_at))).all()
    recorded = {numbers_in(event_id): at.timestamp() for event_id, at in rows}
    healthy = [key for key in range(HEALTHY) if not any(is_for_good(key, number) for number in range(PER_KEY))]
    return {
        key: [
            began[key, number] - max(recorded[key, number], done.get((key, number - 1), 0.0))
            for number in range(PER_KEY)
        ]
        for key in healthy
    }


def records_in(folder: Path) -> tuple[dict[tuple[int, int], float], dict[tuple[int, int], float]]:
    """When the handler first began on each event, and when it was last done with it, by (key, number)."""
    began: dict[tuple[int, int], float] = {}
    done: dict[tuple[int, int], float] = {}
    lines = [line for path in folder.glob("records.*") for line in path.read_text().splitlines()]
    for what, key, number, at in sorted((line.split() for line in lines), key=lambda words: float(words[3])):
        if what == "began":
            began.setdefault((int(key), int(number)), float(at))
        else:
            done[int(key), int(number)] = float(at)
    return began, done


async def settled(database: Database) -> bool:
    async with database.reading() as session:
        found = await session.execute(text("SELECT count(*) FROM runs WHERE status IN ('succeeded', 'dead')"))
        return int(found.scalar_one()) == EVENTS


async def prove(database: Database, book: Book) -> None:
    async with database.reading() as session:
        rows = await session.execute(text("SELECT event_id, status FROM runs WHERE handler = 'burst:record'"))
        statuses = {row.event_id: row.status for row in rows}
    for_good = {f"evt_{k}-{n}" for k in range(KEYS) for n in range(PER_KEY) if is_for_good(k, n)}
    assert {event_id for event_id, status in statuses.items() if status == "dead"} == for_good
    assert len(for_good) == EVENTS // 100
    for key in range(KEYS):
        wanted = [number for number in range(PER_KEY) if not is_for_good(key, number)]
        came = book.came[key]
        # A call that died with its worker before its mark comes again, at once, with the same key: never out of order.
        assert came == sorted(came), f"key {key}: {came}"
        assert list(dict.fromkeys(came)) == wanted
    assert Counter(book.successes.values()).most_common(1)[0][1] == 1
    assert len(book.successes) == EVENTS - EVENTS // 100
