"""`consumer status`: how things stand."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import typer
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.app.options import BUILT_IN, left_out
from consumer.broker import GroupReport
from consumer.causes import cure_of
from consumer.cli.bootstrap import ledger, looking, run
from consumer.cli.looking.disks import disks, judge_disk
from consumer.cli.looking.evidence.readers import kept_now, to_judge
from consumer.cli.looking.log import ask, judge_log, remembered, strangers
from consumer.cli.looking.status_finding import Finding, Grade, worst
from consumer.cli.looking.verdict import WALK_LATE_S, judge
from consumer.cli.output import Json, Output
from consumer.cli.output import shown as shown_value
from consumer.cli.plugins import registry_of
from consumer.console.alarms.late_decisions import late_decisions
from consumer.console.alarms.lives import is_of_now
from consumer.console.alarms.queues import queues
from consumer.console.alarms.unfulfilled import HeldOrder, Waiting, longest_held, unfulfilled
from consumer.console.alarms.unread import Unread, overdue, unread
from consumer.console.invariants import kept as accounts
from consumer.console.labels import LEDGER, READING
from consumer.errors import (
    DatabaseForbidden,
    DatabaseMissing,
    LedgerError,
    LedgerSlow,
    LedgerUnavailable,
    SettingsError,
)
from consumer.ledger import Database, health, processes
from consumer.ledger.archiving import passes
from consumer.ledger.engine.database import COMMIT_LATE_S, server_of, user_of
from consumer.ledger.engine.database_time import shared_time
from consumer.ledger.engine.grants import require_grants
from consumer.ledger.health import Figures
from consumer.ledger.processes import USER, Process
from consumer.ledger.reading import hints, sync_state
from consumer.settings import Role, Settings
from consumer.settings.load import problems_for
from consumer.sync.health.status import ApplicationStatus, application_statuses

WALKS_LATE = 5
SHOWN_FOR = timedelta(hours=1)
LOOK_WITHIN_S = 25.0
LOCK_S = 5.0
WRITE_LATE_S = COMMIT_LATE_S + 1.0
TOLD_APART = ("application", "held_up", "missing")
UNHEARD_AFTER = timedelta(seconds=10)
PROBLEMS_MAX = 3
RUNBOOKS_MAX = 20


@dataclass(kw_only=True)
class Look:
    """What was found out, as far as it could be."""

    findings: list[Finding] = field(default_factory=list)
    figures: Figures | None = None
    processes: list[Process] = field(default_factory=list)
    groups: list[GroupReport] = field(default_factory=list)
    waiting: list[Waiting] = field(default_factory=list)
    held: list[HeldOrder] = field(default_factory=list)
    reading: list[ApplicationStatus] = field(default_factory=list)
    lost: list[Unread] = field(default_factory=list)


def status(as_json: Json = False) -> None:
    """How things stand; exit 0 healthy, 1 degraded, 2 stuck (orders wait), 3 it could not be known."""
    try:
        settings, problems = looking()
    except SettingsError as error:
        found = Look(findings=[Finding(Grade.UNKNOWN, error.code, problem) for problem in error.problems])
    else:
        found = run(look(settings, problems))
    output = Output(as_json)
    output.document(document(found))
    _print(output, found)
    raise typer.Exit(int(worst(found.findings)))


def document(found: Look) -> dict[str, Any]:
    """What was found out, as JSON has it."""
    return {
        "status": worst(found.findings).name.lower(),
        "findings": [{"grade": f.grade.name.lower(), "code": f.code, "text": f.text} for f in found.findings],
        "processes": [asdict(one) for one in found.processes],
        "groups": [asdict(one) for one in found.groups],
        "unfulfilled": [one.document() for one in found.waiting],
        "held": [asdict(one) for one in found.held],
        "reading": [asdict(one) for one in found.reading],
        "unread": [asdict(one) for one in found.lost],
        **(asdict(found.figures) if found.figures else {}),
    }


def _print(output: Output, found: Look) -> None:
    output.line(worst(found.findings).name.lower())
    for finding in found.findings:
        output.line(f"  {finding.grade.name.lower()}: {finding.text} [{finding.code}]")
    figures = asdict(found.figures) if found.figures else {}
    runbooks = list(figures.pop("runbooks", {}).items())
    for handler, text in runbooks[:RUNBOOKS_MAX] if found.findings else ():
        output.line(f"  runbook of {handler}: {text}")
    output.fields({LEDGER[name]: value for name, value in figures.items()})
    for one in found.processes:
        output.line(_process_line(one))
    for group in found.groups:
        since = f", the oldest since {shown_value(group.oldest_at)}" if group.oldest_at else ""
        output.line(f"group {group.group}: {group.members} member(s), {group.records} record(s) wait{since}")
    for order in found.waiting:
        oldest = shown_value(order.oldest_at)
        output.line(f"{order.application}: {order.count} paid, not fulfilled ({order.reason}), the oldest at {oldest}")
    for held in found.held:
        since = shown_value(held.paid_at)
        output.line(f"{held.application}: order {held.order_id} is held ({held.hold}), paid at {since}")
    for asked in found.lost:
        oldest = shown_value(asked.oldest_at)
        output.line(f"{asked.application}: {asked.count} read(s) wait for API credentials, the oldest since {oldest}")
    for reading in found.reading:
        output.line(reading.application)
        facts = {name: value for name, value in asdict(reading).items() if name not in TOLD_APART}
        output.fields({f"  {READING[name]}": value for name, value in facts.items()})
        for stage in reading.held_up:
            output.line(f"  {stage.stage} is held up since {shown_value(stage.since)}: {stage.code}")


def _process_line(one: Process) -> str:
    state = "stopped" if one.stopped_at is not None else "ready" if one.ready else "not ready"
    wrong = ", ".join(f"{name}: {proof.code}" for name, proof in one.checks.items() if proof.code is not None)
    since, seen = shown_value(one.stopped_at or one.since), shown_value(one.seen_at)
    line = f"{one.role} {one.version} (pid {one.pid} on {one.host}): {state} since {since}, seen {seen}"
    return f"{line} [{wrong}]" if wrong else line


def _with_what_keeps_it(finding: Finding, known: Sequence[str]) -> Finding:
    """A role that is gone may be kept from coming back by settings that keep no one else."""
    role = finding.code.removeprefix("no_")
    if role == finding.code or role not in set(Role):
        return finding
    problems = [one for one in problems_for(os.environ, Role(role)) if one not in known]
    text = f"{finding.text}; with the settings here it would not start: {'; '.join(problems[:PROBLEMS_MAX])}"
    return replace(finding, text=text) if problems else finding


def _forbidden_to_who_looks(error: LedgerError, settings: Settings, listed: Sequence[Process]) -> Finding | None:
    """What may be forbidden to this user alone: no role was ever heard as this one."""
    theirs = {one.said[USER] for one in listed if USER in one.said}
    mine = user_of(settings.database_url.get_secret_value())
    if not isinstance(error, DatabaseForbidden) or not theirs or mine in theirs:
        return None
    text = f"as {mine}, as whom no role was heard yet: {error.sentence()}{_cure(error)}"
    return Finding(Grade.DEGRADED, error.code, text)


def _unwritable(error: LedgerError) -> Finding:
    text = f"the ledger takes no write: {error.sentence()}{_cure(error)}"
    return Finding(Grade.STUCK, error.code, text)


def _asked(error: LedgerError, settings: Settings) -> str:
    """Which server was asked, where none answered."""
    server = server_of(settings.database_url.get_secret_value())
    return f" (asked: {server})" if server and isinstance(error, LedgerUnavailable) else ""


def _cure(error: LedgerError) -> str:
    cure = cure_of(error.code)
    return f" ({cure})" if cure else ""


async def look(settings: Settings, problems: Sequence[str]) -> Look:
    """Ask the ledger, the log, the disks and the plugins; within half a minute, whatever they do. `problems`: what is
    wrong with the settings."""
    found = Look()
    try:
        async with _in_time(), ledger(settings, lock_s=LOCK_S) as database:
            async with database.reading() as session:
                # By the database's clock: this machine's may be wrong, and the processes' too.
                found.figures = figures = await health.figures(session, await shared_time(session))
                found.processes = await processes.listed(session)
                found.waiting = await unfulfilled(session)
                found.held = await longest_held(session)
                found.reading = await _reading(session, settings, found.processes, figures.at)
                without = [one.name for one in settings.applications if not one.has_credentials]
                found.lost = await unread(session, without, figures.at)
                late_reads = await overdue(session, figures.at)
                late = await late_decisions(session, figures.at)
                broken = await accounts.wrong(session, figures.at)
                open_queues = await queues(session)
                memories = await remembered(session, settings)
                last_pass = await passes.load(session)
            registry = registry_of(settings)  # its plugins bring tables, which somebody may hold locked
            # This may wait for seconds, and who reads so long keeps others waiting.
            refused = await _why_unheard(database, found.processes, figures.at)
    except LedgerError as error:
        told = Finding(Grade.UNKNOWN, error.code, error.sentence() + _asked(error, settings) + _cure(error))
        if isinstance(error, DatabaseMissing):
            return Look(findings=[told])  # nothing was set up here yet
        return Look(findings=[told, *judge_log(await ask(settings), datetime.now(UTC))])
    seen = await ask(settings)
    if any(strangers(report, found.processes) for report in seen.groups):
        found.processes = await _told_since(settings) or found.processes
    low = [finding for disk in disks(settings) for finding in judge_disk(disk)]
    found.groups = list(seen.groups)
    forbidden = None if refused is None else _forbidden_to_who_looks(refused, settings, found.processes)
    found.findings = judge(
        figures,
        unfulfilled=found.waiting,
        queues=open_queues,
        broken_plugins=[plugin.plugin for plugin in registry.broken],
        left_out=left_out(registry, settings.handlers),
        log=[*judge_log(seen, figures.at, memories=memories, statuses=found.reading, processes=found.processes), *low],
        shippers=registry.shippers,
        application_statuses=found.reading,
        walk_late_s=max(WALK_LATE_S, WALKS_LATE * settings.sync_interval_s),
        processes=found.processes,
        expected=settings.expect,
        expected_within=timedelta(days=settings.expect_days),
        settings_problems=problems,
        unproved_max_bytes=settings.unproved_max_bytes,
        last_pass=last_pass,
        late_reads=late_reads,
        late=late,
        accounts=broken,
        unwritable=None if refused is None or forbidden is not None else _unwritable(refused),
    )
    found.findings += [forbidden] if forbidden is not None else []
    found.findings = [_with_what_keeps_it(finding, problems) for finding in found.findings]
    found.processes = [one for one in found.processes if figures.at - one.seen_at <= SHOWN_FOR]
    return found


async def _told_since(settings: Settings) -> list[Process]:
    """The processes once more: one that began after the first look reads by now, and is no stranger."""
    with suppress(LedgerError):
        async with _in_time(), ledger(settings, lock_s=LOCK_S) as database, database.reading() as session:
            return await processes.listed(session)
    return []


async def _reading(
    session: AsyncSession, settings: Settings, known: Sequence[Process], now: datetime
) -> list[ApplicationStatus]:
    """How the service is read, of each application that is."""
    ever = await sync_state.applications(session)
    lately = await sync_state.applications(session, now - processes.FORGOTTEN_AFTER)
    kept = kept_now(known, now, ever=ever, lately=lately, within=timedelta(days=settings.expect_days))
    waiting = [name for name in sorted(ever) if await hints.count(session, name)]
    judged = to_judge(settings.applications, ever=ever, kept=kept, waiting=waiting)
    return await application_statuses(session, judged, now, kept=kept)


@asynccontextmanager
async def _in_time() -> AsyncIterator[None]:
    """Who looks gets an answer, whatever the ledger does. Raises LedgerSlow."""
    try:
        async with asyncio.timeout(LOOK_WITHIN_S):
            yield
    except TimeoutError as error:
        raise LedgerSlow(within_s=LOOK_WITHIN_S) from error


async def _why_unheard(database: Database, listed: Sequence[Process], now: datetime) -> LedgerError | None:
    """Every process tells the ledger every few seconds that it lives. Where none did, either none lives, or the ledger
    takes no write: that is asked by writing. A write that waits for a replica ends when it is given up, and is there
    all the same: then some are heard now and then; and so they are where one table alone is held."""
    try:
        await database.require_commits()
        await database.require_unlocked()
    except LedgerError as error:
        return error
    living = [one.seen_at for one in listed if one.stopped_at is None]
    if any(is_of_now(seen_at, now, UNHEARD_AFTER) for seen_at in living):
        return None
    probing = asyncio.create_task(database.probe())
    try:
        if not (await asyncio.wait({probing}, timeout=WRITE_LATE_S))[0]:
            await database.require_commits()
        await probing
        await require_grants(database, BUILT_IN)  # it may be that table alone which takes no write
    except LedgerError as error:
        return error
    finally:
        probing.cancel()
        await asyncio.gather(probing, return_exceptions=True)
    return None
