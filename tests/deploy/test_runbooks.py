"""deploy/runbooks: each tells meaning, impact, diagnosis and cure, and every command in it is one of ours."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.support.commands import is_command

RUNBOOKS = sorted((Path(__file__).resolve().parents[2] / "deploy" / "runbooks").glob("*.md"))


@pytest.mark.parametrize("path", RUNBOOKS, ids=lambda path: path.stem)
def test_it_tells_what_it_must(path: Path) -> None:
    text = path.read_text()
    told = [text.find(f"**{word}.**") for word in ("Meaning", "Impact", "Diagnosis", "Cure")]
    assert -1 not in told
    assert told == sorted(told)
    commands = [*re.findall(r"(?m)^    consumer (.+)$", text), *re.findall(r"`consumer ([^`]+)`", text)]
    assert commands
    assert [line for line in commands if not is_command([one for one in shlex.split(line) if one != "--help"])] == []
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert (path.parent / link).exists(), link
