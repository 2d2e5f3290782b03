"""The audit trail: who changed what, why, from what to what (case G12)."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncSession

from consumer.ledger.tables import AuditRow


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
