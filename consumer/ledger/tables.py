"""The ledger's tables: what happened (events), what was done about it (runs, attempts), what is still to be sent
(outbox, reads), what is not understood (quarantine, hints), and who did what (audit). Three more: `base_tables.py`."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    LargeBinary,
    String,
    Text,
    UniqueConstraint,
    false,
    text,
    true,
)
from sqlmodel import Field

from consumer.columns import PackedBytes, Words, serial, unpacked
from consumer.ledger.base_tables import LedgerRow, time_column

APPLICATION_CHARS = 64
HANDLER_CHARS = 200
REASON_CHARS = 500
RUNBOOK_CHARS = 200
ARCHIVE_CHARS = 100
DISCARDED = "code IN ('discarded', 'discarded_waiting')"
"""A run that an operator gave up, as the index of those says it."""
ALARM_AFTER_ATTEMPTS: Final = 8
TOLD: Final = "unreadable"
"""The code of a read whose asker knows that the service shows no such object."""
DERIVED = "substr(cause, 1, 4) = 'drv_'"
"""What was emitted by the handler of a derived event, as the index of those says it: who handed an order on."""
UNREADABLE = f"attempts >= {ALARM_AFTER_ATTEMPTS} AND code <> '{TOLD}'"
"""A read that fails again and again, and nobody was told, as the index of those says it."""


class RunStatus(StrEnum):
    """Where a run stands. `retrying` is due at `next_at` (a first attempt too); `parked` waits behind an earlier
    run of its key; the rest is final until an operator acts."""

    SUCCEEDED = "succeeded"
    RETRYING = "retrying"
    PARKED = "parked"
    DEAD = "dead"
    SKIPPED = "skipped"


def application_column(primary_key: bool = False) -> Any:
    """The application's name, part of every key (case G8)."""
    return Field(sa_column=Column(String(APPLICATION_CHARS), primary_key=primary_key, nullable=False))


def words_column(chars: int, *, primary_key: bool = False, nullable: bool = True) -> Any:
    """What the service, a stranger or a plugin's author wrote: any text can be stored (case I10)."""
    is_nullable = nullable and not primary_key
    return Field(default=None, sa_column=Column(Words(chars), primary_key=primary_key, nullable=is_nullable))


class EventRow(LedgerRow, table=True):
    """One event, raw bytes untouched. Unique by (application, id); `seq` is the order of arrival. `archive`: the file
    that its body was taken out to, with the body's `sha256`; `raw` is empty then, and nothing else is less."""

    __tablename__ = "events"
    __table_args__ = (
        UniqueConstraint("application", "id", name="uq_events_application_id"),
        Index("ix_events_key", "key", "application", "seq"),
        Index("ix_events_type", "type", "seq"),
        Index("ix_events_received_at", "received_at"),
        Index(
            "ix_events_order",
            "order_id",
            "seq",
            postgresql_where=text("order_id IS NOT NULL"),
            sqlite_where=text("order_id IS NOT NULL"),
        ),
        Index(
            "ix_events_subscription",
            "subscription_id",
            "seq",
            postgresql_where=text("subscription_id IS NOT NULL"),
            sqlite_where=text("subscription_id IS NOT NULL"),
        ),
    )

    seq: int = Field(default=None, sa_column=Column(serial(), primary_key=True, autoincrement=True))
    application: str = application_column()
    id: str = Field(sa_column=Column(String(255), nullable=False))
    type: str = Field(sa_column=Column(String(100), nullable=False))
    key: str = Field(sa_column=Column(String(600), nullable=False))
    trust: str = Field(sa_column=Column(String(10), nullable=False))
    source: str = Field(sa_column=Column(String(10), nullable=False))
    raw: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    received_at: datetime = time_column()
    recorded_at: datetime = time_column()
    occurred_at: datetime | None = time_column(nullable=True)
    delivery_id: str = Field(default="", sa_column=Column(String(100), nullable=False))
    object_id: str | None = words_column(255)
    order_id: str | None = words_column(255)
    subscription_id: str | None = words_column(255)
    customer: str | None = words_column(255)
    traceparent: str | None = Field(default=None, sa_column=Column(String(60)))
    archive: str | None = Field(default=None, sa_column=Column(String(ARCHIVE_CHARS)))
    sha256: str | None = Field(default=None, sa_column=Column(String(64)))


class RunRow(LedgerRow, table=True):
    """One handler's work on one event. `blocking` says that later runs of (application, handler, key) must wait.
    `key_plan`: the replay plan under which its idempotency key was renewed."""

    __tablename__ = "runs"
    __table_args__ = (
        # One small index for each state that somebody looks for; none holds what is finished.
        Index("ix_runs_queue", "handler", "next_at", "seq", postgresql_where=text("status = 'retrying'"),
              sqlite_where=text("status = 'retrying'")),
        Index("ix_runs_parked", "handler", "application", "key", "seq", postgresql_where=text("status = 'parked'"),
              sqlite_where=text("status = 'parked'")),
        Index("ix_runs_dead", "handler", "seq", postgresql_where=text("status = 'dead'"),
              sqlite_where=text("status = 'dead'")),
        Index("ix_runs_discarded", "handler", "seq", postgresql_where=text(DISCARDED), sqlite_where=text(DISCARDED)),
        Index("ix_runs_blocking", "application", "key", "handler", "seq", postgresql_where=text("blocking"),
              sqlite_where=text("blocking = 1")),
        Index("ix_runs_plan", "plan", "status", postgresql_where=text("plan IS NOT NULL"),
              sqlite_where=text("plan IS NOT NULL")),
    )  # fmt: skip

    # The event's id leads the key, so that no planner takes it for a way to find a lane.
    event_id: str = Field(sa_column=Column(String(255), primary_key=True))
    application: str = application_column(primary_key=True)
    handler: str = Field(sa_column=Column(String(HANDLER_CHARS), primary_key=True))
    seq: int = Field(sa_column=Column(serial(), nullable=False))
    key: str = Field(sa_column=Column(String(600), nullable=False))
    status: str = Field(sa_column=Column(String(10), nullable=False))
    blocking: bool = Field(sa_column=Column(Boolean, nullable=False))
    attempts: int = Field(default=0, sa_column=Column(Integer, nullable=False))
    next_at: datetime | None = time_column(nullable=True)
    claimed_by: str | None = Field(default=None, sa_column=Column(String(64)))
    claimed_until: datetime | None = time_column(nullable=True)
    code: str | None = Field(default=None, sa_column=Column(String(60)))
    reason: str | None = words_column(REASON_CHARS)
    fingerprint: str | None = Field(default=None, sa_column=Column(String(16)))
    code_version: str = Field(default="", sa_column=Column(String(16), nullable=False))
    plan: str | None = Field(default=None, sa_column=Column(String(64)))
    key_plan: str | None = Field(default=None, sa_column=Column(String(64)))
    created_at: datetime = time_column()
    updated_at: datetime = time_column()


class AttemptRow(LedgerRow, table=True):
    """One attempt that did not succeed at once, and the success that followed."""

    __tablename__ = "attempts"
    __table_args__ = (Index("ix_attempts_run", "application", "event_id", "handler"),)

    id: int = Field(default=None, sa_column=Column(serial(), primary_key=True, autoincrement=True))
    application: str = application_column()
    event_id: str = Field(sa_column=Column(String(255), nullable=False))
    handler: str = Field(sa_column=Column(String(HANDLER_CHARS), nullable=False))
    number: int = Field(sa_column=Column(Integer, nullable=False))
    outcome: str = Field(sa_column=Column(String(12), nullable=False))
    code: str | None = Field(default=None, sa_column=Column(String(60)))
    reason: str | None = words_column(REASON_CHARS)
    fingerprint: str | None = Field(default=None, sa_column=Column(String(16)))
    trace: str | None = Field(default=None, sa_column=Column(Text))
    code_version: str = Field(default="", sa_column=Column(String(16), nullable=False))
    worker: str = Field(default="", sa_column=Column(String(64), nullable=False))
    started_at: datetime = time_column()
    finished_at: datetime = time_column()


class DeadLetterRow(LedgerRow, table=True):
    """One death of a run, to be copied to topic `events.dead`. The event and the
    attempts are rows of their own; a run that is redriven and dies again has a second one."""

    __tablename__ = "dead_letters"
    __table_args__ = (
        Index("ix_dead_letters_run", "application", "event_id", "handler", "id"),
        Index("ix_dead_letters_unpublished", "id", postgresql_where=text("published_at IS NULL"),
              sqlite_where=text("published_at IS NULL")),
    )  # fmt: skip

    id: int = Field(default=None, sa_column=Column(serial(), primary_key=True, autoincrement=True))
    application: str = application_column()
    event_id: str = Field(sa_column=Column(String(255), nullable=False))
    handler: str = Field(sa_column=Column(String(HANDLER_CHARS), nullable=False))
    died_at: datetime = time_column()
    blocking: bool = Field(sa_column=Column(Boolean, nullable=False))
    attempts: int = Field(default=0, sa_column=Column(Integer, nullable=False))
    code: str | None = Field(default=None, sa_column=Column(String(60)))
    reason: str | None = words_column(REASON_CHARS)
    fingerprint: str | None = Field(default=None, sa_column=Column(String(16)))
    code_version: str = Field(default="", sa_column=Column(String(16), nullable=False))
    published_at: datetime | None = time_column(nullable=True)
    # Nobody reads these two: workers of a version before 2026-12 write them, beside which this one runs in a deploy.
    settled_at: datetime | None = time_column(nullable=True)
    settled_as: str | None = Field(default=None, sa_column=Column(String(12)))


class OutboxRow(LedgerRow, table=True):
    """A derived event to be published; unique by (application, event_id), as the event will be. `on_way`: it comes by
    the log, and has not come yet; null for what was taken where it was emitted, or came. The default is for code that
    does not know it (before `ledger_0020`), beside which this one runs in a rolling deploy."""

    __tablename__ = "outbox"
    __table_args__ = (
        UniqueConstraint("application", "event_id", name="uq_outbox_application_event_id"),
        Index("ix_outbox_waiting", "not_before", "seq", postgresql_where=text("published_at IS NULL"),
              sqlite_where=text("published_at IS NULL")),
        Index("ix_outbox_key", "application", "key", postgresql_where=text("published_at IS NULL"),
              sqlite_where=text("published_at IS NULL")),
        Index("ix_outbox_plan", "plan", "seq", postgresql_where=text("plan IS NOT NULL"),
              sqlite_where=text("plan IS NOT NULL")),
        Index("ix_outbox_on_way", "application", "key", postgresql_where=text("on_way"),
              sqlite_where=text("on_way = 1")),
        Index("ix_outbox_derived", "cause", "application", postgresql_where=text(DERIVED), sqlite_where=text(DERIVED)),
    )  # fmt: skip

    seq: int = Field(default=None, sa_column=Column(serial(), primary_key=True, autoincrement=True))
    application: str = application_column()
    event_id: str = Field(sa_column=Column(String(255), nullable=False))
    type: str = Field(sa_column=Column(String(100), nullable=False))
    key: str = Field(sa_column=Column(String(600), nullable=False))
    data: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    not_before: datetime = time_column()
    created_at: datetime = time_column()
    published_at: datetime | None = time_column(nullable=True)
    cause: str = Field(sa_column=Column(String(255), nullable=False))
    handler: str = Field(sa_column=Column(String(HANDLER_CHARS), nullable=False))
    plan: str | None = Field(default=None, sa_column=Column(String(64)))
    traceparent: str | None = Field(default=None, sa_column=Column(String(60)))
    on_way: bool | None = Field(default=None, sa_column=Column(Boolean, server_default=true()))


class ReadRow(LedgerRow, table=True):
    """A read that handlers asked for, coalesced per object. `asked` counts the requests, so that one that comes in
    while the read is under way is not lost; `again_at` is the earliest time that those asked for since it began.
    `asked_after`: the newest version of a read when it was last asked for; only a newer one is an answer.
    `traceparent`: of what wants it soonest."""

    __tablename__ = "reads"
    __table_args__ = (
        Index("ix_reads_due", "due_at"),
        Index("ix_reads_unreadable", "created_at", postgresql_where=text(UNREADABLE), sqlite_where=text(UNREADABLE)),
    )

    application: str = application_column(primary_key=True)
    kind: str = Field(sa_column=Column(String(20), primary_key=True))
    object_id: str = words_column(255, primary_key=True)
    asked: int = Field(default=1, sa_column=Column(Integer, nullable=False))
    asked_after: int = Field(default=0, sa_column=Column(BigInteger, nullable=False, server_default="0"))
    due_at: datetime = time_column()
    again_at: datetime | None = time_column(nullable=True)
    attempts: int = Field(default=0, sa_column=Column(Integer, nullable=False))
    code: str | None = Field(default=None, sa_column=Column(String(60)))
    created_at: datetime = time_column()
    traceparent: str | None = Field(default=None, sa_column=Column(String(60)))


class ObservationRow(LedgerRow, table=True):
    """The last observation published per object: later ones go out only when they differ."""

    __tablename__ = "observations"

    application: str = application_column(primary_key=True)
    kind: str = Field(sa_column=Column(String(20), primary_key=True))
    object_id: str = words_column(255, primary_key=True)
    version: int = Field(sa_column=Column(serial(), nullable=False))
    digest: str = Field(sa_column=Column(String(64), nullable=False))
    read_at: datetime = time_column()
    state: str = Field(default="", sa_column=Column(String(200), nullable=False, server_default=""))
    shape: str = Field(default="", sa_column=Column(String(16), nullable=False, server_default=""))


class BookmarkRow(LedgerRow, table=True):
    """How far a walk of the service's lists has come, as JSON; written by who leads (`token`), but for `heard`."""

    __tablename__ = "bookmarks"

    application: str = application_column(primary_key=True)
    walk: str = Field(sa_column=Column(String(40), primary_key=True))
    token: int = Field(sa_column=Column(serial(), nullable=False))
    state: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    updated_at: datetime = time_column()


class SequenceRow(LedgerRow, table=True):
    """A counter that only goes up: the version of a read is taken from it before the request (case A40)."""

    __tablename__ = "sequences"

    name: str = Field(sa_column=Column(String(60), primary_key=True))
    value: int = Field(sa_column=Column(serial(), nullable=False))


class LogPositionRow(LedgerRow, table=True):
    """How far the ledger has come in a partition of the log; everything before `next_offset` is in it."""

    __tablename__ = "log_positions"

    topic: str = Field(sa_column=Column(String(249), primary_key=True))
    partition: int = Field(sa_column=Column(Integer, primary_key=True))
    next_offset: int = Field(sa_column=Column(serial(), nullable=False))


class HintRow(LedgerRow, table=True):
    """A delivery that waits to be confirmed by an authenticated read."""

    __tablename__ = "hints"
    __table_args__ = (Index("ix_hints_due", "application", "next_at"),)

    application: str = application_column(primary_key=True)
    event_id: str = Field(sa_column=Column(String(255), primary_key=True))
    delivery_id: str = Field(sa_column=Column(String(100), nullable=False))
    stored: bytes = Field(sa_column=Column("raw", PackedBytes, nullable=False))
    headers: str = Field(default="{}", sa_column=Column(Text, nullable=False))
    received_at: datetime = time_column()
    next_at: datetime = time_column()
    attempts: int = Field(default=0, sa_column=Column(Integer, nullable=False))
    traceparent: str | None = Field(default=None, sa_column=Column(String(60)))

    @property
    def raw(self) -> bytes:
        """The body as it came: unpacked anew at each call."""
        return unpacked(self.stored)


class SettledHintRow(LedgerRow, table=True):
    """An event that the service confirmed by a hint, and the hash of the hint's body: another body is kept (I16)."""

    __tablename__ = "settled_hints"

    application: str = application_column(primary_key=True)
    event_id: str = Field(sa_column=Column(String(255), primary_key=True))
    sha256: bytes = Field(sa_column=Column(LargeBinary(32), nullable=False))


class QuarantineRow(LedgerRow, table=True):
    """A delivery (or record) that could not be verified or understood, kept raw."""

    __tablename__ = "quarantine"
    __table_args__ = (
        UniqueConstraint("application", "delivery_id", name="uq_quarantine_application_delivery_id"),
        Index("ix_quarantine_reason", "reason", "id"),
        Index("ix_quarantine_created_at", "created_at"),
        Index(
            "ix_quarantine_event",
            "event_id",
            postgresql_where=text("event_id IS NOT NULL"),
            sqlite_where=text("event_id IS NOT NULL"),
        ),
    )

    id: int = Field(default=None, sa_column=Column(serial(), primary_key=True, autoincrement=True))
    application: str = words_column(APPLICATION_CHARS, nullable=False)
    delivery_id: str = words_column(100, nullable=False)
    event_id: str | None = words_column(255)
    reason: str = Field(sa_column=Column(String(60), nullable=False))
    stored: bytes = Field(sa_column=Column("raw", PackedBytes, nullable=False))
    headers: str = Field(default="{}", sa_column=Column(Text, nullable=False))
    received_at: datetime = time_column()
    created_at: datetime = time_column()

    @property
    def raw(self) -> bytes:
        """The body as it came: unpacked anew at each call."""
        return unpacked(self.stored)


class HandlerRow(LedgerRow, table=True):
    """A handler as the workers know it; whether an operator or its guard paused it for all applications (`paused_…`),
    and whether it waits because what it depends on does not answer (`waiting_…`, its breaker). `fulfils` is None where
    only a version that did not know the word has registered it: effect handlers do, then. `runbook`: its author's words
    to who finds a run of it failed."""

    __tablename__ = "handlers"

    name: str = Field(sa_column=Column(String(HANDLER_CHARS), primary_key=True))
    plugin: str = Field(default="", sa_column=Column(String(100), nullable=False))
    types: str = Field(default="", sa_column=Column(Text, nullable=False))
    transactional: bool = Field(default=False, sa_column=Column(Boolean, nullable=False, server_default=false()))
    fulfils: bool | None = Field(default=None, sa_column=Column(Boolean))
    code_version: str = Field(default="", sa_column=Column(String(16), nullable=False))
    first_seen_at: datetime = time_column()
    last_seen_at: datetime = time_column()
    paused_at: datetime | None = time_column(nullable=True)
    paused_by: str | None = Field(default=None, sa_column=Column(String(60)))
    paused_reason: str | None = Field(default=None, sa_column=Column(String(REASON_CHARS)))
    waiting_since: datetime | None = time_column(nullable=True)
    waiting_reason: str | None = Field(default=None, sa_column=Column(String(REASON_CHARS)))
    runbook: str | None = words_column(RUNBOOK_CHARS)


class HandlerPauseRow(LedgerRow, table=True):
    """A handler that is paused for this application alone, by an operator or its guard; for all it is `HandlerRow`."""

    __tablename__ = "handler_pauses"

    handler: str = Field(sa_column=Column(String(HANDLER_CHARS), primary_key=True))
    application: str = application_column(primary_key=True)
    paused_at: datetime = time_column()
    paused_by: str = Field(sa_column=Column(String(60), nullable=False))
    paused_reason: str = Field(sa_column=Column(String(REASON_CHARS), nullable=False))


class LeaseRow(LedgerRow, table=True):
    """Who leads a role, until when, with a fencing token that only goes up (case B26)."""

    __tablename__ = "leases"

    role: str = Field(sa_column=Column(String(100), primary_key=True))
    holder: str = Field(sa_column=Column(String(64), nullable=False))
    token: int = Field(sa_column=Column(serial(), nullable=False))
    until: datetime = time_column()


class AuditRow(LedgerRow, table=True):
    """Who changed what, why, from what to what (case G12). `number`, `hash`: its place in the chain, once it is sealed
    (`trail/sealing.py`); nothing else of a row ever changes."""

    __tablename__ = "audit"
    __table_args__ = (
        Index("ix_audit_subject", "application", "subject", "id"),
        Index("ux_audit_number", "number", unique=True, postgresql_where=text("number IS NOT NULL"),
              sqlite_where=text("number IS NOT NULL")),
        Index("ix_audit_unsealed", "id", postgresql_where=text("number IS NULL"),
              sqlite_where=text("number IS NULL")),
    )  # fmt: skip

    id: int = Field(default=None, sa_column=Column(serial(), primary_key=True, autoincrement=True))
    at: datetime = time_column()
    application: str = application_column()
    actor: str = Field(sa_column=Column(String(100), nullable=False))
    action: str = Field(sa_column=Column(String(60), nullable=False))
    subject: str = Field(sa_column=Column(String(600), nullable=False))
    before: str | None = Field(default=None, sa_column=Column(Text))
    after: str | None = Field(default=None, sa_column=Column(Text))
    reason: str | None = words_column(REASON_CHARS)
    code_version: str = Field(default="", sa_column=Column(String(40), nullable=False))
    number: int | None = Field(default=None, sa_column=Column(serial()))
    hash: str | None = Field(default=None, sa_column=Column(String(64)))


class ChainHeadRow(LedgerRow, table=True):
    """The last sealed entry of the audit trail; its lock lets who seals take turns."""

    __tablename__ = "chain_head"

    id: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    number: int = Field(sa_column=Column(serial(), nullable=False))
    hash: str = Field(sa_column=Column(String(64), nullable=False))
