"""A file that a command writes is written whole or not at all, and that it can be written is known at once: before a
list is walked."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from consumer.cli.walking.target_file import TargetFile
from consumer.errors import UsageError


def write(file: TargetFile) -> None:
    with file.writing() as target:
        target.write(b'{"version": ')
        target.write(b"2}")


def test_what_cannot_be_written_is_known_before_the_walk(tmp_path: Path) -> None:
    # case: O7
    (tmp_path / "file").write_text("a file, no folder")
    (tmp_path / "round").symlink_to("round")
    for one in (
        tmp_path / "none" / "c.json",
        tmp_path,
        tmp_path / ("c" * 300),
        tmp_path / "file" / "c.json",
        Path(),
        Path("./"),
        Path("/"),
        tmp_path / "round",
    ):
        with pytest.raises(UsageError, match="cannot be written"):
            TargetFile(one)
    assert {one.name for one in tmp_path.iterdir()} == {"file", "round"}


def test_looking_makes_and_changes_nothing(tmp_path: Path) -> None:
    # case: O7
    there = tmp_path / "there.json"
    there.write_text("{}")
    assert TargetFile(there).replaces
    assert not TargetFile(tmp_path / "new.json").replaces
    assert there.read_text() == "{}"
    assert [one.name for one in tmp_path.iterdir()] == ["there.json"]


def test_an_older_one_is_replaced_at_once_and_keeps_its_mode(tmp_path: Path) -> None:
    # case: O7
    there, link = tmp_path / "there.json", tmp_path / "link.json"
    there.write_text("{}")
    there.chmod(0o640)
    link.symlink_to(there)
    write(TargetFile(link))
    assert json.loads(there.read_text()) == {"version": 2}
    assert there.stat().st_mode & 0o777 == 0o640
    assert link.is_symlink()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_new_one_is_its_owners_alone_also_where_a_link_leads_to_it(tmp_path: Path) -> None:
    # case: G12
    new, link = tmp_path / "new.json", tmp_path / "link.json"
    link.symlink_to(new)
    umask = os.umask(0)
    try:
        write(TargetFile(link))
    finally:
        os.umask(umask)
    assert (json.loads(new.read_text()), new.stat().st_mode & 0o777) == ({"version": 2}, 0o600)
    assert link.is_symlink()


def test_one_that_fails_leaves_the_older_one_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # case: O7
    there = tmp_path / "there.json"
    there.write_text("{}")
    file = TargetFile(there)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("consumer.cli.walking.target_file.os.fsync", full)
    with pytest.raises(UsageError, match="No space left"):
        write(file)
    assert there.read_text() == "{}"
    assert [one.name for one in tmp_path.iterdir()] == ["there.json"]


def test_what_is_no_file_is_written_to_and_never_replaced() -> None:
    # case: O7
    nowhere = TargetFile(Path("/dev/null"))
    assert not nowhere.replaces
    write(nowhere)
    assert Path("/dev/null").is_char_device()


def test_a_pipe_is_written_to() -> None:
    # case: O7
    reads, writes = os.pipe()
    try:
        write(TargetFile(Path(f"/dev/fd/{writes}")))
        os.close(writes)
        with os.fdopen(reads, "rb", closefd=False) as pipe:
            assert json.loads(pipe.read()) == {"version": 2}
    finally:
        os.close(reads)


def test_a_named_pipe_stays_one_and_its_reader_gets_all(tmp_path: Path) -> None:
    # case: G12
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    write(TargetFile(pipe))
    reader.join(10)
    assert [json.loads(one) for one in read] == [{"version": 2}]
    assert pipe.is_fifo()
    assert [one.name for one in tmp_path.iterdir()] == ["pipe"]


def test_what_a_process_has_open_is_no_plain_file_to_replace(tmp_path: Path) -> None:
    """`audit export /dev/stdout >> trail.jsonl` lost what stood there."""
    there = tmp_path / "trail.jsonl"
    there.write_bytes(b"old line\n")
    with there.open("ab") as opened, pytest.raises(UsageError, match="it leads to a plain file"):
        TargetFile(Path(f"/dev/fd/{opened.fileno()}"))
    assert there.read_bytes() == b"old line\n"
