"""A transactional handler blocks the worker's event loop for ever, in each of the ways there are: it is cut off, its
run has failed, it is paused, and everybody else goes on, in a real `work` process (case H4). Figures with `-s`."""

from __future__ import annotations

import asyncio
import json
import socket
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from sqlalchemy import text

from consumer.broker import Broker, EmbeddedBroker, open_broker
from consumer.ledger import Database
from consumer.ledger.engine import schema
from consumer.ledger.handling import attempts
from consumer.ledger.handling import handlers as known_handlers
from consumer.ledger.tables import AttemptRow, HandlerRow
from tests.support.merchant.plugin import install_plugin
from tests.support.ports import eventually
from tests.support.process import ConsumerProcess, command, ended
from tests.work.membership import watching
from tests.work.workshop import make_topics, message, service_event

CUTOFF_S = 1.0
PACE = 400

PLUGIN = """
import asyncio, re, socket, threading, time
from consumer.plugin import Context, Event, handles

{code}

@handles("order.cut", "order.pace", name="cut:fine", transactional=True)
async def fine(event: Event, ctx: Context) -> None:
    await ctx.session.execute(__import__("sqlalchemy").text("SELECT 1"))

@handles("order.cut", "order.pace", name="cut:effect")
async def effect(event: Event, ctx: Context) -> None:
    await asyncio.sleep(0)
"""

BLOCKS = """
@handles("order.cut", name="cut:{name}", transactional=True, first_wait_s=0.1, max_wait_s=0.2)
async def blocks_{name}(event: Event, ctx: Context) -> None:
    {how}
"""

WAYS = {
    "loop": "while True: pass",
    "sleep": "time.sleep(1e9)",
    "lock": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "socket": "socket.create_connection(('127.0.0.1', {port})).recv(1)",
    "request": "__import__('urllib.request').request.urlopen('http://127.0.0.1:{port}/').read()",
    "regex": "re.match(r'(a+)+$', 'a' * 60 + 'b')",
    "child": "await asyncio.gather(asyncio.to_thread(int), napping())\n\nasync def napping(): time.sleep(1e9)",
    "event": "asyncio.run_coroutine_threadsafe(asyncio.sleep(0), asyncio.get_running_loop()).result()",
}

KEEPS = """
@handles("order.cut", name="cut:blocks", transactional=True)
async def blocks(event: Event, ctx: Context) -> None:
    while True:
        try:
            time.sleep(1e9)
        except BaseException:
            continue
"""

IGNORES = """
@handles("order.cut", name="cut:blocks", transactional=True, timeout_s=1, batch={batch})
async def blocks({given}) -> None:
    while True:
        try:
            await asyncio.sleep(0.2)
        except BaseException:
            continue
"""

DEAF = """
import ctypes

@handles("order.cut", name="cut:blocks", transactional=True)
async def blocks(event: Event, ctx: Context) -> None:
    libc = ctypes.CDLL(None)
    end = time.monotonic() + 600
    while time.monotonic() < end:
        # Lets go of the GIL, goes on after a signal, as a C client library does that waits for its server.
        if libc.pthread_sigmask(0, (ctypes.c_ulong * 16)(*([2**64 - 1] * 16)), None) == 0:
            libc.sleep(600)
"""


@dataclass
class Place:
    """A ledger, a log and the environment of processes that use them."""

    database: Database
    broker: Broker
    environ: dict[str, str]
    folder: Path
    topic: str = "payments.events"

    def worker(self, plugin: str, name: str = "work") -> ConsumerProcess:
        """A `work` process with this plugin."""
        return ConsumerProcess("work", self.environ | install_plugin(self.folder, "cut_plugin", plugin),
                               self.folder, name)  # fmt: skip

    async def publish(self, first: int, count: int, kind: str = "order.cut") -> None:
        """Events of as many orders."""
        events = [service_event(f"evt_{n}", kind, f"order-{n}") for n in range(first, first + count)]
        await self.broker.publish_many(self.topic, [message(event) for event in events])

    async def done(self, handler: str) -> int:
        """How many runs of the handler succeeded."""
        statement = text("SELECT count(*) FROM runs WHERE handler = :handler AND status = 'succeeded'")
        async with self.database.reading() as session:
            return int((await session.execute(statement, {"handler": handler})).scalar_one())

    async def handler(self, name: str) -> HandlerRow | None:
        """What the ledger knows of it."""
        async with self.database.reading() as session:
            return next((one for one in await known_handlers.everyone(session) if one.name == name), None)

    async def is_paused(self, name: str) -> bool:
        """Whether it is paused, for everybody."""
        found = await self.handler(name)
        return found is not None and found.paused_at is not None

    async def attempts(self, name: str) -> list[AttemptRow]:
        """Every attempt of the handler that was kept."""
        async with self.database.reading() as session:
            ids = await session.execute(text("SELECT DISTINCT event_id FROM attempts WHERE handler = :n"), {"n": name})
            found = [row for (one,) in ids for row in await attempts.of_event(session, "default", one)]
            return [row for row in found if row.handler == name]

    async def pace(self, first: int, count: int = PACE) -> float:
        """Publish so many events; how many a second the two that behave got done."""
        before = [await self.done("cut:fine"), await self.done("cut:effect")]
        began = time.monotonic()
        await self.publish(first, count, "order.pace")

        async def all_done() -> bool:
            now = [await self.done("cut:fine"), await self.done("cut:effect")]
            return all(there - then >= count for there, then in zip(now, before, strict=True))

        await eventually(all_done, within_s=60, every_s=0.05, what="the others are done")
        return count / (time.monotonic() - began)


@dataclass
class Pulse:
    """What a probe of liveness sees."""

    answers: int = 0
    longest_s: float = 0.0


@asynccontextmanager
async def probing(url: str) -> AsyncIterator[Pulse]:
    """Ask `/healthz` all the time, and note the longest wait for an answer."""
    pulse = Pulse()

    async def probe() -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http:
            while True:
                began = time.monotonic()
                async with http.get(url + "/healthz") as answer:
                    assert answer.status == 200
                pulse.answers += 1
                pulse.longest_s = max(pulse.longest_s, time.monotonic() - began)
                await asyncio.sleep(0.1)

    task = asyncio.create_task(probe())
    try:
        yield pulse
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def place_with(url: str, folder: Path) -> AsyncIterator[Place]:
    database, broker = Database(url), EmbeddedBroker(folder / "log.db")
    await schema.upgrade(database)
    await broker.start()
    await make_topics(broker)
    yield Place(database, broker, environ_of(url, f"embedded:{folder}/log.db"), folder)
    await broker.stop()
    await database.stop()


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    """On SQLite, where the blocked transaction shuts out every other writer."""
    async with place_with(f"sqlite+aiosqlite:///{tmp_path}/ledger.db", tmp_path) as found:
        yield found


@pytest.fixture
async def either(database_url: str, tmp_path: Path) -> AsyncIterator[Place]:
    """On each kind of database."""
    async with place_with(database_url, tmp_path) as found:
        yield found


def environ_of(database_url: str, broker_url: str) -> dict[str, str]:
    return {
        "CONSUMER_DATABASE_URL": database_url,
        "CONSUMER_BROKER_URL": broker_url,
        "CONSUMER_AUTHENTICITY": "signature",
        "CONSUMER_WEBHOOK_SECRETS": "whsec_dGVzdC1zZWNyZXQtb2YtdGhlLWxvYWQtZ2VuZXJhdG9yISE=",
        "CONSUMER_WORK_CUTOFF_S": str(CUTOFF_S),
    }


@asynccontextmanager
async def silent_server() -> AsyncIterator[int]:
    """A server that takes connections and never says anything; its port."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(16)
        yield listening.getsockname()[1]


def plugin_that(ways: Sequence[str], port: int) -> str:
    """A plugin with a handler for each of the ways."""
    code = ""
    for way in ways:
        how, _, rest = WAYS[way].format(port=port).partition("\n\n")
        code += BLOCKS.format(name=way, how=how) + "\n" + rest + "\n"
    return PLUGIN.format(code=code)


# case: H4
@pytest.mark.slow
async def test_it_fails_and_pauses_and_the_others_go_on(either: Place) -> None:
    await they_fail_and_pause(either, ["loop"])


# case: H4
@pytest.mark.slow
async def test_every_way_to_block_is_cut_off(place: Place) -> None:
    await they_fail_and_pause(place, sorted(set(WAYS) - {"loop"}))


async def they_fail_and_pause(place: Place, ways: list[str]) -> None:
    async with silent_server() as port:
        worker = place.worker(plugin_that(ways, port))
        with ended(worker):
            worker.spawn()
            await worker.ready()
            free = await place.pace(0) if ways == ["loop"] else 0.0
            async with probing(worker.addresses["internal_url"]) as pulse:
                began = time.monotonic()
                await place.publish(PACE, 5)
                for way in ways:
                    await eventually(lambda way=way: place.is_paused(f"cut:{way}"), within_s=60, every_s=0.1)  # type: ignore[misc]  # bound now
                seconds = time.monotonic() - began
                harmed = await place.pace(PACE + 5)
                await eventually(lambda: everything_else(place, PACE + 5), within_s=20, every_s=0.1)
            print(f"\n{', '.join(ways)}: paused after {seconds:.1f} s, /healthz silent for {pulse.longest_s:.1f} s "
                  f"at most; the others then {harmed:.0f} events/s (before: {free:.0f})")  # fmt: skip
            assert worker.stop() == 0
    for way in ways:
        found = await place.attempts(f"cut:{way}")
        assert {row.code for row in found} == {"handler_blocked"}
        assert len(found) >= 3
        assert len({row.fingerprint for row in found}) == 1
        assert all(row.code_version and row.reason and "cut_plugin" in row.reason for row in found)
        assert await place.done(f"cut:{way}") == 0
    assert worker.log.count("handler_cut_off") >= 3 * len(ways)
    if ways == ["loop"]:
        assert pulse.longest_s < CUTOFF_S + 2.5
        assert harmed > free / 4
        await seen_by_operators(place, "cut:loop")


async def seen_by_operators(place: Place, name: str) -> None:
    environ = place.environ | {"PYTHONPATH": str(place.folder)}
    listed = json.loads((await asyncio.to_thread(command, "handlers", "list", "--json", environ=environ)).stdout)
    assert next(row for row in listed["handlers"] if row["name"] == name)["paused"]
    assert name in (await asyncio.to_thread(command, "status", environ=environ)).stdout


async def everything_else(place: Place, wanted: int) -> bool:
    return await place.done("cut:fine") >= wanted and await place.done("cut:effect") >= wanted


# case: H4
@pytest.mark.slow
async def test_one_that_cannot_be_cut_off_is_paused_before_the_process_ends(either: Place) -> None:
    """One keeps every error to itself, one is deaf to signals; each on one kind of database, to save time."""
    await it_is_paused_and_the_process_ends(either, KEEPS if either.database.dialect == "sqlite" else DEAF)


# case: H4
@pytest.mark.slow
@pytest.mark.parametrize(
    ("batch", "given"), [(False, "event: Event, ctx: Context"), (True, "batch: list[tuple[Event, Context]]")]
)
async def test_so_is_one_that_turns_the_loop_and_ignores_its_cancellation(
    place: Place, batch: bool, given: str
) -> None:
    await it_is_paused_and_the_process_ends(place, IGNORES.format(batch=batch, given=given))


async def it_is_paused_and_the_process_ends(place: Place, plugin: str) -> None:
    worker = place.worker(PLUGIN.format(code=plugin))
    with ended(worker):
        worker.spawn()
        await worker.ready()
        began = time.monotonic()
        await place.publish(0, 5)
        assert await asyncio.to_thread(worker.wait, 40) == 70
        seconds = time.monotonic() - began
        assert await place.is_paused("cut:blocks")
        assert "worker_gave_up" in worker.log
        # It starts again, as under any supervisor, and the same event harms nobody.
        worker.spawn()
        await worker.ready()
        await eventually(lambda: everything_else(place, 5), within_s=40, every_s=0.1)
        rate = await place.pace(5)
        print(f"\ngave up after {seconds:.1f} s; started again: {rate:.0f} events/s")
        assert worker.stop() == 0
    assert await place.done("cut:blocks") == 0


# case: H4
@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.timeout(180)
async def test_it_stays_in_its_kafka_group(place: Place, kafka_url: str) -> None:
    """With the default limit: three times 5 s, and Kafka sees the same member all the time."""
    prefix = f"cut-{uuid.uuid4().hex[:8]}"
    broker = open_broker(kafka_url)
    await broker.start()
    place.broker, place.topic = broker, f"{prefix}.events"
    place.environ |= {"CONSUMER_BROKER_URL": kafka_url, "CONSUMER_TOPIC_PREFIX": prefix, "CONSUMER_WORK_CUTOFF_S": "5"}
    worker = place.worker(plugin_that(["loop"], 0))
    try:
        with ended(worker):
            worker.spawn()
            await worker.ready()
            async with watching(kafka_url, f"{prefix}.work") as group:
                await eventually(lambda: "Stable" in group.states, within_s=30)
                group.states.clear()
                group.members.clear()
                began = time.monotonic()
                await place.publish(0, 5)
                await eventually(lambda: place.is_paused("cut:loop"), within_s=60, every_s=0.1)
                seconds = time.monotonic() - began
                rate = await place.pace(5)
                print(f"\non Kafka: paused after {seconds:.1f} s, then {rate:.0f} events/s; {group.looks} looks: "
                      f"{group.states}, {len(group.members)} set(s) of members")  # fmt: skip
                assert group.never_changed
                assert len(group.members[0]) == 1
            assert worker.stop() == 0
    finally:
        await broker.stop()
