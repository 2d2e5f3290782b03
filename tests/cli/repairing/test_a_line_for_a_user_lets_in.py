"""`console-user` makes a line for the file of who may see the pages, and that line lets in."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from argon2 import PasswordHasher

from consumer.console.pages.users import parsed
from tests.support.desk import Desk

PASSWORD = "correct horse battery"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """It wants no setting, and no ledger."""
    return {"CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/none.db"}


def test_the_command_makes_a_line_that_lets_in(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{PASSWORD}\n"))
    made = desk.ask("console-user", "ada", "--role", "operator")["line"]
    found, problems = parsed(made)
    assert problems == []
    assert found["ada"].user.may_act
    assert PasswordHasher().verify(found["ada"].hash, PASSWORD)
    assert PASSWORD not in made
    for name, password in (("ada", "short"), ("a b", PASSWORD), ("a:b", PASSWORD), ("#a", PASSWORD), ("", PASSWORD)):
        monkeypatch.setattr("sys.stdin", io.StringIO(f"{password}\n"))
        assert "error[usage]" in desk.ask("console-user", name, code=2)
