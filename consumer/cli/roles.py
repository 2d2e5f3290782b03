"""The roles: `serve`, `work`, `sync`, `console`, each in a process of its own."""

from __future__ import annotations

from typing import Annotated

import typer

from consumer.app import App
from consumer.cli.bootstrap import run, run_role, settings_for
from consumer.cli.output import Json, Output
from consumer.cli.supervisor import serve_many
from consumer.settings import Role


def serve(
    processes: Annotated[
        int,
        typer.Option(min=1, max=64, help="So many on one public port; CONSUMER_INTERNAL_PORT is the first one's."),
    ] = 1,
    beside: Annotated[bool, typer.Option("--beside", hidden=True, help="One of several.")] = False,
    as_json: Json = False,
) -> None:
    """Receive webhooks and put them on the log."""

    async def build(app: App) -> None:
        await app.internal()
        await app.receive(shares_port=beside)

    settings, output = settings_for(Role.SERVE), Output(as_json)
    if processes > 1:
        run(serve_many(settings, output, processes))
    else:
        run(run_role(settings, output, build, ends_with_input=beside))


def work(as_json: Json = False) -> None:
    """Run handlers on events."""

    async def build(app: App) -> None:
        await app.internal()
        await app.work()

    run(run_role(settings_for(Role.WORK), Output(as_json), build))


def sync(as_json: Json = False) -> None:
    """Read the service: confirm hints, do the reads that handlers asked for."""

    async def build(app: App) -> None:
        await app.internal()
        await app.sync()

    run(run_role(settings_for(Role.SYNC), Output(as_json), build))


def console(as_json: Json = False) -> None:
    """Serve the query API and the operator's pages."""
    from consumer.cli.looking.background_status import background_status

    async def build(app: App) -> None:
        await app.internal(console=True, status=background_status(app.settings))

    run(run_role(settings_for(Role.CONSOLE), Output(as_json), build))
