"""An alert fires by the fault that it is for, on the real `/metrics` of real processes, is silent after the cure, and
`status` is healthy again. One drill is part of the suite; all of them, and that none fires where nothing is wrong, are
`make drills`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.drills import runbook
from tests.drills.drills import DRILLS
from tests.drills.play import play, scene
from tests.drills.rules import RULES, alerts, shortened, write_shortened
from tests.support.tools import need_program


def test_shortened_rules_are_the_same_rules(tmp_path: Path) -> None:
    promtool = need_program("promtool", "Debian's package prometheus")
    done = subprocess.run([promtool, "check", "rules", *write_shortened(tmp_path)], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    [group] = yaml.safe_load(shortened((RULES / "alerts.yml").read_text()))["groups"]
    assert {rule["alert"] for rule in group["rules"]} == alerts().keys()
    text = "expr: a_seconds > 300 and b:rate5m[5m] > 14.4 * 0.001 and avg(c > bool 60)[1h:1m]\nfor: 2m\nfor: 65m"
    assert shortened(text) == (
        "expr: a_seconds > 15 and b:rate5m[15s] > 14.4 * 0.001 and avg(c > bool 3)[180s:5s]\nfor: 6s\nfor: 30s"
    )


def test_every_alert_is_fired_by_a_drill() -> None:
    assert {name for drill in DRILLS for name in drill.alerts} == alerts().keys()
    assert len({drill.name for drill in DRILLS}) == len(DRILLS)


def test_every_command_of_a_runbook_is_typed_in_a_drill() -> None:
    for path in runbook.runbooks(alerts().keys()):
        named = [drill.names for drill in DRILLS if path in runbook.runbooks(drill.alerts)]
        for line in (*runbook.diagnosis(path), *runbook.cure(path)):
            assert any(runbook.placeholders(line) <= names for names in named), f"{path.name}: {line}"


def test_a_line_of_a_runbook_is_what_a_shell_makes_of_it() -> None:
    names = {"NAME": "shop:ship", "TEXT": "a drill"}
    assert runbook.words("dead redrive --handler NAME --reason TEXT", names) == [
        "dead", "redrive", "--handler", "shop:ship", "--reason", "a drill",
    ]  # fmt: skip
    assert (runbook.words('handlers pause NAME --reason "ends it"', names) or [])[-1] == "ends it"
    assert runbook.words("say WORD SUBJECT", names) is None


# case: O5
@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_worker_that_is_dead(tmp_path: Path) -> None:
    [drill] = [one for one in DRILLS if one.name == "work is dead"]
    async with scene(tmp_path) as here:
        await play(drill, here)
