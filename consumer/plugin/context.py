"""Context: what a handler gets beside its event, and what it may ask for while it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

from sqlalchemy import Table
from sqlalchemy import inspect as sqlalchemy_inspect
from sqlalchemy.ext.asyncio import AsyncSession
from structlog.typing import FilteringBoundLogger

from consumer.errors import HandlerMisuse
from consumer.events import Event
from consumer.plugin.emission import (
    AuditNote,
    Emission,
    ReadKind,
    ReadRequest,
    derived_id,
    idempotency_key,
    kept,
    wrong_emission,
    wrong_note,
    wrong_read,
)
from consumer.plugin.handler import Handler
from consumer.plugin.payloads import not_a_plugins
from consumer.plugin.payments_api import PaymentsApi
from consumer.plugin.session import HandlerSession
from consumer.plugin.snapshot import SNAPSHOT_KINDS, Snapshot, SnapshotKind, SnapshotSource, subject_of
from consumer.plugin.statements import inserting, locking

if TYPE_CHECKING:
    import aiohttp


class Context:
    """What a handler gets beside its event. Made by the worker, or by the test kit.

    `application`: whose event it is. `attempt`: from 1. `is_replay`: whether an operator's replay brought the event.
    `is_history`: whether it is history taken in by `backfill --seed`, which sets state and causes no effect (case B30).
    `emitted_then`: in a rebuild, the ids of what this run was the first to emit; None elsewhere.
    `now`: the time at the start of this attempt. `options`: the plugin's own settings: its model `OPTIONS`, validated,
    or a mapping. What few handlers ask for (`idempotency_key`, `deadline`, `log`) is made when it is asked for.
    """

    def __init__(
        self,
        *,
        application: str,
        handler: Handler,
        event: Event,
        attempt: int,
        now: datetime,
        log: Callable[[], FilteringBoundLogger],
        is_replay: bool = False,
        is_history: bool = False,
        emitted_then: frozenset[str] | None = None,
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
        self.emitted_then = emitted_then
        self.now = now
        self.options: Any = {} if options is None else options
        self._handler = handler
        self._event = event
        self._given_session = session
        self._is_over = False
        self._http = http
        self._payments = payments
        self._snapshots = snapshots
        self._key_plan = key_plan
        self._log = log
        self._emissions: list[Emission] = []
        self._unnamed: dict[str, Mapping[str, Any]] = {}
        self._reads: list[ReadRequest] = []
        self._notes: list[AuditNote] = []
        self._withdrawn: list[str] = []

    @cached_property
    def log(self) -> FilteringBoundLogger:
        """A bound, redacting logger."""
        return self._log()

    @cached_property
    def deadline(self) -> datetime:
        """When this attempt is cut off."""
        return self.now + timedelta(seconds=self._handler.timeout_s)

    @cached_property
    def idempotency_key(self) -> str:
        """The same on every attempt, for the outside system to recognise a repetition (case F30)."""
        return idempotency_key(self.application, self._event.id, self._handler.name, self._key_plan)

    @cached_property
    def session(self) -> AsyncSession:
        """The open transaction. Transactional handlers only; to commit, roll back or close it raises HandlerMisuse."""
        return HandlerSession(self._lent("session"), self._handler.name)

    @property
    def http(self) -> aiohttp.ClientSession:
        """The shared HTTP session; a request ends with the attempt, after `timeout_s`. Effect handlers only: no network
        inside a transaction."""
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
        is_history: bool | None = None,
    ) -> str:
        """Send a derived event through the outbox, in this transaction. Returns its id.

        The id is deterministic: the same (application, type, key, `once`) is the same event, however often it is
        emitted; `once` defaults to the id of the event being handled, and then two with other data are refused: the
        second one would be lost. `key` orders it (`order:…`, `subscription:…`, `customer:…`). `not_before` holds it
        back until then. `is_history`: whether nobody acts on it, as on what a seed brings (case B30); None: as the
        event that is being handled. What is decided about the present is False, whichever event tells of it. What the
        service or a built-in projection says is no plugin's: a second `fulfilment.requested` would be a second parcel.
        Raises HandlerMisuse.
        """
        self._lent("emit")
        self._refuse(wrong_emission(type, key, data, not_before) or self._not_its_own("emit", type))
        derived, said = derived_id(self.application, type, key, self._event.id if once is None else once), kept(data)
        if once is None and self._unnamed.setdefault(derived, said) != said:
            self._refuse(f"emit of two {type} of one key that would be one event: give each a `once` of its own")
        self._emissions.append(
            Emission(id=derived, type=type, key=key, data=said, not_before=not_before, is_history=is_history)
        )
        return derived

    def withdraw(self, type: str, key: str, *, once: str) -> None:  # noqa: A002 - as `emit`
        """Take back, in this transaction, what was emitted with the same type, key and `once` to come later, by
        whichever handler. What is due by now, or on its way, comes all the same: a timer that is withdrawn spares
        everybody the work, its handler must still see for itself whether there is anything to do. Emitted once more
        afterwards, it comes at its new time, with its new data, unless it has come or is due: it does not come twice
        (log `timer_is_spent`). A timer that is armed anew has its time in its `once`: `once=at.isoformat()`.
        Transactional handlers only; raises HandlerMisuse.
        """
        self._lent("withdraw")
        self._refuse(wrong_emission(type, key, {}, None) or self._not_its_own("withdraw", type))
        derived = derived_id(self.application, type, key, once)
        self._emissions = [one for one in self._emissions if one.id != derived or not one.is_later(self.now)]
        self._withdrawn.append(derived)

    def request_read(
        self,
        kind: ReadKind,
        id: str,  # noqa: A002 - what everyone calls it
        not_before: datetime | None = None,
    ) -> None:
        """Ask for an authenticated read: `order` (by the merchant's order id), `service_order` (by the service's
        own order id), `session` (a checkout session) or `subscription`.

        The answer comes back as an `order.observed`, `subscription.observed` or `session.observed` event; that of a
        session with an order as both its own and the order's. Requests for the same object coalesce. Transactional
        handlers only; raises HandlerMisuse.
        """
        self._lent("request_read")
        self._refuse(wrong_read(kind, id, not_before))
        self._reads.append(ReadRequest(kind=kind, object_id=id, not_before=not_before))

    def note(self, subject: str, action: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """Put a change of state into the audit trail, in this transaction; event, handler and code version are added.

        `subject` as keys are written (`order:…`); `before` and `after` hold what changed, no secret. Transactional
        handlers only; raises HandlerMisuse.
        """
        self._lent("note")
        self._refuse(wrong_note(subject, action, before, after))
        self._notes.append(AuditNote(subject=subject, action=action, before=kept(before), after=kept(after)))

    def end(self) -> None:
        """The handler has ended: what it left behind asks for nothing more (for the worker)."""
        self._is_over = True
        if isinstance(made := self.__dict__.get("session"), HandlerSession):
            made.end()

    def _lent(self, what: str) -> AsyncSession:
        """The transaction, for `ctx.what`. Raises HandlerMisuse where there is none, or none any more."""
        if self._given_session is None:
            raise HandlerMisuse(f"ctx.{what} is for transactional handlers only", handler=self._handler.name)
        if self._is_over:
            raise HandlerMisuse(
                f"ctx.{what} was used when its handler had ended: await all that it starts", handler=self._handler.name
            )
        return self._given_session

    def _not_its_own(self, what: str, event_type: str) -> str | None:
        return None if self._handler.is_built_in else not_a_plugins(what, event_type)

    def _refuse(self, wrong: str | None) -> None:
        if wrong is not None:
            raise HandlerMisuse(wrong, handler=self._handler.name)

    async def insert_new(self, row: Any, **values: Any) -> bool:
        """Insert a SQLModel row unless a row with its primary key (or a unique key) exists; say whether it is new.

        Instead of the row: its model and the values, as `locked` takes them. That costs a tenth of a millisecond less,
        and fills in no default of the model. The database's constraint decides, not a look beforehand, so it holds
        between processes too.
        """
        model = row if isinstance(row, type) else type(row)
        table = getattr(sqlalchemy_inspect(model, raiseerr=False), "local_table", None)
        if not isinstance(table, Table):
            raise HandlerMisuse("insert_new takes a row of a mapped table", handler=self._handler.name)
        if row is not model:
            values = {column.key: getattr(row, column.key) for column in table.columns}
        values = {name: value for name, value in values.items() if value is not None}
        done = await self.session.execute(*inserting(table, self.session.get_bind().dialect.name, values))
        return done.first() is not None

    async def locked(self, model: type[Any], **key: Any) -> Mapping[str, Any] | None:
        """The row with this key, locked until the transaction ends, or None. Its columns by name.

        On PostgreSQL a row lock; on SQLite the transaction is the only writer anyway. Transactional handlers only.
        """
        table = sqlalchemy_inspect(model).local_table
        found = (await self.session.execute(*locking(table, key))).mappings().first()
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
    def withdrawn(self) -> tuple[str, ...]:
        """The ids of what was withdrawn so far (for the worker and for tests)."""
        return tuple(self._withdrawn)

    @property
    def notes(self) -> tuple[AuditNote, ...]:
        """The audit notes so far (for the worker and for tests)."""
        return tuple(self._notes)
