"""The outages at full scale: an hour at 50 events a second passes at the service while the endpoint, Kafka, the
database or the API (401) is away; then everything recovers without a hand, and a table proves it (case O7).

On real Kafka and PostgreSQL, with real processes and the documented budgets: 300 requests a minute, so what only the
list can tell takes a read for every hundred events.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from sqlalchemy import text

from consumer.events import Authenticity
from consumer.sandbox import DEFAULT_WEBHOOK_SECRET
from consumer.sync.confirm.policy import MAX_HINTS
from tests.chaos.campaign import Outcome
from tests.chaos.hour import Hour, Passed, live_through
from tests.promises.deployment import Deployment, deployment, started
from tests.support.kafka import KafkaServer, kafka_server
from tests.support.outage import api_away, endpoint_away, server_away
from tests.support.ports import eventually
from tests.support.postgres import StoppableServer, create_database, stoppable_server
from tests.support.process import ConsumerProcess, command

WARM_ORDERS = 20
LIVE_ORDERS_PER_S = 2.0
LIST_EVENTS_PER_S = 500.0
SPARE_S = 900.0
SAY_EVERY_S = 15.0
LOG_CHARS = 3000
HINTS_TO_SPARE = 5_000
AUTHENTICITIES = (Authenticity.SIGNATURE.value, Authenticity.API.value)


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What an outage can take away."""

    found: Deployment
    serve: ConsumerProcess
    kafka: KafkaServer
    postgres: StoppableServer


@dataclass(frozen=True, kw_only=True)
class Part:
    """What goes away, and how. `accepted`: webhooks are taken meanwhile; else a second of the hour waits `wait_s` for
    them to fail. `authenticity` is the setting of that name."""

    title: str
    away: Callable[[Scene], AbstractAsyncContextManager[None]]
    accepted: bool
    wait_s: float = 0.0
    authenticity: str = Authenticity.API.value

    def proved_by(self, authenticity: str | None) -> Part:
        """The same with this authenticity; with its own for None."""
        return self if authenticity is None else replace(self, authenticity=authenticity)

    def refusal(self, hour: Hour) -> str | None:
        """Why it cannot be played with this hour: webhooks that only a read can prove wait as hints, those taken
        meanwhile and those sent again after it, and what is beyond the consumer's bound is quarantined by design."""
        most = MAX_HINTS - HINTS_TO_SPARE
        if self.authenticity == Authenticity.SIGNATURE or hour.events <= most:
            return None
        return (
            f"{hour.events:,} webhooks may wait to be confirmed after {self.title} was away, and no more than "
            f"{MAX_HINTS:,} are kept: use --rate {most // hour.seconds}, fewer --hours, or --authenticity signature"
        )


PARTS = {
    "endpoint": Part(
        title="the endpoint", away=lambda scene: endpoint_away(scene.serve), accepted=False, wait_s=1.0
    ),
    "kafka": Part(
        title="Kafka",
        away=lambda scene: server_away(scene.kafka.stop, scene.kafka.start),
        accepted=False,
        wait_s=0.02,  # each attempt is held for 5 s before its 503
    ),
    "database": Part(
        title="the database",
        away=lambda scene: server_away(lambda: scene.postgres.stop("fast"), scene.postgres.start),
        accepted=True,
        authenticity=Authenticity.SIGNATURE.value,
    ),
    "api": Part(title="the API (401)", away=lambda scene: api_away(scene.found.sandbox), accepted=True),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """Seconds from the end of the outage: until everything paid during it was shipped, and until all was settled and
    `consumer status` healthy. `reads` were asked of the API meanwhile, `live` orders paid."""

    shipped_s: float
    healthy_s: float
    reads: int
    live: int


def say(line: str) -> None:
    """A line of progress."""
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {line}\n")
    sys.stdout.flush()


def play(part: Part, hour: Hour, folder: Path) -> Outcome:
    """One outage on servers of its own. Raises AssertionError when something does not come about in time, and
    whatever else goes wrong on the way."""
    with kafka_server(folder / "kafka") as kafka, stoppable_server() as postgres:
        database_url = create_database(postgres.uri)
        return asyncio.run(_played(part, hour, folder, kafka, postgres, database_url))


async def _played(
    part: Part, hour: Hour, folder: Path, kafka: KafkaServer, postgres: StoppableServer, database_url: str
) -> Outcome:
    began = time.monotonic()
    async with (
        deployment(
            folder,
            broker_url=kafka.url,
            database_url=database_url,
            config=hour.config(),
            CONSUMER_SYNC_INTERVAL_S="60",
            CONSUMER_AUTHENTICITY=part.authenticity,
            CONSUMER_WEBHOOK_SECRETS=DEFAULT_WEBHOOK_SECRET,
        ) as found,
        _under_way(found) as (serve, processes),
    ):
        scene = Scene(found=found, serve=serve, kafka=kafka, postgres=postgres)
        say(f"{part.title}: away, while {hour.seconds} s at {hour.per_s} events/s pass ({part.authenticity})")
        async with part.away(scene):
            passed = await live_through(found, hour, accepted=part.accepted, wait_s=part.wait_s, say=say)
            lost = set(found.paid)
            over = time.monotonic()
        say(f"{part.title}: back after {passed.events:,} events, {passed.seconds:.0f} s of this machine's time")
        recovery = await _recovered(found, lost, over, hour)
        say(_summary(part, passed, recovery))
        # Attempts go on by the service's schedule for days: the proof is of what came until now.
        await found.sandbox.sender.stop()
        await until("settled", lambda: unsettled(found), over, SPARE_S)
        ends = [(f"exit code of {one.name} after SIGTERM", 0, one.stop()) for one in processes]
        rows = [*await prove(found, passed), *ends]  # all are over: nothing can be done twice any more
    return Outcome(rows, time.monotonic() - began)


@asynccontextmanager
async def _under_way(found: Deployment) -> AsyncIterator[tuple[ConsumerProcess, list[ConsumerProcess]]]:
    """All roles at work; some orders were paid and shipped, and the list was walked to its end after that."""
    serve, sync = found.process("serve"), found.process("sync")
    workers = [found.process("work", f"work-{number}") for number in (1, 2)]
    processes = [serve, *workers, sync]
    async with started(*processes), _said_on_failure(processes):
        found.sandbox.set_webhook_url(f"{serve.addresses['public_url']}/webhooks/default")
        for _ in range(WARM_ORDERS):
            found.pay_order()
        await found.shipped(within_s=120)
        told = found.sandbox.engine.limits.requests

        async def is_walked() -> bool:
            mark = (await found.standing()).walked_at
            return mark is not None and found.sandbox.engine.limits.requests > told

        await eventually(is_walked, within_s=120, every_s=1, what="the list is walked to its end")
        yield serve, processes


@asynccontextmanager
async def _said_on_failure(processes: Sequence[ConsumerProcess]) -> AsyncIterator[None]:
    """What the processes logged last, when it did not come out."""
    try:
        yield
    except Exception:
        for one in processes:
            say(f"the end of the log of {one.name}:\n{one.log[-LOG_CHARS:]}")
        raise


async def _recovered(found: Deployment, lost: set[str], over: float, hour: Hour) -> Recovery:
    """Wait, while business goes on slowly, until what was paid in the outage is shipped; then until all is settled."""
    limits = found.sandbox.engine.limits
    reads, live = limits.requests, len(found.paid)
    stop = asyncio.Event()
    paying = asyncio.create_task(found.pay_orders_until(stop, LIVE_ORDERS_PER_S))
    within_s = SPARE_S + 3 * hour.events / LIST_EVENTS_PER_S
    said = 0.0

    def is_shipped() -> bool:
        nonlocal said
        now = time.monotonic()
        missing = len(lost - found.warehouse.keys.keys())
        if now - said > SAY_EVERY_S:
            said = now
            say(f"{now - over:4.0f} s after: {len(lost) - missing:,} of {len(lost):,} orders shipped, "
                f"{limits.requests - reads:,} reads")  # fmt: skip
        return not missing

    try:
        await eventually(is_shipped, within_s=within_s, every_s=0.5, what="every order paid in the outage is shipped")
        shipped_s = time.monotonic() - over
    finally:
        stop.set()
        await paying
    say(f"shipped {shipped_s:.1f} s after the end of the outage")
    await found.shipped(within_s=within_s)  # those paid meanwhile wait behind the outage's own, and their answers
    say(f"{time.monotonic() - over:4.0f} s after: what was paid meanwhile is shipped as well")
    await until("settled", lambda: unsettled(found), over, within_s)
    await until("healthy", lambda: unhealthy(found), over, within_s)
    return Recovery(
        shipped_s=shipped_s,
        healthy_s=time.monotonic() - over,
        reads=limits.requests - reads,
        live=len(found.paid) - live,
    )


async def until(what: str, lacking: Callable[[], Awaitable[str]], over: float, within_s: float) -> None:
    """Wait until nothing is lacking any more, and say on the way what still is."""
    deadline, said = time.monotonic() + within_s, time.monotonic()
    while lack := await lacking():
        now = time.monotonic()
        assert now < deadline, f"not {what} within {within_s:.0f} s: {lack}"
        if now - said > SAY_EVERY_S:
            said = now
            say(f"{now - over:4.0f} s after: not yet {what}: {lack}")
        await asyncio.sleep(2)


async def unsettled(found: Deployment) -> str:
    """What is not done yet; empty when all is."""
    counts = {
        "events to come": len(found.listed) - await found.count("events WHERE id LIKE 'evt%'"),
        "hints": await found.count("hints"),
        "runs": await found.count("runs WHERE status <> 'succeeded'"),
        "emitted": await found.count("outbox WHERE published_at IS NULL AND not_before <= now()"),
        "reads due": await found.count("reads WHERE due_at <= now()"),
    }
    return ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)


async def unhealthy(found: Deployment) -> str:
    """What `consumer status` says is wrong; empty when nothing is."""
    done = await asyncio.to_thread(command, "status", "--json", environ=found.environ)
    if done.returncode == 0:
        return ""
    try:
        return ", ".join(finding["code"] for finding in json.loads(done.stdout)["findings"])
    except ValueError:
        return f"exit {done.returncode}: {done.stderr[-400:]}"


async def prove(found: Deployment, passed: Passed) -> list[tuple[str, object, object]]:
    """Nothing lost, nothing doubled, nothing left over, no limit overdrawn."""
    parcels = Counter(found.warehouse.parcels.values())
    orders = len(found.paid)
    async with found.database.reading() as session:
        ids = set(await session.scalars(text("SELECT id FROM events WHERE id LIKE 'evt%'")))
    allowed = "access_entitlement WHERE allowed"
    return [
        ("events of the outage", passed.events, 2 * (passed.orders + passed.subscriptions)),
        ("listed events that are not in the ledger", 0, len(found.listed - ids)),
        ("events in the ledger that are not listed", 0, len(ids - found.listed)),
        ("orders paid", orders, await found.count("fulfilment_order WHERE paid_at IS NOT NULL")),
        ("fulfilment.requested in the ledger", orders,
         await found.count("events WHERE type = 'fulfilment.requested'")),
        ("orders with exactly one parcel", orders, parcels[1]),
        ("orders with more than one parcel", 0, sum(count for number, count in parcels.items() if number > 1)),
        ("orders without a parcel", 0, len(set(found.paid) - set(found.warehouse.parcels))),
        ("parcels nobody paid for", 0, len(set(found.warehouse.parcels) - set(found.paid))),
        ("customers with access", len(found.subscribed), await found.count(allowed)),
        ("deliveries that wait to be confirmed", 0, await found.count("hints")),
        ("deliveries in quarantine", 0, await found.count("quarantine")),
        ("runs that did not succeed", 0, await found.count("runs WHERE status <> 'succeeded'")),
        ("429 drawn by the consumer", 0, found.sandbox.engine.limits.refused),
    ]  # fmt: skip


def _summary(part: Part, passed: Passed, recovery: Recovery) -> str:
    return (
        f"outage of {part.title}: {passed.events:,} events ({passed.orders:,} orders paid, {passed.subscriptions:,} "
        f"subscriptions) while it was away, {passed.attempts:,} webhooks sent, {passed.unsent:,} failed unsent;\n"
        f"  shipped {recovery.shipped_s:.0f} s after its end ({passed.events / recovery.shipped_s:.0f} events/s), "
        f"all settled and healthy after {recovery.healthy_s:.0f} s; {recovery.reads:,} reads meanwhile "
        f"({60 * recovery.reads / recovery.healthy_s:.0f} a minute), {recovery.live} orders paid meanwhile"
    )
