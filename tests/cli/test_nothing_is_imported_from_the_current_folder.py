"""`python -m consumer` is the console script in this, too: a file beside the shell is no plugin and no library."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CONSUMER = str(Path(sys.executable).with_name("consumer"))
MINE = """
from consumer.plugin import Context, Event, handles

@handles("order.paid", name="mine:look")
async def look(event: Event, ctx: Context) -> None:
    pass
"""


def test_a_file_beside_the_shell_is_not_imported(tmp_path: Path) -> None:
    for name in ("typer", "structlog", "orjson", "pathlib"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the current folder')")
    done = subprocess.run([sys.executable, "-m", "consumer", "--help"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Webhook consumer" in done.stdout


@pytest.mark.parametrize("words", [(CONSUMER,), (sys.executable, "-m", "consumer")], ids=["consumer", "-m"])
def test_a_package_that_only_looks_installed_there_is_no_plugin(tmp_path: Path, words: tuple[str, ...]) -> None:
    about = tmp_path / "beside-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: beside\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[consumer.handlers]\nbeside = beside\n")
    (tmp_path / "beside.py").write_text(MINE.replace("mine:", "beside:"))
    done = subprocess.run([*words, "handlers", "list", "--json"], cwd=tmp_path, capture_output=True, text=True)
    listed = [one["name"] for one in json.loads(done.stdout)["handlers"]]
    assert "access:subscription" in listed, done.stderr
    assert not [name for name in listed if name.startswith("beside:")]


def test_an_authors_module_is_found_there_after_all_that_is_installed(tmp_path: Path) -> None:
    (tmp_path / "orjson.py").write_text("raise SystemExit('imported from the current folder')")
    (tmp_path / "hypothesis.py").write_text("raise SystemExit('imported from the current folder')")
    (tmp_path / "mine.py").write_text(MINE)
    words = ["handlers", "simulate", "mine", "--runs", "2", "--json"]
    done = subprocess.run([CONSUMER, *words], cwd=tmp_path, capture_output=True, text=True)
    [played] = json.loads(done.stdout)["handlers"]
    assert played["tells"].startswith("mine:look: it left nothing to compare"), done.stderr
