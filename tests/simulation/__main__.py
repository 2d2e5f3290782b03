"""Plant: one mistake after the other in a copy of the code; the simulation has to find each. Exit 1: one lives."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
COPIED = ("consumer", "handlers", "tests", "deploy")
HISTORIES = 100
WITHIN_S = 1200


def main(wanted: Sequence[str]) -> int:
    """Play those plants whose names hold one of these words; all of them without any. Returns the exit code."""
    plants = tomllib.loads((HERE / "plants.toml").read_text())["plant"]
    chosen = [one for one in plants if not wanted or any(word in one["name"] for word in wanted)]
    with TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in COPIED:
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        if (word := _found(copy)) is not None:
            print(f"error[plant]: the code as it is does not pass: {word}", file=sys.stderr)
            return 1
        living = [one["name"] for one in chosen if not _is_found(copy, one)]
    print(f"{len(chosen) - len(living)} of {len(chosen)} found")
    return 1 if living else 0


def _is_found(copy: Path, plant: Mapping[str, Any]) -> bool:
    began_s = time.monotonic()
    with planted(copy, plant):
        word = _found(copy, "where_sync_reads" if plant.get("read") else "not where_sync_reads")
    took_s = time.monotonic() - began_s
    print(
        f"{'LIVES' if word is None else 'found':5}  {took_s:4.0f} s  {plant['name']}: {word or plant['promise']}",
        flush=True,
    )
    return word is not None


@contextmanager
def planted(root: Path, plant: Mapping[str, object]) -> Iterator[None]:
    """The mistake stands in the files below `root`. Raises ValueError where what it replaces does not stand once."""
    before: dict[Path, str] = {}
    for edit in (plant, *plant.get("also", ())):  # type: ignore[misc]  # as plants.toml has them
        file = root / edit["file"]
        text = file.read_text()
        before.setdefault(file, text)
        if text.count(edit["was"]) != 1:
            raise ValueError(f"not once in {edit['file']}: {edit['was']}")
        file.write_text(text.replace(edit["was"], edit["becomes"]))
    try:
        yield
    finally:
        for file, text in before.items():
            file.write_text(text)


def _found(copy: Path, tests: str = "") -> str | None:
    """By which word the simulation fails, or those of its tests; None when it passes."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "slow",
               "-k", tests, "--hypothesis-seed=1", "--timeout", str(WITHIN_S), "tests/simulation"]  # fmt: skip
    environ = os.environ | {
        "PYTHONPATH": str(copy),
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "CONSUMER_TEST_HISTORIES": str(HISTORIES),
        "CONSUMER_TEST_PLANTED": "1",
    }
    done = subprocess.run(command, cwd=copy, env=environ, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"the simulation was not played: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    said = re.search(r"^(?:E|  \|)\s+(\w+(?:Error|Exception|Refused): .*)", done.stdout, re.MULTILINE)
    return (said[1][:100] if said else "failed") if done.returncode else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
