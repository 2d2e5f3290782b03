"""Workbench: runs handlers as the worker does, on a temporary SQLite ledger, with time that is driven.

The ingest, the dispatcher, the retries and the order per key are the worker's own; only the log and the network are not
there. Its methods are plain functions: they may be called from `def test_…` and from `async def test_…` alike.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from pydantic import BaseModel
from sqlalchemy import select
from sqlalchemy.orm import make_transient

from consumer.broker.base import Partition, Record
from consumer.clock import DrivenClock
from consumer.errors import HandlerInvalid
from consumer.events import Event, Locators
from consumer.ledger.leases import CLAIM_LEASE_S
from consumer.ledger.tables import AttemptRow, OutboxRow, ReadRow, RunRow, RunStatus
from consumer.plugin import SnapshotKind, declared
from consumer.plugin.options import names_in, options_model
from consumer.testing.example_events import event_in, is_own, of_service, own
from consumer.testing.ground import Ground
from consumer.testing.guard import Guard
from consumer.testing.mishaps import TROUBLES, crashed
from consumer.testing.onwards import Emitted, emitted, next_due, publish_due
from consumer.testing.outside import Outside
from consumer.testing.payments_fake import PaymentsFake
from consumer.testing.refusal import refuse_mistyped
from consumer.testing.remains import rows_of
from consumer.wire import pack_event
from consumer.work.dispatch.breakers import Breakers
from consumer.work.dispatch.dispatcher import Dispatcher
from consumer.work.execution.contexts import Contexts
from consumer.work.ingest.ingest import Ingest
from consumer.work.registry import Registry, handlers_of

ROUNDS_MAX = 1000
BEFORE = -999_999

T = TypeVar("T")
Row = TypeVar("Row")
Function = Callable[..., Coroutine[Any, Any, Any]]


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What became of one handler's run on one event."""

    event_id: str
    handler: str
    status: str
    attempts: int
    code: str | None
    reason: str | None
    trace: str | None = None
    """The author's lines that its last failed attempt came through, innermost first."""

    @property
    def succeeded(self) -> bool:
        """Whether the handler is done with the event."""
        return self.status == "succeeded"


class Workbench:
    """Use as `with Workbench() as bench`, or as the fixture `workbench`.

    `options`: the plugin's settings (`ctx.options`). `payments`: what `ctx.payments` is, by default a service in memory
    that the test fills and reads (`PaymentsFake`). `outside`: what `ctx.http`
    is, and what it was told. `allow`: hosts that handlers may connect to by clients of their own; others are refused.
    `ground`: what it stands on, renewed; by default one of its own.
    """

    def __init__(
        self,
        *,
        options: Mapping[str, Any] | None = None,
        payments: Any = None,
        allow: Collection[str] = (),
        ground: Ground | None = None,
    ) -> None:
        self._guard = Guard(allow)
        self._modules: set[str] = set()
        self._models: dict[str, type[BaseModel]] = {}
        self.options: dict[str, Any] = dict(options or {})
        self.outside = Outside()
        self.went_on: list[str] = []
        self.clock = DrivenClock()
        self.payments: PaymentsFake = PaymentsFake(self.clock) if payments is None else payments
        self._numbers = itertools.count(1)
        self._offsets = itertools.count()
        self._given = ground
        if ground is not None:
            ground.renew()

    @cached_property
    def _ground(self) -> Ground:
        """Made when it is first needed: who only wants an event needs none."""
        return Ground() if self._given is None else self._given

    def allow(self, *hosts: str) -> None:
        """From now on handlers may connect to these hosts by clients of their own."""
        self._guard.allow.update(hosts)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End everything and remove the ledger; a ground that was given stays."""
        if self._given is None and "_ground" in vars(self):
            self._ground.close()

    # --- events ------------------------------------------------------------------------------------------------

    def event(
        self,
        type: str,  # noqa: A002 - the contract's word
        *,
        order_id: str | None = None,
        subscription_id: str | None = None,
        customer: str | None = None,
        data: Mapping[str, Any] | None = None,
        id: str | None = None,  # noqa: A002 - the contract's word
        application: str = "default",
    ) -> Event:
        """An event as a handler gets it, complete, with an id of its own, at the clock's time. Its key is that of its
        type, made up where nothing says it: an order's, a subscription's, a customer's.

        Types of the service (`order.paid`) come as a signed webhook whose `data.object` holds the ids and `data`;
        our own and a plugin's (`fulfilment.requested`, `order.observed`, declared by a `Payload`) come as they are
        emitted, with the catalogue's example for what `data` leaves out; an observation gets the next version.
        """
        number = next(self._numbers)
        given = {"order_id": order_id, "subscription_id": subscription_id, "customer": customer}
        ids = {name: value for name, value in given.items() if value is not None}
        make = own if is_own(type) else of_service
        now = self.clock.now()
        return make(type, ids, data or {}, number=number, event_id=id, application=application, at=now)

    def event_from(self, path: str | Path) -> Event:
        """The event in a file that `consumer events show ID --json` wrote."""
        return event_in(path)

    def observe(
        self,
        kind: SnapshotKind,
        id: str,  # noqa: A002 - the contract's word
        record: Mapping[str, Any],
        *,
        application: str = "default",
    ) -> Event:
        """The service is read, and shows this: from now on it is what `ctx.snapshot()` gives. Returns the event."""
        ids = {"order_id": id} if kind == "order" else {"subscription_id": id}
        event = self.event(f"{kind}.observed", data={"record": dict(record)}, application=application, **ids)
        self.take(event)
        return event

    # --- running -----------------------------------------------------------------------------------------------

    def run(self, handler: Function | Sequence[Function], *events: Event) -> Ran:
        """Deliver events, in this order, and work on what is due now. Returns what became of the first handler's
        run on the last event; the others are in `runs`. Retries and derived events wait until `advance`."""
        name = self.deliver(handler, *events).handlers[0].name
        last = events[-1].id if events else None
        found = [one for one in self.runs if one.handler == name and (last is None or one.event_id == last)]
        if not found:
            raise HandlerInvalid("the handler has no run on that event: it does not want its type", handler=name)
        return found[-1]

    def deliver(self, handler: Function | Sequence[Function], *events: Event) -> Registry:
        """The same for who looks at what came of it later; the handlers as they were run."""
        registry = self._registry([handler] if callable(handler) else list(handler))
        self._watch(self._deliver(registry, events), self._work(registry))
        return registry

    def deliver_together(self, handler: Function, events: Sequence[Event]) -> None:
        """The same in one batch: what `batch=True` gets at once."""
        registry = self._registry([handler])
        self._watch(self._deliver(registry, events, together=True), self._work(registry))

    def take(self, *events: Event) -> None:
        """Take events into the ledger that no handler is run on: observations, for what `ctx.snapshot()` is."""
        self._wait(self._deliver(Registry([]), events))

    def advance(self, seconds: float, handler: Function | Sequence[Function] | None = None) -> None:
        """Let time pass, and work on what became due: retries, in the order of their keys, and derived events, each
        at its time, onwards through these handlers; without any, through all declared beside those that ran."""
        given = [handler] if callable(handler) else list(handler) if handler is not None else self._companions()
        registry = self._registry(given)
        self._watch(self._pass(registry, self.clock.now() + timedelta(seconds=seconds)))

    def wait(self, seconds: float, handler: Function) -> None:
        """Let time pass for the retries of one handler; derived events stay where they are."""
        self.clock.advance(seconds)
        self._watch(self._work(self._registry([handler])))

    def run_and_crash(self, handler: Function, event: Event) -> None:
        """Deliver an event and crash after the handler did its work, before that is written down."""
        registry = self._registry([handler])
        if registry.handlers[0].transactional:
            crashing = crashed(registry.handlers[0])
            self._watch(self._deliver(Registry([crashing]), [event]))
        else:
            self._watch(self._deliver(registry, [event]), self._work(registry, crash=True))
        self.clock.advance(max(CLAIM_LEASE_S, registry.handlers[0].retry.ceiling_s) + 1)

    def run_in_trouble(self, handler: Function, event: Event, what: str, patience_s: float) -> None:
        """Deliver an event to an effect handler; each of its requests meets this trouble once (one of `TROUBLES`), and
        it is tried again, at most `patience_s` seconds later each time. What its last attempt met is in `went_on`."""
        registry = self._registry([handler])
        found = registry.handlers[0]
        trouble, around = TROUBLES[what]
        self.outside.begin_trouble(replace(trouble, at_most=found.retry.attempts - 1))
        self._wait(self._deliver(registry, [event]))
        unlucky = Registry([around(found, self.outside)])
        for _ in range(found.retry.attempts):
            before = len(self.outside.met)
            self._watch(self._work(unlucky))
            if not self._rows(select(RunRow).where(RunRow.__table__.c.status == RunStatus.RETRYING.value).limit(1)):
                break
            self.clock.advance(patience_s)
        self.went_on += self.outside.met[before:]
        self.outside.begin_trouble(None)

    def run_at_once(self, handler: Function, event: Event, times: int = 3) -> None:
        """Deliver an event several times at the same moment, as replicas that overlap do."""
        registry = self._registry([handler])
        found = registry.handlers[0]

        async def at_once() -> None:
            await asyncio.gather(*(self._deliver(registry, [event]) for _ in range(times)))
            if not found.transactional:
                # The lease of one ran out while it still worked: the handler itself runs twice, with the same key.
                home, contexts = asyncio.get_running_loop(), self._contexts()
                make = partial(contexts.make, found, event, attempt=1, plan=None, home=home)
                effect = self._ground.executor.effect
                await asyncio.gather(*(effect(found, event, lambda _: make()) for _ in range(times)))
            await self._work(registry)

        self._watch(at_once())

    # --- what came of it ---------------------------------------------------------------------------------------

    @property
    def runs(self) -> list[Ran]:
        """Every run, in the order the events came."""
        statement = select(RunRow).order_by(RunRow.__table__.c.seq)
        attempts = self._rows(select(AttemptRow).order_by(AttemptRow.__table__.c.id))
        traces = {(row.event_id, row.handler): row.trace for row in attempts}
        return [
            Ran(
                event_id=row.event_id,
                handler=row.handler,
                status=row.status,
                attempts=row.attempts,
                code=row.code,
                reason=row.reason,
                trace=traces.get((row.event_id, row.handler)),
            )
            for row in self._rows(statement)
        ]

    @property
    def emitted(self) -> list[Emitted]:
        """The derived events, as the next handler would get them, in the order they were emitted."""
        return [emitted(row) for row in self._rows(select(OutboxRow).order_by(OutboxRow.__table__.c.seq))]

    @property
    def reads(self) -> list[tuple[str, str]]:
        """The reads that were asked for: (kind, id)."""
        return [(row.kind, row.object_id) for row in self._rows(select(ReadRow))]

    def rows(self, model: type[Row], **where: Any) -> list[Row]:
        """The rows of one of the plugin's own tables: all, or those with these values."""
        self._ground.prepare()
        return self._rows(select(model).filter_by(**where))

    def fill(self, *rows: Any) -> None:
        """Put rows into the plugin's own tables, as earlier runs left them: what a handler finds there."""
        for row in rows:
            make_transient(row)  # it may have been given to another workbench

        async def write() -> None:
            async with self._ground.database.transaction() as session:
                session.add_all(rows)

        self._ground.prepare()
        self._wait(write())

    def begin(self, given: Callable[[Workbench], None]) -> None:
        """What was before all that comes: events and observations that this makes are none of those, and older."""
        numbers, self._numbers = self._numbers, itertools.count(BEFORE)
        try:
            given(self)
        finally:
            self._numbers = numbers

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Every row of every table that is not the ledger's, without times and without keys that count up."""
        return self._wait(rows_of(self._ground.database))

    def _rows(self, statement: Any) -> list[Any]:
        async def read() -> list[Any]:
            async with self._ground.database.reading() as session:
                return list((await session.execute(statement)).scalars().all())

        return self._wait(read())

    # --- inside ------------------------------------------------------------------------------------------------

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self._ground.wait(work)

    def _watch(self, *works: Coroutine[Any, Any, Any]) -> None:
        """Do it while nothing leaves the process. Raises Refused for what a handler must not do."""
        left = list(works)
        try:
            with self._guard.watching():
                while left:
                    self._wait(left.pop(0))
        finally:
            for work in left:
                work.close()

    def _registry(self, functions: Sequence[Function]) -> Registry:
        found = [handler for function in functions if (handler := declared(function)) is not None]
        if not found or len(found) < len(functions):
            raise HandlerInvalid("the workbench runs functions declared with @handles")
        refuse_mistyped(found)
        self._ground.prepare()
        self._modules.update(function.__module__ or "" for function in functions)
        self._models |= {one.function.__module__: model for one in found if (model := options_model(one.function))}
        return Registry([self._guard.guarded(replace(one, plugin=one.function.__module__)) for one in found])

    def _companions(self) -> list[Function]:
        """Every handler that is declared in a module of which one ran."""
        modules = [sys.modules[name] for name in sorted(self._modules) if name in sys.modules]
        return [handler.function for module in modules for handler in handlers_of(module)]

    def _options_of(self, module: str) -> dict[str, Any]:
        """`ctx.options` of its handlers: all, but for what only another module's OPTIONS has."""
        theirs = {name for one, model in self._models.items() if one != module for name in names_in(model)}
        theirs -= names_in(self._models[module]) if module in self._models else theirs
        return {name: value for name, value in self.options.items() if name not in theirs}

    def _contexts(self) -> Contexts:
        return Contexts(
            self.clock,
            {name: self._options_of(name) for name in self._modules},
            {"default": self.payments},
            self.outside,
            self._ground.database,
        )

    async def _deliver(self, registry: Registry, events: Sequence[Event], *, together: bool = False) -> None:
        ingest = Ingest(
            database=self._ground.database,
            registry=registry,
            locators={event.application: Locators() for event in events},
            contexts=self._contexts(),
            executor=self._ground.executor,
            clock=self.clock,
            worker="workbench",
        )
        records = [self._record(event) for event in events]
        for batch in [records] if together else [[one] for one in records]:
            await ingest.take(batch)

    def _record(self, event: Event) -> Record:
        packed = pack_event(event)
        return Record(
            partition=Partition("events", 0),
            offset=next(self._offsets),
            key=packed.key,
            value=packed.value,
            headers=packed.headers,
            published_at=self.clock.now(),
        )

    async def _work(self, registry: Registry, *, crash: bool = False) -> None:
        dispatcher = Dispatcher(
            database=self._ground.database,
            registry=registry,
            contexts=self._contexts(),
            executor=self._ground.executor,
            breakers=Breakers(),
            clock=self.clock,
            worker=f"workbench-{next(self._numbers)}",
            observe=lambda _: None,
            on_emitted=lambda: None,
        )
        for _ in range(ROUNDS_MAX):
            if not await dispatcher.once(store=not crash) or crash:
                return
        raise RuntimeError(f"still runs after {ROUNDS_MAX} rounds; does a handler ask for later with after=0?")

    async def _pass(self, registry: Registry, until: datetime) -> None:
        """Time goes on from one derived event that is due to the next, and then to its end."""
        for _ in range(ROUNDS_MAX):
            due = await next_due(self._ground.database, until)
            now = self.clock.now()
            self.clock.advance(max(0.0, ((due or until) - now).total_seconds()))
            await self._work(registry)
            await self._deliver(registry, await publish_due(self._ground.database, self.clock.now()))
            await self._work(registry)
            if due is None and await next_due(self._ground.database, until) is None:
                return
        raise RuntimeError(f"still emits after {ROUNDS_MAX} rounds; do handlers call each other for ever?")
