"""Saves: when something of a merchant's plugins changed on the disk.

Looked at by their times and sizes, a few times a second: plugins are small, and nothing else is needed for it.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import site
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from consumer.app.options import BUILT_IN
from consumer.ledger.engine import schema
from consumer.work.registry import GROUP

LOOK_EVERY_S = 0.2
SETTLED_S = 0.1
FILES_MAX = 5000
_PASSED_OVER = ("__pycache__", "node_modules")

Look = Mapping[str, tuple[int, int]]


class Saves:
    """`extra`: source files of the author's that no plugin's package holds, as the last load told them."""

    def __init__(self) -> None:
        self.extra: tuple[str, ...] = ()
        self._seen: Look = {}

    async def note(self) -> None:
        """What is on the disk now is known: only what changes after this is a save."""
        self._seen = await asyncio.to_thread(self._look)

    async def wait(self) -> None:
        """Until something changed, and then until it has settled: an editor, or a checkout, writes several files."""
        before, now = self._seen, await asyncio.to_thread(self._look)
        while now == self._seen or now != before:
            await asyncio.sleep(LOOK_EVERY_S if now == self._seen else SETTLED_S)
            before, now = now, await asyncio.to_thread(self._look)

    def add(self, files: Iterable[str]) -> None:
        """Look at these too, as they are now."""
        self.extra = tuple(files)
        self._seen = {**dict(_times(self.extra)), **self._seen}

    def _look(self) -> Look:
        return dict(_times([*self.extra, *_sources(), *site.getsitepackages()]))


def _times(files: Iterable[str]) -> Iterator[tuple[str, tuple[int, int]]]:
    for file in files:
        try:
            found = Path(file).stat()
        except OSError:
            continue  # gone since it was listed: that is a change, too
        yield file, (found.st_mtime_ns, found.st_size)


def _sources() -> list[str]:
    """The Python files of every plugin's package. A package is found by its name; nothing of it is imported."""
    importlib.invalidate_caches()
    found: list[str] = []
    entries = [*entry_points(group=GROUP), *entry_points(group=schema.GROUP)]
    own = {entry.value.partition(":")[0].partition(".")[0] for entry in entries if entry.name not in BUILT_IN}
    for name in sorted(own):
        spec = find_spec(name)
        if spec is None:
            continue
        if spec.submodule_search_locations is None:
            found += [spec.origin] if spec.origin else []
        for folder in spec.submodule_search_locations or ():
            found += _python_files(folder)
    return found[:FILES_MAX]


def _python_files(folder: str) -> list[str]:
    found: list[str] = []
    for here, folders, files in os.walk(folder):
        folders[:] = [one for one in folders if one not in _PASSED_OVER and not one.startswith(".")]
        found += [str(Path(here, one)) for one in files if one.endswith(".py")]
        if len(found) > FILES_MAX:
            break
    return found
