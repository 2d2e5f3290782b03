"""Everything in one process: `demo`, which plays and ends, and `dev`, which stays up."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from consumer.cli.bootstrap import run, settings_for
from consumer.cli.developing.demo import play
from consumer.cli.developing.dev import develop
from consumer.cli.output import Json, Output
from consumer.settings import Role


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
