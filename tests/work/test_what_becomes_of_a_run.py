"""From an attempt's outcome to what its run becomes, as a table."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from consumer.ledger.tables import RunStatus
from consumer.plugin import Context, Event, Handler, RetryPolicy
from consumer.retry import Failure
from consumer.work.outcome import Failed, Succeeded
from consumer.work.transition import Transition, attempt_row, transition_after
from tests.support.handling.projections import said

NOW = datetime(2026, 1, 1, tzinfo=UTC)
POLICY = RetryPolicy(attempts=3, first_s=10.0, jitter=0.0)


async def nothing(event: Event, ctx: Context) -> None:
    return None


HANDLER = Handler(name="h", types=("*",), function=nothing, retry=POLICY, on_dead="block")
LENIENT = Handler(name="h", types=("*",), function=nothing, retry=POLICY, on_dead="continue")
SLIP = Failed(Failure("handler_failed", "a slip"), "f1", "ship.py:3")
LATER = Failed(Failure("retry_later", "not yet", after_s=60.0), "f2")
NEVER = Failed(Failure("rejected", "no such thing", permanent=True), "f3", "ship.py:9")


def told(outcome: Failed, status: RunStatus, *, blocking: bool, attempts: int, **more: object) -> Transition:
    said = {"code": outcome.failure.code, "reason": outcome.failure.reason} | more
    return Transition(
        status=status,
        blocking=blocking,
        attempts=attempts,
        fingerprint=outcome.fingerprint,
        trace=outcome.trace,
        **said,  # type: ignore[arg-type]  # by name
    )


@pytest.mark.parametrize("used", [0, 2])
def test_a_success_blocks_nothing_and_counts(used: int) -> None:
    # case: H2
    expected = Transition(status=RunStatus.SUCCEEDED, blocking=False, attempts=used + 1)
    assert transition_after(HANDLER, Succeeded(), used=used, now=NOW) == expected


def test_a_failure_is_tried_again_and_blocks_its_lane() -> None:
    # case: H3, R10
    for used, wait_s in ((0, 10), (1, 30)):
        expected = told(
            SLIP, RunStatus.RETRYING, blocking=True, attempts=used + 1, next_at=NOW + timedelta(seconds=wait_s)
        )
        assert transition_after(HANDLER, SLIP, used=used, now=NOW) == expected
        assert transition_after(LENIENT, SLIP, used=used, now=NOW) == expected


def test_one_who_names_the_time_uses_up_nothing() -> None:
    # case: H3
    for used in (0, 7):
        expected = told(LATER, RunStatus.RETRYING, blocking=True, attempts=used, next_at=NOW + timedelta(seconds=60))
        assert transition_after(HANDLER, LATER, used=used, now=NOW) == expected


@pytest.mark.parametrize(("handler", "blocking"), [(HANDLER, True), (LENIENT, False)])
def test_the_last_failure_is_dead_and_blocks_as_declared(handler: Handler, blocking: bool) -> None:
    # case: H3, H5
    reason = "3 attempts used: a slip"
    expected = told(SLIP, RunStatus.DEAD, blocking=blocking, attempts=3, reason=reason)
    assert transition_after(handler, SLIP, used=2, now=NOW) == expected
    expected = told(NEVER, RunStatus.DEAD, blocking=blocking, attempts=1)
    assert transition_after(handler, NEVER, used=0, now=NOW) == expected


def test_the_attempt_keeps_what_its_run_became() -> None:
    transition = transition_after(HANDLER, SLIP, used=0, now=NOW)
    event, end = said("order.paid", "evt_1", order_id="A"), NOW + timedelta(seconds=1)
    row = attempt_row(HANDLER, event, transition, number=4, worker="w", started_at=NOW, finished_at=end)
    assert (row.application, row.event_id, row.handler, row.number) == ("default", "evt_1", "h", 4)
    assert (row.outcome, row.code, row.reason) == ("retrying", "handler_failed", "a slip")
    assert (row.fingerprint, row.trace, row.worker) == ("f1", "ship.py:3", "w")
    assert (row.started_at, row.finished_at, row.code_version) == (NOW, end, HANDLER.version)
