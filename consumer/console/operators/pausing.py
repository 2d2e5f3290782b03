"""Pausing: an operator stops a handler, or lets it go on; its runs wait meanwhile, in order of age (case H9)."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncSession

from consumer.errors import NotFound
from consumer.ledger import audit
from consumer.ledger.handling import handlers, queue, runs


async def set_paused(session: AsyncSession, name: str, *, paused: bool, by: str, reason: str, now: datetime) -> None:
    """Pause it, or let it go on, in the caller's transaction; audited. What it did to its workers before that, and was
    not judged yet, counts no more. Raises NotFound."""
    done = (
        await handlers.pause(session, name, by=by, reason=reason, now=now)
        if paused
        else await handlers.resume(session, name)
    )
    if not done:
        raise NotFound("the ledger knows no such handler; see `consumer handlers list`", handler=name)
    if not paused:
        await runs.unmark(session, await queue.left_alone(session, name, now), now)
    audit.note(
        session,
        at=now,
        application="",
        actor=by,
        action="handler.pause" if paused else "handler.resume",
        subject=f"handler:{name}",
        reason=reason,
    )
