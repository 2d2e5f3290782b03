"""`consumer backfill --certificate`, `--verify`: the outage certificate, into a file and out of it (case B27)."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any, Final

import orjson
import typer

from consumer.app.commands.walking import Syncing, open_syncing
from consumer.checks.certificate import Certifier, faults
from consumer.cli.bootstrap import settings_for
from consumer.cli.output import Output
from consumer.cli.walking.progress import PREDICT_PAGES, ProgressBar
from consumer.cli.walking.target_file import TargetFile
from consumer.document import printable
from consumer.errors import UsageError
from consumer.settings import Role
from consumer.sync.api import ApplicationApi

DOUBTS: Final = {
    "list_does_not_reach_back": "the service's list begins after --since, and we received events from before it",
    "times_not_found": "no listed event has a time that the locators find",
    "window_not_over": "the window is not over yet",
}
SHOWN: Final = ("made_at", "listed", "received_by_webhook", "recovered", "missing", "outcomes", "followed", "sha256")


async def certify(file: TargetFile, since: datetime, until: datetime, application: str | None, output: Output) -> int:
    """0 when it is proved that every listed event is in the ledger and its work done, else 1: also when the result,
    which is shown all the same, cannot be written after all."""
    async with open_syncing(settings_for(Role.OPERATE), application=application, publishes=False) as syncing:
        name, api = _only(syncing)
        with ProgressBar(name, await api.predict_s(PREDICT_PAGES) / PREDICT_PAGES) as bar:
            document = await Certifier(api, syncing.database, clock=syncing.clock).certify(since, until, bar.walked)
    problem: UsageError | None = None
    try:
        with file.writing() as target:
            target.write(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")
    except UsageError as error:
        problem = error
    output.document(document)
    _say(document, output)
    if problem is not None:
        typer.echo(printable(problem.line()), err=True)
        return 1
    typer.echo(f"{file.path}: {'the certificate that was there is replaced' if file.replaces else 'written'}", err=True)
    return 0 if document["verdict"] == "complete" else 1


def _say(document: dict[str, Any], output: Output) -> None:
    since, until = document["since"], document["until"]
    output.line(f"{document['application']}, from {since} to {until}: {document['verdict']}")
    for reason in document["unproven"]:
        output.line(f"  unproven: {DOUBTS.get(reason, reason)}")
    output.fields({word: document[word] for word in SHOWN})
    for one in document["equations"]:
        output.line(f"{'holds' if one['holds'] else 'DOES NOT HOLD'}: {one['says']}: {one['left']} = {one['right']}")


def verify(file: Path, output: Output) -> int:
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


def _only(syncing: Syncing) -> tuple[str, ApplicationApi]:
    if len(syncing.apis) > 1:
        raise UsageError("a certificate is for one application: say --application")
    return next(iter(syncing.apis.items()))
