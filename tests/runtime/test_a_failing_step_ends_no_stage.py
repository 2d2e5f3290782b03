"""What a stage does side by side ends together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from consumer.clock import Clock, DrivenClock
from consumer.errors import ConsumerError, LedgerError, LedgerUnavailable
from consumer.payments import ApiError, AuthenticationError, CircuitOpen
from consumer.runtime import loop
from consumer.runtime.loop import Stage, StageFailure, WokenStage, together
from tests.sync.conftest import SteppedClock


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


def test_what_nobody_foresaw_is_an_error_under_its_own_name() -> None:
    # case: O3
    failure, error = StageFailure("backfill default"), ValueError("made up")
    with capture_logs() as lines:
        failure.failed(error)
        assert (failure.code, failure.error, failure.times) == ("ValueError", error, 1)
        failure.failed(error)
        failure.well()
        failure.well()
    assert (failure.code, failure.error, failure.times) == (None, None, 0)
    assert [(line["event"], line["log_level"]) for line in lines] == [
        ("stage_broke", "error"),
        ("stage_held_up_over", "info"),
    ]
    assert (lines[1]["was"], lines[1]["failures"]) == ("ValueError", 2)


def test_waits_grow_up_to_ten_seconds_and_begin_anew() -> None:
    failure, waits = StageFailure("backfill default"), list[float]()
    for _ in range(7):
        failure.failed(LedgerUnavailable())
        waits.append(failure.wait_s())
    assert waits == [1, 2, 4, 8, 10, 10, 10]
    failure.well()
    assert failure.wait_s() == 1


@pytest.mark.parametrize(("took_s", "told_s"), [(7.0, 7), (30.0, 30), (31.0, 30)])
def test_how_long_the_first_failing_step_had_tried_is_told(took_s: float, told_s: float) -> None:
    # case: B7
    failure = StageFailure("backfill default")
    failure.failed(LedgerUnavailable(), took_s)
    assert failure.took_s == told_s
    failure.failed(LedgerUnavailable(), 3.0)
    assert failure.took_s == told_s
    failure.well()
    failure.failed(LedgerUnavailable(), 3.0)
    assert failure.took_s == 3


Step = float | Exception | Callable[["Scripted"], float]


class Scripted(WokenStage):
    """Its steps end as they are told to, in this order; the last one sets `stop`. `began`: when each did."""

    def __init__(self, clock: Clock, *steps: Step) -> None:
        super().__init__("scripted", clock)
        self._steps = list(steps)
        self.began = list[float]()
        self.stop = asyncio.Event()

    async def _step(self) -> float:
        self.began.append(self._clock.monotonic())
        step = self._steps.pop(0)
        if not self._steps:
            self.stop.set()
        if isinstance(step, Exception):
            raise step
        return step(self) if callable(step) else step


async def test_a_failing_step_is_tried_again_with_growing_waits_until_one_goes_through() -> None:
    stage = Scripted(
        SteppedClock(), LedgerUnavailable(), ValueError("made up"), LedgerUnavailable(), 5, ValueError(), 1
    )
    async with asyncio.timeout(5):
        await stage.run(stage.stop)
    assert stage.began == [0, 1, 3, 7, 12, 13]
    assert stage.failure.code is None


async def test_a_step_that_fails_tells_how_long_it_took() -> None:
    # case: B7
    clock = SteppedClock()

    def slow(_: Scripted) -> float:
        clock.advance(7)
        raise LedgerUnavailable

    stage = Scripted(clock, 100, slow)
    await stage.run(stage.stop)
    assert (stage.failure.code, stage.failure.took_s, stage.failure.times) == ("ledger_unavailable", 7, 1)


async def settled() -> None:
    """Everybody who can go on has gone on."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_what_wakes_a_stage_during_its_step_cuts_one_wait() -> None:
    def woken(stage: Scripted) -> float:
        stage.wake.set()
        return 100

    clock = DrivenClock()
    stage = Scripted(clock, woken, 200, 0)
    running = asyncio.create_task(stage.run(stage.stop))
    await settled()
    assert stage.began == [0, 0]
    clock.advance(199)
    await settled()
    assert stage.began == [0, 0]
    clock.advance(1)
    async with asyncio.timeout(5):
        await running
    assert stage.began == [0, 0, 200]


class Slow(Stage):
    """Its step ends when it is allowed to."""

    def __init__(self) -> None:
        super().__init__("slow", SteppedClock())
        self.entered, self.allowed = asyncio.Event(), asyncio.Event()
        self.ended = list[str]()

    async def _step(self) -> float:
        self.entered.set()
        try:
            await self.allowed.wait()
        except asyncio.CancelledError:
            self.ended.append("cut")
            raise
        self.ended.append("done")
        return 0


@pytest.mark.parametrize(("in_time", "ended", "code"), [(True, "done", None), (False, "cut", "ledger_unavailable")])
async def test_at_a_stop_a_step_under_way_has_a_while_to_end(
    monkeypatch: pytest.MonkeyPatch, in_time: bool, ended: str, code: str | None
) -> None:
    if not in_time:
        monkeypatch.setattr(loop, "STOP_GRACE_S", 0.0)
    stage, stop = Slow(), asyncio.Event()
    stage.failure.failed(LedgerUnavailable())
    running = asyncio.create_task(stage.run(stop))
    await stage.entered.wait()
    stop.set()
    await settled()
    stage.allowed.set()
    async with asyncio.timeout(2):
        await running
    assert (stage.ended, stage.failure.code) == ([ended], code)


async def test_a_stop_waits_for_no_walk() -> None:
    # case: I4
    stage, stop = Slow(), asyncio.Event()
    running = asyncio.create_task(stage.run(stop))
    await stage.entered.wait()
    stop.set()
    async with asyncio.timeout(2):
        await running
    assert stage.ended == ["cut"]


def test_at_first_nothing_holds_it_up() -> None:
    failure = StageFailure("backfill default")
    assert (failure.error, failure.code, failure.times, failure.took_s) == (None, None, 0, 0.0)


async def test_a_long_step_is_cut_where_it_is_told_to_stop_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "STOP_GRACE_S", 0.0)
    may_end, stop = asyncio.Event(), asyncio.Event()

    async def step() -> float:
        await may_end.wait()
        return 3.0

    waiting = asyncio.create_task(loop._until(step, stop))
    done, _ = await asyncio.wait({waiting}, timeout=0.05)
    assert not done, "nobody has said stop"
    may_end.set()
    assert await asyncio.wait_for(waiting, 10) == 3.0
    may_end.clear()
    waiting = asyncio.create_task(loop._until(step, stop))
    await asyncio.sleep(0)
    stop.set()
    assert await asyncio.wait_for(waiting, 10) is None
