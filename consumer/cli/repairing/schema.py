"""`consumer db …`: the schema."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout, suppress

import typer

from consumer.cli.bootstrap import run, settings_looking
from consumer.cli.output import Json, Output
from consumer.cli.plugins import registry_of
from consumer.document import printable
from consumer.errors import ConsumerError
from consumer.ledger import Database
from consumer.ledger.engine import schema as ledger_schema
from consumer.ledger.engine.schema import SchemaState

app = typer.Typer(help="The database schema.", no_args_is_help=True)


@app.command()
def upgrade(as_json: Json = False) -> None:
    """Bring the database to this version: the ledger's tables and every plugin's; exit 1 when it does not fit then. A
    plugin that cannot be loaded is a warning."""
    found = run(_with_database(upgrade=True))
    _show(found, as_json)
    if not found.is_current:
        raise typer.Exit(1)


@app.command()
def current(as_json: Json = False) -> None:
    """Show which migrations the database has; exit 1 when one is missing, or when a newer version changed what this one
    needs; 0 when a newer version only added to it. 2 when there is no database."""
    found = run(_with_database(upgrade=False))
    _show(found, as_json)
    if not found.is_current:
        raise typer.Exit(1)


async def _with_database(*, upgrade: bool) -> SchemaState:
    settings = settings_looking()
    with suppress(ConsumerError):
        for one in registry_of(settings).broken:  # the tables of the others are loaded with them, and so compared
            typer.echo(printable(f"warning[plugins_broken]: {one.plugin} cannot be loaded: {one.reason}"), err=True)
    database = Database(settings.database_url.get_secret_value(), pool_size=2, create=upgrade)
    try:
        with redirect_stdout(sys.stderr):  # what a migration prints is no part of the answer
            return await (ledger_schema.upgrade(database) if upgrade else ledger_schema.state(database))
    finally:
        await database.stop()


def _show(found: SchemaState, as_json: bool) -> None:
    output = Output(as_json)
    missing = sorted(found.missing)
    output.document(
        {
            "state": found.word,
            "current": sorted(found.current),
            "wanted": sorted(found.wanted),
            "missing": missing,
            "lacking": list(found.lacking),
            "unknown": sorted(found.unknown),
        }
    )
    output.line(f"schema at {', '.join(sorted(found.current)) or 'nothing'}")
    if missing:
        output.line(f"missing: {', '.join(missing)}; run `consumer db upgrade`")
    elif (error := found.refusal) is not None:
        output.line(f"incompatible: this version needs {', '.join(found.lacking)}")
        output.line(f"  {error.message}")
    elif found.unknown:
        newer = ", ".join(sorted(found.unknown))
        output.line(f"newer, compatible: unknown to this version: {newer}; what this version needs is there")
    else:
        output.line("up to date")
