"""Version: what one process found when it loaded the plugins, and whether it may take over. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from consumer.cli.developing.misuse import misused
from consumer.work.inspection import Problem, inspect_plugins, warnings_of
from consumer.work.registry import Registry


@dataclass(frozen=True, kw_only=True)
class Version:
    """`plugins`: the names of each one's handlers. `broken`: why one cannot be loaded. `refused`: why there can be no
    worker at all with these plugins. `files`: the author's, that were imported."""

    plugins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    broken: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    def reasons_against(self, serving: Version | None) -> list[str]:
        """Why it may not take over from the version that serves: an empty list when it may. A plugin that works must
        not be lost by a typing error; one that never worked keeps nobody else's from being live."""
        if self.refused or serving is None:
            return list(self.refused)
        return [f"{name}: {why}" for name, why in self.broken.items() if name in serving.plugins]


def version_of(registry: Registry, files: Iterable[str]) -> Version:
    """What was loaded."""
    plugins: dict[str, tuple[str, ...]] = {}
    for handler in registry.handlers:
        plugins[handler.plugin] = (*plugins.get(handler.plugin, ()), handler.name)
    broken = {one.plugin: one.reason for one in registry.broken}
    problems = [one for one in inspect_plugins(registry) if not (one.plugin in broken and one.handler is None)]
    return Version(
        plugins=plugins,
        broken=broken,
        problems=_lines([*problems, *misused(registry)]),
        warnings=_lines(warnings_of(registry)),
        files=tuple(files),
    )


def version_from(document: Mapping[str, Any]) -> Version:
    """The same from JSON."""
    lists = {name: tuple(document[name]) for name in ("problems", "warnings", "refused", "files")}
    return Version(
        plugins={name: tuple(handlers) for name, handlers in document["plugins"].items()},
        broken=dict(document["broken"]),
        **lists,
    )


def _lines(problems: Iterable[Problem]) -> tuple[str, ...]:
    return tuple(one.line() for one in problems)
