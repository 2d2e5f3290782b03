"""`consumer --help` says what all commands say, without any of them being imported."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import typer.main
from typer.testing import CliRunner

from consumer.cli.outline import outline
from consumer.cli.tree import PARTS, tree, trunk

HEAVY = ("sqlalchemy", "sqlmodel", "pydantic", "aiohttp", "consumer.app", "consumer.ledger", "consumer.sandbox")
LOADED = f"""
import sys
from consumer.cli.entry import run
code = run(sys.argv[1:])
print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.parametrize("width", [60, 80, 120, 250])
def test_it_says_what_they_say(width: int) -> None:
    shown = [CliRunner().invoke(app, ["--help"], env={"COLUMNS": str(width)}, terminal_width=width).output
             for app in (outline(trunk()), tree())]  # fmt: skip
    assert shown[0] == shown[1]
    assert "handlers" in shown[0]


def test_every_word_is_in_it() -> None:
    words = [word for words in PARTS.values() for word in words]
    node = typer.main.get_command(outline(trunk()))
    assert sorted(words) == sorted(getattr(node, "commands"))  # noqa: B009 - a group has them


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_it_imports_none_of_them(arguments: list[str]) -> None:
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("CONSUMER_", "SVC_"))}
    done = subprocess.run([sys.executable, "-c", LOADED, *arguments], env=bare, capture_output=True, text=True,
                          timeout=60, check=False)  # fmt: skip
    assert done.stderr.strip().splitlines()[-1] == "[]", done.stderr
    assert "Receive webhooks" in done.stdout
    assert done.returncode == (0 if arguments else 2)
