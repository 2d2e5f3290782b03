"""Branches: where migrations are, the ledger's and every plugin's (entry-point group `consumer.migrations`)."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

from consumer.errors import HandlerInvalid

GROUP = "consumer.migrations"
LEDGER = "ledger"
BUILT_IN = "handlers"
"""The package of the plugins that come with the consumer."""


def branches() -> Mapping[str, Path]:
    """Branch label to the folder of its migrations. Raises HandlerInvalid for a package that cannot be imported."""
    found = {LEDGER: Path(__file__).parents[1] / "migrations" / "versions"}
    for entry in entry_points(group=GROUP):
        try:
            package = import_module(entry.value)
        except (Exception, SystemExit) as error:
            raise HandlerInvalid("a plugin's migrations cannot be imported", plugin=entry.name) from error
        found[entry.name] = Path(package.__path__[0]) / "versions"
    return found


def of_merchants() -> frozenset[str]:
    """The labels of branches that merchants' plugins bring: theirs to write a migration for."""
    return frozenset(one.name for one in entry_points(group=GROUP) if one.value.partition(".")[0] != BUILT_IN)
