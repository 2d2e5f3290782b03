"""The budget's arithmetic: no window is ever exceeded, the urgent go first, nothing is left unused."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumer.payments import CallKind, Limit, Limits, Priority, Scope
from consumer.payments.budget import PAUSE_MAX_S, Bucket, Granted, Wait, decide, paused, predict_s
from tests.payments.budget.limiters import LIMITERS, SlidingWindow, TokenBucket, most_in_a_window

MINUTE = Limit(requests=300, window_s=60)
SCOPE = Scope(ip="one", application="svc_app_a")
READ = SCOPE.buckets(CallKind.READ, Limits())
FRESH = dict.fromkeys(READ, Bucket())

GAPS = st.sampled_from([0.0, 0.001, 0.2, 0.5, 1.0, 7.3, 29.9, 60.0, 61.0])
MOVES = st.lists(st.tuples(GAPS, st.sampled_from(Priority), st.integers(1, 400)), min_size=1, max_size=12)
LIMITS = st.builds(Limit, requests=st.integers(1, 400), window_s=st.sampled_from([60.0, 3600.0]))


def granted_times(limit: Limit, moves: list[tuple[float, Priority, int]]) -> list[float]:
    """When requests are granted if, after each gap, so many are tried at once by that priority."""
    state, now, times = {"b": Bucket()}, 1_700_000_000.0, []
    for gap, priority, tries in moves:
        now += gap * limit.window_s / 60
        for _ in range(tries):
            verdict = decide(state, {"b": limit}, priority, now)
            if isinstance(verdict, Wait):
                break
            state.update(verdict.changed)
            times.append(now)
    return times


@settings(max_examples=40, deadline=None)
@given(LIMITS, MOVES)
def test_no_window_ever_holds_more_than_the_limit(limit: Limit, moves: list[tuple[float, Priority, int]]) -> None:
    # case: C15
    times = granted_times(limit, moves)
    assert most_in_a_window(times, limit.window_s) <= limit.requests - limit.margin


@settings(max_examples=40, deadline=None)
@given(LIMITS, MOVES)
def test_every_usual_limiter_would_let_it_all_through(limit: Limit, moves: list[tuple[float, Priority, int]]) -> None:
    # case: C15
    times = granted_times(limit, moves)
    for limiter in (SlidingWindow(limit.requests, limit.window_s), TokenBucket(limit.requests, limit.window_s)):
        assert all(limiter.refuse(at - 1_700_000_000.0) is None for at in times)


@settings(max_examples=40, deadline=None)
@given(MOVES, GAPS)
def test_who_is_more_urgent_never_waits_longer(moves: list[tuple[float, Priority, int]], gap: float) -> None:
    # case: C15, B23
    state, now = {"b": Bucket()}, 0.0
    for step, priority, tries in [*moves, (gap, Priority.LIVE, 0)]:
        now += step
        for _ in range(tries):
            verdict = decide(state, {"b": MINUTE}, priority, now)
            if isinstance(verdict, Granted):
                state.update(verdict.changed)
        bucket, at = state["b"].at(now, MINUTE)
        waits = [bucket.wait_s(MINUTE, urgency, at) for urgency in sorted(Priority)]
        assert waits == sorted(waits)


@settings(max_examples=40, deadline=None)
@given(LIMITS, MOVES, st.sampled_from(Priority))
def test_the_named_wait_is_enough_and_not_too_long(
    limit: Limit, moves: list[tuple[float, Priority, int]], priority: Priority
) -> None:
    # case: C15
    state, now = {"b": Bucket()}, 0.0
    for gap, urgency, tries in moves:
        now += gap
        for _ in range(tries):
            verdict = decide(state, {"b": limit}, urgency, now)
            if isinstance(verdict, Granted):
                state.update(verdict.changed)
    verdict = decide(state, {"b": limit}, priority, now)
    if isinstance(verdict, Wait):
        early = decide(state, {"b": limit}, priority, now + verdict.seconds * 0.99 - 0.001)
        assert verdict.seconds < 0.01 or isinstance(early, Wait)
        assert isinstance(decide(state, {"b": limit}, priority, now + verdict.seconds + 1e-6), Granted)
        assert verdict.seconds <= 2 * limit.window_s + limit.slot_s


@pytest.mark.parametrize("priority", Priority)
@pytest.mark.parametrize("kind", [CallKind.READ, CallKind.WRITE])
def test_whoever_is_alone_gets_at_least_95_percent(priority: Priority, kind: CallKind) -> None:
    # case: C15, B23
    limits = SCOPE.buckets(kind, Limits())
    state, now, sent = dict.fromkeys(limits, Bucket()), 0.0, 0
    while True:
        verdict = decide(state, limits, priority, now)
        if isinstance(verdict, Wait):
            now = math.nextafter(now + verdict.seconds, math.inf)
            if now >= 240:
                break
            continue
        state.update(verdict.changed)
        sent += 1
    full = 4 * (300 if kind is CallKind.READ else 120)
    assert sent >= (0.95 if kind is CallKind.READ else 0.90) * full
    assert sent <= full


def test_a_live_burst_after_quiet_needs_no_wait() -> None:
    # case: C15
    state = dict(FRESH)
    for _ in range(290):
        verdict = decide(state, READ, Priority.LIVE, 1000.0)
        assert isinstance(verdict, Granted)
        state.update(verdict.changed)


def test_background_work_does_not_burst() -> None:
    # case: B23
    state, burst = dict(FRESH), 0
    while isinstance(verdict := decide(state, READ, Priority.BACKFILL, 1000.0), Granted):
        state.update(verdict.changed)
        burst += 1
    assert burst <= 6
    for _ in range(200):
        live = decide(state, READ, Priority.LIVE, 1000.0)
        assert isinstance(live, Granted), "a burst of background work leaves the window to live calls"
        state.update(live.changed)


def test_each_kind_draws_on_its_own_buckets() -> None:
    # case: C15, C34
    limits = Limits()
    assert set(SCOPE.buckets(CallKind.READ, limits)) == {"ip/one", "application/svc_app_a/reads"}
    writes = {"ip/one", "application/svc_app_a/writes", "merchant/default/writes"}
    assert set(SCOPE.buckets(CallKind.WRITE, limits)) == writes
    assert set(SCOPE.buckets(CallKind.TEST_EVENT, limits)) == writes | {"application/svc_app_a/test-events"}
    assert set(SCOPE.paused_by(CallKind.TEST_EVENT, limits)) == {"application/svc_app_a/test-events"}
    documented = {
        name: (limit.requests, limit.window_s) for name, limit in SCOPE.buckets(CallKind.TEST_EVENT, limits).items()
    }
    assert documented == {
        "ip/one": (300, 60),
        "application/svc_app_a/writes": (120, 60),
        "merchant/default/writes": (300, 60),
        "application/svc_app_a/test-events": (10, 3600),
    }
    assert READ["application/svc_app_a/reads"] == Limit(requests=600, window_s=60)


def test_a_request_takes_a_place_in_all_of_its_buckets_or_in_none() -> None:
    # case: C15
    limits = SCOPE.buckets(CallKind.WRITE, Limits())
    state = dict.fromkeys(limits, Bucket())
    while isinstance(verdict := decide(state, limits, Priority.LIVE, 0.0), Granted):
        state.update(verdict.changed)
    assert verdict.bucket == "application/svc_app_a/writes"
    assert {sum(used for _, used in bucket.slots) for bucket in state.values()} == {118}


def test_a_pause_holds_everybody_and_is_never_shortened() -> None:
    # case: C6
    state = paused(FRESH, READ, 45.0, 100.0)
    state = paused(state, READ, 5.0, 101.0)
    for priority in Priority:
        verdict = decide(state, READ, priority, 102.0)
        assert isinstance(verdict, Wait)
        assert verdict.seconds == pytest.approx(43.0)
        assert isinstance(decide(state, READ, priority, 145.0), Granted)


@pytest.mark.parametrize(("asked", "held"), [(1e12, PAUSE_MAX_S), (-5.0, 0.0)])
def test_a_pause_is_bounded(asked: float, held: float) -> None:
    # case: C6, C7
    state = paused(FRESH, READ, asked, 100.0)
    assert state["ip/one"].paused_until == 100.0 + held


@given(MOVES)
def test_a_state_survives_its_storage(moves: list[tuple[float, Priority, int]]) -> None:
    # case: C15
    bucket, now = Bucket(), 0.0
    for gap, _, tries in moves:
        now += gap
        bucket, at = bucket.at(now, MINUTE)
        for _ in range(min(tries, 5)):
            bucket = bucket.take(MINUTE, at)
        assert Bucket.load(bucket.dump()) == bucket
        assert len(bucket.dump()) < 8000


@pytest.mark.parametrize("text", ["", "{}", "[1]", "nonsense", '[[["a"]],1,2,3]', "null"])
def test_a_state_of_another_version_begins_afresh(text: str) -> None:
    # case: C15
    assert Bucket.load(text) == Bucket()


def test_a_clock_slightly_behind_does_not_widen_the_window() -> None:
    # case: C16
    state: dict[str, Bucket] = {"b": Bucket()}
    times = []
    for step in range(3000):
        now = step * 0.05 - (3.0 if step % 2 else 0.0)  # two servers, one three seconds behind
        verdict = decide(state, {"b": MINUTE}, Priority.LIVE, 1000 + now)
        if isinstance(verdict, Granted):
            state.update(verdict.changed)
            times.append(step * 0.05)
    assert most_in_a_window(times) <= 300


@settings(max_examples=8, deadline=None)
@given(st.floats(61, 10**6))
def test_a_clock_set_back_does_not_stop_the_calls(back: float) -> None:
    # case: C15
    state = {"b": Bucket()}
    for number in range(50):
        verdict = decide(state, {"b": MINUTE}, Priority.BACKFILL, 10**7 + number)
        assert isinstance(verdict, Granted)
        state.update(verdict.changed)
    granted = 0
    for step in range(900):
        verdict = decide(state, {"b": MINUTE}, Priority.BACKFILL, 10**7 + 49 - back + step * 0.2)
        if isinstance(verdict, Granted):
            state.update(verdict.changed)
            granted += 1
    assert granted >= 0.9 * 3 * 300, "three minutes after the clock was set back"


@pytest.mark.parametrize("priority", Priority)
@pytest.mark.parametrize("requests", [1, 5, 100, 300, 1000])
def test_the_prediction_comes_true(priority: Priority, requests: int) -> None:
    # case: B23
    predicted = predict_s(FRESH, READ, priority, 50.0, requests)
    state, now = dict(FRESH), 50.0
    for _ in range(requests):
        while isinstance(verdict := decide(state, READ, priority, now), Wait):
            now = math.nextafter(now + verdict.seconds, math.inf)
        state.update(verdict.changed)
    assert predicted == pytest.approx(now - 50.0, rel=0.05, abs=1.0)


@pytest.mark.parametrize("name", LIMITERS)
def test_the_limiter_models_refuse_what_is_over(name: str) -> None:
    limiter = LIMITERS[name](300)
    assert all(limiter.refuse(0.0) is None for _ in range(300))
    wait = limiter.refuse(0.0)
    assert wait is not None
    assert 0 < wait <= 60
