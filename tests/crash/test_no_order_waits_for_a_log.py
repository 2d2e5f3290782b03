"""Where a process's own log goes takes no more (its disk is full, who read it is gone): the lines are lost and counted,
the first that is written again says how many, and every order is shipped meanwhile."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
import structlog

from consumer.telemetry.logs import configure_logging
from consumer.telemetry.metrics import Metrics
from tests.promises.deployment import deployment, embedded, started, stopped
from tests.support.process import ConsumerProcess


class Disk(io.StringIO):
    """Is full now and then."""

    is_full = False

    def write(self, text: str) -> int:
        if self.is_full:
            raise OSError(28, "No space left on device")
        return super().write(text)

    def lines(self) -> list[dict[str, Any]]:
        return [orjson.loads(line) for line in self.getvalue().splitlines()]


@pytest.fixture
def disk() -> Iterator[Disk]:
    """The process's log goes there; afterwards to where it went."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    found = Disk()
    configure_logging("info", "json", found)
    yield found
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()


def test_lost_lines_are_counted_and_told(disk: Disk) -> None:
    log, metrics = structlog.get_logger("here"), Metrics()
    log.info("before")
    disk.is_full = True
    for _ in range(3):
        log.warning("lost")
    assert metrics.registry.get_sample_value("consumer_log_lines_lost_total") == 3
    disk.is_full = False
    log.info("after")
    log.info("later")
    assert metrics.registry.get_sample_value("consumer_log_lines_lost_total") == 3
    assert [(line["event"], line.get("lines_lost")) for line in disk.lines()] == [
        ("before", None),
        ("after", 3),
        ("later", None),
    ]


def test_a_closed_stream_harms_nobody(disk: Disk) -> None:
    disk.close()
    structlog.get_logger("here").error("said to nobody")


@contextmanager
def full_disk() -> Iterator[int]:
    with Path("/dev/full").open("wb", buffering=0) as full:
        yield full.fileno()


@contextmanager
def gone_reader() -> Iterator[int]:
    reads, writes = os.pipe()
    os.close(reads)
    try:
        yield writes
    finally:
        os.close(writes)


# case: O7, G2
@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("place", [full_disk, gone_reader])
async def test_every_order_is_shipped(tmp_path: Path, place: Any) -> None:
    with place() as log_to:
        async with deployment(tmp_path, **embedded(tmp_path), CONSUMER_LOG_LEVEL="debug") as found:
            roles = [
                ConsumerProcess(role, found.environ, tmp_path, log_to=log_to) for role in ("serve", "work", "sync")
            ]
            async with started(*roles):
                found.hear(at_work=True)
                found.warehouse.is_away = True  # what fails is logged, too
                for _ in range(5):
                    found.pay_order()
                found.warehouse.is_away = False
                await found.shipped(within_s=90)
            assert await stopped(*roles) == [0, 0, 0]
            found.assert_one_parcel_each()
