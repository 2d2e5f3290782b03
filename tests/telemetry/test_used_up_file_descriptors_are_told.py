"""A process without file descriptors says so: in its log, by `/readyz`, and so to `consumer status`."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import structlog

from consumer.clock import DrivenClock
from consumer.telemetry.descriptors import SPARE, Descriptors
from consumer.telemetry.internal import Readiness


@pytest.fixture
def few() -> Iterator[None]:
    """A limit that leaves this process a hundred descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(each.name) for each in Path("/dev/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, highest + 100), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def use_up(held: list[int]) -> None:
    """Open until nothing more can be opened."""
    with suppress(OSError):
        while True:
            held.append(os.open(os.devnull, os.O_RDONLY))


@pytest.mark.usefixtures("few")
async def test_used_up_file_descriptors_are_told() -> None:
    clock = DrivenClock()
    readiness = Readiness(clock, {"descriptors": Descriptors(clock.monotonic).check})
    readiness.started()
    assert await readiness.answers() == (True, "ready", {"descriptors": "ok"})
    held: list[int] = []
    with structlog.testing.capture_logs() as logged:
        try:
            use_up(held)
            for _ in range(2):
                clock.advance(5)
                assert await readiness.answers() == (False, "not_ready", {"descriptors": "failed"})
                assert readiness.problems["descriptors"][0] == "descriptors_used_up"
            os.close(held.pop())
            clock.advance(5)
            assert not (await readiness.answers())[0], "one is not enough"
        finally:
            for one in held:
                os.close(one)
        clock.advance(5)
        assert (await readiness.answers())[0]
    told = [(one["event"], one["log_level"], one["left"]) for one in logged]
    assert told == [("file_descriptors_used_up", "error", 0), ("file_descriptors_used_up_over", "info", SPARE)]
