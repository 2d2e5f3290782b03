"""What the tests take of the machine they run on is there: memory, and what a JVM makes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support import kafka, postgres


def test_what_tests_write_lies_in_memory_only_where_that_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder in memory says that half of the machine's memory is free, whatever others use of it."""
    monkeypatch.setattr(postgres, "ROOM_BYTES", 1024**2)
    monkeypatch.setattr(postgres, "SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(postgres, "MEMORY", tmp_path / "meminfo")
    for kilobytes, in_memory in ((1024, False), (2048, True)):
        (tmp_path / "meminfo").write_text(f"MemTotal: 9999999 kB\nMemAvailable:    {kilobytes} kB\nBuffers: 1 kB\n")
        assert (postgres.in_memory() is not None) == in_memory, kilobytes


def test_a_jvm_that_makes_no_archive_is_asked_for_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test process started and stopped a broker for it, one after the other."""
    started: list[object] = []
    (java := tmp_path / "java").touch()

    class MakesNone:
        def __init__(self, *_: Any, **__: Any) -> None:
            started.append(self)

        def start(self) -> None: ...

        def stop(self, within_s: float) -> None: ...

    monkeypatch.setattr(kafka, "CACHE", tmp_path)
    monkeypatch.setattr(kafka, "KafkaServer", MakesNone)
    monkeypatch.setattr(kafka, "jars", lambda: tmp_path)
    monkeypatch.setattr(shutil, "which", lambda _: str(java))
    made = kafka.loaded_classes.__wrapped__
    assert made() == made()
    assert len(started) == 1
