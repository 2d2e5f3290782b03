"""Disks: what the disks of the ledger's and the log's files have left. A write-ahead file goes on taking writes for a
while after its disk is full: the file system knows sooner."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy import make_url

from consumer import causes
from consumer.causes import cure_of
from consumer.cli.looking.status_finding import Finding, Grade
from consumer.errors import LedgerDiskFull, LedgerDiskReadOnly, LogDiskFull, LogDiskReadOnly
from consumer.settings import Settings

LOW_BYTES: Final = 1 << 30  # two hours of what strangers may send without pause
LOW_SHARE: Final = 0.10
NOTHING_BYTES: Final = 4 << 20
MIB: Final = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Disk:
    """What the disk of a file of ours has left, in bytes, of `total`. `code`: of its being full, or read-only."""

    path: Path
    code: str
    free: int
    total: int
    is_read_only: bool = False


def disks(settings: Settings) -> Iterator[Disk]:
    """Of the ledger and the log, where they are files."""
    url = make_url(settings.database_url.get_secret_value())
    files = {
        (LedgerDiskFull.code, LedgerDiskReadOnly.code): url.database if url.get_backend_name() == "sqlite" else None,
        (LogDiskFull.code, LogDiskReadOnly.code): settings.log_file,
    }
    for codes, file in files.items():
        path = Path(file or "")
        if not file or not path.is_file():
            continue
        try:
            disk = os.statvfs(path.parent)
        except OSError:
            continue
        is_read_only = causes.is_read_only(path.parent)
        yield Disk(
            path=path,
            code=codes[is_read_only],
            free=disk.f_bavail * disk.f_frsize,
            total=disk.f_blocks * disk.f_frsize,
            is_read_only=is_read_only,
        )


def judge_disk(disk: Disk) -> list[Finding]:
    """Read-only; or low, before it is full. Pure."""
    if disk.is_read_only:
        return [Finding(Grade.STUCK, disk.code, f"the disk of {disk.path} is read-only ({cure_of(disk.code)})")]
    if disk.free >= min(LOW_BYTES, LOW_SHARE * disk.total):
        return []
    left = f"the disk of {disk.path} has {disk.free / MIB:.0f} of {disk.total / MIB:.0f} MiB left"
    grade, how = (Grade.STUCK, "") if disk.free < NOTHING_BYTES else (Grade.DEGRADED, ", and will be full")
    return [Finding(grade, disk.code, f"{left}{how} ({cure_of(disk.code)})")]
