"""Branches: where migrations are, the ledger's and every plugin's (entry-point group `consumer.migrations`)."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from consumer import DISTRIBUTION

GROUP = "consumer.migrations"
LEDGER = "ledger"
BUILT_IN = "handlers"
"""The package of the plugins that come with the consumer."""
SEVERAL = "several packages bring migrations of this name"
TAKEN = "the built-in migrations have this name, and are run; those of others are not"
NOWHERE = "its migrations are not found, the module named is no package"


@dataclass(frozen=True)
class NotRun:
    """A branch that nobody runs: its label, the packages it would be of, and why, in one line."""

    label: str
    packages: frozenset[str]
    reason: str

    def is_of(self, entry: EntryPoint) -> bool:
        """Whether the plugin that has its handlers there may need tables of that branch."""
        return entry.name == self.label or any(f"{entry.value}.".startswith(f"{one}.") for one in self.packages)


def branches() -> Mapping[str, Path]:
    """Branch label to the folder of its migrations. No plugin's code is run for it: what fails at import, or prints,
    harms nobody else (case H8)."""
    return _found()[0]


def not_run() -> list[NotRun]:
    """The branches that are not among these: no package is there, or several have one label. What was run of them
    before stays as it is, as with a plugin that is gone."""
    return _found()[1]


def _found() -> tuple[dict[str, Path], list[NotRun]]:
    folders, out = {LEDGER: Path(__file__).parents[1] / "migrations" / "versions"}, list[NotRun]()
    given: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=GROUP):
        given.setdefault(entry.name, []).append(entry)
    for label, entries in given.items():
        own = [one for one in entries if is_own(one)]
        others = [one for one in entries if not is_own(one)]
        if others and (own or label == LEDGER):
            out.append(_without(label, others, f"{TAKEN}: {all_brought_by(others)}"))
            others = []
        if is_ambiguous(others):
            out.append(_without(label, others, f"{SEVERAL}: {all_brought_by(others)}; uninstall all but one"))
        elif (own or others) and (folder := _folder_of((own or others)[0].value)) is not None:
            folders[label] = folder / "versions"
        elif others:
            out.append(_without(label, others, f"{NOWHERE}: {all_brought_by(others)}"))
    return folders, out


def _without(label: str, entries: Sequence[EntryPoint], reason: str) -> NotRun:
    return NotRun(label, frozenset(one.value.rpartition(".")[0] or one.value for one in entries), reason)


def _folder_of(package: str) -> Path | None:
    """Where a package is, found as an import finds it, but without its code; None where it is not, or is none."""
    name, places = "", list[str]()
    for part in package.split("."):
        name = f"{name}.{part}" if name else part
        places = _places(name, [str(Path(one, part)) for one in places])
        if not places:
            return None
    return Path(places[0])


def _places(name: str, below: Sequence[str]) -> list[str]:
    """The folders of a package, `below` those of the one that it is in: what it says itself once it is loaded, as one
    may be in several; else its plain folder; else what whoever has the package elsewhere says (an editable install)."""
    if (loaded := sys.modules.get(name)) is not None:
        return list(getattr(loaded, "__path__", ()))
    if plain := [one for one in below if Path(one).is_dir()]:
        return plain
    parents = [str(Path(one).parent) for one in below] or None
    specs = (finder.find_spec(name, parents) for finder in sys.meta_path if hasattr(finder, "find_spec"))
    spec = next((one for one in specs if one is not None), None)
    return [] if spec is None else list(spec.submodule_search_locations or ())


def of_merchants() -> frozenset[str]:
    """The labels of branches that merchants' plugins bring: theirs to write a migration for."""
    return frozenset(one.name for one in entry_points(group=GROUP) if one.value.partition(".")[0] != BUILT_IN)


# --- who brings what, of any group ---------------------------------------------------------------------------------


def is_own(entry: EntryPoint) -> bool:
    """Whether this package brings it itself."""
    return entry.dist is not None and entry.dist.name == DISTRIBUTION


def is_ambiguous(entries: Sequence[EntryPoint]) -> bool:
    """Whether entries of one name do not mean the same module: nobody could say which is meant."""
    return len({entry.value for entry in entries}) > 1


def brought_by(entry: EntryPoint) -> str:
    """The package that brings an entry, and its version."""
    return "a package without a name" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"


def all_brought_by(entries: Sequence[EntryPoint]) -> str:
    """The packages that bring these, each with the module that it means."""
    return " and ".join(sorted(f"{brought_by(entry)} ({entry.value})" for entry in entries))
