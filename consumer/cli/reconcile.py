"""`consumer reconcile`: one walk of orders, subscriptions and payments, now."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from consumer.app.syncing import open_syncing
from consumer.cli.filters import Application
from consumer.cli.output import Json, Output
from consumer.cli.process import run, settings_for
from consumer.cli.progress import shown_duration
from consumer.cli.sync import say_unread
from consumer.settings import Role
from consumer.sync.drift import DriftReport

DRIFT = 3


def add_to(app: typer.Typer) -> None:
    """Put the command into the tree."""
    app.command()(reconcile)


def reconcile(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show drift; exit 3 when there is any.")] = False,
    max_changes: Annotated[
        int | None, typer.Option(min=0, help="Change at most this many objects, or none of them.")
    ] = None,
    application: Application = None,
    as_json: Json = False,
) -> None:
    """One walk of orders, subscriptions and payments: what differs is published as observations."""
    output = Output(as_json)
    reports = run(_reconcile(dry_run, max_changes, application, output))
    for one in reports:
        _say_reconcile(one, output)
    if dry_run and any(one.drifted for one in reports):
        raise typer.Exit(DRIFT)
    if not dry_run and any(one.braked for one in reports):
        raise typer.Exit(1)


async def _reconcile(
    dry_run: bool, max_changes: int | None, application: str | None, output: Output
) -> list[DriftReport]:
    async with open_syncing(settings_for(Role.OPERATE), application=application, publishes=not dry_run) as syncing:
        reports = [
            await one.reconcile_once(dry_run=dry_run, max_changes=max_changes) for one in syncing.applications.values()
        ]
    say_unread(syncing, output)
    output.document({"walks": [_shown(one) for one in reports], "without_credentials": syncing.unread})
    return reports


def _shown(report: DriftReport) -> dict[str, Any]:
    found = {
        "application": report.application,
        "dry_run": report.dry_run,
        "drifted": report.drifted,
        "braked": report.braked,
        "listed": dict(report.listed),
        "found": {drift.value: count for drift, count in report.found.items()},
        "differences": [asdict(one) for one in report.differences],
    }
    return found | {name: getattr(report, name) for name in ("published", "baseline", "unplaced", "absent", "seconds")}


def _say_reconcile(report: DriftReport, output: Output) -> None:
    listed = ", ".join(f"{count} {kind}(s)" for kind, count in sorted(report.listed.items())) or "nothing"
    output.line(
        f"{report.application}: {listed} listed, {report.published} observation(s) published, "
        f"in {shown_duration(report.seconds)}"
    )
    if report.differences:
        output.table(
            ["object", "drift", "before", "now"],
            [[f"{one.kind} {one.object_id}", one.drift.value, one.before, one.after] for one in report.differences],
            empty="",
        )
    if report.absent:
        output.line(f"  {report.absent} live subscription(s) not listed: each is read singly")
    if report.braked:
        output.line("  braked: more changes than allowed, none was made; look at --dry-run, then say --max-changes")
