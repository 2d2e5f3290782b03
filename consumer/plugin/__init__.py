"""The one module a handler imports.

    from consumer.plugin import Context, Event, handles

    @handles("fulfilment.requested", attempts=8, timeout_s=30)
    async def ship(event: Event, ctx: Context) -> None:
        async with ctx.http.post(URL, json=event.data, headers={"Idempotency-Key": ctx.idempotency_key}) as answer:
            answer.raise_for_status()

An *effect* handler (the default) talks to the outside: it runs outside transactions, at least once, with an
`idempotency_key` that is the same on every attempt. A *transactional* handler (`transactional=True`) writes through
`ctx.session` and may `emit`: what it wrote and the mark that it ran commit together, exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, overload

from sqlalchemy import Table, select
from sqlalchemy import inspect as sqlalchemy_inspect
from sqlalchemy.ext.asyncio import AsyncSession
from structlog.typing import FilteringBoundLogger

from consumer.columns import UtcDateTime, Words, insert_into
from consumer.errors import ConsumerError, HandlerMisuse
from consumer.events import Event, Source, Trust, parse_time
from consumer.payload import Payload
from consumer.plugin.declaration import (
    LONGEST_S,
    checked_count,
    checked_fulfils,
    checked_function,
    checked_limit,
    checked_on_dead,
    checked_policy,
    checked_positive,
    checked_types,
    code_version,
)
from consumer.plugin.emission import (
    READ_KINDS,
    AuditNote,
    Emission,
    ReadKind,
    ReadRequest,
    derived_id,
    idempotency_key,
    wrong_emission,
    wrong_note,
    wrong_read,
)
from consumer.plugin.payloads import (
    AccessChanged,
    AccessGiven,
    AccessGranted,
    AccessRevoked,
    AccessTaken,
    AccessUnresolved,
    CheckoutRegistered,
    CustomerAttached,
    CustomerDue,
    FindingClosed,
    FulfilmentRequested,
    OrderEvent,
    OrderObserved,
    OrderRecord,
    PaymentObserved,
    Proof,
    ReadDue,
    SessionEvent,
    SubscriptionDue,
    SubscriptionEvent,
    SubscriptionObserved,
    SubscriptionRecord,
    Unreadable,
    WordSaid,
)
from consumer.plugin.payments_api import PaymentsApi
from consumer.plugin.session import HandlerSession
from consumer.plugin.snapshot import SNAPSHOT_KINDS, Snapshot, SnapshotKind, SnapshotSource, subject_of
from consumer.retry import OnDead, RetryPolicy

if TYPE_CHECKING:
    import aiohttp

__all__ = [
    "READ_KINDS",
    "AccessChanged",
    "AccessGiven",
    "AccessGranted",
    "AccessRevoked",
    "AccessTaken",
    "AccessUnresolved",
    "AuditNote",
    "CheckoutRegistered",
    "Context",
    "CustomerAttached",
    "CustomerDue",
    "Emission",
    "Event",
    "FindingClosed",
    "FulfilmentRequested",
    "Handler",
    "OrderEvent",
    "OrderObserved",
    "OrderRecord",
    "Payload",
    "PaymentObserved",
    "PaymentsApi",
    "Proof",
    "ReadDue",
    "ReadKind",
    "ReadRequest",
    "Reject",
    "RetryLater",
    "RetryPolicy",
    "SessionEvent",
    "Snapshot",
    "SnapshotKind",
    "Source",
    "SubscriptionDue",
    "SubscriptionEvent",
    "SubscriptionObserved",
    "SubscriptionRecord",
    "Trust",
    "Unreadable",
    "UtcDateTime",
    "WordSaid",
    "Words",
    "derived_id",
    "handles",
    "idempotency_key",
    "insert_into",
    "parse_time",
]

HandlerFunction = Callable[[Event[Any], "Context"], Coroutine[Any, Any, None]]

_MARK = "__consumer_handler__"


class RetryLater(ConsumerError):
    """The handler asks to be tried again later (seconds, or a timedelta; at most a year); it costs no attempt."""

    code = "retry_later"
    retryable = True

    def __init__(self, after: float | timedelta, reason: str = "asked for later") -> None:
        self.after_s = after.total_seconds() if isinstance(after, timedelta) else float(after)
        if not 0 <= self.after_s <= LONGEST_S:
            raise ValueError("after must not be negative, and at most a year")
        self.reason = reason
        super().__init__(reason, after_s=self.after_s)


class Reject(ConsumerError):
    """The handler refuses the event for good; the run is dead at once."""

    code = "rejected"

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


@dataclass(frozen=True, kw_only=True)
class Handler:
    """A declared handler: what it wants, and how it is run."""

    name: str
    types: tuple[str, ...]
    function: HandlerFunction
    transactional: bool = False
    fulfils: bool = False
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    timeout_s: float = 30.0
    concurrency: int = 16
    on_dead: OnDead = "block"
    breaker_after: int = 5
    pause_after: int = 20
    version: str = ""
    plugin: str = ""

    def wants(self, event_type: str) -> bool:
        """Whether an event of this type is for this handler."""
        return any(_matches(pattern, event_type) for pattern in self.types)


def _matches(pattern: str, event_type: str) -> bool:
    if pattern == "*":
        return True
    if pattern.endswith(".*"):
        return event_type.startswith(pattern[:-1])
    return pattern == event_type


def handles(
    *types: str,
    transactional: bool = False,
    fulfils: bool | None = None,
    name: str | None = None,
    attempts: int = 8,
    first_wait_s: float = 1.0,
    wait_factor: float = 3.0,
    max_wait_s: float = 3600.0,
    timeout_s: float = 30.0,
    concurrency: int = 16,
    on_dead: OnDead = "block",
    breaker_after: int = 5,
    pause_after: int = 20,
) -> Callable[[HandlerFunction], HandlerFunction]:
    """Declare an async function as the handler of event types.

    `types`: exact (`order.paid`), or a wildcard (`subscription.*`, `*`). `name` defaults to `module:function`; the
    ledger keys runs by it, so renaming without a mapping makes a new handler. `attempts` counts the first try;
    waits between tries grow from `first_wait_s` by `wait_factor` up to `max_wait_s` (seconds). One attempt may take
    `timeout_s`. `concurrency` bounds how many run at once in one process. `on_dead="block"` keeps later events of
    the same key waiting behind a dead one, `"continue"` lets them go.

    `fulfils`: an order is fulfilled when those handlers of `fulfilment.requested` that fulfil have succeeded; the
    others (statistics, a mail to the team) neither make it so nor keep it from being so. Left out: an effect handler
    that names the type does, a projection does not.

    `breaker_after` attempts in a row that could not reach what the handler depends on (connection refused, no answer
    in time, 5xx, 401, 429) open its breaker: its runs wait, at no cost, until a probe gets through; 0 turns that off.
    `pause_after` dead runs in a row (or half of many) pause the handler until an operator resumes it; 0 turns that off.

    Raises HandlerInvalid when the declaration is not usable. The function is returned unchanged.
    """

    def mark(function: HandlerFunction) -> HandlerFunction:
        setattr(
            function,
            _MARK,
            Handler(
                name=name or f"{function.__module__}:{function.__qualname__}",
                types=checked_types(types),
                function=checked_function(function),
                transactional=transactional,
                fulfils=checked_fulfils(fulfils, types, transactional=transactional),
                retry=checked_policy(attempts, first_wait_s, wait_factor, max_wait_s),
                timeout_s=checked_positive("timeout_s", timeout_s),
                concurrency=checked_count("concurrency", concurrency),
                on_dead=checked_on_dead(on_dead),
                breaker_after=checked_limit("breaker_after", breaker_after),
                pause_after=checked_limit("pause_after", pause_after),
                version=code_version(function),
            ),
        )
        return function

    return mark


def declared(function: object) -> Handler | None:
    """The declaration `handles` left on a function, or None."""
    found = getattr(function, _MARK, None)
    return found if isinstance(found, Handler) else None


class Context:
    """What a handler gets beside its event. Made by the worker, or by the test kit.

    `application`: whose event it is. `idempotency_key`: the same on every attempt, for the outside system to
    recognise a repetition. `attempt`: from 1. `is_replay`: whether an operator's replay brought the event.
    `is_history`: whether it is history taken in by `backfill --seed`, which sets state and causes no effect (case B30).
    `now`: the time at the start of this attempt. `deadline`: when this attempt is cut off. `log`: a bound,
    redacting logger. `options`: the plugin's own settings: its model `OPTIONS`, validated, or a mapping.
    """

    def __init__(
        self,
        *,
        application: str,
        handler: Handler,
        event: Event,
        attempt: int,
        now: datetime,
        log: FilteringBoundLogger,
        is_replay: bool = False,
        is_history: bool = False,
        options: Any = None,
        session: AsyncSession | None = None,
        http: Any = None,
        payments: Any = None,
        snapshots: SnapshotSource | None = None,
        key_plan: str | None = None,
    ) -> None:
        self.application = application
        self.attempt = attempt
        self.is_replay = is_replay
        self.is_history = is_history
        self.now = now
        self.deadline = now + timedelta(seconds=handler.timeout_s)
        self.log = log
        self.options: Any = {} if options is None else options
        self.idempotency_key = idempotency_key(application, event.id, handler.name, key_plan)
        self._handler = handler
        self._event = event
        self._session = None if session is None else HandlerSession(session, handler.name)
        self._http = http
        self._payments = payments
        self._snapshots = snapshots
        self._emissions: list[Emission] = []
        self._reads: list[ReadRequest] = []
        self._notes: list[AuditNote] = []

    @property
    def session(self) -> AsyncSession:
        """The open transaction. Transactional handlers only; to commit, roll back or close it raises HandlerMisuse."""
        if self._session is None:
            raise HandlerMisuse("ctx.session is for transactional handlers only", handler=self._handler.name)
        return self._session

    @property
    def http(self) -> aiohttp.ClientSession:
        """The shared HTTP session, with a timeout. Effect handlers only: no network inside a transaction."""
        session: aiohttp.ClientSession = self._outside("http", self._http)
        return session

    @property
    def payments(self) -> PaymentsApi:
        """The API of the payments service, for the event's application. Effect handlers only."""
        client: PaymentsApi = self._outside("payments", self._payments)
        return client

    def _outside(self, what: str, value: Any) -> Any:
        if self._handler.transactional:
            raise HandlerMisuse(
                f"ctx.{what} is the network; a transactional handler must not wait for it", handler=self._handler.name
            )
        if value is None:
            raise HandlerMisuse(f"ctx.{what} is not configured here", handler=self._handler.name)
        return value

    @overload
    async def snapshot(self) -> Snapshot | None: ...

    @overload
    async def snapshot(self, kind: SnapshotKind, id: str) -> Snapshot | None: ...

    async def snapshot(
        self,
        kind: SnapshotKind | None = None,
        id: str | None = None,  # noqa: A002 - what everyone calls it
    ) -> Snapshot | None:
        """The newest authenticated read of the event's order or subscription (or of the named one) that the ledger
        knows now, or None when none was read yet or the event is about neither (case H2).

        Looked up when it is called: it may be newer than the event, or older, and another attempt may see another
        one. It is what the service showed, not what was decided by it; for something newer, `request_read`. In a
        transactional handler it is read in the transaction. Raises HandlerMisuse.
        """
        if (kind is None) is not (id is None) or (kind is not None and kind not in SNAPSHOT_KINDS) or id == "":
            raise HandlerMisuse(
                f"snapshot takes nothing, or one of {SNAPSHOT_KINDS} and an id", handler=self._handler.name
            )
        if self._snapshots is None:
            raise HandlerMisuse("ctx.snapshot is not configured here", handler=self._handler.name)
        subject = (kind, id) if kind is not None and id is not None else subject_of(self._event)
        return None if subject is None else await self._snapshots(*subject)

    def emit(
        self,
        type: str,  # noqa: A002 - the contract's word
        key: str,
        data: Mapping[str, Any],
        not_before: datetime | None = None,
        *,
        once: str | None = None,
    ) -> str:
        """Send a derived event through the outbox, in this transaction. Returns its id.

        The id is deterministic: the same (application, type, key, `once`) is the same event, however often it is
        emitted; `once` defaults to the id of the event being handled. `key` orders it (`order:…`,
        `subscription:…`, `customer:…`). `not_before` holds it back until then. Raises HandlerMisuse.
        """
        if self._session is None:
            raise HandlerMisuse("ctx.emit is for transactional handlers only", handler=self._handler.name)
        self._refuse(wrong_emission(type, key, data, not_before))
        derived = derived_id(self.application, type, key, once if once is not None else self._event.id)
        self._emissions.append(Emission(id=derived, type=type, key=key, data=dict(data), not_before=not_before))
        return derived

    def request_read(
        self,
        kind: ReadKind,
        id: str,  # noqa: A002 - what everyone calls it
        not_before: datetime | None = None,
    ) -> None:
        """Ask for an authenticated read: `order` (by the merchant's order id), `service_order` (by the service's
        own order id), `session` (a checkout session, for its embedded order) or `subscription`.

        The answer comes back as an `order.observed` / `subscription.observed` event. Requests for the same object
        coalesce. Transactional handlers only; raises HandlerMisuse.
        """
        if self._session is None:
            raise HandlerMisuse("ctx.request_read is for transactional handlers only", handler=self._handler.name)
        self._refuse(wrong_read(kind, id, not_before))
        self._reads.append(ReadRequest(kind=kind, object_id=id, not_before=not_before))

    def note(self, subject: str, action: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """Put a change of state into the audit trail, in this transaction; event, handler and code version are added.

        `subject` as keys are written (`order:…`); `before` and `after` hold what changed, no secret. Transactional
        handlers only; raises HandlerMisuse.
        """
        if self._session is None:
            raise HandlerMisuse("ctx.note is for transactional handlers only", handler=self._handler.name)
        self._refuse(wrong_note(subject, action, before, after))
        self._notes.append(AuditNote(subject=subject, action=action, before=dict(before), after=dict(after)))

    def _refuse(self, wrong: str | None) -> None:
        if wrong is not None:
            raise HandlerMisuse(wrong, handler=self._handler.name)

    async def insert_new(self, row: Any) -> bool:
        """Insert a SQLModel row unless a row with its primary key (or a unique key) exists; say whether it is new.

        The database's constraint decides, not a look beforehand, so it holds between processes too.
        """
        table = sqlalchemy_inspect(type(row)).local_table
        if not isinstance(table, Table):
            raise HandlerMisuse("insert_new takes a row of a mapped table", handler=self._handler.name)
        values = {column.key: getattr(row, column.key) for column in table.columns}
        values = {name: value for name, value in values.items() if value is not None}
        key = next(iter(table.primary_key.columns))
        insert = insert_into(table, self.session.get_bind().dialect.name)
        done = await self.session.execute(insert.values(values).on_conflict_do_nothing().returning(key))
        return done.first() is not None

    async def locked(self, model: type[Any], **key: Any) -> Mapping[str, Any] | None:
        """The row with this key, locked until the transaction ends, or None. Its columns by name.

        On PostgreSQL a row lock; on SQLite the transaction is the only writer anyway. Transactional handlers only.
        """
        table = sqlalchemy_inspect(model).local_table
        wanted = [table.c[name] == value for name, value in key.items()]
        found = (await self.session.execute(select(table).where(*wanted).with_for_update())).mappings().first()
        return None if found is None else dict(found)

    @property
    def code_version(self) -> str:
        """The fingerprint of the handler's code, for audit rows (case G12)."""
        return self._handler.version

    @property
    def emissions(self) -> tuple[Emission, ...]:
        """What was emitted so far (for the worker and for tests)."""
        return tuple(self._emissions)

    @property
    def reads(self) -> tuple[ReadRequest, ...]:
        """The reads asked for so far (for the worker and for tests)."""
        return tuple(self._reads)

    @property
    def notes(self) -> tuple[AuditNote, ...]:
        """The audit notes so far (for the worker and for tests)."""
        return tuple(self._notes)
