"""`consumer findings …`: what waits for a person's decision, and the word that closes it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from consumer.cli.bootstrap import ledger, run, settings_looking
from consumer.cli.consent import Reason, Yes
from consumer.cli.filters import Limit, OneApplication, near, one_application, require_application
from consumer.cli.output import Json, Output
from consumer.cli.repairing.say import say
from consumer.console.alarms.queues import KINDS, MEANS, findings, queues
from consumer.console.cure import release, steps, unfulfillable
from consumer.console.operators.subjects import held_by
from consumer.errors import NotFound, UsageError
from consumer.settings import Settings

app = typer.Typer(help="What waits for a person's decision.", no_args_is_help=True)
Kind = Annotated[str | None, typer.Option(help="Only this kind.")]
Subject = Annotated[str, typer.Argument(help="What it is about, as `findings list` shows it.")]


@app.command("list")
def list_findings(
    application: OneApplication = None, kind: Kind = None, limit: Limit = 50, as_json: Json = False
) -> None:
    """What is open, oldest first."""
    settings = settings_looking()
    application = one_application(application, settings)
    found, total = run(_open(settings, application, kind, limit=limit))
    if not found:
        require_application(application, settings)
        if kind is not None and kind not in KINDS:
            raise UsageError("there is no such kind of finding", kind=kind[:40], near=near(kind, KINDS))
    output = Output(as_json)
    output.document({"findings": found[:limit], "total": total})
    columns = ["opened_at", "plugin", "kind", "subject", "detail"]
    output.table(columns, [[one[name] for name in columns] for one in found[:limit]], empty="nothing is open")
    if total > (shown := min(limit, len(found))):
        output.line(f"{total - shown} more: these are the oldest {shown} (--limit, --kind)")


@app.command()
def show(subject: Subject, application: OneApplication = None, as_json: Json = False) -> None:
    """What is open about one order, payment, subscription or customer, and how to close it."""
    settings = settings_looking()
    application = one_application(application, settings)
    found, held = run(_about(settings, application, subject))
    if not found:
        raise NotFound("nothing is open about this", subject=subject[:100])
    output = Output(as_json)
    output.document({"findings": found})
    for one in found:
        output.fields(one)
        output.line(MEANS.get(one["kind"], ""))
        if one["kind"] == held:
            output.line(f"it closes when the order is let go: {release(subject, application)}")
            output.line(f"or when there is nothing to deliver: {unfulfillable(subject, application)}")
        else:
            output.line(f"settle it: {steps(subject, one['kind'], application, seen=one['seen'])}")


@app.command()
def close(
    subject: Subject,
    kind: Annotated[str, typer.Argument(help="Which kind, as `findings list` shows it.")],
    reason: Reason,
    seen: Annotated[
        str | None, typer.Option(help="Only while it is as `findings show` said so; left out: as it is now.")
    ] = None,
    application: OneApplication = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Say that one is settled; audited. It closes when `work` has handled the word, unless there is more of it then."""
    settings = settings_looking()
    application = one_application(application, settings)
    found, _ = run(_open(settings, application, kind, subject))
    if not found:
        raise NotFound("no such finding is open", subject=subject[:100], kind=kind[:40])
    one = found[0]
    word, data, shown = f"{one['plugin']}.finding_closed", [f"kind={kind}"], seen or one["seen"]
    if shown is not None:
        data.append(f"seen={shown}")
    say(word, subject, reason, data=data, application=application, yes=yes, as_json=as_json)


async def _about(settings: Settings, application: str, subject: str) -> tuple[list[dict[str, Any]], str | None]:
    """What is open about it; which of this stands for the hold of an order."""
    async with ledger(settings) as database, database.reading() as session:
        found = await findings(session, application, None, subject)
        return found, (await held_by(session, application, [subject])).get(subject)


async def _open(
    settings: Settings, application: str, kind: str | None, subject: str | None = None, *, limit: int | None = None
) -> tuple[list[dict[str, Any]], int]:
    """The oldest that are open, and how many there are, whatever their subject."""
    async with ledger(settings) as database, database.reading() as session:
        found = await findings(session, application, kind, subject, limit=limit)
        return found, sum(one.count for one in await queues(session, application) if kind in (None, one.kind))
