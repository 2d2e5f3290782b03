"""A certificate is written whole or not at all, and that it can be written is known before the list is walked."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from consumer.cli.walking.certificate import CertificateFile
from consumer.errors import UsageError


def test_what_cannot_be_written_is_known_before_the_walk(tmp_path: Path) -> None:
    # case: O7
    (tmp_path / "file").write_text("a file, no folder")
    for one in (tmp_path / "none" / "c.json", tmp_path, tmp_path / ("c" * 300), tmp_path / "file" / "c.json"):
        with pytest.raises(UsageError, match="cannot be written"):
            CertificateFile(one)
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_looking_makes_and_changes_nothing(tmp_path: Path) -> None:
    # case: O7
    there = tmp_path / "there.json"
    there.write_text("{}")
    assert CertificateFile(there).replaces
    assert not CertificateFile(tmp_path / "new.json").replaces
    assert there.read_text() == "{}"
    assert [one.name for one in tmp_path.iterdir()] == ["there.json"]


def test_an_older_one_is_replaced_at_once_and_keeps_its_mode(tmp_path: Path) -> None:
    # case: O7
    there, link = tmp_path / "there.json", tmp_path / "link.json"
    there.write_text("{}")
    there.chmod(0o640)
    link.symlink_to(there)
    CertificateFile(link).write({"version": 2})
    assert json.loads(there.read_text()) == {"version": 2}
    assert there.stat().st_mode & 0o777 == 0o640
    assert link.is_symlink()
    assert len(list(tmp_path.iterdir())) == 2


def test_one_that_fails_leaves_the_older_one_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # case: O7
    there = tmp_path / "there.json"
    there.write_text("{}")
    file = CertificateFile(there)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("consumer.cli.walking.certificate.os.fsync", full)
    with pytest.raises(UsageError, match="No space left"):
        file.write({"version": 2})
    assert there.read_text() == "{}"
    assert [one.name for one in tmp_path.iterdir()] == ["there.json"]


def test_what_is_no_file_is_written_to_and_never_replaced() -> None:
    # case: O7
    nowhere = CertificateFile(Path("/dev/null"))
    assert not nowhere.replaces
    nowhere.write({"version": 2})
    assert Path("/dev/null").is_char_device()


def test_a_pipe_is_written_to() -> None:
    # case: O7
    reads, writes = os.pipe()
    try:
        CertificateFile(Path(f"/dev/fd/{writes}")).write({"version": 2})
        os.close(writes)
        with os.fdopen(reads, "rb", closefd=False) as pipe:
            assert json.loads(pipe.read()) == {"version": 2}
    finally:
        os.close(reads)
