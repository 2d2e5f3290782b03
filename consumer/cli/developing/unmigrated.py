"""Unmigrated: models of plugins for which no migration makes the table, and their columns that SQLite takes and
PostgreSQL does not, for `consumer handlers check`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from importlib.metadata import entry_points
from typing import Any

from sqlalchemy import DateTime
from sqlmodel.main import default_registry

from consumer.app.options import BUILT_IN
from consumer.ledger.engine import schema
from consumer.testing.migrated import NotTakenBack, assert_migrated
from consumer.work.inspection import Problem
from consumer.work.migrations import at_migration
from consumer.work.place import shown, told_import
from consumer.work.registry import Registry

TEXT_MAX_CHARS = 300
UNZONED = "in which PostgreSQL takes none of an event's: declare it as consumer.plugin.UtcDateTime"


def unmigrated(registry: Registry) -> list[Problem]:
    """One problem for each package whose migrations do not make what its models say, or for each of its branches; the
    built-in ones are tested. A package without migrations is asked for them at the plugin that declares its models."""
    branches = {entry.name: entry.value for entry in entry_points(group=schema.GROUP)}
    found = []
    for package, plugins in _plugins_of(registry).items():
        models = models_of(package)
        for plugin in [one for one in plugins if one in branches] or [_declaring(models, plugins, registry)]:
            if models and (text := _wrong(plugin, models, branches.get(plugin))) is not None:
                found.append(Problem(plugin=plugin, text=text))
    return found


def without_a_zone(registry: Registry) -> list[Problem]:
    """A warning for each column that takes a time without saying of which zone: on SQLite, and so in tests, it takes
    `event.received_at`; on PostgreSQL each run that writes it fails."""
    return [
        Problem(
            plugin=_declaring([model], plugins, registry),
            text=f"{column} is a time without a zone, {UNZONED} ({_place(model)})",
        )
        for package, plugins in _plugins_of(registry).items()
        for model in models_of(package)
        for column in model.__table__.columns
        if isinstance(column.type, DateTime) and not column.type.timezone
    ]


def packages_of(registry: Registry) -> Mapping[str, str]:
    """Each plugin and the package of its handlers."""
    modules = {handler.plugin: handler.function.__module__ for handler in registry.handlers}
    return {plugin: name.rpartition(".")[0] or name for plugin, name in modules.items() if plugin not in BUILT_IN}


def _plugins_of(registry: Registry) -> Mapping[str, list[str]]:
    """Each package, and the plugins that have their handlers in it."""
    packages, found = packages_of(registry), dict[str, list[str]]()
    for plugin in sorted(packages):
        found.setdefault(packages[plugin], []).append(plugin)
    return dict(sorted(found.items()))


def _declaring(models: Sequence[type[Any]], plugins: Sequence[str], registry: Registry) -> str:
    """The plugin in whose module one of these models is declared; the first where it is in none's."""
    modules = {(one.plugin, one.function.__module__) for one in registry.handlers}
    declaring = (one for one in plugins if any((one, model.__module__) in modules for model in models))
    return next(declaring, plugins[0])


def models_of(package: str) -> list[type[Any]]:
    """The tables' models that its modules declare."""
    classes = (mapper.class_ for mapper in default_registry.mappers)
    return [one for one in classes if one.__module__ == package or one.__module__.startswith(f"{package}.")]


def _place(model: type[Any]) -> str:
    """The file and line of a model."""
    try:
        return f"{shown(inspect.getsourcefile(model) or '')}:{inspect.getsourcelines(model)[1]}"
    except (OSError, TypeError):
        return model.__module__


def _wrong(plugin: str, models: Sequence[type[Any]], branch: str | None) -> str | None:
    tables = ", ".join(sorted(str(model.__table__.name) for model in models))
    places = f"({', '.join(map(_place, models))})"
    cure = f"`consumer db revision {plugin} -m TEXT` writes one {places}"
    if branch is None:
        what = f'no migration makes its table(s) {tables}: name a package in [project.entry-points."{schema.GROUP}"]'
        return f"{what}; {cure}"
    try:
        with redirect_stdout(sys.stderr):  # what a migration prints: stdout may be one JSON document
            assert_migrated(*models, migrations=branch)
    except NotTakenBack as error:
        return f"{error} {places}"
    except AssertionError as error:
        return "; ".join(line.strip() for line in str(error).splitlines()).replace(":;", ":") + f"; {cure}"
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a migration is a plugin's own code
        at = at_migration(error)
        return f"its migrations cannot be run: {told_import(error, [], TEXT_MAX_CHARS - len(at))}{at}"
    return None
