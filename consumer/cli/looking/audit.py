"""`consumer audit …`: who did what, as a chain that can be taken away and verified without the database."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final

import orjson
import typer

from consumer.cli.bootstrap import ledger, run, settings_looking
from consumer.cli.filters import Limit, more_line, page
from consumer.cli.output import Json, Output, Whole
from consumer.cli.walking.target_file import TargetFile
from consumer.document import printable_json
from consumer.errors import UsageError
from consumer.ledger import Database
from consumer.ledger.audit import by_handler
from consumer.ledger.engine.database_time import shared_time
from consumer.ledger.trail import sealing
from consumer.ledger.trail.chain import Export
from consumer.ledger.trail.sealing import Head
from consumer.ledger.trail.verification import ANCHOR, LINE_MAX, PLANNED, verified

FAULTY: Final = 3
"""The exit code when an export is not as it was written."""

app = typer.Typer(help="The audit trail: who did what, as a chain that can be verified.", no_args_is_help=True)
ExportFile = Annotated[Path, typer.Argument(metavar="FILE", help="An export; `-` is stdin or stdout.")]


@app.command("list")
def list_entries(
    subject: Annotated[str | None, typer.Option(help="Only about this: order:ID, plan:ID, run:…")] = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """The newest entries, newest first. One without a number is not sealed yet."""

    async def load() -> Any:
        async with ledger(settings_looking()) as database, database.reading() as session:
            return await sealing.newest(session, subject, limit + 1)

    found, is_more = page(run(load()), limit)
    output = Output(as_json)
    output.document({"entries": found, "more": is_more})
    names = ["number", "at", "actor", "action", "subject", "reason"]
    rows = [[_why(one) if name == "reason" else one[name] for name in names] for one in found]
    output.table(names, rows, empty="nothing was noted yet")
    if is_more:
        output.line(more_line(limit))


def _why(entry: Mapping[str, Any]) -> str | None:
    """A person's reason; what a handler changed came of an event."""
    return f"event {entry['reason']}" if by_handler(entry["actor"]) and entry["reason"] else entry["reason"]


@app.command()
def export(file: ExportFile, as_json: Json = False) -> None:
    """All of the trail, with the plans, as JSON lines. It is sealed up to now first; a file is replaced at once."""
    output = Output(as_json)
    if str(file) == "-":
        if as_json:
            raise UsageError("--json goes with a file: on stdout there is the export itself")
        whole = Whole()
        # Who looks at it gets it as a terminal may show it; a file, or a command behind a pipe, to the byte.
        shown = printable_json if sys.stdout.isatty() else bytes
        run(_export(lambda line: whole.write(shown(line))))
        whole.end()
        return
    with TargetFile(file).writing() as target:
        end = run(_export(target.write))
    output.document({"file": str(file), **asdict(end)})
    output.line(f"{end.number} entries, the last with hash {end.hash}")


async def _export(write: Callable[[bytes], object]) -> Head:
    async with ledger(settings_looking()) as database:
        end = await sealed_now(database)
        writer = Export(end.number, end.hash)
        write(writer.begin())
        planned: set[str] = set()
        async for entry in _entries(database, end.number):
            if entry["action"] == PLANNED and "sealed" in orjson.loads(entry["after"] or "{}"):
                planned.add(entry["subject"].partition(":")[2])
            write(writer.entry(entry))
        async with database.reading() as session:
            async for plan in sealing.plans(session):
                if plan["id"] in planned:
                    write(writer.plan(plan))
        write(writer.end())
    return end


async def _entries(database: Database, until: int) -> AsyncIterator[Mapping[str, Any]]:
    after = 0
    while after < until:
        async with database.reading() as session:
            found = await sealing.entries(session, after, until)
        if not found:
            return  # somebody took entries out of the ledger: the verification says which
        for entry in found:
            yield entry
        after = found[-1]["number"]


async def sealed_now(database: Database) -> Head:
    """Seal what was noted up to now, and give the end of the chain. Raises LedgerError."""
    while True:
        async with database.transaction() as session:
            if await sealing.seal(session) < sealing.BATCH:
                return await sealing.head(session)


@app.command()
def anchor(as_json: Json = False) -> None:
    """The number and the hash of the last entry, to be kept where nobody who can write the ledger can write."""

    async def load() -> tuple[Head, datetime]:
        async with ledger(settings_looking()) as database:
            end = await sealed_now(database)
            async with database.reading() as session:
                return end, await shared_time(session)

    end, at = run(load())
    document = {"number": end.number, "hash": end.hash, "at": at.isoformat()}
    Output(as_json).document(document)
    if not as_json:
        typer.echo(orjson.dumps(document).decode())


@app.command()
def verify(
    file: ExportFile,
    anchor_file: Annotated[
        Path | None, typer.Option("--anchor", help="What `audit anchor` said once, kept elsewhere.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Whether an export is whole and unchanged; needs no database. Exit 3 names the first line that is not."""
    known = None if anchor_file is None else _anchor(anchor_file)
    try:
        source = sys.stdin.buffer if str(file) == "-" else file.open("rb")
        with source:
            found = verified(iter(lambda: source.readline(LINE_MAX), b""), known)
    except OSError as error:
        raise UsageError("the file cannot be read", file=str(file), cause=error.strerror) from error
    output = Output(as_json)
    anchored = None if known is None else known["number"]
    output.document({"verified": found.fault is None, "anchored": anchored, **asdict(found)})
    if found.fault is None:
        output.line(f"verified: {found.entries} entries, {found.plans} plan(s), the last hash {found.hash}")
        if (anchored or 0) < found.entries:
            since = f"what follows entry {anchored}" if anchored else "any entry"
            output.line(f"no anchor vouches for {since}: who can write the ledger can write it anew")
        return
    output.line(f"refused: {found.fault}; {found.entries} entries before it are as they were written")
    raise typer.Exit(FAULTY)


def _anchor(file: Path) -> Mapping[str, Any]:
    try:
        found = orjson.loads(file.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise UsageError("the anchor cannot be read", file=str(file)) from error
    if not isinstance(found, dict) or not found.keys() >= ANCHOR or not _is_place(found["number"], found["hash"]):
        raise UsageError("this is no anchor: `consumer audit anchor` makes one", file=str(file))
    return found


def _is_place(number: object, its_hash: object) -> bool:
    """Whether the chain could end so; JSON's `true` is a number to Python."""
    return type(number) is int and number >= 0 and isinstance(its_hash, str)
