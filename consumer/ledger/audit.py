"""The audit trail: who changed what, why, from what to what (case G12)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache

from sqlalchemy import Executable, Table, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.columns import Given
from consumer.ledger.tables import AuditRow

_AUDIT: Table = AuditRow.__table__
_GIVEN = Given(_AUDIT, (
    "at", "application", "actor", "action", "subject", "before", "after", "reason", "code_version",
))  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Noted:
    """A change that a handler made; `before` and `after` are JSON."""

    at: datetime
    application: str
    actor: str
    action: str
    subject: str
    before: str
    after: str
    reason: str
    code_version: str


async def add(session: AsyncSession, notes: Sequence[Noted]) -> None:
    """Add these rows in this transaction, in this order: many at once, as the worker does."""
    if notes:
        dialect = session.get_bind().dialect.name
        await session.execute(_adding(dialect), _GIVEN.rows(dialect, [vars(note) for note in notes]))


@cache
def _adding(dialect: str) -> Executable:
    return _GIVEN.insert(dialect)


def by_handler(actor: str) -> bool:
    """Whether a handler did it: its reason is an event's id, and not a person's words. Pure."""
    return ":" in actor and not actor.startswith("operator")


async def handled_after(session: AsyncSession, entry: int) -> bool:
    """Whether a handler changed something after the entry of this `id`."""
    actor = _AUDIT.c.actor
    noted = select(_AUDIT.c.id).where(_AUDIT.c.id > entry, actor.contains(":"), ~actor.startswith("operator"))
    return await session.scalar(noted.order_by(_AUDIT.c.id).limit(1)) is not None


async def newest_id(session: AsyncSession) -> int:
    """The `id` of the newest entry, 0 when there is none."""
    return int(await session.scalar(select(func.max(_AUDIT.c.id))) or 0)


def note(
    session: AsyncSession,
    *,
    at: datetime,
    application: str,
    actor: str,
    action: str,
    subject: str,
    before: str | None = None,
    after: str | None = None,
    reason: str | None = None,
    code_version: str = "",
) -> None:
    """Add a row in this transaction."""
    session.add(
        AuditRow(
            at=at,
            application=application,
            actor=actor,
            action=action,
            subject=subject,
            before=before,
            after=after,
            reason=reason,
            code_version=code_version,
        )
    )
