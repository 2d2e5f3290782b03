"""`consumer backfill`: one walk of the service's events, now."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from consumer.app.commands.walking import Syncing, open_syncing
from consumer.app.sync_parts import sync_policy
from consumer.cli.bootstrap import run, settings_for, time_there
from consumer.cli.consent import Yes, actor, checked_reason, consent
from consumer.cli.filters import Application, Since, Until, parse_moment, require_window
from consumer.cli.output import Json, Output
from consumer.cli.walking.certificate import certify
from consumer.cli.walking.certificate import verify as verify_certificate
from consumer.cli.walking.each import each, told
from consumer.cli.walking.lead import BACKFILL, COMMAND, SYNC, Led, Wait, lease_of
from consumer.cli.walking.progress import PREDICT_PAGES, ProgressBar, shown_duration
from consumer.cli.walking.target_file import TargetFile
from consumer.errors import LedgerError, UsageError
from consumer.ledger import audit
from consumer.ledger.engine.database_time import shared_time
from consumer.settings import Role
from consumer.sync.backfill import cutover
from consumer.sync.backfill.report import BackfillOptions, BackfillReport
from consumer.sync.role import ApplicationSync


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
    reason: Annotated[str, typer.Option(help="Why; kept in the audit trail. --seed wants it, a dry run none.")] = "",
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """One walk of the service's events: what the ledger lacks is published."""
    now = _now(since, until)
    begin, end = parse_moment(since, now), parse_moment(until, now)
    output = Output(as_json)
    if verify is not None:
        if any((begin, end, full, seed, dry_run, certificate, application)):
            raise UsageError("--verify FILE goes alone")
        raise typer.Exit(verify_certificate(verify, output))
    require_window(begin, end, now)
    if certificate is not None:
        if begin is None or full or seed or dry_run:
            raise UsageError("--certificate goes with --since and --until only")
        raise typer.Exit(run(certify(TargetFile(certificate, "certificate"), begin, end or now, application, output)))
    if end is not None and not seed:
        raise UsageError("--until goes with --certificate or --seed: a walk always goes up to now")
    if reason or (seed and not dry_run):
        reason = checked_reason(reason)
    if seed and not dry_run:
        consent("archive what the ledger lacks as history, so that no handler ever acts on it?", yes=yes)
    options = BackfillOptions(full=full, since=begin, until=end, seed=seed, dry_run=dry_run)
    raise typer.Exit(run(_backfill(options, application, output, reason, yes=yes)))


def _now(*times: str | None) -> datetime:
    """By the ledger's clock, where somebody says a time: this machine's may be wrong. A ledger that cannot be asked is
    told by the walk, after what is wrong with the words."""
    ours = datetime.now(UTC)
    if not any(parse_moment(one, ours) for one in times):
        return ours
    try:
        return time_there()
    except LedgerError:
        return ours


async def _backfill(
    options: BackfillOptions, application: str | None, output: Output, reason: str, *, yes: bool
) -> int:
    """The exit code: 0 when each application was walked, or another process does it; see `told` for the others."""
    settings = settings_for(Role.OPERATE)
    lease_s = sync_policy(settings).lease_s
    command = BACKFILL if options.follows_bookmark else COMMAND
    async with open_syncing(
        settings, application=application, publishes=not options.dry_run, command=command
    ) as syncing:
        acted_on = await _consent_to_history(syncing, options, yes=yes)
        archives = options.seed and not options.dry_run

        async def walk(one: ApplicationSync) -> dict[str, Any]:
            done = "history.acted_on" if one.app.name in acted_on else "history.archived" if archives else None
            found, predicted_s = await _walk(one, options, syncing, lease_s, done, reason)
            if isinstance(found, Led):
                output.line(f"{one.app.name}: {found.line()}")
                return {"application": one.app.name, "another_leads": True, "led_by": found.by}
            say_report(found, output)
            return {**asdict(found), "another_leads": False, "predicted_s": predicted_s}

        walks, failures = await each(syncing.applications, walk)
    say_unread(syncing, output)
    output.document({"walks": [*walks, *(one.shown() for one in failures)], "without_credentials": syncing.unread})
    return told(failures, walked=bool(walks))


async def _consent_to_history(syncing: Syncing, options: BackfillOptions, *, yes: bool) -> Collection[str]:
    """Ask before history that was left alone is acted on: what was fulfilled elsewhere would be fulfilled again (case
    B30). Returns the applications whose history that is. Raises as `consent`, and LedgerError."""
    if options.seed or options.dry_run or options.reads_bookmark:
        return ()
    left: dict[str, str] = {}
    for name, one in syncing.applications.items():
        floor = await one.backfill.first_walk.floor()
        async with syncing.database.reading() as session:
            count = await cutover.left_alone(session, name)
            is_unknown = floor is None and not await cutover.is_seen_to(session, name)
        is_before = options.since is None or options.since < (floor or syncing.clock.now() - cutover.HISTORY)
        if (count or is_unknown) and is_before:
            left[name] = f"at least {count} were left alone" if count else "nothing has walked here yet"
    if left:
        told = ", ".join(f"{name}: {which}" for name, which in left.items())
        consent(f"act on events from before the first walk ({told})?", yes=yes)
    return left.keys()


def say_unread(syncing: Syncing, output: Output) -> None:
    """Name the applications that were asked for and cannot be read."""
    for name in syncing.unread:
        output.line(f"{name}: has no API credentials; left out")


async def _walk(
    one: ApplicationSync, options: BackfillOptions, syncing: Syncing, lease_s: float, done: str | None, reason: str
) -> tuple[BackfillReport | Led, float | None]:
    """`done`: what the audit trail says of it."""

    async def begins() -> None:
        if done is not None:
            await _note(syncing, one.app.name, options, done, reason)

    page_s = await one.app.api.predict_s(PREDICT_PAGES) / PREDICT_PAGES
    with ProgressBar(one.app.name, page_s) as bar:
        wait = Wait(
            walk=lambda: one.backfill_once(options, bar.walked, begins),
            look=lambda: lease_of(syncing.database, one.leader.role),
            clock=syncing.clock,
            say=bar.say,
            lease_s=lease_s,
            served_by=() if options.seed else (SYNC, BACKFILL),
        )
        return await wait.done(), bar.first_prediction_s


async def _note(syncing: Syncing, application: str, options: BackfillOptions, action: str, reason: str) -> None:
    """Who decided that no handler ever acts on what is older, or that they do. Before it begins: it may be killed in
    the middle."""
    given = {"full": options.full, "since": options.since, "until": options.until}
    async with syncing.database.transaction() as session:
        audit.note(
            session, at=await shared_time(session), application=application, actor=actor(), action=action,
            subject=f"application:{application}", after=orjson.dumps(given).decode(), reason=reason or None,
        )  # fmt: skip


def say_report(report: BackfillReport, output: Output) -> None:
    """What a walk found, in lines for people."""
    verb = "missing" if report.dry_run else "published"
    output.line(
        f"{report.application}: {report.listed} listed on {report.pages} page(s), {report.known} known, "
        f"{report.published} {verb}, {report.recovered} of them announced by no webhook, "
        f"in {shown_duration(report.seconds)}"
    )
    if report.history:
        output.line(
            f"  at least {report.history} from before the first walk left alone: `backfill --seed --full "
            "--reason …` archives them, `backfill --full` acts"
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
    if report.unread:
        again = (
            "the next walk asks" if report.cut_over is None else "not archived; `consumer backfill --seed --full` asks"
        )
        output.line(f"  {report.unread} listed in brief could not be read: {again} for them again")
    if report.refused:
        output.line(
            f"  {report.refused} cursor(s) that the service did not take: what lay behind was looked for from the head"
        )
    if report.gap:
        output.line("  the service has forgotten events meanwhile: `consumer reconcile` heals by state")
