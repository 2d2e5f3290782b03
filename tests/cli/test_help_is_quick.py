"""`consumer --help` says what all commands say, without any of them being imported."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from consumer.cli.outline import outline
from consumer.cli.tree import COMMANDS, tree, trunk
from tests.support.load import SECRET

HEAVY = (
    "sqlalchemy",
    "sqlmodel",
    "pydantic",
    "aiohttp",
    "aiokafka",
    "alembic",
    "rich",
    "prometheus_client",
    "consumer.app",
    "consumer.sandbox",
)
ONE_ROLES = ("consumer.console.query", "consumer.receive.web", "consumer.sync.role", "consumer.work.worker",
             "consumer.sandbox", "opentelemetry.sdk")  # fmt: skip
"""What only one role is made of, or none of them."""
NOT_TO_RECEIVE = ("consumer.payments", "consumer.plugin", "handlers", "consumer.ledger.tables",
                  "sqlalchemy.dialects.postgresql")  # fmt: skip
"""What nobody needs who receives; the last one on SQLite."""
LOADED = f"""
import sys
from consumer.cli.entry import run
code = run(sys.argv[1:])
found = [name for name in sys.modules if name.partition(".")[0] not in sys.stdlib_module_names]
print(len(found), *[name for name in {HEAVY + ONE_ROLES + NOT_TO_RECEIVE!r} if name in sys.modules], file=sys.stderr)
sys.exit(code)
"""
LEDGER = {"sqlalchemy", "sqlmodel", "pydantic"}
"""What a command that looks into the ledger needs."""


def _called(*arguments: str, folder: Path | None = None) -> tuple[subprocess.CompletedProcess[str], set[str]]:
    """How the call ended, and what it imported of what is heavy."""
    done, _, imported = _of_help(*arguments) if folder is None else _counted(*arguments, folder=folder)
    return done, imported


@functools.cache
def _of_help(*arguments: str) -> tuple[subprocess.CompletedProcess[str], int, set[str]]:
    """What several tests ask of the same call: it only prints, wherever one is."""
    return _counted(*arguments)


def _counted(
    *arguments: str, folder: Path | None = None, settings: Mapping[str, str] | None = None
) -> tuple[subprocess.CompletedProcess[str], int, set[str]]:
    """The same, and how many modules it imported in all, beside Python's own."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("CONSUMER_", "SVC_"))}
    command = [sys.executable, "-W", "ignore", "-c", LOADED, *arguments]
    done = subprocess.run(
        command, env=env | dict(settings or {}), cwd=folder, input="", capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    [line] = [one for one in done.stderr.splitlines() if one[:1].isdigit()]  # a role's log may come behind it
    count, *heavy = line.split()
    return done, int(count), set(heavy)


@pytest.mark.parametrize("width", [60, 80, 120, 250])
def test_it_says_what_they_say(width: int) -> None:
    shown = [CliRunner().invoke(app, ["--help"], env={"COLUMNS": str(width)}, terminal_width=width).output
             for app in (outline(trunk()), tree())]  # fmt: skip
    assert shown[0] == shown[1]
    assert "handlers" in shown[0]


@pytest.mark.parametrize("words", [[], *([word] for word in COMMANDS)], ids=" ".join)
def test_no_sentence_is_cut(words: list[str]) -> None:
    said = CliRunner().invoke(tree(), [*words, "--help"], env={"COLUMNS": "80"}, terminal_width=80).output
    _, _, commands = said.partition("Commands:")
    assert [line for line in commands.splitlines() if line.endswith("...")] == []


def test_every_word_is_in_it() -> None:
    node = typer.main.get_command(outline(trunk()))
    assert sorted(COMMANDS) == sorted(getattr(node, "commands"))  # noqa: B009 - a group has them


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_it_imports_none_of_them(arguments: list[str]) -> None:
    done, imported = _called(*arguments)
    assert imported == set()
    assert "Receive webhooks" in done.stdout
    assert done.returncode == (0 if arguments else 2)


LOOKS = (("events", "list"), ("events", "show"), ("find",), ("dead", "list"), ("findings",), ("replay", "list"))


@pytest.mark.parametrize("words", LOOKS)
def test_who_looks_into_the_ledger_imports_what_that_needs(words: tuple[str, ...]) -> None:
    done, imported = _called(*words, "--help")
    assert done.returncode == 0
    assert imported - {*NOT_TO_RECEIVE} == LEDGER


# What a start costs is what it imports. These are 15 more than were measured in November 2026.
BUDGETS = {
    ("events", "list"): 360,
    ("dead", "list"): 360,
    ("find", "x"): 386,
    ("explain", "order", "x"): 408,
    ("findings", "list"): 412,
    ("quarantine", "list"): 376,
    ("handlers", "list"): 410,
    ("status",): 485,
}
SERVE_MODULES = 480


@pytest.mark.parametrize("words", BUDGETS)
def test_who_looks_imports_no_more_modules_than_this(words: tuple[str, ...], tmp_path: Path) -> None:
    done, count, imported = _counted(*words, folder=tmp_path)
    assert done.returncode == {"handlers": 0, "status": 3}.get(words[0], 2), done.stderr
    assert count <= BUDGETS[words]
    assert "prometheus_client" not in imported  # who looks counts nothing


@pytest.mark.parametrize("word", ["status", "invariants"])
@pytest.mark.parametrize("help_only", [True, False], ids=["its help", "a look"])
def test_who_asks_how_things_stand_opens_no_connection_of_http(word: str, help_only: bool, tmp_path: Path) -> None:
    done, imported = _called(word, *(["--help"] if help_only else []), folder=tmp_path)
    assert done.returncode == (0 if help_only else {"status": 3, "invariants": 2}[word]), done.stderr
    assert not imported & {"aiohttp", "alembic", "aiokafka"}


@pytest.mark.parametrize("words", [("status",), ("work",), ("serve",)])
def test_who_has_no_kafka_does_not_wait_for_its_client(words: tuple[str, ...]) -> None:
    done, imported = _called(*words, "--help")
    assert done.returncode == 0
    assert "aiokafka" not in imported


@pytest.mark.parametrize("word", ["export", "import", "list", "show", "no-such-word"])
def test_every_word_of_events_is_still_there(word: str) -> None:
    done, _ = _called("events", word, "--help")
    assert done.returncode == (2 if word == "no-such-word" else 0), done.stderr


@pytest.mark.parametrize("role", ["serve", "work", "sync", "console"])
def test_a_role_does_not_wait_for_the_parts_of_another(role: str) -> None:
    done, imported = _called(role, "--help")
    assert done.returncode == 0
    assert "consumer.app" in imported
    assert not imported & {*ONE_ROLES, *NOT_TO_RECEIVE, "alembic"}


def test_who_only_receives_has_nothing_of_handlers_and_of_the_api_in_memory(tmp_path: Path) -> None:
    settings = {"CONSUMER_PORT": "0", "CONSUMER_INTERNAL_PORT": "0", "CONSUMER_LINGER_S": "0",
                "CONSUMER_AUTHENTICITY": "signature", "CONSUMER_WEBHOOK_SECRETS": SECRET}  # fmt: skip
    done, count, imported = _counted("serve", "--beside", folder=tmp_path, settings=settings)  # it ends with its input
    assert done.returncode == 0, done.stderr
    assert imported & {*ONE_ROLES, *NOT_TO_RECEIVE} == {"consumer.receive.web"}
    assert count <= SERVE_MODULES
