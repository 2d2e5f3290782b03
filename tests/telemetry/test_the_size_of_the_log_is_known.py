"""How large the embedded log is, is known: what fills a disk is seen before it is full."""

from __future__ import annotations

from pathlib import Path

from consumer.app.log_parts import log_bytes
from consumer.settings import Role, load_settings


def of(broker_url: str) -> int | None:
    return log_bytes(load_settings({"CONSUMER_BROKER_URL": broker_url}, Role.OPERATE))


def test_of_its_files_and_of_no_others(tmp_path: Path) -> None:
    log = tmp_path / "log.db"
    assert of(f"embedded:{log}") == 0
    log.write_bytes(b"x" * 1000)
    (tmp_path / "log.db-wal").write_bytes(b"x" * 24)
    (tmp_path / "another.db").write_bytes(b"x" * 5)
    assert of(f"embedded:{log}") == 1024
    assert of("kafka://127.0.0.1:9092") is None
