"""Savepoint: a transactional handler's part of a transaction that others share."""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.plugin import Context, Event, Handler
from consumer.work.execution.executor import Executor
from consumer.work.outcome import Failed, Outcome, failed


async def in_savepoint(
    session: AsyncSession,
    executor: Executor,
    handler: Handler,
    event: Event,
    ctx: Context,
    *,
    limit_s: float | None = None,
) -> Outcome:
    """Run a transactional handler so that a failure undoes its own writes and nothing else; `limit_s` as there. It
    finds the rows that others of this transaction wrote, and none of their objects."""
    await session.flush()
    session.expunge_all()
    savepoint = await session.begin_nested()
    outcome = await executor.transactional(handler, event, ctx, limit_s=limit_s)
    if not isinstance(outcome, Failed):
        try:
            await session.flush()
            await _look(session)
        except Exception as error:  # noqa: BLE001 - what the handler wrote does not hold: the handler failed
            outcome = failed(error, about=[event])
    if isinstance(outcome, Failed):
        await savepoint.rollback()
    else:
        await savepoint.commit()
    return outcome


async def _look(session: AsyncSession) -> None:
    """Whether the transaction still takes statements. On PostgreSQL it does not after a failed one, and a handler may
    have caught that error: it is found here, where going back to the savepoint helps, and not at its release."""
    if session.get_bind().dialect.name == "postgresql":
        await session.execute(text("SELECT 1"))
