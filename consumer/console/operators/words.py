"""Words: what an operator, or the query API for a merchant, says to the built-in handlers.

A word is a derived event: it goes through the outbox like every other, is archived, and is handled in the order of its
key; so it survives a rebuild, and there is one processing path. Each is audited with who said it and why. What would
mean something else than it seems (`vocabulary.py`), or be about nothing (`subjects.py`), is refused beforehand.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from consumer.console.operators.subjects import require
from consumer.console.operators.vocabulary import Word, checked
from consumer.ledger import audit
from consumer.ledger.handling import outbox
from consumer.ledger.handling.outbox import Emitted
from consumer.plugin import Emission, Source, derived_id
from consumer.wire import own_event


async def check(
    session: AsyncSession,
    word: str,
    subject: str,
    *,
    application: str,
    by: str,
    reason: str,
    now: datetime,
    data: Mapping[str, Any] | None = None,
) -> tuple[Word, dict[str, Any]]:
    """Whether the word can be said, without saying it: the word, and what would be said with it.

    Raises UsageError for words, names and values that do not fit, NotFound when what it is about is not there.
    """
    known, said = checked(word, subject, data or {}, by=by, reason=reason, now=now)
    await require(session, word, subject, said, application=application)
    return known, said


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
    it. Raises UsageError and NotFound, as `check`.
    """
    known, said = await check(session, word, subject, application=application, by=by, reason=reason, now=now, data=data)
    key = f"{known.about}:{subject}"
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
    audit.note(
        session,
        at=now,
        application=application,
        actor=by,
        action=word,
        subject=key,
        after=event.raw.decode(),
        reason=reason,
    )
    return event.id
