"""Test events have a limit of their own, and whoever meets it holds up nothing else."""

from __future__ import annotations

import pytest

from consumer.payments import BudgetExhausted, RateLimitError
from tests.payments.support import SESSION_FIELDS, Bench, Reply, ScriptedService, error_reply
from tests.payments.writes.answers import CREATED, PENDING_ORDER


async def test_a_refused_test_event_holds_up_nothing_else(service: ScriptedService, b: Bench) -> None:
    # case: C34
    service.will(error_reply(429, "rate_limited", retry_after="1800"))
    with pytest.raises(RateLimitError):
        await b.client.webhook.test_event()
    service.will(PENDING_ORDER, CREATED)
    await b.client.orders.retrieve("ord_1")
    await b.client.checkout_sessions.create_from(SESSION_FIELDS)
    assert b.clock.elapsed_s == 0


async def test_the_tenth_test_event_of_an_hour_is_the_last(service: ScriptedService, b: Bench) -> None:
    # case: C34, C15
    service.answering = lambda _seen: Reply(202, b"")
    for _ in range(10):
        await b.client.webhook.test_event()
    with pytest.raises(BudgetExhausted) as caught:
        await b.client.webhook.test_event()
    assert 3600 <= caught.value.retry_after_s <= 3660
    assert len(service.seen) == 10
    b.clock.elapsed_s += 3660
    await b.client.webhook.test_event()
