"""Waits and retries: what is waited out, what is raised at once, and that everything is bounded."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from email.utils import format_datetime

import pytest

from consumer.payments import (
    AnswerTooLarge,
    BudgetExhausted,
    CheckoutUnavailable,
    Order,
    PlanLimitReached,
    Priority,
    RateLimitError,
    ServerError,
    ServiceUnreachable,
    UnexpectedAnswer,
)
from tests.payments.support import (
    SESSION_FIELDS,
    START,
    Bench,
    Reply,
    ScriptedService,
    bench,
    error_reply,
    session_json,
)

OK = Reply(200, {"id": "ord_1", "status": "PAID"})


@pytest.mark.parametrize("asked", ["0", "1", "10"])
async def test_a_short_429_is_waited_out(service: ScriptedService, b: Bench, asked: str) -> None:
    # case: C5
    service.will(error_reply(429, "rate_limited", retry_after=asked), OK)
    order = await b.client.orders.retrieve("ord_1")
    assert order.is_paid
    assert len(service.seen) == 2
    assert int(asked) <= b.clock.elapsed_s <= int(asked) * 1.1 + 0.3


async def test_waiting_out_429s_is_bounded(service: ScriptedService, b: Bench) -> None:
    # case: C5
    service.answering = lambda _seen: error_reply(429, "rate_limited", retry_after="1")
    with pytest.raises(RateLimitError):
        await b.client.orders.retrieve("ord_1")
    assert len(service.seen) == 5


@pytest.mark.parametrize("asked", ["11", "45", "86400"])
async def test_a_long_429_is_raised_at_once(service: ScriptedService, b: Bench, asked: str) -> None:
    # case: C6
    service.will(error_reply(429, "rate_limited", retry_after=asked))
    with pytest.raises(RateLimitError) as caught:
        await b.client.orders.retrieve("ord_1")
    assert caught.value.retry_after_seconds == int(asked)
    assert caught.value.retryable
    assert b.clock.elapsed_s == 0
    assert len(service.seen) == 1


async def test_a_429_pauses_the_shared_bucket_for_every_other_caller(service: ScriptedService, b: Bench) -> None:
    # case: C6
    service.will(error_reply(429, "rate_limited", retry_after="45"))
    with pytest.raises(RateLimitError):
        await b.client.orders.retrieve("ord_1")
    with pytest.raises(BudgetExhausted) as caught:
        await b.client.with_priority(Priority.CONFIRM).events.retrieve("evt_1")
    assert 44 < caught.value.retry_after_s <= 45
    assert caught.value.retryable
    assert len(service.seen) == 1, "nothing is sent while the bucket is paused"
    b.clock.elapsed_s += 45
    service.will(OK)
    await b.client.orders.retrieve("ord_1")


@pytest.mark.parametrize("header", [None, "", "soon", "-5", "1e3", "Thu, 99 Foo 2026", "1" * 400])
async def test_a_429_without_a_usable_retry_after_backs_off(
    service: ScriptedService, b: Bench, header: str | None
) -> None:
    # case: C7
    service.will(error_reply(429, "rate_limited", retry_after=header))
    service.will(error_reply(429, "rate_limited", retry_after=header), OK)
    await b.client.orders.retrieve("ord_1")
    assert len(service.seen) == 3
    assert b.clock.elapsed_s >= 2 + 4, "the default wait, then twice it"


async def test_a_retry_after_may_be_a_date_by_the_services_clock(service: ScriptedService, b: Bench) -> None:
    # case: C7
    theirs = START - timedelta(minutes=3)
    header = format_datetime(theirs + timedelta(seconds=7), usegmt=True)
    refusal = error_reply(429, "rate_limited", retry_after=header)
    service.will(replace(refusal, headers=refusal.headers | {"Date": format_datetime(theirs, usegmt=True)}), OK)
    await b.client.orders.retrieve("ord_1")
    assert 7 <= b.clock.elapsed_s < 8


async def test_the_plan_limit_is_no_rate_limit(service: ScriptedService, b: Bench) -> None:
    # case: C8
    service.will(error_reply(429, "plan_limit_reached", retry_after="1"), OK)
    with pytest.raises(PlanLimitReached) as caught:
        await b.client.checkout_sessions.create_from(
            {**SESSION_FIELDS, "mode": "subscription", "price_id": "p", "amount": None, "description": None}
        )
    assert not isinstance(caught.value, RateLimitError)
    assert not caught.value.retryable
    assert len(service.seen) == 1
    assert (await b.client.orders.retrieve("ord_1")).is_paid, "no bucket is paused by it"
    assert b.clock.elapsed_s == 0


async def test_checkout_unavailable_is_retried_after_its_wait_with_the_same_key(
    service: ScriptedService, b: Bench
) -> None:
    # case: C9
    service.will(error_reply(409, "checkout_unavailable", retry_after="5"), Reply(200, session_json()))
    session = await b.client.checkout_sessions.reissue_link("cs_1")
    assert session.url is not None
    assert 5 <= b.clock.elapsed_s < 6
    first, second = service.seen
    assert first.headers["Idempotency-Key"] == second.headers["Idempotency-Key"]
    assert first.body == second.body


async def test_checkout_unavailable_for_good_is_told(service: ScriptedService, b: Bench) -> None:
    # case: C9
    service.answering = lambda _seen: error_reply(409, "checkout_unavailable")
    with pytest.raises(CheckoutUnavailable) as caught:
        await b.client.checkout_sessions.reissue_link("cs_1")
    assert len(service.seen) == 3
    assert 10 <= b.clock.elapsed_s < 12, "5 s is the documented wait when the header is missing"
    assert caught.value.retryable


@pytest.mark.parametrize("bad", [Reply(500), Reply(502, b"<html>"), Reply(503), Reply(cut=True), Reply(200, b"<html>")])
async def test_a_read_is_retried_with_growing_waits(service: ScriptedService, b: Bench, bad: Reply) -> None:
    # case: C31
    service.will(bad, bad, bad, OK)
    assert isinstance(await b.client.orders.retrieve("ord_1"), Order)
    assert len(service.seen) == 4
    waits = b.clock.slept
    assert len(waits) == 3
    assert 0.25 <= waits[0] <= 0.5
    assert 0.5 <= waits[1] <= 1.0
    assert 1.0 <= waits[2] <= 2.0


async def test_retries_of_reads_are_bounded(service: ScriptedService, b: Bench) -> None:
    # case: C31
    service.answering = lambda _seen: Reply(503, b"")
    with pytest.raises(ServerError) as caught:
        await b.client.orders.retrieve("ord_1")
    assert caught.value.retryable
    assert len(service.seen) == 4


async def test_a_503_that_names_its_wait_gets_it(service: ScriptedService, b: Bench) -> None:
    # case: C31
    service.will(Reply(503, b"", {"Retry-After": "6"}), OK)
    await b.client.orders.retrieve("ord_1")
    assert b.clock.elapsed_s >= 6


async def test_an_unreachable_service_is_told_as_such(unused_tcp_port: int) -> None:
    # case: C31
    async with bench(f"http://127.0.0.1:{unused_tcp_port}") as b:
        with pytest.raises(ServiceUnreachable) as caught:
            await b.client.orders.retrieve("ord_1")
        assert caught.value.retryable
        assert not caught.value.sent
        assert [attempt.status for attempt in b.attempts] == [None] * 4


async def test_a_slow_answer_is_given_up(service: ScriptedService) -> None:
    # case: C31
    service.answering = lambda _seen: Reply(hang=True)
    async with bench(service.base_url, timeout_s=0.05) as b:
        with pytest.raises(ServiceUnreachable) as caught:
            await b.client.orders.retrieve("ord_1")
        assert caught.value.sent
    assert len(service.seen) == 4


async def test_a_background_walk_waits_out_a_long_429_and_goes_on(service: ScriptedService) -> None:
    # case: B24
    service.will(
        Reply(200, {"items": [{"id": "evt_1"}], "next_cursor": "evt_1"}),
        error_reply(429, "rate_limited", retry_after="45"),
        Reply(200, {"items": [{"id": "evt_2"}], "next_cursor": None}),
    )
    async with bench(service.base_url, priority=Priority.BACKFILL) as b:
        found = [event.id async for event in b.client.events.iterate()]
        assert b.clock.elapsed_s >= 45
    assert found == ["evt_1", "evt_2"]
    assert [seen.query.get("cursor") for seen in service.seen] == [None, "evt_1", "evt_1"]


async def test_a_redirect_is_not_followed(service: ScriptedService, b: Bench) -> None:
    # case: C27
    service.will(Reply(302, b"", {"Location": f"{service.base_url}/elsewhere"}))
    with pytest.raises(UnexpectedAnswer) as caught:
        await b.client.orders.retrieve("ord_1")
    assert caught.value.status == 302
    assert service.paths == ["GET /v1/orders/ord_1"]


async def test_an_oversized_answer_is_refused(service: ScriptedService, b: Bench) -> None:
    # case: C13
    b.client._transport._max_answer_bytes = 1000
    service.answering = lambda _seen: Reply(200, b'{"id": "' + b"x" * 2000 + b'"}')
    with pytest.raises(AnswerTooLarge):
        await b.client.orders.retrieve("ord_1")
    assert len(service.seen) == 1


@pytest.mark.parametrize(("status", "body"), [(429, b""), (503, b""), (429, b"no gzip")])
async def test_a_wait_that_is_asked_for_is_heard_whatever_its_body_is(
    service: ScriptedService, b: Bench, status: int, body: bytes
) -> None:
    # case: C6, C9
    service.will(Reply(status, body, {"Content-Encoding": "gzip", "Retry-After": "3"}), Reply(200, {"id": "ord_1"}))
    assert (await b.client.orders.retrieve("ord_1")).id == "ord_1"
    assert max(b.clock.slept) >= 3


async def test_who_gave_up_before_the_service_answered_is_asked_again(service: ScriptedService, b: Bench) -> None:
    # case: C8
    service.will(Reply(408, b"what stands before it timed out"), Reply(200, {"id": "ord_1"}))
    assert (await b.client.orders.retrieve("ord_1")).id == "ord_1"
