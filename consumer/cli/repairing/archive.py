"""`consumer prune`, `consumer events export`, `consumer events import`: bodies out of the ledger, and back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import asdict
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import orjson
import typer
from sqlalchemy.ext.asyncio import AsyncSession

from consumer import __version__
from consumer.archive.bring import bring, check
from consumer.archive.export import export
from consumer.archive.file import written_at
from consumer.archive.prune import Prune, Pruned
from consumer.archive.trail import bring_trail, is_trail
from consumer.cli.bootstrap import ledger, run, settings_looking
from consumer.cli.consent import ReasonToAct, Yes, actor, checked_reason, consent
from consumer.cli.looking.events import app as events_app
from consumer.cli.output import Json, Output
from consumer.cli.repairing.rebuild import WORKS, require_rest
from consumer.cli.walking.alone import alone, leader_of
from consumer.clock import SystemClock
from consumer.errors import UsageError, WorkGoesOn
from consumer.ledger import Database, audit
from consumer.ledger.archiving import bodies, derivation
from consumer.ledger.archiving.bodies import Brought
from consumer.ledger.archiving.observed import without_state
from consumer.ledger.engine.database_time import shared_clock, shared_time
from consumer.ledger.leases import IMPORT
from consumer.settings import Settings
from consumer.settings.values import age

FILES_MAX: Final = 1000
MOVED: Final = (*WORKS, "sync", "console")
"""Roles that rest while a ledger moves: what they said last would be left behind."""

Folder = Annotated[
    str | None, typer.Option("--archive", metavar="DIR", help="Folder of the archives; or CONSUMER_ARCHIVE_DIR.")
]


def prune(
    older_than: Annotated[str, typer.Option("--older-than", metavar="AGE", help="As in 90d, 12w, 36h.")],
    archive: Folder = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be taken out, and do nothing.")] = False,
    reason: ReasonToAct = "",
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Take the bodies of settled events out of the ledger, into archives that were read back before. Everything that
    decides stays: ids, runs, keys, the audit trail. `consumer events import` brings a body back."""
    settings, output = settings_looking(), Output(as_json)
    least, folder = _age(older_than), _folder(archive, settings, writes=not dry_run)
    if not dry_run:
        reason = checked_reason(reason)
        consent(f"take the bodies of settled events older than {older_than} out, into {folder}?", yes=yes)

    async def pruned() -> Pruned:
        async with ledger(settings, whole=True) as database:
            before = await _now(database) - least
            clock = await shared_clock(database)
            leader = leader_of(database, clock)
            made = Prune(
                database, folder, clock=clock, written_by=__version__, by=actor(),
                reason=reason or None, may_go_on=lambda: leader.token, on_file=_progress(output),
            )  # fmt: skip
            if dry_run:
                return await made.look(before)
            return await alone(database, leader, output.line, lambda: made.run(before))

    found = run(pruned())
    output.document({"dry_run": dry_run, **asdict(found)})
    done = "would be taken out" if dry_run else f"taken out into {len(found.files)} file(s)"
    output.line(f"{found.events} bodies ({found.bytes} bytes) {done}; {found.kept} as old are still needed")


@events_app.command("export")
def export_events(archive: Folder = None, as_json: Json = False) -> None:
    """Copy all events with their runs into archives, with `work` and `sync` stopped; nothing is taken out. With what
    was pruned and an `audit export` it is all that `rebuild` needs in an empty database."""
    settings, output = settings_looking(), Output(as_json)
    folder = _folder(archive, settings)

    async def exported() -> Pruned:
        async with ledger(settings, whole=True) as database:
            await require_rest(database, MOVED)  # what is sent, recorded or read meanwhile would be in no file
            clock, began = await shared_clock(database), await _now(database)
            leader = leader_of(database, clock)
            written = partial(export, database, folder, clock=clock, written_by=__version__)
            done = await alone(database, leader, output.line, written)
            try:
                await require_rest(database, MOVED, since=began)
            except WorkGoesOn:
                for name in done.files:
                    (folder / name).unlink()
                raise
            return done

    found = run(exported())
    output.document(asdict(found))
    output.line(f"{found.events} events ({found.bytes} bytes) written into {len(found.files)} file(s)")


@events_app.command("import")
def import_events(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE|DIR...", help="Archives; or one `audit export`; or a folder of them.")
    ],
    missing: Annotated[
        bool,
        typer.Option("--missing", help="Also events that the ledger lacks, as they were, with their runs; no `work`."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Bring the bodies in archives back. All files are verified before anything of one comes in; again changes nothing.
    Exit 1 when a file holds events that the ledger lacks."""
    files = [one for given in files for one in _files_of(given)]
    if len(files) > FILES_MAX:
        raise UsageError("too many files at once", most=FILES_MAX)
    output = Output(as_json)
    found, unread = run(_imported(settings_looking(), files, missing=missing, output=output))
    names = [f"{application}/{event_id}" for application, event_id in found.named]
    output.document({"events": found.events, "bodies": found.bodies, "there": found.there,
                     "missing": found.missing, "without_state": unread})  # fmt: skip
    output.line(f"{found.bodies} bodies are back, {found.there} were there; {found.events} events came in with theirs")
    if unread:
        output.line(f"of {', '.join(unread)} nothing that was read of orders and subscriptions is in these files: what "
                    "is paid there by now, and no event tells of, counts as history (deploy/backup.md)")  # fmt: skip
    if found.missing:
        output.line(f"{found.missing} events are not in this ledger, as {', '.join(names)}: --missing takes them in")
        raise typer.Exit(1)


async def _imported(
    settings: Settings, files: Sequence[Path], *, missing: bool, output: Output
) -> tuple[Brought, Sequence[str]]:
    """What came in, and `without_state`. What brings in what is missing does so alone: two of them would take the same
    event in twice, and a rebuild beside it would derive from half of it. Raises AnotherLeads."""
    async with ledger(settings, whole=True) as database:
        brought = partial(_brought, database, files, missing=missing, output=output)
        if not missing:
            return await brought()
        await require_rest(database, MOVED)
        return await alone(database, leader_of(database, SystemClock(), IMPORT), output.line, brought)


async def _brought(
    database: Database, files: Sequence[Path], *, missing: bool, output: Output
) -> tuple[Brought, Sequence[str]]:
    found, in_turn = Brought(), _in_turn(files)
    for file in in_turn:  # all of them, before anything of one comes in: a ledger with half of its past looks whole
        if not is_trail(file):
            await asyncio.to_thread(check, file)
    async with _without_work(database, [file.name for file in in_turn]) if missing else nullcontext():
        for file in in_turn:
            if is_trail(file):
                trail = await bring_trail(database, file)
                output.line(f"{file.name}: {trail.entries} entries of the audit trail")
                continue
            one = await bring(database, file, brings_missing=missing)
            async with database.transaction() as session:
                await _note(session, file, one)
            output.line(f"{file.name}: {one.bodies} bodies, {one.events} events")
            found += one
        async with database.transaction() as session:
            if lacking := await bodies.take_first_walks(session, found.first_walks):
                output.line(f"{lacking} events of the export are lacking: give all of its files before the roles start")
            unread = without_state(found, await bodies.baselined(session))
    if found.events:
        output.line("the plugins' tables tell nothing of these yet: before a role starts, `consumer rebuild all`")
    return found, unread


@asynccontextmanager
async def _without_work(database: Database, files: Sequence[str]) -> AsyncIterator[None]:
    """No worker begins while events of these files come in. One that was started since the last look is found: it says
    that it lives before it looks whether it may begin. Raises WorkGoesOn."""
    async with database.transaction() as session:
        began = await derivation.begin(session, files)
    whole: Sequence[str] = ()
    try:
        await require_rest(database, MOVED)
        yield
        whole = files
    finally:
        async with database.transaction() as session:
            await derivation.end(session, began, whole=whole)


def _files_of(given: Path) -> Sequence[Path]:
    """Those of a folder, where it is one: where no shell is in between, as in a pod, nobody expands `DIR/*`. What is
    still being written there has a name that begins with a dot. Raises UsageError for a folder that holds none."""
    try:
        found = sorted(given.glob("[!.]*.jsonl*")) if given.is_dir() else [given]
    except OSError:
        return [given]  # reading it says why
    if not found:
        raise UsageError("no archive lies in this folder", folder=str(given))
    return found


def _in_turn(files: Sequence[Path]) -> list[Path]:
    """A trail first, since a ledger with a note of its own takes none; then the newest archive, since of an event that
    lies in two the newer one knows how its runs stand."""
    trails = [file for file in files if is_trail(file)]
    archives = [file for file in files if file not in trails]
    return [*trails, *sorted(archives, key=written_at, reverse=True)]


async def _note(session: AsyncSession, file: Path, found: Brought) -> None:
    audit.note(
        session,
        at=await shared_time(session),
        application="",
        actor=actor(),
        action="archive.imported",
        subject=f"archive:{file.name[:100]}",
        after=orjson.dumps({"events": found.events, "bodies": found.bodies}).decode(),
    )


async def _now(database: Database) -> datetime:
    async with database.reading() as session:
        return await shared_time(session)


def _age(text: str) -> timedelta:
    try:
        return age(text)
    except ValueError as error:
        raise UsageError(f"--older-than {error}") from error


def _folder(given: str | None, settings: Settings, *, writes: bool = True) -> Path:
    """The folder that was named. An empty name is none, and not the current folder: a shell makes it of a variable that
    only the roles have. Raises UsageError."""
    folder = settings.archive_dir if given is None else Path(given)
    if folder is None or given == "":
        raise UsageError("where to? --archive DIR, or CONSUMER_ARCHIVE_DIR")
    if writes and folder.exists() and not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise UsageError("the folder of the archives cannot be written", folder=str(folder))
    return folder


def _progress(output: Output) -> Callable[[Pruned], None]:
    def told(done: Pruned) -> None:
        output.line(f"{done.files[-1]}: {done.events} bodies so far")

    return told
