"""Unread: reads that handlers asked for and nobody does, because their application has no API credentials; and those
that wait for long although somebody reads it.

Webhooks that prove themselves by a signature need none, and the handlers ask all the same: the requests wait, one per
order and subscription, until there are credentials (cases I15, A50). Nothing is wrong with that, but nobody should wait
for an answer. And those whose answer was published and never came here: with the log it lay in, say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, Table, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.columns import unindexed
from consumer.ledger import leases
from consumer.ledger.engine.counting import up_to
from consumer.ledger.reading import read_requests
from consumer.ledger.tables import LeaseRow, ObservationRow, ReadRow
from handlers.access.tables import SUBSCRIPTIONS
from handlers.fulfilment.order import Hold
from handlers.fulfilment.tables import ORDERS

LEASES: Table = LeaseRow.__table__
READS: Table = ReadRow.__table__
ANSWERS: Table = ObservationRow.__table__
UNREAD_SEEN = 200
NO_CREDENTIALS = "no_credentials"


@dataclass(frozen=True, kw_only=True)
class Unread:
    """So many reads of one application wait for credentials, the oldest of them since `oldest_at`."""

    application: str
    count: int
    oldest_at: datetime


@dataclass(frozen=True, kw_only=True)
class Overdue:
    """An application that is read, and a read of it that is due since `since` and not done."""

    application: str
    since: datetime


async def overdue(session: AsyncSession, now: datetime) -> list[Overdue]:
    """The read that waits for longest, of each application that somebody reads now; none where none is due."""
    waits = [(name, await read_requests.oldest_due(session, now, name)) for name in await leases.led(session, now)]
    return [Overdue(application=name, since=since) for name, since in waits if since is not None]


async def is_read(session: AsyncSession, application: str, now: datetime) -> bool:
    """Whether some process reads the application now, by its own settings, whatever ours know."""
    lease = select(LEASES.c.until).where(LEASES.c.role == f"{leases.READER}{application}")
    until = (await session.execute(lease)).scalar()
    return until is not None and leases.is_held(until, now, lately=leases.LED_LATELY)


async def unread(session: AsyncSession, applications: Sequence[str], now: datetime) -> list[Unread]:
    """Of these applications, which have no credentials in our settings, those that nobody reads and that wait."""
    found: list[Unread] = []
    for application in applications:
        if await is_read(session, application, now):
            continue
        ours = unindexed(READS.c.application) == application
        first = select(READS.c.created_at).where(ours).order_by(READS.c.due_at)
        oldest_at = await session.scalar(first.limit(1))
        if oldest_at is not None:
            found.append(Unread(application=application, count=await up_to(session, first), oldest_at=oldest_at))
    return found


async def asked_in_vain(session: AsyncSession, before: datetime, limit: int) -> list[tuple[str, str]]:
    """Orders that are held until the service has said whether there is such an order, and nobody asks it any more: the
    answer was given before then, and has not come here. Application and the merchant's id."""
    key = (ORDERS.c.application, ORDERS.c.order_id)
    asked = (text("hold IS NOT NULL"), ORDERS.c.hold == Hold.ASKED, ORDERS.c.paid_at < before)
    lost = select(*key).where(*asked, *_no_answer_since(before, "order", *key)).order_by(*key).limit(limit)
    return [(application, order_id) for application, order_id in await session.execute(lost)]


async def unread_in_vain(session: AsyncSession, before: datetime, limit: int) -> list[tuple[str, str]]:
    """The same of subscriptions that an event spoke of and no read has shown, the newest UNREAD_SEEN of them. One that
    was shown once is read again by its lease. Application and id."""
    key = (SUBSCRIPTIONS.c.application, SUBSCRIPTIONS.c.subscription_id)
    unread = select(*key).where(text("status IS NULL"), SUBSCRIPTIONS.c.hinted_at < before)
    newest = unread.order_by(SUBSCRIPTIONS.c.hinted_at.desc()).limit(UNREAD_SEEN).subquery().c
    named = (newest.application, newest.subscription_id)
    lost = select(*named).where(*_no_answer_since(before, "subscription", *named)).order_by(*named).limit(limit)
    return [(application, id_) for application, id_ in await session.execute(lost)]


def _no_answer_since(
    before: datetime, kind: str, application: ColumnElement[str], object_id: ColumnElement[str]
) -> tuple[ColumnElement[bool], ...]:
    """Nobody waits for a read of it, and none was published since then: one probe a row (decision 0010)."""
    waits = select(READS.c.object_id).where(
        READS.c.application == application, READS.c.kind == kind, READS.c.object_id == object_id
    )
    answered = select(ANSWERS.c.object_id).where(
        ANSWERS.c.application == application,
        ANSWERS.c.kind == kind,
        ANSWERS.c.object_id == object_id,
        ANSWERS.c.read_at >= before,
    )
    return waits.limit(1).scalar_subquery().is_(None), answered.limit(1).scalar_subquery().is_(None)
