"""Every test here also proves that nothing crashed and nothing private came into the log."""

from __future__ import annotations

import io
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import structlog

from consumer.telemetry.logs import configure_logging
from tests.receive.rig import PRIVATE, SECRET, RecordingBroker, Rig, embedded, running

MARK = "hush"


@pytest.fixture
def logs() -> Iterator[io.StringIO]:
    """All log lines of the test, at level debug. Afterwards: no traceback, no secret, no body, no address."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    configure_logging("debug", "json", stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()
    text = stream.getvalue()
    assert "Traceback" not in text
    assert "receive_failed" not in text
    for private in (MARK, PRIVATE, SECRET.removeprefix("whsec_")):
        assert private not in text


@pytest.fixture
async def rig(tmp_path: Path, logs: io.StringIO) -> AsyncIterator[Rig]:
    """A receiver on an embedded broker."""
    async with embedded(tmp_path) as broker, running(broker, logs) as found:
        yield found


@pytest.fixture
def recording() -> RecordingBroker:
    """A broker whose answers the test decides."""
    return RecordingBroker()
