"""A 429 that asks for longer than its limit counts is respected, and tried once in each window: it is over when the
service answers."""

from __future__ import annotations

from itertools import pairwise

import pytest

from consumer.clock import DrivenClock
from consumer.payments import AuthenticationError, BudgetExhausted, Priority, RateLimitError, ResourceNotFound
from consumer.payments.budget import CallKind, Granted, Limits, Scope, Wait, decide, paused, resumed
from consumer.payments.shared_budget import Budget, MemoryBudgetStore
from tests.payments.budget.test_no_window_is_exceeded import FRESH, READ
from tests.payments.support import OTHER_SECRET, SECRET, Bench, Reply, ScriptedService, bench, error_reply

OK = Reply(200, {"id": "ord_1", "status": "PAID"})
LONG = error_reply(429, "rate_limited", retry_after="3600")


def test_one_request_a_window_goes_through_a_long_pause() -> None:
    # case: C6
    state, now, sent = paused(FRESH, READ, 3600.0, 100.0), 100.0, []
    while now < 3800.0:
        verdict = decide(state, READ, Priority.LIVE, now)
        if isinstance(verdict, Granted):
            sent.append((now, verdict.tries))
            state.update(verdict.changed)
            continue
        assert verdict.paused_s == pytest.approx(max(0.0, 3700.0 - now), abs=0.01) or now > 3700.0
        now += verdict.seconds + 0.001
        if len(sent) > 61:
            break
    during = [at for at, tries in sent if tries]
    assert 55 <= len(during) <= 60
    assert during[0] > 160.0
    assert all(later - before >= 60.0 for before, later in pairwise(during))


def test_a_pause_within_the_window_is_waited_out_whole() -> None:
    # case: C6
    state = paused(FRESH, READ, 60.0, 100.0)
    verdict = decide(state, READ, Priority.LIVE, 130.0)
    assert isinstance(verdict, Wait)
    assert verdict.seconds == verdict.paused_s == 30.0
    after = decide(state, READ, Priority.LIVE, 160.0)
    assert isinstance(after, Granted)
    assert not after.tries


def test_a_request_through_one_bucket_that_is_paused_ends_no_other() -> None:
    # case: C6, C15
    limits = Scope(ip="one", application="svc_app_b").buckets(CallKind.READ, Limits())
    state = paused({**FRESH, **dict.fromkeys(limits, next(iter(FRESH.values())))}, {**READ, **limits}, 900.0, 0.0)
    after = state | resumed(state, READ, 61.0)
    assert isinstance(decide(after, READ, Priority.LIVE, 61.0), Granted)
    verdict = decide(after, limits, Priority.LIVE, 31.0)
    assert isinstance(verdict, Wait)
    assert verdict.paused_s > 800


async def test_who_is_held_by_a_429_is_told_that_and_until_when(service: ScriptedService, b: Bench) -> None:
    # case: C6
    service.will(LONG)
    with pytest.raises(RateLimitError):
        await b.client.orders.retrieve("ord_1")
    with pytest.raises(BudgetExhausted) as caught:
        await b.client.orders.retrieve("ord_1")
    assert caught.value.code == "rate_limited"
    assert caught.value.retry_after_s <= 61, "then it may be tried"
    assert "asked to wait until 2026-01-01 01:00:00Z" in caught.value.line()
    assert len(service.seen) == 1


async def test_the_pause_is_over_when_the_service_answers_the_one_that_tries(
    service: ScriptedService, b: Bench
) -> None:
    # case: C6
    service.will(LONG)
    with pytest.raises(RateLimitError):
        await b.client.orders.retrieve("ord_1")
    b.clock.elapsed_s += 61
    service.will(OK, OK)
    await b.client.orders.retrieve("ord_1")
    await b.client.orders.retrieve("ord_1")
    assert b.clock.elapsed_s == 61


async def test_it_goes_on_when_that_one_is_refused_or_not_answered(service: ScriptedService, b: Bench) -> None:
    # case: C6
    service.will(LONG)
    with pytest.raises(RateLimitError):
        await b.client.orders.retrieve("ord_1")
    for refusal in (LONG, error_reply(503, "unavailable")):
        b.clock.elapsed_s += 61
        asked = len(service.seen)
        service.will(refusal)
        with pytest.raises((RateLimitError, BudgetExhausted)):
            await b.client.orders.retrieve("ord_1")
        assert len(service.seen) == asked + 1
        with pytest.raises(BudgetExhausted) as caught:
            await b.client.orders.retrieve("ord_1")
        assert caught.value.code == "rate_limited"
        assert len(service.seen) == asked + 1


async def test_a_walk_waits_for_the_turn_to_try(service: ScriptedService) -> None:
    # case: B24, C6
    async with bench(service.base_url, priority=Priority.BACKFILL) as b:
        service.will(LONG)
        with pytest.raises(RateLimitError):
            await b.client.orders.retrieve("ord_1")
        service.will(OK, OK)
        await b.client.orders.retrieve("ord_1")
        assert 60 <= b.clock.elapsed_s <= 61
        await b.client.orders.retrieve("ord_1")
        assert b.clock.elapsed_s <= 61.5


async def test_no_such_object_is_an_answer_too(service: ScriptedService, b: Bench) -> None:
    """Of one that the service denies, at the head of the queue, each try came to nothing."""
    # case: C6
    service.will(LONG)
    with pytest.raises(RateLimitError):
        await b.client.orders.retrieve("ord_1")
    b.clock.elapsed_s += 61
    service.will(error_reply(404, "not_found"), OK)
    with pytest.raises(ResourceNotFound):
        await b.client.orders.retrieve("ord_2")
    await b.client.orders.retrieve("ord_1")
    assert b.clock.elapsed_s == 61


async def test_whose_secret_is_refused_tries_the_other_in_the_same_turn(service: ScriptedService) -> None:
    """The turn was spent on the first for as long as the pause lasted, and nobody heard of the 401."""
    # case: C6, C14, S2, S3
    refusal = error_reply(401, "invalid_api_credentials")
    async with bench(service.base_url, secrets=(SECRET, OTHER_SECRET)) as b:
        service.will(LONG)
        with pytest.raises(RateLimitError):
            await b.client.orders.retrieve("ord_1")
        b.clock.elapsed_s += 61
        service.will(refusal, OK)
        await b.client.orders.retrieve("ord_1")
        service.will(LONG)
        with pytest.raises(RateLimitError):
            await b.client.orders.retrieve("ord_1")
        b.clock.elapsed_s += 61
        service.will(refusal, refusal)
        with pytest.raises(AuthenticationError):
            await b.client.orders.retrieve("ord_1")
        assert b.client.circuit.is_open
        assert b.clock.elapsed_s == 122


async def test_who_tries_and_is_refused_holds_up_nobody_whom_the_service_answers() -> None:
    """Of two applications behind one address one is refused: each of its tries paused the address for both."""
    # case: C6, C15
    clock = DrivenClock()
    store = MemoryBudgetStore(clock)
    refused, answered = (Budget(store, Scope(ip="same", application=name), clock) for name in ("svc_a", "svc_b"))
    await refused.acquire(CallKind.READ, Priority.LIVE, max_wait_s=0)
    await refused.pause(CallKind.READ, 3600.0)
    for one in (answered, refused):
        with pytest.raises(BudgetExhausted):
            await one.acquire(CallKind.READ, Priority.LIVE, max_wait_s=0)
    clock.advance(61)
    await answered.acquire(CallKind.READ, Priority.LIVE, max_wait_s=0)
    await answered.answered(CallKind.READ)
    clock.advance(61)
    await refused.acquire(CallKind.READ, Priority.LIVE, max_wait_s=0)
    await refused.pause(CallKind.READ, 3600.0)
    await answered.acquire(CallKind.READ, Priority.LIVE, max_wait_s=0)
    with pytest.raises(BudgetExhausted):
        await refused.acquire(CallKind.READ, Priority.LIVE, max_wait_s=0)
