"""A body is in the ledger or in an archive that can be read, whatever ends a pass: a kill, a full disk, a file that is
not what was written."""

from __future__ import annotations

import asyncio
import errno
import gzip
import os
import random
import signal
import stat
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, select

from consumer import __version__
from consumer.archive import prune as pruning
from consumer.archive.file import ArchiveFile, read
from consumer.archive.prune import Prune, verified
from consumer.clock import SystemClock
from consumer.errors import ArchiveInvalid, ArchiveUnwritable
from consumer.ledger import Database
from consumer.ledger.archiving import bodies as bodies_module
from consumer.ledger.archiving.bodies import Body
from consumer.ledger.handling import events
from consumer.ledger.tables import AuditRow, LeaseRow
from tests.archive.old_shop import EVENTS, rows
from tests.contract.ledger.facts import NOW, event, later
from tests.support.desk import Desk
from tests.support.ports import eventually

MANY = 3000


async def filled(database: Database, many: int) -> dict[str, bytes]:
    """A ledger with so many settled events, one body of bytes that are no text."""
    bodies = {f"evt_{number}": b'{"n":%d,"text":"%s"}' % (number, b"x" * (number % 700)) for number in range(many)}
    bodies["evt_0"] = b'{"odd":"\xff\xfe"}'
    async with database.transaction() as session:
        found = [event(number, raw=bodies[f"evt_{number}"]) for number in range(many)]
        for start in range(0, many, 500):
            await events.record(session, found[start : start + 500], NOW)
    return bodies


async def known(database: Database, folder: Path) -> dict[str, bytes]:
    """What the ledger and the finished archives hold together."""
    found = {row["id"]: row["raw"] for row in await rows(database, EVENTS) if row["archive"] is None}
    archived = {row["id"]: row for row in await rows(database, EVENTS) if row["archive"] is not None}
    for path in await asyncio.to_thread(lambda: sorted(folder.glob("events-*.gz"))):
        for record in await asyncio.to_thread(records, path):
            name = record["event"]["id"]
            if name in archived and archived[name]["archive"] == path.name:
                raw = record["event"]["raw"]
                found[name] = raw.encode() if isinstance(raw, str) else b'{"odd":"\xff\xfe"}'
    return found


def records(path: Path) -> list[Mapping[str, Any]]:
    return list(read(path))


def prune(database: Database, folder: Path) -> Prune:
    return Prune(database, folder, clock=SystemClock(), written_by=__version__, by="test")


# case: B35
@pytest.mark.parametrize("step", ["write", "finish", "verified", "take_out"])
async def test_a_pass_that_ends_at_any_step(
    database: Database, tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = await filled(database, 900)
    monkeypatch.setattr(pruning, "FILE_EVENTS", 300)
    calls = 0

    def fails(*_: object, **__: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise ArchiveUnwritable(cause="No space left on device")

    target, name = {
        "write": (ArchiveFile, "write"), "finish": (ArchiveFile, "finish"), "verified": (pruning, "verified"),
        "take_out": (bodies_module, "take_out"),
    }[step]  # fmt: skip
    kept = getattr(target, name)

    def broken(*args: object, **given: object) -> object:
        fails()
        return kept(*args, **given)

    monkeypatch.setattr(target, name, broken)
    with pytest.raises(ArchiveUnwritable):
        await prune(database, tmp_path).run(later(60))
    assert await known(database, tmp_path) == bodies
    monkeypatch.setattr(target, name, kept)
    await prune(database, tmp_path).run(later(60))
    assert all(row["archive"] for row in await rows(database, EVENTS))
    assert await known(database, tmp_path) == bodies
    assert not await asyncio.to_thread(lambda: list(tmp_path.glob(".part*")))


# case: B35
async def test_a_volume_that_renames_nothing_will_do(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket that is mounted: a file is written under its name or not at all, and a folder cannot be synced."""
    bodies, synced, bucket = await filled(database, 20), os.fsync, tmp_path / "bucket"

    def none(self: Path, target: Path) -> Path:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    def files_only(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        synced(descriptor)

    monkeypatch.setattr(Path, "rename", none)
    monkeypatch.setattr(os, "fsync", files_only)
    await prune(database, bucket).run(later(60))
    assert all(row["archive"] for row in await rows(database, EVENTS))
    assert await known(database, bucket) == bodies
    files = await asyncio.to_thread(lambda: list(bucket.iterdir()))
    assert [stat.S_IMODE(one.stat().st_mode) for one in files] == [0o600], "one file, readable by its owner alone"


def begun(*words: str, url: str) -> subprocess.Popen[bytes]:
    environ = {"PATH": os.environ["PATH"], "CONSUMER_DATABASE_URL": url}
    quiet = subprocess.DEVNULL
    return subprocess.Popen([sys.executable, "-m", "consumer", *words], env=environ, stdout=quiet, stderr=quiet)


# case: B35
@pytest.mark.slow
async def test_killed_at_any_moment(database: Database, database_url: str, tmp_path: Path) -> None:
    bodies, chance = await filled(database, MANY), random.Random(7)
    folder, struck = tmp_path / "kept", 0
    words = ("prune", "--older-than", "1d", "--archive", str(folder), "--yes", "--reason", "space")
    for sign in (".part*", "events-*.gz") * 2:
        before = set(folder.glob(sign)) if sign != ".part*" else set()
        process = begun(*words, url=database_url)
        try:
            await eventually(lambda: bool(set(folder.glob(sign)) - before), within_s=60, every_s=0.002)  # noqa: B023 - asked within this round
            await asyncio.sleep(chance.random() * 0.1)  # the moment is what varies
        finally:
            process.kill()
            process.wait()
        async with database.transaction() as session:
            await session.execute(delete(LeaseRow))  # as if its time had passed
        struck += process.returncode == -signal.SIGKILL
        assert await known(database, folder) == bodies
    assert struck >= 3, "it was over before it was killed"
    desk = Desk({"CONSUMER_DATABASE_URL": database_url})
    await asyncio.to_thread(desk.ask, *words)
    assert all(row["archive"] for row in await rows(database, EVENTS))
    files = [str(one) for one in sorted(folder.glob("events-*.gz"))]
    await asyncio.to_thread(desk.ask, "events", "import", *files)
    assert {row["id"]: row["raw"] for row in await rows(database, EVENTS)} == bodies


# case: B35
async def test_who_takes_bodies_out_is_noted_with_the_first_of_them(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(database, 500)
    asked = 0

    def killed() -> None:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise ArchiveUnwritable(cause="it stands for a kill")

    begun_one = Prune(database, tmp_path, clock=SystemClock(), written_by=__version__, by="test", may_go_on=killed)
    with pytest.raises(ArchiveUnwritable):
        await begun_one.run(later(60))
    gone = {row["archive"] for row in await rows(database, EVENTS)} - {None}
    assert len(gone) == 1, "a portion of it"
    async with database.reading() as session:
        noted = [(one.subject, one.after) for one in await session.scalars(select(AuditRow))]
    assert noted == [(f"archive:{gone.pop()}", '{"bodies":500}')]


# case: B35
async def test_a_body_that_is_not_as_it_was_archived_stays(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(database, 20)
    kept = pruning.verified

    def other(path: Path) -> list[Body]:
        return [replace(one, sha256="0" * 64) if one.name[1] == "evt_7" else one for one in kept(path)]

    monkeypatch.setattr(pruning, "verified", other)
    await prune(database, tmp_path).run(later(60))
    assert [row["id"] for row in await rows(database, EVENTS) if row["archive"] is None] == ["evt_7"]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The lines of an archive of a few events."""
    folder = tmp_path_factory.mktemp("archive")
    file = ArchiveFile(folder, written_by="1", at=NOW)
    whole = {"application": "default", "type": "order.paid", "key": "order:1"}
    file.write([{"event": {"seq": one, "id": f"e{one}", "raw": "{}", **whole}, "runs": []} for one in range(1, 6)])
    return gzip.decompress(file.finish("a").read_bytes())


def refused(path: Path, content: bytes) -> bool:
    path.write_bytes(content)
    try:
        list(read(path))
    except ArchiveInvalid:
        return True
    return False


# case: G12
@given(data=st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_changed_archive_is_refused(archive: bytes, tmp_path: Path, data: st.DataObject) -> None:
    lines = archive.splitlines(keepends=True)
    how = data.draw(st.sampled_from(["byte", "cut", "drop", "double", "swap"]))
    at = data.draw(st.integers(0, len(archive) - 1))
    line = data.draw(st.integers(0, len(lines) - 1))
    if how == "byte":
        changed = archive[:at] + bytes([archive[at] ^ data.draw(st.integers(1, 255))]) + archive[at + 1 :]
    elif how == "cut":
        changed = archive[:at]
    elif how == "drop":
        changed = b"".join(lines[:line] + lines[line + 1 :])
    elif how == "double":
        changed = b"".join([*lines[: line + 1], *lines[line:]])
    else:
        line = min(line, len(lines) - 2)
        changed = b"".join([*lines[:line], lines[line + 1], lines[line], *lines[line + 2 :]])
    assert not refused(tmp_path / "whole", archive)
    assert refused(tmp_path / "changed", changed)


def test_a_cut_or_damaged_packed_file_is_refused(archive: bytes, tmp_path: Path) -> None:
    packed = gzip.compress(archive)
    assert not refused(tmp_path / "packed", packed)
    assert all(refused(tmp_path / "cut", packed[:size]) for size in range(len(packed) - 1))
    body = range(10, len(packed))  # the head of a packed file holds a time and a name, which nobody reads
    assert all(refused(tmp_path / "bad", packed[:at] + bytes([packed[at] ^ 85]) + packed[at + 1 :]) for at in body)


async def test_of_a_bad_file_nothing_comes_in(sqlite_ledger: Database, tmp_path: Path) -> None:
    await filled(sqlite_ledger, 30)
    await prune(sqlite_ledger, tmp_path / "kept").run(later(60))
    (path,) = (tmp_path / "kept").glob("*.gz")
    lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(b"".join([*lines[:5], lines[5].replace(b"order.paid", b"order.payd"), *lines[6:]]))
    desk = Desk({"CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/ledger.db"})
    said = await asyncio.to_thread(desk.ask, "events", "import", str(bad), code=1)
    assert "error[archive_invalid]" in said
    assert all(row["archive"] for row in await rows(sqlite_ledger, EVENTS))
    for nothing in (tmp_path / "no.gz", tmp_path):
        said = await asyncio.to_thread(desk.ask, "events", "import", str(nothing), code=1)
        assert "error[archive_invalid]" in said
    assert verified(path)
