"""Event view: what an event is, how far each handler is with it, and where in their code attempts failed (case R4)."""

from __future__ import annotations

from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from consumer.errors import NotFound
from consumer.ledger.handling import events, runs
from consumer.ledger.tables import AttemptRow, EventRow, RunRow


async def event_view(session: AsyncSession, application: str, event_id: str) -> dict[str, Any]:
    """The event with its runs and their attempts, without its payload. Raises NotFound."""
    row = await events.get(session, application, event_id)
    if row is None:
        raise NotFound("the event is unknown", event_id=event_id)
    of_event = await runs.of_event(session, application, event_id)
    attempts = await runs.attempts_of(session, application, event_id)
    return {
        **event_document(row),
        "runs": [run_document(one) for one in of_event],
        "attempts": [attempt_document(one) for one in attempts],
    }


async def traces_of(session: AsyncSession, application: str, event_id: str) -> dict[str, str]:
    """The author's lines that the last failed attempt of each handler came through."""
    attempts = await runs.attempts_of(session, application, event_id)
    return {one.handler: one.trace for one in attempts if one.trace}


def place_in(trace: str | None) -> str | None:
    """The line of the author's where an attempt failed. Pure."""
    return (trace or "").partition(" < ")[0] or None


def event_document(row: EventRow) -> dict[str, Any]:
    """What it is, without what it says."""
    return {
        "application": row.application,
        "id": row.id,
        "type": row.type,
        "key": row.key,
        "trust": row.trust,
        "source": row.source,
        "order_id": row.order_id,
        "subscription_id": row.subscription_id,
        "received_at": row.received_at,
        "recorded_at": row.recorded_at,
        "occurred_at": row.occurred_at,
        "delivery_id": row.delivery_id,
        "archive": row.archive,
    }


def run_document(row: RunRow) -> dict[str, Any]:
    """How far one handler is with it."""
    return {
        "handler": row.handler,
        "status": row.status,
        "attempts": row.attempts,
        "next_at": row.next_at,
        "code": row.code,
        "reason": row.reason,
        "code_version": row.code_version,
        "updated_at": row.updated_at,
    }


def attempt_document(row: AttemptRow) -> dict[str, Any]:
    """One attempt; `trace` are the author's own lines that it failed through, innermost first."""
    return {
        "handler": row.handler,
        "number": row.number,
        "outcome": row.outcome,
        "code": row.code,
        "reason": row.reason,
        "fingerprint": row.fingerprint,
        "trace": row.trace,
        "code_version": row.code_version,
        "started_at": row.started_at,
        "finished_at": row.finished_at,
    }
