"""What a stage does side by side ends together."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from consumer.errors import ConsumerError, LedgerError, LedgerUnavailable
from consumer.payments import ApiError, AuthenticationError, CircuitOpen
from consumer.sync.loop import StageFailure, together


async def test_the_first_failure_ends_the_others_before_it_is_raised() -> None:
    ended = list[str]()

    async def slow(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(name)

    async def failing() -> None:
        await asyncio.sleep(0)
        raise LedgerError("gone")

    with pytest.raises(LedgerError, match="gone"):
        await together(slow("one"), failing(), slow("two"))
    assert ended == ["one", "two"]


@pytest.mark.parametrize(
    ("error", "level"),
    [
        (LedgerUnavailable(), "warning"),
        (ApiError(status=403, raw=b"hush", detail="hush", route="/v1/events"), "error"),
        (AuthenticationError(status=401), "error"),
        (CircuitOpen(retry_after_s=3), "error"),
    ],
)
def test_what_somebody_has_to_mend_is_an_error_and_says_what_was_asked(error: ConsumerError, level: str) -> None:
    # case: O3, S3, B7
    failure = StageFailure("backfill default")
    with capture_logs() as lines:
        failure.failed(error)
        failure.failed(error)
    [line] = lines
    assert (line["log_level"], line["code"], line["reason"]) == (level, error.code, error.line())
    assert "hush" not in str(line)
    if isinstance(error, ApiError) and error.status == 403:
        assert "status=403" in line["reason"]
        assert "route=/v1/events" in line["reason"]


def test_refused_credentials_are_said_once_however_the_calls_fail() -> None:
    # case: O3, S3
    failure = StageFailure("backfill default")
    with capture_logs() as lines:
        for error in (AuthenticationError(status=401), CircuitOpen(retry_after_s=3), CircuitOpen(retry_after_s=2)):
            failure.failed(error)
        assert failure.code == "circuit_open"
        failure.well()
        failure.failed(CircuitOpen(retry_after_s=3))
    assert [line["event"] for line in lines] == ["stage_held_up", "stage_held_up_over", "stage_held_up"]
