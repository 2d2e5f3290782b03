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

from consumer.columns import TableRow, UtcDateTime, Words, among_given, each_given, insert_into
from consumer.events import Event, Source, Trust, parse_time
from consumer.payload import Payload
from consumer.plugin.context import Context
from consumer.plugin.declaration import BatchFunction as BatchFunction
from consumer.plugin.declaration import HandlerFunction as HandlerFunction
from consumer.plugin.declaration import declared as declared
from consumer.plugin.declaration import handles
from consumer.plugin.emission import READ_KINDS, AuditNote, Emission, ReadKind, ReadRequest, derived_id, idempotency_key
from consumer.plugin.handler import Handler, Reject, RetryLater
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
    SessionObserved,
    SessionRecord,
    SubscriptionDue,
    SubscriptionEvent,
    SubscriptionObserved,
    SubscriptionRecord,
    Unreadable,
    WordSaid,
)
from consumer.plugin.payments_api import PaymentsApi
from consumer.plugin.snapshot import Snapshot, SnapshotKind
from consumer.retry import RetryPolicy

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
    "SessionObserved",
    "SessionRecord",
    "Snapshot",
    "SnapshotKind",
    "Source",
    "SubscriptionDue",
    "SubscriptionEvent",
    "SubscriptionObserved",
    "SubscriptionRecord",
    "TableRow",
    "Trust",
    "Unreadable",
    "UtcDateTime",
    "WordSaid",
    "Words",
    "among_given",
    "derived_id",
    "each_given",
    "handles",
    "idempotency_key",
    "insert_into",
    "parse_time",
]
