"""Trying: one handler on one event, in a transaction that is rolled back, with a network that only writes down."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import event as sqlalchemy_event
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.clock import SystemClock
from consumer.errors import NotFound
from consumer.events import Event
from consumer.ledger import Database
from consumer.ledger.handling import events
from consumer.ledger.handling.events import to_event
from consumer.plugin import Context, Handler
from consumer.testing.example_events import event_in
from consumer.testing.guard import Guard
from consumer.testing.outside import Outside
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
    wrote: list[dict[str, Any]] = field(default_factory=list)
    called: list[dict[str, Any]] = field(default_factory=list)
    emitted: list[dict[str, Any]] = field(default_factory=list)
    reads: list[dict[str, Any]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


class _Undo(Exception):
    """Ends the transaction without a trace."""


async def event_named(database: Database, name: str, application: str) -> Event:
    """The event in a file (`events show ID --json`), or the recorded one of that id. Raises NotFound, UsageError."""
    if await asyncio.to_thread(Path(name).is_file):
        return event_in(name)
    async with database.reading() as session:
        found = await events.get(session, application, name)
    if found is None:
        raise NotFound("the ledger has no such event, and there is no file of that name", event=name[:100])
    return to_event(found)


async def attempt(
    database: Database, handler: Handler, event: Event, options: Mapping[str, Mapping[str, Any]]
) -> Tried:
    """Run it once as the worker would, and undo everything."""
    outside, guard, executor, clock = Outside(), Guard(), Executor(), SystemClock()
    contexts = Contexts(clock, options, {}, outside, database)
    found: list[Tried] = []
    try:
        with guard.noting():
            async with database.transaction() as session:
                given = session if handler.transactional else None
                ctx = contexts.make(handler, event, attempt=1, plan=None, session=given)
                wrote = _writes(await session.connection())
                outcome = await executor.transactional(guard.guarded(handler), event, ctx)
                if handler.transactional:
                    outcome = await _flushed(session, outcome)
                found.append(_tried(handler, event, ctx, outcome, outside, clock))
                found[0].wrote = wrote if handler.transactional else []
                raise _Undo
    except _Undo:
        pass
    finally:
        await executor.pool.close()
    tried = found[0]
    tried.refused = [str(one) for one in guard.taken()]
    return tried


async def _flushed(session: AsyncSession, outcome: Outcome) -> Outcome:
    if not isinstance(outcome, Succeeded):
        return outcome
    try:
        await session.flush()
    except Exception as error:  # noqa: BLE001 - what it wrote may be refused by the database only now
        return failed(error)
    return outcome


def _tried(
    handler: Handler, event: Event, ctx: Context, outcome: Outcome, outside: Outside, clock: SystemClock
) -> Tried:
    return Tried(
        handler=handler.name,
        event=event,
        transition=transition_after(handler, outcome, used=0, now=clock.now()),
        called=[
            {"method": one.method, "url": one.url, "body": one.body, "idempotency_key": one.idempotency_key}
            for one in outside.requests
        ],
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
