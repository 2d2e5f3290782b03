"""Pausing: an operator stops a handler, or lets it go on; its runs wait meanwhile, in order of age (case H9)."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncSession

from consumer.errors import NotFound, UsageError
from consumer.ledger import audit
from consumer.ledger.handling import handlers, queue, runs
from consumer.ledger.handling.handlers import ALL


async def set_paused(
    session: AsyncSession,
    name: str,
    *,
    paused: bool,
    by: str,
    reason: str,
    now: datetime,
    application: str | None = None,
) -> None:
    """Pause it, or let it go on, in the caller's transaction; audited. For one `application` alone, or (None) for all;
    who lets it go on for all lifts what it was paused for alone, too. What it did to its workers before that, and was
    not judged yet, counts no more. Raises NotFound, and UsageError for an application without a name."""
    if application == ALL:
        raise UsageError("name the application, or leave it out: then it is for all")
    whose = application or ALL
    if whose != ALL and not paused and name in (await handlers.paused(session)).wholly:
        raise NotFound("it is paused for all applications: resume it without naming one", handler=name)
    done = (
        await handlers.pause(session, name, by=by, reason=reason, now=now, application=whose)
        if paused
        else await handlers.resume(session, name, whose)
    )
    if not done and whose != ALL and not paused:
        text = "it is not paused for this application alone; see `consumer handlers list`"
        raise NotFound(text, handler=name, application=whose)
    if not done:
        raise NotFound("the ledger knows no such handler; see `consumer handlers list`", handler=name)
    if not paused:
        await runs.unmark(session, await queue.left_alone(session, name, now), now)
    audit.note(
        session,
        at=now,
        application=whose,
        actor=by,
        action="handler.pause" if paused else "handler.resume",
        subject=f"handler:{name}",
        reason=reason,
    )
