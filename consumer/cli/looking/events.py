"""`consumer events …`: the recorded events and what was done about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import orjson
import typer

from consumer.cli.bootstrap import ledger, run, settings_looking
from consumer.cli.consent import actor
from consumer.cli.filters import (
    Application,
    Customer,
    EventId,
    Fingerprint,
    HandlerName,
    Limit,
    Order,
    Since,
    Status,
    SubscriptionId,
    Type,
    Until,
    moments,
    more_line,
    page,
    require_fingerprint,
    require_named,
    whose_keys,
)
from consumer.cli.output import Json, Output, shown
from consumer.console.event_view import (
    attempt_document,
    event_document,
    outcomes_of,
    payload_of,
    read_event,
    run_document,
)
from consumer.errors import NotFound, UsageError
from consumer.ledger import Database, audit
from consumer.ledger.engine.counting import each_of
from consumer.ledger.engine.database_time import shared_time
from consumer.ledger.handling import events, runs
from consumer.ledger.handling.events import SEARCHED_MAX, EventFilter, EventKey, Found
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
    customer: Customer = None,
    event: EventId = None,
    application: Application = None,
    fingerprint: Fingerprint = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """The newest events that fit, newest first. OUTCOME: the worst of an event's runs.

    `dead`, `parked` (waits behind an earlier one, or for a pause), `retrying`, `skipped` (given up), `handled`, or
    `no_handler`.
    """
    if status is not None and status not in list(RunStatus):
        raise UsageError(f"--status is one of {', '.join(RunStatus)}")
    begin, end = moments(since, until)
    wanted = EventFilter(
        application=application,
        type=event_type,
        event_id=event,
        order_id=order,
        subscription_id=subscription,
        handler=handler,
        status=status,
        fingerprint=fingerprint,
        since=begin,
        until=end,
        limit=limit + 1,
    )
    found, outcomes, states = run(_search(wanted, customer))
    rows, is_more = page(found.rows, limit)
    output = Output(as_json)
    listed = [
        event_document(row) | {"outcome": outcomes.get((row.application, row.id))} | _state(row, handler, states)
        for row in rows
    ]
    output.document({"events": listed, "complete": found.is_all and not is_more, "more": is_more})
    more = ["run", "attempts", "code"] if handler is not None else []
    output.table(
        ["received", "application", "id", "type", "key", "trust", "source", "outcome", *more],
        [
            [row.received_at, row.application, row.id, row.type, row.key, row.trust, row.source,
             outcomes.get((row.application, row.id)), *[_state(row, handler, states)[name] for name in more]]
            for row in rows
        ],
        empty="no event fits",
    )  # fmt: skip
    if is_more:
        output.line(more_line(limit))
    if not found.is_all:
        output.line(f"only {SEARCHED_MAX:,} were looked at; --since and --until look elsewhere")


@app.command()
def show(
    event_id: Annotated[str, typer.Argument(help="Event id.", metavar="ID")],
    application: Annotated[str | None, typer.Option(help="Application; whichever has it when left out.")] = None,
    raw: Annotated[
        bool,
        typer.Option("--raw", "--body", help="The body as it is, with personal data; written into the audit trail."),
    ] = False,
    as_json: Json = False,
) -> None:
    """One event: what it is and says, each handler's run, and the attempts that failed, with the author's lines.

    With --json it is a fixture: `workbench.event_from(FILE)` makes it an event again. Personal values are masked.
    """
    row, of_event, attempts, runbooks = run(_load(application, event_id, raw=raw))
    output = Output(as_json)
    payload = payload_of(row, raw=raw)
    output.document(
        {**event_document(row), "object_id": row.object_id, "customer": payload.customer, "payload": payload.body,
         "runs": [run_document(one, runbooks) for one in of_event],
         "attempts": [attempt_document(one) for one in attempts]}
    )  # fmt: skip
    output.fields(event_document(row))
    output.line("")
    for line in orjson.dumps(payload.body, option=orjson.OPT_INDENT_2).decode().splitlines():
        output.line(line)
    output.line("")
    output.table(
        ["handler", "status", "attempts", "next", "code", "reason"],
        [[one.handler, one.status, one.attempts, one.next_at, one.code, one.reason] for one in of_event],
        empty="no handler wants events of this type",
    )
    for handler, text in runbooks.items():
        output.line(f"runbook of {handler}: {text}")
    for one in attempts:
        if one.trace:
            output.line(f"{shown(one.finished_at)} {one.handler}, attempt {one.number}: {one.code}: {one.reason}")
            for place in one.trace.split(" < "):
                output.line(f"  at {place}")


States = Mapping[tuple[str, str, str], RunRow]


async def _search(wanted: EventFilter, customer: str | None) -> tuple[Found, Mapping[EventKey, str], States]:
    settings = settings_looking()
    async with ledger(settings) as database, database.reading() as session:
        if customer is not None:
            wanted = replace(wanted, keys=await whose_keys(session, settings, customer, wanted.application))
        found = await events.search(session, wanted)
        if not found.rows:
            await require_named(session, settings, wanted)
            if wanted.fingerprint is not None:
                await require_fingerprint(session, wanted.fingerprint)
        outcomes = await outcomes_of(session, found.rows)
        ids = [(row.application, row.id) for row in found.rows] if wanted.handler else []
        return found, outcomes, await runs.of_handler(session, wanted.handler or "", ids)


def _state(row: EventRow, handler: str | None, states: States) -> dict[str, Any]:
    """How far the handler that was asked for is with the event."""
    if handler is None:
        return {}
    found = states.get((row.application, row.id, handler))
    return {name: getattr(found, field, None) for name, field in
            (("run", "status"), ("attempts", "attempts"), ("code", "code"), ("next_at", "next_at"))}  # fmt: skip


async def _load(
    application: str | None, event_id: str, *, raw: bool
) -> tuple[EventRow, Sequence[RunRow], Sequence[AttemptRow], Mapping[str, str]]:
    async with ledger(settings_looking()) as database:
        if application is None:
            application = await owner(database, event_id)
        if application is None:
            raise NotFound("the ledger has no such event", event_id=event_id[:100])
        if raw:
            await _audit(database, application, event_id)
        async with database.reading() as session:
            return await read_event(session, application, event_id)


async def owner(database: Database, event_id: str) -> str | None:
    """The application that has the event, be it set up or not; None where none has. Raises UsageError where several
    have one of this id."""
    async with database.reading() as session:
        known: Sequence[str] = await each_of(session, EventRow.__table__.c.application)
        found = [name for name in known if await events.get(session, name, event_id) is not None]
    if len(found) > 1:
        raise UsageError(
            "several applications have an event of this id: name one by --application", known=", ".join(found)
        )
    return found[0] if found else None


async def _audit(database: Database, application: str, event_id: str) -> None:
    """Who looked at what a payer said of himself."""
    async with database.transaction() as session:
        if await events.get(session, application, event_id) is not None:
            audit.note(
                session, at=await shared_time(session), application=application, actor=actor(),
                action="event.shown_raw", subject=f"event:{event_id}",
            )  # fmt: skip
