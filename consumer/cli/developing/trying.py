"""Trying: one handler on one event, in a transaction that is rolled back, with a network that only writes down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import event as sqlalchemy_event
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.cli.looking.events import owner
from consumer.clock import SystemClock
from consumer.errors import BodiesArchived, NotFound
from consumer.events import Event
from consumer.ledger import Database
from consumer.ledger.handling import events, snapshots
from consumer.ledger.handling.events import to_event
from consumer.plugin import Context, Handler
from consumer.plugin.snapshot import subject_of
from consumer.testing.example_events import event_in
from consumer.testing.guard import Guard
from consumer.testing.outside import Outside
from consumer.testing.payments_fake import PaymentsFake
from consumer.work.execution.contexts import Contexts
from consumer.work.execution.executor import Executor
from consumer.work.outcome import Outcome, Succeeded, failed
from consumer.work.transition import Transition, transition_after

WRITES_MAX = 200


@dataclass
class Tried:
    """What came of it, and what it would have done."""

    handler: str
    event: Event
    transition: Transition
    is_transactional: bool
    wrote: list[dict[str, Any]] = field(default_factory=list)
    called: list[dict[str, Any]] = field(default_factory=list)
    emitted: list[dict[str, Any]] = field(default_factory=list)
    reads: list[dict[str, Any]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


class _Undo(Exception):
    """Ends the transaction without a trace."""


async def event_named(database: Database, name: str, application: str | None) -> Event:
    """The event in a file (`events show ID --json`), or the recorded one of that id, of whichever application has it
    when none is said. Raises NotFound, UsageError."""
    if await asyncio.to_thread(Path(name).is_file):
        return event_in(name)
    application = application or await owner(database, name)
    async with database.reading() as session:
        found = None if application is None else await events.get(session, application, name)
    if found is None:
        raise NotFound("the ledger has no such event, and there is no file of that name", event=name[:100])
    if found.archive is not None:
        raise BodiesArchived(file=found.archive)
    return to_event(found)


async def attempt(
    database: Database, handler: Handler, event: Event, options: Mapping[str, Mapping[str, Any]]
) -> Tried:
    """Run it once as the worker would, and undo everything. `ctx.payments` is played: it knows what the ledger last
    read of the event's order or subscription, and does what it is asked to in memory."""
    outside, guard, executor, clock = Outside(), Guard(), Executor(), SystemClock()
    payments = PaymentsFake(clock)
    found: list[Tried] = []
    try:
        with guard.noting():
            async with database.transaction() as session:
                given = session if handler.transactional else None
                await _fill(payments, session, event)
                contexts = Contexts(clock, options, {event.application: payments}, outside, _OpenLedger(session))
                ctx = contexts.make(handler, event, attempt=1, plan=None, session=given)
                wrote = _writes(await session.connection())
                outcome = await executor.transactional(guard.guarded(handler), event, ctx)
                if handler.transactional:
                    outcome = await _flushed(session, outcome)
                found.append(_tried(handler, event, ctx, outcome, clock))
                found[0].called = [*_called(outside), *_asked(payments)]
                found[0].wrote = wrote if handler.transactional else []
                raise _Undo
    except _Undo:
        pass
    finally:
        await executor.pool.close()
    tried = found[0]
    tried.refused = [str(one) for one in guard.taken()]
    return tried


class _OpenLedger:
    """The ledger by the session that is open: a handler that is tried opens no connection, which would be refused."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncSession]:
        """One at a time, as a session wants it."""
        async with self._turn:
            yield self._session


async def _fill(payments: PaymentsFake, session: AsyncSession, event: Event) -> None:
    """What the service is known to have of what the event is about."""
    subject = subject_of(event)
    snapshot = None if subject is None else await snapshots.newest(session, event.application, *subject)
    if snapshot is not None and isinstance(snapshot.record.get("id"), str):
        payments.add(f"{snapshot.kind}s", snapshot.record)


def _called(outside: Outside) -> list[dict[str, Any]]:
    return [
        {"method": one.method, "url": one.url, "body": one.body, "idempotency_key": one.idempotency_key}
        for one in outside.requests
    ]


def _asked(payments: PaymentsFake) -> list[dict[str, Any]]:
    return [
        {"method": one.method, "url": f"payments:{one.path}", "body": one.body, "idempotency_key": one.idempotency_key}
        for one in payments.calls
    ]


async def _flushed(session: AsyncSession, outcome: Outcome) -> Outcome:
    if not isinstance(outcome, Succeeded):
        return outcome
    try:
        await session.flush()
    except Exception as error:  # noqa: BLE001 - what it wrote may be refused by the database only now
        return failed(error)
    return outcome


def _tried(handler: Handler, event: Event, ctx: Context, outcome: Outcome, clock: SystemClock) -> Tried:
    return Tried(
        handler=handler.name,
        event=event,
        transition=transition_after(handler, outcome, used=0, now=clock.now()),
        is_transactional=handler.transactional,
        emitted=[
            {"type": one.type, "key": one.key, "data": dict(one.data), "not_before": one.not_before}
            for one in ctx.emissions
        ],
        reads=[{"kind": one.kind, "id": one.object_id} for one in ctx.reads],
    )


def _writes(connection: Any) -> list[dict[str, Any]]:
    """Fills with what is written from now on: verb, table, values."""
    wrote: list[dict[str, Any]] = []

    def note(_: Any, __: Any, ___: Any, ____: Any, context: Any, _____: bool) -> None:
        verb = (
            "insert" if context.isinsert else "update" if context.isupdate else "delete" if context.isdelete else None
        )
        if verb is None or len(wrote) >= WRITES_MAX:
            return
        table = getattr(getattr(context.compiled, "statement", None), "table", None)
        for values in context.compiled_parameters or [{}]:
            wrote.append({"verb": verb, "table": getattr(table, "name", ""), "values": dict(values)})

    sqlalchemy_event.listen(connection.sync_connection, "before_cursor_execute", note)
    return wrote
