"""Where a process's own log goes takes no more (its disk is full, who read it is gone or stands still): the lines are
lost and counted, the first that is written again says how many, and every order is shipped meanwhile."""

from __future__ import annotations

import asyncio
import fcntl
import io
import logging
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
import structlog

from consumer.telemetry.logs import QUEUED_MAX, configure_logging, lines_lost, logs_settled
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


@pytest.fixture
def restored() -> Iterator[None]:
    """The process's log goes where it went before."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    configure_logging("info", "json", io.StringIO())
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()


def _read(reads: int, within_s: float = 10.0) -> list[dict[str, Any]]:
    """What comes until nothing does."""
    found = b""
    while select.select([reads], [], [], 0.3 if found.endswith(b"\n") else within_s)[0]:
        if not (part := os.read(reads, 1 << 20)):
            break
        found += part
    return [orjson.loads(line) for line in found.splitlines()]


# case: O7
@pytest.mark.usefixtures("restored")
def test_a_reader_who_stands_still_is_waited_for_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consumer.telemetry.logs.SETTLE_S", 0.1)
    reads, writes = os.pipe()
    try:
        with open(writes, "w", encoding="utf-8", closefd=False) as pipe:
            configure_logging("info", "json", pipe)
            log = structlog.get_logger("here")
            text = "x" * 16_000
            for _ in range(10):  # more than a pipe holds
                log.info("long", text=text)
            for number in range(QUEUED_MAX + 5):
                log.info("line", number=number)
            assert not logs_settled()
            found = _read(reads)
            assert [line.get("text") for line in found[:11]] == [text] * 10 + [None]
            numbers = [line["number"] for line in found[10:]]
            assert numbers == list(range(len(numbers)))  # whole, in order, none twice
            assert len(numbers) >= QUEUED_MAX - 10
            log.info("after")
            assert logs_settled()
            told = [(line["event"], line.get("lines_lost")) for line in _read(reads)]
            assert told == [("after", QUEUED_MAX + 5 - len(numbers))]
    finally:
        os.close(reads)
        os.close(writes)


# case: O7
@pytest.mark.usefixtures("restored")
def test_a_loop_that_is_never_idle_loses_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    async def is_busy() -> None:
        for number in range(10_000):
            structlog.get_logger("here").info("line", number=number)
            if number % 20 == 0:
                await asyncio.sleep(0)

    monkeypatch.setattr("consumer.telemetry.logs.QUEUED_MAX", 5_000)
    reads, writes = os.pipe()
    try:
        fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, 1 << 20)  # it holds all of them: this is not about who reads
        with open(writes, "w", encoding="utf-8", closefd=False) as pipe:
            configure_logging("info", "json", pipe)
            asyncio.run(is_busy())
            assert logs_settled()
            assert [line["number"] for line in _read(reads)] == list(range(10_000))
    finally:
        os.close(reads)
        os.close(writes)


_ENDS = """
import sys, structlog
from consumer.telemetry.logs import configure_logging
configure_logging("info", "json")
for number in range(5000):
    structlog.get_logger("here").info("line", number=number)
sys.exit(3)
"""


def test_what_is_queued_is_written_at_the_end() -> None:
    ended = subprocess.run([sys.executable, "-c", _ENDS], capture_output=True, check=False, timeout=60)
    assert ended.returncode == 3
    assert [orjson.loads(line)["number"] for line in ended.stderr.splitlines()] == list(range(5000))


_WRITES = """
import sys, structlog
from consumer.telemetry.logs import configure_logging
configure_logging("info", "json")
for number in range(2000):
    structlog.get_logger("here").info("line", number=number, text="x" * (number % 700))
"""


# case: O7
def test_writers_on_one_pipe_tear_no_line() -> None:
    reads, writes = os.pipe()
    writers = [subprocess.Popen([sys.executable, "-c", _WRITES], stderr=writes) for _ in range(3)]
    os.close(writes)
    with os.fdopen(reads, "rb") as pipe:
        found = [orjson.loads(line)["number"] for line in pipe]
    assert [writer.wait(30) for writer in writers] == [0, 0, 0]
    assert sorted(found) == sorted([*range(2000)] * 3)


_FORKS = """
import os, structlog
from consumer.telemetry.logs import configure_logging
configure_logging("info", "json")
structlog.get_logger("here").info("before")
for number in range(5):
    if (child := os.fork()) == 0:
        structlog.get_logger("here").error("forked", number=number)
        os._exit(0)
    os.waitpid(child, 0)
"""


# case: O7
def test_a_forks_lines_are_written_before_it_ends() -> None:
    ended = subprocess.run([sys.executable, "-c", _FORKS], capture_output=True, check=True, timeout=60)
    found = [orjson.loads(line) for line in ended.stderr.splitlines()]
    assert [line["number"] for line in found if line["event"] == "forked"] == list(range(5))
    assert [line["event"] for line in found].count("before") == 1


# case: O7
@pytest.mark.usefixtures("restored")
def test_long_lines_are_bound_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consumer.telemetry.logs.SETTLE_S", 0.1)
    monkeypatch.setattr("consumer.telemetry.logs.QUEUED_BYTES", 1_000_000)
    reads, writes = os.pipe()
    try:
        with open(writes, "w", encoding="utf-8", closefd=False) as pipe:
            configure_logging("info", "json", pipe)
            log, before = structlog.get_logger("here"), lines_lost()
            for _ in range(200):
                log.info("long", text="x" * 16_000)
            lost = lines_lost() - before
            assert 120 < lost < 145  # what a pipe and the thread hold is no more of the queue
            assert len(_read(reads)) == 200 - lost
            log.info("after")
            assert logs_settled()
            assert [line.get("lines_lost") for line in _read(reads)] == [lost]
    finally:
        os.close(reads)
        os.close(writes)


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


@contextmanager
def stalled_reader() -> Iterator[int]:
    """It holds no line, to begin with."""
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    try:
        while select.select([], [writes], [], 0)[1]:
            os.write(writes, b"\n" * 4096)
        os.set_blocking(writes, True)
        yield writes
    finally:
        os.close(reads)
        os.close(writes)


# case: O7, G2
@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("place", [full_disk, gone_reader, stalled_reader])
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
