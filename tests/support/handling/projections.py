"""Projections under test: runs a plugin's transactional handlers as `work` does, on a real ledger, without a broker.

Each event is recorded (the ledger's unique key decides duplicates), handled in one transaction with a savepoint, and
what the handler emitted or asked for goes to the real outbox and read tables. `relay` brings due derived events back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any

import orjson
import structlog
from sqlalchemy import Table, and_, delete, select, true

from consumer.events import Locators, Source, Trust, build_event
from consumer.ledger import Database
from consumer.ledger.handling import events, outbox
from consumer.ledger.handling.outbox import Emitted
from consumer.ledger.reading import read_requests
from consumer.ledger.tables import AuditRow, OutboxRow, ReadRow
from consumer.payload import known_types, payload_class
from consumer.plugin import AuditNote, Context, Emission, Event, Handler, declared
from consumer.plugin.options import options_for
from consumer.wire import own_event

START = datetime(2026, 1, 1, tzinfo=UTC)
APPLICATION = "default"
OUTBOX: Table = OutboxRow.__table__
READS: Table = ReadRow.__table__


def declared_in(module: str) -> list[Handler]:
    """The handlers of one module, in the order they stand there."""
    return [found for item in vars(import_module(module)).values() if (found := declared(item)) is not None]


def held_to_the_catalogue(emission: Emission) -> None:
    """What a projection emits is what the catalogue of payloads shows: every field named, each of its type."""
    payload = payload_class(emission.type).read(emission.data, emission.type)
    assert emission.type in known_types(), f"{emission.type} has no payload class"
    assert not payload.more, f"{type(payload).__name__} does not name {sorted(payload.more)}"


class Projections:
    """A worker's essence: `feed` events, `relay` what was emitted. `now` is driven by the test; `is_history`: what is
    fed is seeded. `options` are every handler's, or by module."""

    def __init__(
        self,
        database: Database,
        *modules: str,
        options: Mapping[str, Any] | None = None,
        now: datetime = START,
        application: str | None = None,
    ) -> None:
        self.database = database
        self.handlers = [handler for module in modules for handler in declared_in(module)]
        self.options = options or {}
        self.now = now
        self.is_history = False
        mine = true() if application is None else OUTBOX.c.application == application
        self._waiting = and_(OUTBOX.c.published_at.is_(None), mine)
        self.emitted: list[Emission] = []
        self.notes: list[AuditNote] = []

    async def feed(self, *given: Event) -> None:
        """Each event in a transaction of its own; one the ledger knows already changes nothing."""
        for event in given:
            async with self.database.transaction() as session:
                if await events.record(session, [event], self.now):
                    await self._handle(session, event)

    async def feed_together(self, given: Iterable[Event]) -> None:
        """All of them in one transaction, with a savepoint each (group commit)."""
        async with self.database.transaction() as session:
            for event in given:
                if await events.record(session, [event], self.now):
                    await self._handle(session, event)

    async def force(self, event: Event) -> None:
        """As an operator's forced replay: the handlers run again although the ledger knows the event."""
        async with self.database.transaction() as session:
            await self._handle(session, event, is_replay=True)

    async def _handle(self, session: Any, event: Event, *, is_replay: bool = False) -> None:
        for handler in self.handlers:
            if not handler.wants(event.type):
                continue
            ctx = Context(
                application=event.application,
                handler=handler,
                event=event,
                attempt=1,
                now=self.now,
                log=lambda: structlog.get_logger("test"),
                is_replay=is_replay,
                is_history=self.is_history,
                options=options_for(handler.function, self.options.get(handler.function.__module__, self.options)),
                session=session,
            )
            async with session.begin_nested():
                await handler.function(event, ctx)
            for one in ctx.emissions:
                held_to_the_catalogue(one)
            emitted = [Emitted(emission=one, cause=event, handler=handler.name) for one in ctx.emissions]
            await outbox.withdraw(session, [(event.application, one) for one in ctx.withdrawn], self.now)
            await outbox.put(session, emitted, self.now)
            await read_requests.ask(session, event.application, ctx.reads, self.now)
            for note in ctx.notes:
                session.add(_audited(note, event, handler, self.now))
            self.emitted.extend(ctx.emissions)
            self.notes.extend(ctx.notes)

    async def due(self) -> list[Event]:
        """The derived events that are due, published: whoever calls this must handle them."""
        async with self.database.transaction() as session:
            ready = select(OutboxRow).where(self._waiting, OUTBOX.c.not_before <= self.now)
            rows = (await session.execute(ready.order_by(OUTBOX.c.seq).limit(500))).scalars().all()
            batch = [derived_event(row, self.now) for row in rows]
            await outbox.mark_published(session, rows, self.now)
        return batch

    async def relay(self, rounds: int = 20) -> list[Event]:
        """Publish what is due and handle it, until nothing is due; returns it. Bounded."""
        published: list[Event] = []
        for _ in range(rounds):
            batch = await self.due()
            if not batch:
                return published
            published.extend(batch)
            await self.feed(*batch)
        raise AssertionError("derived events do not come to an end")

    async def pass_time(self, **by: float) -> list[Event]:
        """Move the time on and let timers go off, in steps, so that each sees its own time."""
        end = self.now + timedelta(**by)
        published = await self.relay()
        for _ in range(1000):
            async with self.database.reading() as session:
                wanted = select(OUTBOX.c.not_before).where(self._waiting, OUTBOX.c.not_before <= end)
                upcoming = (await session.execute(wanted.order_by(OUTBOX.c.not_before).limit(1))).scalar()
            if upcoming is None:
                self.now = end
                return published
            self.now = max(self.now, upcoming)
            published += await self.relay()
        raise AssertionError("timers do not come to an end")

    async def asked(self) -> set[tuple[str, str]]:
        """The reads that are asked for, due or not."""
        async with self.database.reading() as session:
            return {(row.kind, row.object_id) for row in await session.execute(select(READS.c.kind, READS.c.object_id))}

    async def forget_reads(self) -> None:
        """As if they had been answered."""
        async with self.database.transaction() as session:
            await session.execute(delete(READS))

    async def rows(self, table: Table, **where: Any) -> list[dict[str, Any]]:
        """Rows of a table as mappings, ordered by key."""
        wanted = select(table).where(*[table.c[name] == value for name, value in where.items()])
        async with self.database.reading() as session:
            found = await session.execute(wanted.order_by(*table.primary_key.columns))
            return [dict(row) for row in found.mappings()]

    async def row(self, table: Table, **where: Any) -> dict[str, Any]:
        """The one row."""
        found = await self.rows(table, **where)
        assert len(found) == 1, f"{len(found)} rows"
        return found[0]

    def of_type(self, *types: str) -> list[Emission]:
        """What was emitted so far of these types, each derived event once."""
        return list({one.id: one for one in self.emitted if one.type in types}.values())


def _audited(note: AuditNote, event: Event, handler: Handler, now: datetime) -> AuditRow:
    return AuditRow(
        at=now,
        application=event.application,
        actor=handler.name,
        action=note.action,
        subject=note.subject,
        before=orjson.dumps(dict(note.before)).decode(),
        after=orjson.dumps(dict(note.after)).decode(),
        reason=event.id,
        code_version=handler.version,
    )


def derived_event(row: OutboxRow, now: datetime) -> Event:
    """What the relay publishes for the row."""
    return own_event(
        application=row.application,
        id=row.event_id,
        type=row.type,
        key=row.key,
        source=Source.RELAY,
        at=now,
        data=orjson.loads(row.data),
    )


def said(
    type_: str,
    id_: str,
    *,
    at: datetime = START,
    arrives: datetime | None = None,
    application: str = APPLICATION,
    trust: Trust = Trust.SIGNED,
    envelope: Mapping[str, Any] | None = None,
    **object_: Any,
) -> Event:
    """An event of the service: `object_` is its `data.object`; `at` is its own time and, without `arrives`, ours."""
    body = {"id": id_, "type": type_, "created_at": at.isoformat(), "data": {"object": object_}, **(envelope or {})}
    return build_event(
        orjson.dumps(body),
        Locators(),
        application=application,
        trust=trust,
        source=Source.WEBHOOK,
        received_at=arrives or at,
    )


def observed(
    key: str, version: int, record: Mapping[str, Any], *, at: datetime = START, application: str = APPLICATION
) -> Event:
    """An authenticated read as an event."""
    kind = key.partition(":")[0]
    return own_event(
        application=application,
        id=f"obs_{application}_{kind}_{key.partition(':')[2]}_{version}",
        type=f"{kind}.observed",
        key=key,
        source=Source.READ,
        at=at,
        data={"version": version, "read_at": at.isoformat(), "record": dict(record)},
    )


def unreadable(key: str, version: int, *, at: datetime = START, application: str = APPLICATION) -> Event:
    """The service's answer to a read that it has no such object, as an event."""
    kind, _, object_id = key.partition(":")
    return own_event(
        application=application,
        id=f"obs_{application}_{kind}_{object_id}_{version}_unreadable",
        type=f"{kind}.unreadable",
        key=key,
        source=Source.READ,
        at=at,
        data={"kind": kind, "id": object_id, "version": version, "read_at": at.isoformat(), "status": 404},
    )


def own(
    type_: str,
    key: str,
    data: Mapping[str, Any],
    *,
    at: datetime = START,
    id_: str = "",
    application: str = APPLICATION,
) -> Event:
    """A derived event, as the API, an operator or another plugin puts into the outbox."""
    identity = id_ or f"drv_{type_}_{key}_{at.timestamp()}"
    return own_event(application=application, id=identity, type=type_, key=key, source=Source.RELAY, at=at, data=data)
