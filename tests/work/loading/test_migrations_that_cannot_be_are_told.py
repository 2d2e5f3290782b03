"""Migrations of a plugin that cannot be imported, or that are none, are told by its name before anything runs."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest

from consumer.work.migrations import _of_packages

GROUP = "consumer.migrations"


def package(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str) -> EntryPoint:
    """A package of migrations in this folder."""
    made = ModuleType(name)
    made.__path__ = [str(folder)]
    monkeypatch.setitem(sys.modules, name, made)
    return EntryPoint(name, name, GROUP)


def test_of_what_is_whole_nothing_is_told_and_of_the_others_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case: H8
    for name, files in (("whole", ["0001.py"]), ("empty", []), ("odd", ["notes.txt"])):
        (tmp_path / name / "versions").mkdir(parents=True)
        for file in files:
            (tmp_path / name / "versions" / file).write_text("")
    (tmp_path / "none").mkdir()
    entries = [package(monkeypatch, tmp_path / name, name) for name in ("whole", "empty", "odd", "none")]
    told = _of_packages([*entries, EntryPoint("broken", "nothing_is_called_so.migrations", GROUP)])
    assert [name for name, _ in told] == ["empty", "odd", "none", "broken"]
    texts = dict(told)
    assert texts["none"] == f"its migrations have no versions in {tmp_path / 'none' / 'versions'}"
    assert texts["broken"].startswith("its migrations cannot be imported: ")
    assert "nothing_is_called_so" in texts["broken"]
