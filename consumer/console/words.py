"""Words: what an operator, or the query API for a merchant, says to the built-in handlers.

A word is a derived event: it goes through the outbox like every other, is archived, and is handled in the order of its
key; so it survives a rebuild, and there is one processing path. Each is audited with who said it and why.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from consumer.errors import UsageError
from consumer.ledger import outbox
from consumer.ledger.outbox import Emitted
from consumer.ledger.tables import AuditRow
from consumer.plugin import Emission, Source, derived_id
from consumer.wire import own_event

# Word to the kind of its key, and what its data must hold beside `by` and `reason`.
WORDS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "checkout.registered": ("order", ("session_id", "order_id")),
    "fulfilment.marked_paid": ("order", ()),
    "fulfilment.released": ("order", ()),
    "fulfilment.unfulfillable": ("order", ()),
    "fulfilment.finding_closed": ("object", ("kind",)),
    "access.finding_closed": ("object", ("kind",)),
    "access.customer_attached": ("subscription", ("customer",)),
    "access.held": ("customer", ()),
    "access.hold_lifted": ("customer", ("id",)),
    "access.complimentary_granted": ("customer", ()),
    "access.complimentary_ended": ("customer", ("id",)),
    "access.brake_released": ("object", ()),
    "access.recheck": ("object", ()),
}


async def say(
    session: AsyncSession,
    word: str,
    subject: str,
    *,
    application: str,
    by: str,
    reason: str,
    now: datetime,
    data: Mapping[str, Any] | None = None,
) -> str:
    """Say it about a subject (an order id, a subscription id, a customer, ...) in the caller's transaction.

    Returns the id of the derived event; a hold or a gift is ended by that id. It takes effect when `work` has handled
    it. Raises UsageError for an unknown word, an empty subject or reason, or data that lacks something.
    """
    if word not in WORDS:
        raise UsageError("there is no such word", word=word)
    kind, needed = WORDS[word]
    said = {**(data or {}), "by": by, "reason": reason}
    missing = [name for name in needed if not said.get(name)]
    if missing or not subject or not reason or not by:
        raise UsageError(
            "a word needs a subject, who says it, a reason, and its data", missing=",".join(missing) or None
        )
    key = f"{kind}:{subject}"
    event = own_event(
        application=application,
        id=derived_id(application, word, key, f"{by}:{now.isoformat()}"),
        type=word,
        key=key,
        source=Source.RELAY,
        at=now,
        data=said,
    )
    emission = Emission(id=event.id, type=word, key=key, data=said)
    await outbox.put(session, [Emitted(emission=emission, cause=event, handler=by)], now)
    session.add(
        AuditRow(
            at=now,
            application=application,
            actor=by,
            action=word,
            subject=key,
            after=event.raw.decode(),
            reason=reason[:500],
        )
    )
    return event.id
