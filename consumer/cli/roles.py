"""The roles: `serve`, `work`, `sync`, `console`, and `dev`, which is all of them; `sandbox`, `demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from consumer.app import App
from consumer.cli.developing import simulator
from consumer.cli.developing.demo import play
from consumer.cli.developing.dev import develop
from consumer.cli.output import Json, Output
from consumer.cli.process import run, run_role, settings_for
from consumer.cli.processes import serve_many
from consumer.settings import Role


def add_to(app: typer.Typer) -> None:
    """Put these commands into the tree."""
    for command in (demo, dev, serve, work, sync, console):
        app.command()(command)
    app.add_typer(simulator.app, name="sandbox")


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave it running and print the addresses.")] = False,
    only: Annotated[list[str] | None, typer.Option(help="Play only this scenario (may be given again).")] = None,
    as_json: Json = False,
) -> None:
    """Everything in one process: plays named scenarios; exit 0 only if every outcome is as expected."""
    raise typer.Exit(run(play(Output(as_json), keep=keep, only=only)))


def dev(
    data: Annotated[Path, typer.Option(help="Folder of the sandbox's state.")] = Path("data"),
    sandbox_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the sandbox; 0 takes a free one.")
    ] = 4010,
    reload: Annotated[
        bool, typer.Option("--reload", help="What is saved in a plugin is live a second later; what is broken is not.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Everything in one process on ./data, stays up; with the sandbox unless SVC_BASE_URL is set."""
    run(develop(settings_for(Role.DEV), Output(as_json), data / "sandbox", sandbox_port, reload=reload))


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
    """Serve the query API."""

    async def build(app: App) -> None:
        await app.internal(console=True)

    run(run_role(settings_for(Role.CONSOLE), Output(as_json), build))
