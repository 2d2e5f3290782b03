"""A disk that fills is told before it is full: a write-ahead file takes writes for a while longer than its disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumer.cli.looking.disks import MIB, Disk, disks, judge_disk
from consumer.cli.looking.status_finding import Grade
from consumer.settings import Role, load_settings

GIB = 1024 * MIB


# case: O9
@pytest.mark.parametrize(
    ("free", "total", "grades"),
    [
        (GIB, 100 * GIB, []),
        (GIB - 1, 100 * GIB, [Grade.DEGRADED]),
        (3 * MIB, 100 * GIB, [Grade.STUCK]),
        (103 * MIB, GIB, []),
        (102 * MIB, GIB, [Grade.DEGRADED]),
        (0, 0, []),
    ],
)
def test_by_what_is_left(free: int, total: int, grades: list[Grade]) -> None:
    found = judge_disk(Disk(path=Path("data/consumer.db"), code="ledger_disk_full", free=free, total=total))
    assert [one.grade for one in found] == grades
    assert all(one.code == "ledger_disk_full" and "MiB left" in one.text for one in found)


def test_of_files_that_are_there(tmp_path: Path) -> None:
    def found(**environ: str) -> list[str]:
        settings = load_settings({"SVC_BASE_URL": "http://127.0.0.1:9", **environ}, Role.OPERATE)
        return [one.code for one in disks(settings) if 0 < one.free < one.total]

    ledger, log = tmp_path / "consumer.db", tmp_path / "log.db"
    places = {"CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{ledger}", "CONSUMER_BROKER_URL": f"embedded:{log}"}
    assert found(**places) == []
    ledger.touch()
    log.touch()
    assert found(**places) == ["ledger_disk_full", "log_disk_full"]
    servers = {"CONSUMER_DATABASE_URL": "postgresql+asyncpg://u:p@db/x", "CONSUMER_BROKER_URL": "kafka://k:9092"}
    assert found(**servers) == []
