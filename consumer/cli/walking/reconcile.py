"""`consumer reconcile`: one walk of orders, subscriptions and payments, now."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Annotated, Any

import typer

from consumer.app.commands.walking import open_syncing
from consumer.cli.bootstrap import run, settings_for
from consumer.cli.filters import Application
from consumer.cli.output import Json, Output
from consumer.cli.walking.backfill import say_unread
from consumer.cli.walking.each import FAILED, Failure, each, told
from consumer.cli.walking.progress import shown_duration
from consumer.settings import Role
from consumer.sync.reconcile.drift import LISTED_MAX, DriftReport
from consumer.sync.role import ApplicationSync

DRIFT = 3
FIGURES = (
    "complete",
    "published",
    "would_publish",
    "made",
    "baseline",
    "early",
    "adopted",
    "unplaced",
    "unplaced_paid",
    "unplaced_ids",
    "too_large",
    "too_large_paid",
    "too_large_ids",
    "absent",
    "seconds",
)


def reconcile(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show drift and change nothing; exit 3 when there is any.")
    ] = False,
    max_changes: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="At most this many changes of what is paid or who has access, or none of them; each application for "
            "itself. What the ledger has never heard of counts, and is acted on.",
        ),
    ] = None,
    application: Application = None,
    as_json: Json = False,
) -> None:
    """One walk of orders, subscriptions and payments: what differs is published as observations.

    The very first walk remembers the orders that are there already, and acts on none of them; so does each before any
    walk of the events (`sync`, `backfill`) has begun. --max-changes does.
    """
    raise typer.Exit(run(_reconcile(dry_run, max_changes, application, Output(as_json))))


async def _reconcile(dry_run: bool, max_changes: int | None, application: str | None, output: Output) -> int:
    """The exit code: 0 all is well, 3 a dry run found drift, 1 braked; see `told` for walks that failed."""
    async with open_syncing(settings_for(Role.OPERATE), application=application, publishes=not dry_run) as syncing:

        async def walk(one: ApplicationSync) -> DriftReport:
            return await one.reconcile_once(dry_run=dry_run, max_changes=max_changes)

        reports, failures = await each(syncing.applications, walk)
        # What was done until a walk failed stays done: it is told as well.
        cut = {one.application: syncing.applications[one.application].reconcile.report for one in failures}
    for report in (*reports, *cut.values()):
        if report is not None:
            say_report(report, output)
    say_unread(syncing, output)
    walks = [shown(one) for one in reports] + [_shown_failure(one, cut[one.application]) for one in failures]
    output.document({"walks": walks, "without_credentials": syncing.unread})
    if failures:
        return told(failures, walked=bool(reports))
    if dry_run:
        return DRIFT if any(one.drifted for one in reports) else 0
    return FAILED if any(one.braked for one in reports) else 0


def shown(report: DriftReport) -> dict[str, Any]:
    """A report for the document of `--json`."""
    found = {
        "application": report.application,
        "dry_run": report.dry_run,
        "drifted": report.drifted,
        "braked": report.braked,
        "listed": dict(report.listed),
        "found": {drift.value: count for drift, count in report.found.items()},
        "changes": report.changes.total(),
        "differences": [asdict(one) for one in report.differences],
    }
    return found | {name: getattr(report, name) for name in FIGURES}


def _shown_failure(failure: Failure, report: DriftReport | None) -> dict[str, Any]:
    return ({} if report is None else shown(report)) | failure.shown()


def say_report(report: DriftReport, output: Output) -> None:
    """What a walk found, in lines for people."""
    published, would = (report.would_publish, " would be") if report.dry_run else (report.published, "")
    done = [f"{published} observation(s){would} published"]
    end = f"in {shown_duration(report.seconds)}" if report.complete else "and then it failed"
    output.line(f"{report.application}: {', '.join([f'{_counted(report.listed)} listed', *done, end])}")
    if report.differences:
        rows = [
            [f"{one.kind} {one.object_id}", one.drift.value, one.before or "never read", one.after]
            for one in report.differences
        ]
        output.table(["object", "drift", "before", "now"], rows, empty="")
    elif report.dry_run and report.complete:
        weighs = ": none of these changes what is paid or who has access" if report.would_publish else ""
        output.line(f"  no drift{weighs}")
    if report.drifts > LISTED_MAX:
        output.line(f"  the first {LISTED_MAX} of {report.drifts} are shown")
    _say_baseline(report, output)
    if report.unplaced:
        ids = f": {', '.join(report.unplaced_ids)}" if report.unplaced_ids else ""
        output.line(
            f"  {report.unplaced} record(s) without the id they are kept by (an order's is the merchant's), "
            f"{report.unplaced_paid} of them PAID: nothing is done about them{ids}"
        )
    if report.too_large:
        output.line(
            f"  {report.too_large} record(s) larger than topic events takes, {report.too_large_paid} of them PAID: "
            f"not published until it takes them (max.message.bytes): {', '.join(report.too_large_ids)}"
        )
    if report.absent:
        how = "would be" if report.dry_run else "is"
        output.line(f"  {report.absent} live subscription(s) not listed: each {how} read singly")
    if report.braked:
        output.line(f"  braked: {_braked(report)}")


def _say_baseline(report: DriftReport, output: Output) -> None:
    if not report.baseline and not report.adopted:
        return
    verb, adopted = ("would be ", "would be adopted") if report.dry_run else ("", "adopted")
    where = "no walk of the events had begun here" if report.early else "the first walk here"
    output.line(
        f"  {where}: {report.baseline} order(s) and payment(s) {verb}remembered as they are and not acted "
        f"on, {report.adopted} live subscription(s) {adopted}"
    )
    if report.dry_run:
        output.line("  `--max-changes N`, said before any other walk, acts on them instead")


def _braked(report: DriftReport) -> str:
    """What was too much, and what there is to do about it."""
    kinds = _counted(report.changes)
    found = f"{report.changes.total()} change(s) of what is paid or who has access ({kinds}) are more than allowed"
    if report.dry_run:
        return f"{found}: a walk would make none of them; `--max-changes {report.limit}` makes them"
    made = f"{report.made} of these were made before the limit was reached" if report.made else "none of these was made"
    return f"{found}: {made}; `--dry-run` shows them, `--max-changes {report.limit}` makes them"


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {kind}(s)" for kind, count in sorted(counts.items())) or "nothing"
