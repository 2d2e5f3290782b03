"""Facts: events, runs and deliveries for the ledger's contract, and how a worker's transaction is tried again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from sqlalchemy.ext.asyncio import AsyncSession

from consumer.errors import LedgerUnavailable
from consumer.events import Delivery, Event, Source, Trust
from consumer.ledger import Database
from consumer.ledger.handling import attempts, runs
from consumer.ledger.handling.attempts import Attempt
from consumer.ledger.handling.runs import ClaimedRun, Finish, Run
from consumer.ledger.tables import RunRow, RunStatus

NOW = datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)
HANDLER = "shop:ship"
T = TypeVar("T")


class Undone(Exception):
    """What a transaction is undone with."""


def later(seconds: float) -> datetime:
    """`seconds` after NOW."""
    return NOW + timedelta(seconds=seconds)


def event(number: int | str, *, application: str = "default", key: str | None = None, raw: bytes = b"{}") -> Event:
    """An event with an id made of `number`; without a key, of an order of its own."""
    return Event(
        application=application,
        id=f"evt_{number}",
        type="order.paid",
        key=key or f"order:{number}",
        trust=Trust.SIGNED,
        source=Source.WEBHOOK,
        raw=raw,
        received_at=NOW,
    )


def run(
    number: int,
    *,
    key: str = "order:1",
    handler: str = HANDLER,
    application: str = "default",
    status: RunStatus = RunStatus.RETRYING,
    blocking: bool = True,
    due_s: float = 0.0,
    seq: int | None = None,
) -> Run:
    """A run of event `number`, which arrived as number `seq` (`number` unless given)."""
    return Run(
        application=application,
        event_id=f"evt_{number}",
        handler=handler,
        seq=number if seq is None else seq,
        key=key,
        status=status,
        blocking=blocking,
        next_at=later(due_s) if status is RunStatus.RETRYING else None,
    )


def lane(*numbers: int, key: str = "order:1") -> list[Run]:
    """One lane as the intake leaves it: the first due, the rest parked behind it."""
    first, *rest = numbers
    return [run(first, key=key), *(run(number, key=key, status=RunStatus.PARKED) for number in rest)]


def delivery(number: int | str, *, application: str = "default", event_id: str | None = "evt_1") -> Delivery:
    """A delivery named by `number`."""
    return Delivery(
        application=application,
        id=f"del_{number}",
        raw=b'{"n": "%s"}' % str(number).encode(),
        received_at=NOW,
        headers={"user-agent": "päyments"},
        event_id=event_id,
        traceparent="00-trace",
    )


def finish(
    claimed: ClaimedRun, status: RunStatus = RunStatus.SUCCEEDED, *, blocking: bool = False, next_s: float | None = None
) -> Finish:
    """What an attempt made of a claimed run."""
    return Finish(
        run=claimed,
        status=status,
        blocking=blocking,
        attempts=claimed.attempts + 1,
        next_at=None if next_s is None else later(next_s),
        code=None if status is RunStatus.SUCCEEDED else "handler_failed",
    )


def attempt(number: int = 1, *, started_s: float = 0, code: str = attempts.PUT_OFF, worker: str = "one") -> Attempt:
    """A try of event 1 that did not succeed."""
    return Attempt(
        application="default",
        event_id="evt_1",
        handler=HANDLER,
        number=number,
        outcome="retrying",
        code=code,
        reason=None,
        fingerprint="f" * 16,
        code_version="v" * 16,
        worker=worker,
        started_at=later(started_s),
        finished_at=later(started_s + 0.5),
    )


async def store(database: Database, *given: Run) -> None:
    """Put runs into the ledger."""
    async with database.transaction() as session:
        await runs.add(session, given, NOW)


async def claim(
    database: Database,
    worker: str = "one",
    *,
    at_s: float = 0.0,
    limit: int = 100,
    lease_s: float = 15.0,
    handler: str = HANDLER,
) -> list[ClaimedRun]:
    """What a worker gets when it claims at that time."""
    async with database.transaction() as session:
        return list(
            await runs.claim(session, handler=handler, worker=worker, limit=limit, now=later(at_s), lease_s=lease_s)
        )


async def end(database: Database, worker: str, *finished: Finish, at_s: float = 1.0) -> None:
    """Store what became of claimed runs."""
    async with database.transaction() as session:
        await runs.finish(session, finished, worker=worker, now=later(at_s))


async def row(database: Database, number: int, handler: str = HANDLER) -> RunRow:
    """The run of event `number` as it is stored."""
    async with database.reading() as session:
        found = [one for one in await runs.of_event(session, "default", f"evt_{number}") if one.handler == handler]
    assert len(found) == 1
    return found[0]


async def statuses(database: Database, numbers: Iterable[int]) -> list[str]:
    """Where these runs stand."""
    return [(await row(database, number)).status for number in numbers]


async def persistently(database: Database, work: Callable[[AsyncSession], Awaitable[T]], *, attempts: int = 20) -> T:
    """A transaction as every stage does it: what the database could not take just now is tried again."""
    for attempt in range(attempts):
        try:
            async with database.transaction() as session:
                return await work(session)
        except LedgerUnavailable:
            if attempt == attempts - 1:
                raise
    raise AssertionError("unreachable")


async def undone(database: Database, work: Callable[[AsyncSession], Awaitable[object]]) -> None:
    """A transaction that does its work and then fails."""
    try:
        async with database.transaction() as session:
            await work(session)
            raise Undone
    except Undone:
        return
