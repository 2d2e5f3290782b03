"""Event view: what an event is, how far each handler is with it, and where in their code attempts failed (case R4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.errors import NotFound, NotUnderstood
from consumer.events import parse_json
from consumer.ledger.engine.chunks import grouped
from consumer.ledger.handling import attempts, events, handlers, runs
from consumer.ledger.handling.events import EventKey
from consumer.ledger.handling.outcomes import outcomes
from consumer.ledger.reading.quarantine import Kept
from consumer.ledger.tables import AttemptRow, EventRow, RunRow, RunStatus
from consumer.reason import reason_of
from consumer.telemetry.redaction import REDACTED, masked


async def read_event(
    session: AsyncSession, application: str, event_id: str
) -> tuple[EventRow, Sequence[RunRow], Sequence[AttemptRow], Mapping[str, str]]:
    """The event, its runs, their attempts, and by handler what its author tells the operator. Raises NotFound."""
    row = await events.get(session, application, event_id)
    if row is None:
        raise NotFound("the ledger has no such event", application=application, event_id=event_id[:100])
    of_event = await runs.of_event(session, application, event_id)
    tried = await attempts.of_event(session, application, event_id)
    return row, of_event, tried, await runbooks_of(session, of_event)


async def event_view(session: AsyncSession, application: str, event_id: str) -> dict[str, Any]:
    """The event with its runs and their attempts, without its payload. Raises NotFound."""
    row, of_event, tried, runbooks = await read_event(session, application, event_id)
    return {
        **event_document(row),
        "runs": [run_document(one, runbooks) for one in of_event],
        "attempts": [attempt_document(one) for one in tried],
    }


async def outcomes_of(session: AsyncSession, rows: Sequence[EventRow]) -> dict[EventKey, str]:
    """What became of each: the worst of its runs' states (`dead`, `parked`, `retrying`, `skipped`), `handled`, or
    `no_handler`, as an outage's certificate says it."""
    found: dict[EventKey, str] = {}
    for (application,), ids in grouped(((row.application,), row.id) for row in rows):
        of = await outcomes(session, application, ids)
        found |= {(application, event_id): one.word for event_id, one in of.items()}
    return found


async def runbooks_of(session: AsyncSession, of_event: Sequence[RunRow]) -> dict[str, str]:
    """By handler: what its author tells the operator, where its run failed and is not done."""
    failed = (RunStatus.DEAD, RunStatus.SKIPPED)
    names = [one.handler for one in of_event if one.status in failed or (one.code and one.status == RunStatus.RETRYING)]
    return await handlers.runbooks(session, names)


async def traces_of(session: AsyncSession, application: str, event_id: str) -> dict[str, str]:
    """The author's lines that the last failed attempt of each handler came through."""
    tried = await attempts.of_event(session, application, event_id)
    return {one.handler: one.trace for one in tried if one.trace}


def place_in(trace: str | None) -> str | None:
    """The line of the author's where an attempt failed. Pure."""
    return (trace or "").partition(" < ")[0] or None


@dataclass(frozen=True)
class Payload:
    """What of an event's body may be seen, and of whose it is."""

    body: Any
    customer: str | None


def payload_of(row: EventRow, *, raw: bool = False) -> Payload:
    """What the event says, personal values masked unless `raw`. Nothing of a body that lies in an archive: `archive`
    names the file. Pure."""
    if row.archive is not None:
        return Payload(None, row.customer if raw else None)
    if raw:
        return Payload(_as_it_is(row.raw), row.customer)
    try:
        body = masked(parse_json(row.raw, tolerant=True))
    except NotUnderstood:
        body = REDACTED  # nothing names what in it is personal
    return Payload(body, None if row.customer is None else REDACTED)


def _as_it_is(raw: bytes) -> Any:
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return raw.decode("utf-8", "replace")


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


def delivery_document(row: Kept) -> dict[str, Any]:
    """What lies in quarantine, and why; without its body, of which `bytes` is what is kept, packed where it is."""
    return {
        "id": row.id,
        "application": row.application,
        "delivery_id": row.delivery_id,
        "event_id": row.event_id,
        "reason": reason_of(row.reason).value,
        "detail": reason_of(row.reason).detail,
        "bytes": row.size,
        "received_at": row.received_at,
    }


def run_document(row: RunRow, runbooks: Mapping[str, str]) -> dict[str, Any]:
    """How far one handler is with it; `runbook`: its author's words, where it failed."""
    return {
        "handler": row.handler,
        "status": row.status,
        "attempts": row.attempts,
        "next_at": row.next_at,
        "code": row.code,
        "reason": row.reason,
        "runbook": runbooks.get(row.handler),
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
