"""`consumer db revision PLUGIN -m TEXT`: the migration that a plugin's models lack, written by Alembic."""

from __future__ import annotations

import os
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated

import typer

from consumer.app.options import BUILT_IN
from consumer.cli.bootstrap import settings_for
from consumer.cli.developing.unmigrated import models_of, packages_of
from consumer.cli.output import Json, Output
from consumer.cli.plugins import registry_of
from consumer.cli.repairing.schema import app
from consumer.errors import NotFound, UsageError
from consumer.ledger.engine import schema
from consumer.ledger.engine.revising import write_revision
from consumer.settings import Role
from consumer.work.registry import Registry


@app.command()
def revision(
    plugin: Annotated[str, typer.Argument(help="The plugin, as `handlers list` shows it.")],
    message: Annotated[str, typer.Option("--message", "-m", help="What it does, in a few words.")],
    empty: Annotated[bool, typer.Option("--empty", help="One that does nothing yet, to move data.")] = False,
    as_json: Json = False,
) -> None:
    """Write a plugin's next migration, from what its models say and its migrations do not make. Needs no database."""
    registry = registry_of(settings_for(Role.OPERATE))
    models = models_of(_package(registry, plugin))
    written = write_revision(plugin, _branch(plugin), models, message, empty=empty)
    output = Output(as_json)
    if written is None:
        output.document({"plugin": plugin, "revision": None, "path": None, "changes": [], "warnings": []})
        output.line(f"nothing to write: the migrations of {plugin} make what its models say")
        return
    shown = Path(os.path.relpath(written.path))
    output.document(
        {"plugin": plugin, "revision": written.revision, "path": str(shown), "changes": list(written.changes),
         "warnings": list(written.warnings)}
    )  # fmt: skip
    output.line(f"{shown}  ({written.revision})")
    for change in written.changes:
        output.line(f"  {change}")
    for warning in written.warnings:
        output.line(f"warning: {warning}")
    output.line("next: read it (a renamed column looks like one removed and one added), then `consumer db upgrade`")


def _package(registry: Registry, plugin: str) -> str:
    """The package of its models. Raises NotFound, UsageError."""
    if plugin in BUILT_IN:
        raise UsageError("the built-in plugins bring their own migrations", plugin=plugin)
    for one in registry.broken:
        if one.plugin == plugin:
            raise UsageError(f"the plugin cannot be loaded: {one.reason}", plugin=plugin)
    if plugin not in (packages := packages_of(registry)):
        raise NotFound("no such plugin is installed; see `consumer handlers list`", plugin=plugin[:100])
    return packages[plugin]


def _branch(plugin: str) -> str:
    """The package of its migrations. Raises UsageError that says what to write where."""
    found = {entry.name: entry.value for entry in entry_points(group=schema.GROUP)}
    if plugin not in found:
        raise UsageError(
            f"it names no migrations: make a package for them, write in pyproject.toml "
            f'[project.entry-points."{schema.GROUP}"] {plugin} = "PACKAGE.migrations", and install it again',
            plugin=plugin,
        )
    return found[plugin]
