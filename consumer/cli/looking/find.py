"""`consumer find ANYTHING`: from any id to what it is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from consumer.cli.bootstrap import ledger, run, settings_looking
from consumer.cli.filters import Application, require_application
from consumer.cli.output import Json, Output
from consumer.console.cure import explain
from consumer.console.find import Found, find_shown, near
from consumer.errors import NotFound
from consumer.settings import Settings

Name = Annotated[str, typer.Argument(metavar="ANYTHING", help="An id of any kind, a customer reference, a key.")]


def find_anything(name: Name, application: Application = None, as_json: Json = False) -> None:
    """What has this id: order, session, payment, subscription, customer, event, delivery, idempotency key."""
    show_found(run(look_up(settings_looking(), name, application)), as_json)


def show_found(found: Sequence[Found], as_json: bool, *, but: tuple[str, str] | None = None) -> None:
    """What was found, and which command tells the rest; of the subject `but` there is no more to tell."""
    output = Output(as_json)
    output.document({"found": [asdict(one) for one in found], "next": []})
    output.table(
        ["kind", "application", "about", "at", "detail"],
        [[one.kind, one.application, about(one), one.at, one.detail] for one in found],
        empty="nothing",
    )
    for line in dict.fromkeys(explain_line(one) for one in found if one.subject not in (None, but)):
        output.line(line)


async def look_up(settings: Settings, name: str, application: str | None) -> list[Found]:
    """Everything of this name, to the letter, or but for what was copied with it at its ends. Raises NotFound that says
    what is near, UsageError for an unknown application."""
    async with ledger(settings) as database, database.reading() as session:
        for tried in dict.fromkeys((name, name.strip())):
            if found := await find_shown(session, tried, application=application):
                return found
        require_application(application, settings)
        alike = await near(session, name.strip(), application=application)
    raise NotFound("nothing has this name", name=name[:100], near=", ".join(alike) or None)


def about(one: Found) -> str:
    """Its subject, as people read it."""
    if one.kind == "replay plan":
        return one.id
    return " ".join(one.subject) if one.subject is not None else "nothing known"


def explain_line(one: Found) -> str:
    """The command that tells the rest."""
    return explain(*(one.subject or ("", "")), one.application)
