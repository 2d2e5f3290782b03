"""Breaker: the state machine, and which errors count for it."""

from __future__ import annotations

import errno
import socket
from datetime import UTC, datetime, timedelta

import aiohttp
import pytest
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from consumer.errors import HandlerTimeout
from consumer.payments import AuthenticationError, OrderAlreadyPaid, ServiceUnreachable
from consumer.work.dispatch.breaker import PATIENCE_S, Breaker, BreakerPolicy, Strike
from consumer.work.outcome import failed
from consumer.work.unreachable import is_unreachable

NOW = datetime(2026, 1, 1, tzinfo=UTC)
POLICY = BreakerPolicy(after=3, first_s=1, factor=2, ceiling_s=5)


def struck(
    breaker: Breaker, *, at: datetime = NOW, is_last: bool = False, certain: bool = True, run: str = "evt_1",
    age_s: float = 0.0,
) -> tuple[Breaker, bool]:  # fmt: skip
    strike = Strike(run=run, age_s=age_s, is_last=is_last, certain=certain)
    return breaker.unreachable(POLICY, at, "refused", strike)


def opened() -> Breaker:
    breaker = Breaker()
    for _ in range(POLICY.after):
        breaker, _ = struck(breaker)
    return breaker


# case: R11
def test_it_opens_after_so_many_in_a_row_and_the_last_of_them_is_spared() -> None:
    breaker, first = struck(Breaker())
    breaker, second = struck(breaker)
    assert (first, second, breaker.is_open) == (False, False, False)
    breaker, third = struck(breaker)
    assert third
    assert breaker.is_open
    assert breaker.room(NOW, 10) == 0


def test_a_success_in_between_starts_the_count_anew() -> None:
    breaker, _ = struck(Breaker())
    breaker, _ = struck(breaker)
    breaker, spared = struck(breaker.answered(succeeded=True))
    assert not spared
    assert not breaker.is_open


def test_one_probe_goes_and_failing_doubles_the_wait_up_to_the_ceiling() -> None:
    breaker, at, waits = opened(), NOW, []
    for _ in range(4):
        assert breaker.until is not None
        waits.append((breaker.until - at).total_seconds())
        at = breaker.until
        assert breaker.room(at, 10) == 1
        breaker = breaker.probed()
        assert breaker.room(at, 10) == 0
        breaker, spared = struck(breaker, at=at)
        assert spared
    assert waits == [1, 2, 4, 5]
    assert not breaker.answered(succeeded=True).is_open


# case: R11
def test_one_that_opened_while_the_clock_was_ahead_probes_as_soon_as_it_is_right() -> None:
    ahead, breaker = NOW + timedelta(hours=1), Breaker()
    for _ in range(POLICY.after):
        breaker, _ = struck(breaker, at=ahead)
    assert breaker.room(ahead, 10) == 0
    assert breaker.room(NOW, 10) == 1
    failed_again, _ = struck(breaker.probed(), at=NOW)
    assert failed_again.until == NOW + timedelta(seconds=2)
    assert failed_again.room(NOW, 10) == 0


def test_what_was_under_way_when_it_opened_is_spared_and_does_not_prolong_it() -> None:
    breaker = opened()
    after, spared = struck(breaker, at=NOW + timedelta(seconds=0.5))
    assert spared
    assert after.until == breaker.until


# case: R11
def test_the_last_attempt_is_spared_unless_another_run_just_got_through() -> None:
    breaker, spared = struck(Breaker(), is_last=True)
    assert spared
    assert breaker.is_open
    _, spared = struck(Breaker().answered(succeeded=True), is_last=True)
    assert not spared
    # A handler that was not done in time may have only itself to blame.
    _, spared = struck(Breaker(), is_last=True, certain=False)
    assert not spared


def test_a_probe_that_says_nothing_frees_the_place() -> None:
    breaker = opened().probed().unprobed()
    assert breaker.until is not None
    assert breaker.room(breaker.until, 10) == 1


def test_it_can_be_turned_off() -> None:
    breaker, off = Breaker(), BreakerPolicy(after=0)
    for _ in range(50):
        breaker, spared = breaker.unreachable(off, NOW, "refused", Strike(run="evt_1", is_last=True))
        assert not spared
    assert not breaker.is_open


# case: R10, R11
def test_one_that_fails_alone_counts_again_when_it_is_older_than_any_outage() -> None:
    breaker = opened()
    assert "only evt_1" in breaker.explanation
    assert breaker.until is not None
    probe = breaker.probed()
    _, spared = struck(probe, at=breaker.until, age_s=PATIENCE_S - 1)
    assert spared
    after, spared = struck(probe, at=breaker.until, age_s=PATIENCE_S)
    assert not spared
    assert after.is_open  # the next event is still a probe
    after, spared = struck(probe, at=breaker.until, age_s=PATIENCE_S, is_last=True)
    assert not spared
    assert not after.is_open


# case: R11
def test_when_others_fail_too_it_is_an_outage_however_long() -> None:
    breaker = opened()
    assert breaker.until is not None
    breaker, _ = struck(breaker.probed(), at=breaker.until, run="evt_2")
    assert "only" not in breaker.explanation
    assert breaker.until is not None
    for run in ("evt_1", "evt_2", "evt_1"):
        breaker, spared = struck(breaker.probed(), at=breaker.until, run=run, age_s=10 * PATIENCE_S, is_last=True)
        assert spared
        assert breaker.until is not None
    _, spared = struck(breaker.answered(succeeded=True), run="evt_1", age_s=10 * PATIENCE_S)
    assert not spared


def http_error(status: int) -> aiohttp.ClientResponseError:
    info = aiohttp.RequestInfo(URL("http://x"), "GET", CIMultiDictProxy(CIMultiDict()), URL("http://x"))
    return aiohttp.ClientResponseError(info, (), status=status)


class LibraryError(Exception):
    """What a client library makes of a broken connection."""


def with_cause(cause: BaseException) -> LibraryError:
    error = LibraryError("cannot connect")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionRefusedError(), True),
        (TimeoutError(), True),
        (socket.gaierror(socket.EAI_NONAME, "no such host"), True),
        (OSError(errno.EHOSTUNREACH, "no route"), True),
        (aiohttp.ServerDisconnectedError(), True),
        (with_cause(ConnectionResetError()), True),
        (HandlerTimeout(), True),
        (ServiceUnreachable(), True),
        (AuthenticationError(), True),
        (http_error(503), True),
        (http_error(401), True),
        (http_error(429), True),
        (http_error(404), False),
        (http_error(422), False),
        (OrderAlreadyPaid(), False),
        (OSError(errno.EMFILE, "too many open files"), True),
        (OSError(errno.ENFILE, "too many open files in system"), True),
        (RuntimeError("can't start new thread"), True),
        (RuntimeError("dictionary changed size during iteration"), False),
        (FileNotFoundError(errno.ENOENT, "no such file"), False),
        (OSError(errno.ENOSPC, "disk full"), False),
        (ValueError("bad amount"), False),
        (with_cause(ValueError("bad amount")), False),
        (SystemExit(1), False),
    ],
)  # fmt: skip
def test_which_errors_say_that_nobody_can_get_through(error: BaseException, expected: bool) -> None:
    assert is_unreachable(error) is expected
    if isinstance(error, Exception):
        assert failed(error).failure.unreachable is expected
