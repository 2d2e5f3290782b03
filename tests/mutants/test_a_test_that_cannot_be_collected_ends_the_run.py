"""A test file that cannot be collected ends the run and is named: without it, mutants would live that it notices."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.mutants import __main__ as command
from tests.mutants.look import lines, seconds
from tests.mutants.plan import EVERYWHERE
from tests.mutants.warm import NotCollected, Warm

BROKEN = "import nothing_is_called_so\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for folder in ("tests", "handlers"):
        (tmp_path / folder).mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n kafka\n postgres\n browser\n")
    (tmp_path / "tests" / "test_whole.py").write_text("def test_it() -> None:\n    pass\n")
    (tmp_path / "tests" / "test_broken.py").write_text(BROKEN)
    return tmp_path


def test_the_file_is_named(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree)
    with pytest.raises(NotCollected, match=r"tests/test_broken\.py"):
        Warm(tree)


def test_a_process_that_ends_before_it_collects_is_named(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree)
    (tree / "tests" / "conftest.py").write_text(BROKEN)
    with pytest.raises(NotCollected, match="pytest ended before its tests"):
        Warm(tree)


@pytest.mark.slow
def test_the_look_fails_and_keeps_nothing(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "FOLDER", tree / "cache")
    monkeypatch.setattr(lines, "ROOT", tree)
    monkeypatch.setattr(lines, "FAST", ())
    (tree / "tests" / "mutants" / "look").mkdir(parents=True)
    for name in ("seconds.py", "coverage.ini"):
        shutil.copy(Path(seconds.__file__).with_name(name), tree / "tests" / "mutants" / "look")
    (tree / "subject.py").write_text("")
    with pytest.raises(lines.LookFailed, match=r"test_broken\.py"):
        lines.look(["subject.py"], EVERYWHERE)
    assert not lines.Kept(EVERYWHERE).texts.exists()


@pytest.mark.parametrize("error", [lines.LookFailed("no"), NotCollected("tests/test_broken.py")])
def test_the_command_says_so_and_ends_with_1(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(command, "_played", fails)
    assert command.main(["consumer/work/transition.py"]) == 1
    assert f"nothing is judged: {error}" in capsys.readouterr().out
