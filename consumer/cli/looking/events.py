"""`consumer events …`: the recorded events and what was done about them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from consumer.cli.filters import (
    Application,
    EventId,
    HandlerName,
    Limit,
    Order,
    Since,
    Status,
    SubscriptionId,
    Type,
    Until,
    parse_moment,
)
from consumer.cli.output import Json, Output
from consumer.cli.process import ledger, run, settings_looking
from consumer.errors import NotFound, UsageError
from consumer.ledger.handling import events, runs
from consumer.ledger.handling.events import EventFilter
from consumer.ledger.tables import AttemptRow, EventRow, RunRow, RunStatus

app = typer.Typer(help="The recorded events.", no_args_is_help=True)


@app.command("list")
def list_events(
    since: Since = None,
    until: Until = None,
    event_type: Type = None,
    handler: HandlerName = None,
    status: Status = None,
    order: Order = None,
    subscription: SubscriptionId = None,
    event: EventId = None,
    application: Application = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """The newest events that fit, newest first."""
    now = datetime.now(UTC)
    if status is not None and status not in list(RunStatus):
        raise UsageError(f"--status is one of {', '.join(RunStatus)}")
    wanted = EventFilter(
        application=application,
        type=event_type,
        event_id=event,
        order_id=order,
        subscription_id=subscription,
        handler=handler,
        status=status,
        since=parse_moment(since, now),
        until=parse_moment(until, now),
        limit=limit,
    )
    rows = run(_search(wanted))
    output = Output(as_json)
    output.document({"events": [_event(row) for row in rows]})
    output.table(
        ["received", "application", "id", "type", "key", "trust", "source"],
        [[row.received_at, row.application, row.id, row.type, row.key, row.trust, row.source] for row in rows],
        empty="no event fits",
    )


@app.command()
def show(
    event_id: Annotated[str, typer.Argument(help="Event id.", metavar="ID")],
    application: Annotated[str, typer.Option(help="Application.")] = "default",
    body: Annotated[bool, typer.Option("--body", help="Show the raw body too; it may hold personal data.")] = False,
    as_json: Json = False,
) -> None:
    """One event: what it is, each handler's run, and the attempts that failed."""
    row, of_event, attempts = run(_load(application, event_id))
    output = Output(as_json)
    raw = {"body": row.raw.decode("utf-8", "replace")} if body else {}
    output.document(
        {**_event(row), **raw, "runs": [_run(one) for one in of_event], "attempts": [_attempt(one) for one in attempts]}
    )
    output.fields({**_event(row), **raw})
    output.line("")
    output.table(
        ["handler", "status", "attempts", "next", "code", "reason"],
        [[one.handler, one.status, one.attempts, one.next_at, one.code, one.reason] for one in of_event],
        empty="no handler wants events of this type",
    )


async def _search(wanted: EventFilter) -> Sequence[EventRow]:
    async with ledger(settings_looking()) as database, database.reading() as session:
        return await events.search(session, wanted)


async def _load(application: str, event_id: str) -> tuple[EventRow, Sequence[RunRow], Sequence[AttemptRow]]:
    async with ledger(settings_looking()) as database, database.reading() as session:
        rows = await events.search(session, EventFilter(application=application, event_id=event_id, limit=1))
        if not rows:
            raise NotFound("the ledger has no such event", application=application, event_id=event_id[:100])
        return (
            rows[0],
            await runs.of_event(session, application, event_id),
            await runs.attempts_of(session, application, event_id),
        )


def _event(row: EventRow) -> dict[str, Any]:
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
    }


def _run(row: RunRow) -> dict[str, Any]:
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


def _attempt(row: AttemptRow) -> dict[str, Any]:
    return {
        "handler": row.handler,
        "number": row.number,
        "outcome": row.outcome,
        "code": row.code,
        "reason": row.reason,
        "fingerprint": row.fingerprint,
        "code_version": row.code_version,
        "started_at": row.started_at,
        "finished_at": row.finished_at,
    }
