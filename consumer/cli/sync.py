"""`consumer backfill`: one walk of the service's events, now."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from consumer.app.syncing import Syncing, open_syncing
from consumer.cli.consent import Yes, consent
from consumer.cli.filters import Application, Since, Until, parse_moment
from consumer.cli.output import Json, Output
from consumer.cli.process import run, settings_for
from consumer.cli.progress import PREDICT_PAGES, ProgressBar, shown_duration
from consumer.errors import AnotherLeads, UsageError
from consumer.settings import Role
from consumer.sync.application import ApplicationSync
from consumer.sync.certificate import Certifier, faults
from consumer.sync.reader import Reader
from consumer.sync.report import BackfillOptions, BackfillReport

DOUBTS = {
    "list_does_not_reach_back": "the service's list begins after --since, and we received events from before it",
    "times_not_found": "no listed event has a time that the locators find",
    "window_not_over": "the window is not over yet",
}


def add_to(app: typer.Typer) -> None:
    """Put these commands into the tree."""
    app.command()(backfill)


def backfill(
    full: Annotated[bool, typer.Option("--full", help="The whole list, whatever was walked before.")] = False,
    since: Since = None,
    until: Until = None,
    seed: Annotated[
        bool, typer.Option("--seed", help="What is older than the cut-over (--until) is archived, without any effect.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count what is missing; change nothing.")] = False,
    certificate: Annotated[
        Path | None,
        typer.Option(help="Change nothing; write into this file what became of each event from --since to --until."),
    ] = None,
    verify: Annotated[
        Path | None, typer.Option(help="Check a certificate: its digest, its sums, its verdict. Asks nobody.")
    ] = None,
    application: Application = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """One walk of the service's events: what the ledger lacks is published."""
    now = datetime.now(UTC)
    begin, end = parse_moment(since, now), parse_moment(until, now)
    output = Output(as_json)
    if verify is not None:
        if any((begin, end, full, seed, dry_run, certificate, application)):
            raise UsageError("--verify FILE goes alone")
        raise typer.Exit(_verify(verify, output))
    if certificate is not None:
        if begin is None or full or seed or dry_run:
            raise UsageError("--certificate goes with --since and --until only")
        if not certificate.parent.is_dir() or certificate.is_dir():
            raise UsageError("the certificate cannot be written: no such folder, or no file", file=str(certificate))
        raise typer.Exit(run(_certify(certificate, begin, end or now, application, output)))
    if end is not None and not seed:
        raise UsageError("--until goes with --certificate or --seed: a walk always goes up to now")
    if seed and not dry_run:
        consent("archive what the ledger lacks as history, so that no handler ever acts on it?", yes=yes)
    options = BackfillOptions(full=full, since=begin, until=end, seed=seed, dry_run=dry_run)
    run(_backfill(options, application, output))


async def _backfill(options: BackfillOptions, application: str | None, output: Output) -> None:
    walks: list[dict[str, Any]] = []
    async with open_syncing(
        settings_for(Role.OPERATE), application=application, publishes=not options.dry_run
    ) as syncing:
        for name, one in syncing.applications.items():
            try:
                report, predicted_s = await _walk(one, options)
            except AnotherLeads:
                if options.seed:
                    raise
                walks.append({"application": name, "another_leads": True})
                output.line(f"{name}: a `sync` process leads and walks by itself; nothing to do here")
                continue
            walks.append({**asdict(report), "another_leads": False, "predicted_s": predicted_s})
            _say_backfill(report, output)
    say_unread(syncing, output)
    output.document({"walks": walks, "without_credentials": syncing.unread})


def say_unread(syncing: Syncing, output: Output) -> None:
    """Name the applications that were asked for and cannot be read."""
    for name in syncing.unread:
        output.line(f"{name}: has no API credentials; left out")


async def _walk(one: ApplicationSync, options: BackfillOptions) -> tuple[BackfillReport, float | None]:
    page_s = await one.backfill.predict_s(PREDICT_PAGES) / PREDICT_PAGES
    with ProgressBar(one.application, page_s) as bar:
        report = await one.backfill_once(options, bar.walked)
    return report, bar.first_prediction_s


def _say_backfill(report: BackfillReport, output: Output) -> None:
    verb = "missing" if report.dry_run else "published"
    output.line(
        f"{report.application}: {report.listed} listed on {report.pages} page(s), {report.known} known, "
        f"{report.published} {verb}, {report.recovered} of them announced by no webhook, "
        f"in {shown_duration(report.seconds)}"
    )
    if report.history:
        output.line(
            f"  {report.history} from before the first walk left alone: `--seed --full` archives them, `--full` acts"
        )
    if report.cut_over is not None:
        output.line(f"  cut-over {report.cut_over.isoformat()}: only what is older is archived without effects")
    if report.left:
        output.line(
            f"  {report.left} left to `sync`, which acts on them: announced by a webhook, younger, or without a time; "
            f"`backfill --since {report.cut_over:%Y-%m-%dT%H:%M:%SZ}` acts on the younger ones at once"
        )
    if report.without_time:
        output.line(
            f"  {report.without_time} archived although no time is found in them: see `consumer doctor --learn`"
        )
    if report.strange:
        output.line(f"  {report.strange} not understood: see `consumer quarantine list`")
    if report.gap:
        output.line("  the service has forgotten events meanwhile: `consumer reconcile` heals by state")


async def _certify(file: Path, since: datetime, until: datetime, application: str | None, output: Output) -> int:
    """0 when it is proved that every listed event is in the ledger and its work done, else 1."""
    if until <= since:
        raise UsageError("--until must be later than --since")
    async with open_syncing(settings_for(Role.OPERATE), application=application, publishes=False) as syncing:
        name, reader = _only(syncing)
        with ProgressBar(name) as bar:
            document = await Certifier(reader, syncing.database, clock=syncing.clock).certify(since, until, bar.paged)
    _write(file, document)
    output.document(document)
    output.line(f"{name}: {document['verdict']}")
    for reason in document["unproven"]:
        output.line(f"  unproven: {DOUBTS.get(reason, reason)}")
    named = ("listed", "received_by_webhook", "recovered", "missing", "outcomes", "followed", "sha256")
    output.fields({word: document[word] for word in named})
    for one in document["equations"]:
        output.line(f"{'holds' if one['holds'] else 'DOES NOT HOLD'}: {one['says']}: {one['left']} = {one['right']}")
    return 0 if document["verdict"] == "complete" else 1


def _verify(file: Path, output: Output) -> int:
    """0 when the certificate in the file is intact, whatever it says; else 1."""
    try:
        document = orjson.loads(file.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise UsageError("the file cannot be read as a certificate", file=str(file)) from error
    document = document if isinstance(document, dict) else {}
    found = faults(document)
    output.document({"intact": not found, "faults": found, "verdict": document.get("verdict")})
    output.line("not intact: " + "; ".join(found) if found else f"intact; it says: {document['verdict']}")
    return 1 if found else 0


def _write(file: Path, document: dict[str, Any]) -> None:
    try:
        file.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")
    except OSError as error:
        raise UsageError(f"the certificate cannot be written: {error.strerror}", file=str(file)) from error


def _only(syncing: Syncing) -> tuple[str, Reader]:
    if len(syncing.readers) > 1:
        raise UsageError("a certificate is for one application: say --application")
    return next(iter(syncing.readers.items()))
