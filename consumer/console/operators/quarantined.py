"""Quarantined: deliveries that an operator takes out of quarantine, to be taken in again or thrown away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from sqlalchemy.ext.asyncio import AsyncSession

from consumer.ledger import audit
from consumer.ledger.reading import quarantine
from consumer.ledger.reading.quarantine import Kept
from consumer.reason import reason_of

RETRIED: Final = "quarantine.retried"

Again = Mapping[int, str]
"""Numbers of deliveries that are in quarantine again, each with why."""


async def throw_away(
    session: AsyncSession, rows: Sequence[Kept], *, by: str, reason: str, now: datetime
) -> tuple[frozenset[int], Again]:
    """Drop them as they were read, in the caller's transaction; audited. Returns what `take_out` does."""
    gone, again = await take_out(session, rows)
    note(session, [row for row in rows if row.id in gone], action=quarantine.DISCARDED, by=by, reason=reason, now=now)
    return gone, again


async def take_out(session: AsyncSession, rows: Sequence[Kept]) -> tuple[frozenset[int], Again]:
    """Drop them as they were read, in the caller's transaction; the numbers of those that went, and those that came
    anew meanwhile."""
    gone = await quarantine.drop(session, rows)
    left = [found for row in rows if row.id not in gone for found in await quarantine.newest(session, number=row.id)]
    return gone, {row.id: reason_of(row.reason).value for row in left}


def note(session: AsyncSession, rows: Sequence[Kept], *, action: str, by: str, reason: str, now: datetime) -> None:
    """Write into the audit trail who decided so about them, and why, in the caller's transaction."""
    for row in rows:
        audit.note(
            session,
            at=now,
            application=row.application,
            actor=by,
            action=action,
            subject=f"delivery:{row.delivery_id}",
            before=reason_of(row.reason).value,
            reason=reason,
        )
