"""`consumer status`, `consumer quarantine list`: how things stand."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from consumer.app import parts
from consumer.broker import TopicReport, open_broker
from consumer.cli.cures import who_acts_on
from consumer.cli.developing.handlers import registry_of
from consumer.cli.filters import Application, Limit
from consumer.cli.looking.verdict import WALK_LATE_S, Finding, Grade, judge, worst
from consumer.cli.output import Json, Output
from consumer.cli.output import shown as shown_value
from consumer.cli.process import ledger, run, settings_for
from consumer.console.queues import queues
from consumer.console.unfulfilled import HeldOrder, Waiting, longest_held, unfulfilled
from consumer.console.unread import Unread, unread
from consumer.errors import BrokerError, LedgerError
from consumer.ledger import health
from consumer.ledger.health import Figures
from consumer.ledger.reading import quarantine as ledger_quarantine
from consumer.reason import Reason, reason_of
from consumer.settings import Role, Settings
from consumer.sync.health.status import ApplicationStatus, application_statuses
from handlers.fulfilment.store import REQUESTED

WALKS_LATE = 5
BROKER_S = 10.0

quarantine = typer.Typer(help="Deliveries that could not be verified or understood.", no_args_is_help=True)


def add_to(app: typer.Typer) -> None:
    """Put these commands into the tree."""
    app.command()(status)
    app.add_typer(quarantine, name="quarantine")


def status(as_json: Json = False) -> None:
    """How things stand; exit 0 healthy, 1 degraded, 2 stuck."""
    figures, waiting, held, reading, lost, findings = run(_look(settings_for(Role.OPERATE)))
    grade = worst(findings)
    shown = asdict(figures) if figures else {}
    output = Output(as_json)
    output.document(
        {
            "status": grade.name.lower(),
            "findings": [{"grade": f.grade.name.lower(), "code": f.code, "text": f.text} for f in findings],
            "unfulfilled": [asdict(one) for one in waiting],
            "held": [asdict(one) for one in held],
            "reading": [asdict(one) for one in reading],
            "unread": [asdict(one) for one in lost],
            **shown,
        }
    )
    output.line(grade.name.lower())
    for finding in findings:
        output.line(f"  {finding.grade.name.lower()}: {finding.text} [{finding.code}]")
    output.fields(shown)
    for order in waiting:
        oldest = shown_value(order.oldest_at)
        output.line(f"{order.application}: {order.count} paid, not fulfilled ({order.reason}), the oldest at {oldest}")
    for one_held in held:
        since = shown_value(one_held.paid_at)
        output.line(f"{one_held.application}: order {one_held.order_id} is held ({one_held.hold}), paid at {since}")
    for asked in lost:
        oldest = shown_value(asked.oldest_at)
        output.line(f"{asked.application}: {asked.count} read(s) wait for API credentials, the oldest since {oldest}")
    for one in reading:
        output.line(one.application)
        facts = {name: value for name, value in asdict(one).items() if name not in ("application", "held_up")}
        output.fields({f"  {name}": value for name, value in facts.items()})
        for stage in one.held_up:
            output.line(f"  {stage.stage} is held up since {shown_value(stage.since)}: {stage.code}")
    raise typer.Exit(int(grade))


async def _look(
    settings: Settings,
) -> tuple[Figures | None, list[Waiting], list[HeldOrder], list[ApplicationStatus], list[Unread], list[Finding]]:
    # Where none has credentials, nobody meant to read: signed webhooks are all there is.
    reads = any(one.has_credentials for one in settings.applications)
    app_ids = [(one.name, one.app_id if one.has_credentials else None) for one in settings.applications if reads]
    try:
        async with ledger(settings) as database, database.reading() as session:
            figures = await health.figures(session, datetime.now(UTC))
            waiting = await unfulfilled(session)
            held = await longest_held(session)
            reading = await application_statuses(session, app_ids, figures.at)
            without = [one.name for one in settings.applications if not one.has_credentials]
            lost = await unread(session, without, figures.at)
            open_queues = await queues(session)
    except LedgerError as error:
        return None, [], [], [], [], [Finding(Grade.STUCK, error.code, error.message)]
    registry = registry_of(settings)
    findings = judge(
        figures,
        unfulfilled=waiting,
        queues=open_queues,
        broken_plugins=[plugin.plugin for plugin in registry.broken],
        shippers=who_acts_on(REQUESTED, registry.handlers),
        topics=await _topics(settings),
        application_statuses=reading,
        walk_late_s=max(WALK_LATE_S, WALKS_LATE * settings.sync_interval_s),
    )
    return figures, waiting, held, reading, lost, findings


async def _topics(settings: Settings) -> Sequence[TopicReport] | None:
    """How the topics stand; None when the broker does not answer. Makes nothing."""
    broker = open_broker(settings.broker_url, security=parts.kafka_security(settings))
    try:
        async with asyncio.timeout(BROKER_S):
            return await broker.look(parts.topics(settings))
    except (BrokerError, TimeoutError):
        return None
    finally:
        await broker.stop()


@quarantine.command("list")
def list_quarantine(
    application: Application = None,
    reason: Annotated[Reason | None, typer.Option(help="Only this reason.")] = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """The newest deliveries in quarantine; their bodies are not shown."""

    async def load() -> list[dict[str, Any]]:
        async with ledger(settings_for(Role.OPERATE)) as database, database.reading() as session:
            rows = await ledger_quarantine.newest(session, application=application, reason=reason, limit=limit)
        return [
            {
                "id": row.id,
                "application": row.application,
                "delivery_id": row.delivery_id,
                "event_id": row.event_id,
                "reason": reason_of(row.reason).value,
                "detail": reason_of(row.reason).detail,
                "bytes": len(row.raw),
                "received_at": row.received_at,
            }
            for row in rows
        ]

    rows = run(load())
    output = Output(as_json)
    output.document({"quarantine": rows})
    columns = ["id", "received_at", "application", "event_id", "reason", "detail", "bytes"]
    output.table(columns, [[row[name] for name in columns] for row in rows], empty="nothing in quarantine")
