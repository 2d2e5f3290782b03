"""Pausing: an operator stops a handler, or lets it go on; its runs wait meanwhile, in order of age (case H9)."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncSession

from consumer.errors import NotFound, UsageError
from consumer.ledger import audit
from consumer.ledger.handling import handlers, queue, runs
from consumer.ledger.handling.handlers import ALL

UNKNOWN = "the ledger knows no such handler; see `consumer handlers list`"


async def pause(
    session: AsyncSession, name: str, *, by: str, reason: str, now: datetime, application: str | None = None
) -> None:
    """Stop it in the caller's transaction; audited. For one `application` alone, or (None) for all. Raises NotFound,
    and UsageError for an application without a name."""
    whose = _whose(application)
    if not await handlers.pause(session, name, by=by, reason=reason, now=now, application=whose):
        raise NotFound(UNKNOWN, handler=name)
    audit.note(
        session, at=now, application=whose, actor=by, action="handler.pause", subject=f"handler:{name}", reason=reason
    )


async def resume(
    session: AsyncSession, name: str, *, by: str, reason: str, now: datetime, application: str | None = None
) -> None:
    """Let it go on, likewise; for all lifts what it was paused for alone, too. What it did to its workers before that,
    and was not judged yet, counts no more. Raises the same."""
    whose = _whose(application)
    if whose != ALL and name in (await handlers.paused(session)).wholly:
        raise NotFound("it is paused for all applications: resume it without naming one", handler=name)
    if not await handlers.resume(session, name, whose):
        if whose == ALL:
            raise NotFound(UNKNOWN, handler=name)
        text = "it is not paused for this application alone; see `consumer handlers list`"
        raise NotFound(text, handler=name, application=whose)
    await runs.unmark(session, await queue.left_alone(session, name, now), now)
    audit.note(
        session, at=now, application=whose, actor=by, action="handler.resume", subject=f"handler:{name}", reason=reason
    )


def _whose(application: str | None) -> str:
    if application == ALL:
        raise UsageError("name the application, or leave it out: then it is for all")
    return application or ALL
