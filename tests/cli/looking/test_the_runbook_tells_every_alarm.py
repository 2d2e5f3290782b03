"""deploy/findings.md: every code that `status` can give has a line, and what it names (metrics, commands) exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import typer.main

from consumer.cli.looking import verdict
from consumer.cli.looking.evidence import alive
from consumer.cli.tree import tree
from consumer.reason import Reason
from consumer.sync.health.stalled import STAGES
from consumer.telemetry.metrics import Metrics

LOOKING = Path(verdict.__file__ or "").parent
RUNBOOK = (Path(__file__).resolve().parents[3] / "deploy" / "findings.md").read_text()
TABLE, _, ADVICE = RUNBOOK.partition("\n\nStart with")


# case: O1, O2, O3, O5, S7
def test_every_code_of_status_has_its_line_and_its_advice() -> None:
    source = "\n".join(path.read_text() for path in LOOKING.rglob("*.py"))
    codes = {*re.findall(r'(?:Grade\.[A-Z]+|grade), "([a-z_]+)"', source)}
    codes |= {*re.findall(r'(?m)^ {8}"([a-z_]+)":', (LOOKING / "verdict.py").read_text())}
    codes |= {f"no_{role}" for role in alive.MISSED} | {f"{role}_not_ready" for role in alive.MISSED}
    assert {"role_restarts", "workers_differ", "versions_differ", "signatures_refused"} <= codes
    assert {"credentials_refused", "webhooks_silent", "no_credentials", "outbox_stuck", "topics_missing"} <= codes
    assert {code for code in codes if f"`{code}`" not in TABLE} == set()
    assert {code for code in codes if f"`{code}`" not in ADVICE} == set()


# case: O6
def test_every_metric_it_names_is_declared() -> None:
    metrics = Metrics()
    listed = {name for name, _, _, _ in metrics.listed()}
    named = set(re.findall(r"`(consumer_[a-z_]+)", RUNBOOK))
    assert len(named) > 10
    assert named <= listed
    for value in re.findall(r'stage="([a-z]+)"', RUNBOOK):
        assert value in STAGES
    for value in re.findall(r'reason="([a-z_]+)"', RUNBOOK):
        assert value in {reason.value for reason in Reason}


# case: O3
def test_every_log_line_it_names_is_said() -> None:
    package = Path(verdict.__file__).parents[2]
    source = "\n".join(path.read_text() for path in package.rglob("*.py"))
    cells = [line.split("|")[3] for line in TABLE.splitlines() if line.startswith("|")][2:]
    said = [text.removesuffix("…").strip() for cell in cells for text in re.findall(r"`([^`]+)`", cell)]
    assert len(said) > 15
    # Words in the middle of a line may be put in: its beginning is what to look for.
    lines = {text.partition(" and made none")[0] for text in said if text != "sync" and "error[" not in text}
    assert {line for line in lines if line not in source and line not in STAGES} == set()


# case: O3
def test_every_command_it_names_is_one_with_these_options() -> None:
    commands = set(re.findall(r"`consumer ([^`]+)`", RUNBOOK))
    assert len(commands) > 10
    assert [wrong for line in sorted(commands) if (wrong := _wrong(line)) is not None] == []


def _wrong(line: str) -> str | None:
    """What is not there, of a command line as it is documented; None when it is one."""
    node: Any = typer.main.get_command(tree())
    words = shlex.split(line.replace("…", "x"))
    while words and (commands := getattr(node, "commands", None)) is not None:
        if words[0] not in commands:
            return line
        node = commands[words.pop(0)]
    options = {option for parameter in node.params for option in parameter.opts}
    if getattr(node, "commands", None) is not None:
        return line
    return None if all(word in options for word in words if word.startswith("--")) else line
