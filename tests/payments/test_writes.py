"""Writes: one key and one body for all tries of an operation, and what is done when nobody knows."""

from __future__ import annotations

import asyncio

import pytest

from consumer.payments import (
    AmbiguousWrite,
    LinkUnavailable,
    MemoryIdempotencyKeys,
    MerchantTokenAccountMissing,
    OrderAlreadyPaid,
    PaymentInProgress,
    RateLimitError,
    SessionMismatch,
    SessionNotCancelable,
    SessionNotReissuable,
    SubscriptionAlreadyEnded,
    ValidationError,
    kept_url,
)
from consumer.payments.models import CheckoutSession
from tests.payments.support import SESSION_FIELDS, Bench, Reply, ScriptedService, bench, error_reply, session_json

CREATED = Reply(200, session_json())
CREATED_AGAIN = Reply(200, session_json(url=None))
LINKED = Reply(200, session_json(url="https://pay.example/cs_1?n=2"))
NOT_FOUND = Reply(404, b"")
CUT = Reply(cut=True)
LOST = (CUT,) * 4
PENDING_ORDER = Reply(200, {"id": "ord_1", "status": "PENDING"})

CREATE = "POST /v1/checkout-sessions"
LINK = "POST /v1/checkout-sessions/cs_1/link"
LOOKUP = "GET /v1/orders/lookup"


def keys(service: ScriptedService) -> list[str]:
    return [seen.headers["Idempotency-Key"] for seen in service.seen if seen.method == "POST"]


async def test_every_post_carries_a_key_and_json(service: ScriptedService, b: Bench) -> None:
    # case: C2
    service.answering = lambda _seen: CREATED
    await b.client.checkout_sessions.create_from(SESSION_FIELDS)
    await b.client.checkout_sessions.cancel("cs_1")
    await b.client.checkout_sessions.reissue_link("cs_1")
    await b.client.subscriptions.cancel("sub_1", at="now")
    await b.client.webhook.test_event()
    assert len(service.seen) == 5
    for seen in service.seen:
        assert seen.method == "POST"
        assert seen.headers["Idempotency-Key"]
        assert seen.headers["Content-Type"] == "application/json"
        assert isinstance(seen.json, dict)
    assert len(set(keys(service))) == 5


async def test_all_tries_of_a_write_send_the_same_key_and_bytes(service: ScriptedService, b: Bench) -> None:
    # case: C3, C31
    service.will(CUT, Reply(500), error_reply(429, "rate_limited", retry_after="1"), CREATED)
    await b.client.checkout_sessions.create_from(SESSION_FIELDS)
    assert len(service.seen) == 4
    assert len(set(keys(service))) == 1
    assert len({seen.body for seen in service.seen}) == 1


class RecordingKeys(MemoryIdempotencyKeys):
    """Writes down when a key was stored and settled, among the requests."""

    def __init__(self, service: ScriptedService) -> None:
        super().__init__()
        self.log: list[str] = []
        self._service = service

    async def begin(self, application: str, operation: str, digest: str) -> str:
        key = await super().begin(application, operation, digest)
        self.log.append(f"begin {operation} after {len(self._service.seen)} requests")
        return key

    async def settle(self, application: str, operation: str, key: str) -> None:
        await super().settle(application, operation, key)
        self.log.append(f"settle {operation} after {len(self._service.seen)} requests")


async def test_the_key_is_stored_before_the_first_send_and_settled_after_the_answer(service: ScriptedService) -> None:
    # case: C3
    stored = RecordingKeys(service)
    service.will(CREATED)
    async with bench(service.base_url, key_store=stored) as b:
        await b.client.checkout_sessions.create_from(SESSION_FIELDS)
    assert stored.log == [
        "begin checkout_sessions.create/order-1 after 0 requests",
        "settle checkout_sessions.create/order-1 after 1 requests",
    ]


async def test_a_crashed_write_is_repeated_with_its_key(service: ScriptedService) -> None:
    # case: C3
    stored = MemoryIdempotencyKeys()
    service.answering = lambda _seen: Reply(hang=True)
    async with bench(service.base_url, key_store=stored) as b:
        create = asyncio.create_task(b.client.checkout_sessions.create_from(SESSION_FIELDS))
        await asyncio.wait_for(service.asked.wait(), 5)
        create.cancel()
        with pytest.raises(asyncio.CancelledError):
            await create
    service.answering = lambda _seen: CREATED
    async with bench(service.base_url, key_store=stored) as b:
        await b.client.checkout_sessions.create_from(SESSION_FIELDS)
        await b.client.checkout_sessions.create_from(SESSION_FIELDS)
    first, repeated, new = keys(service)
    assert first == repeated
    assert new != first, "an operation whose outcome is known is over"


async def test_a_changed_body_gets_another_key(service: ScriptedService, b: Bench) -> None:
    # case: C4
    service.will(error_reply(429, "rate_limited", retry_after="60"))
    with pytest.raises(RateLimitError):
        await b.client.checkout_sessions.create_from(SESSION_FIELDS)
    b.clock.elapsed_s += 60
    service.answering = lambda _seen: CREATED
    await b.client.checkout_sessions.create_from({**SESSION_FIELDS, "amount": "10.51"})
    first, second = keys(service)
    assert first != second


async def test_a_refused_write_is_over_and_an_unanswered_one_is_not(service: ScriptedService, b: Bench) -> None:
    # case: C3, C4
    service.will(error_reply(422, "merchant_token_account_missing"))
    service.will(error_reply(429, "rate_limited", retry_after="60"))
    for kind in (MerchantTokenAccountMissing, RateLimitError):
        with pytest.raises(kind):
            await b.client.checkout_sessions.create_from(SESSION_FIELDS)
    b.clock.elapsed_s += 60
    service.will(CREATED)
    await b.client.checkout_sessions.create_from(SESSION_FIELDS)
    refused, limited, created = keys(service)
    assert refused != limited
    assert limited == created


async def test_the_merchants_own_key_is_sent_as_it_is(service: ScriptedService, b: Bench) -> None:
    # case: C3
    service.answering = lambda _seen: CREATED
    await b.client.checkout_sessions.create_from(SESSION_FIELDS, idempotency_key="effect:1")
    assert keys(service) == ["effect:1"]
    for bad in ("", "x" * 256, "a b", "a\r\nX: y", "ä"):
        with pytest.raises(ValidationError) as caught:
            await b.client.checkout_sessions.create_from(SESSION_FIELDS, idempotency_key=bad)
        assert caught.value.field == "idempotency_key"
    assert len(service.seen) == 1


async def test_memory_keys_forget_the_oldest() -> None:
    # case: C3
    stored = MemoryIdempotencyKeys(max_keys=2)
    first = await stored.begin("a", "op1", "d")
    await stored.begin("a", "op2", "d")
    assert await stored.begin("a", "op1", "d") == first
    await stored.begin("b", "op1", "d")
    assert await stored.begin("a", "op1", "d") != first


async def test_a_lost_create_that_comes_again_without_its_link_gets_a_new_link(
    service: ScriptedService, b: Bench
) -> None:
    # case: C18, C26
    service.will(CUT, CREATED_AGAIN, LINKED)
    session = await b.client.checkout_sessions.create_from(SESSION_FIELDS)
    assert session.url == "https://pay.example/cs_1?n=2"
    assert service.paths == [CREATE, CREATE, LINK]


@pytest.mark.parametrize(
    ("code", "reason"), [("session_not_reissuable", SessionNotReissuable), ("payment_in_progress", PaymentInProgress)]
)
async def test_a_link_that_cannot_be_had_is_explained(
    service: ScriptedService, b: Bench, code: str, reason: type[Exception]
) -> None:
    # case: C18, C20
    service.will(CREATED_AGAIN, error_reply(409, code))
    with pytest.raises(LinkUnavailable) as caught:
        await b.client.checkout_sessions.create_from(SESSION_FIELDS)
    assert isinstance(caught.value.reason, reason)
    assert caught.value.session.id == "cs_1"


async def test_a_refused_reissue_suggests_a_new_session(service: ScriptedService, b: Bench) -> None:
    # case: C20
    service.will(error_reply(409, "session_not_reissuable"))
    with pytest.raises(SessionNotReissuable, match=r"under 120 seconds left.*expired, create a new session"):
        await b.client.checkout_sessions.reissue_link("cs_1")


@pytest.mark.parametrize("again", [session_json(url=None, status="COMPLETED"), session_json(url=None, id=None)])
async def test_a_session_that_is_not_open_gets_no_link(
    service: ScriptedService, b: Bench, again: dict[str, object]
) -> None:
    # case: C18
    service.will(Reply(200, again))
    with pytest.raises(LinkUnavailable):
        await b.client.checkout_sessions.create_from(SESSION_FIELDS)
    assert service.paths == [CREATE]


async def test_an_open_session_with_other_terms_is_refused(service: ScriptedService, b: Bench) -> None:
    # case: U24
    service.will(Reply(200, session_json(url=None, amount="99.00", order_id="order-1")))
    with pytest.raises(SessionMismatch) as caught:
        await b.client.checkout_sessions.create_from(SESSION_FIELDS)
    assert caught.value.differing == ("amount",)
    service.will(Reply(200, session_json(url=None, amount="10.500000")), LINKED)
    assert (await b.client.checkout_sessions.create_from(SESSION_FIELDS)).url is not None


async def test_an_old_answer_played_back_is_not_taken_for_a_new_session(service: ScriptedService, b: Bench) -> None:
    # case: C18, U17
    lapsed = Reply(200, session_json(expires_at="2025-12-31T23:00:00Z"))
    service.will(lapsed, CREATED)
    session = await b.client.checkout_sessions.create_from(SESSION_FIELDS)
    assert session.expires_at is not None
    assert session.expires_at > b.clock.now()
    first, second = keys(service)
    assert first != second
    service.will(lapsed)
    with pytest.raises(LinkUnavailable, match="use a new key"):
        await b.client.checkout_sessions.create_from(SESSION_FIELDS, idempotency_key="mine")


def test_a_read_never_erases_the_stored_link() -> None:
    # case: C19
    stored = kept_url(None, CheckoutSession.read(session_json()))
    assert stored == "https://pay.example/cs_1"
    assert kept_url(stored, CheckoutSession.read(session_json(url=None))) == stored
    assert kept_url(stored, CheckoutSession.read(session_json(url="https://new"))) == "https://new"


async def test_an_unanswered_create_is_looked_up_and_then_repeated_with_its_key(
    service: ScriptedService, b: Bench
) -> None:
    # case: C26
    service.will(*LOST, PENDING_ORDER, CREATED_AGAIN, LINKED)
    session = await b.client.checkout_sessions.create_from(SESSION_FIELDS)
    assert session.url is not None
    assert service.paths == [CREATE] * 4 + [LOOKUP, CREATE, LINK]
    assert service.seen[4].query == {"order_id": "order-1"}
    assert len(set(keys(service)[:5])) == 1


async def test_an_unanswered_create_of_a_paid_order_is_told_as_paid(service: ScriptedService, b: Bench) -> None:
    # case: C26, F27
    service.will(*LOST, Reply(200, {"id": "ord_1", "status": "PAID"}))
    with pytest.raises(OrderAlreadyPaid):
        await b.client.checkout_sessions.create_from(SESSION_FIELDS)
    assert service.paths == [CREATE] * 4 + [LOOKUP]


@pytest.mark.parametrize("looked_up", [(NOT_FOUND,), LOST, (PENDING_ORDER, *LOST)])
async def test_a_create_nobody_knows_of_is_ambiguous_and_keeps_its_key(
    service: ScriptedService, b: Bench, looked_up: tuple[Reply, ...]
) -> None:
    # case: C26
    service.will(*LOST, *looked_up)
    with pytest.raises(AmbiguousWrite) as caught:
        await b.client.checkout_sessions.create_from(SESSION_FIELDS)
    assert caught.value.retryable
    assert (caught.value.order is not None) == (looked_up[0] is PENDING_ORDER)
    service.will(CREATED)
    await b.client.checkout_sessions.create_from(SESSION_FIELDS)
    assert set(keys(service)) == {caught.value.idempotency_key}


async def test_an_unanswered_subscription_create_has_no_order_to_look_up(service: ScriptedService, b: Bench) -> None:
    # case: C26
    service.will(*LOST)
    fields = {**SESSION_FIELDS, "mode": "subscription", "price_id": "p", "amount": None, "description": None}
    with pytest.raises(AmbiguousWrite):
        await b.client.checkout_sessions.create_from(fields)
    assert service.paths == [CREATE] * 4


async def test_a_write_that_never_left_is_not_ambiguous(unused_tcp_port: int) -> None:
    # case: C26
    from consumer.payments import ServiceUnreachable

    async with bench(f"http://127.0.0.1:{unused_tcp_port}") as b:
        with pytest.raises(ServiceUnreachable):
            await b.client.checkout_sessions.create_from(SESSION_FIELDS)


@pytest.mark.parametrize("last", [(error_reply(409, "session_not_cancelable"),), (CUT, CUT, CUT)])
async def test_an_unanswered_session_cancel_is_decided_by_a_read(
    service: ScriptedService, b: Bench, last: tuple[Reply, ...]
) -> None:
    # case: C26
    service.will(CUT, *last, Reply(200, session_json(url=None, status="CANCELED")))
    await b.client.checkout_sessions.cancel("cs_1")
    assert service.paths[-1] == "GET /v1/checkout-sessions/cs_1"


async def test_a_session_cancel_that_came_too_late_is_told(service: ScriptedService, b: Bench) -> None:
    # case: C26, C10
    service.will(CUT, error_reply(409, "session_not_cancelable"), Reply(200, session_json(status="COMPLETED")))
    with pytest.raises(SessionNotCancelable):
        await b.client.checkout_sessions.cancel("cs_1")
    service.will(*LOST, Reply(200, session_json(url=None, status="OPEN")))
    with pytest.raises(AmbiguousWrite):
        await b.client.checkout_sessions.cancel("cs_1")


@pytest.mark.parametrize(
    ("at", "seen"),
    [
        ("now", {"status": "ENDED", "end_reason": "MERCHANT_CANCELED"}),
        ("period_end", {"status": "ACTIVE", "cancel_at_period_end": True, "merchant_cancel_requested": True}),
        ("period_end", {"status": "ENDED", "end_reason": "MERCHANT_CANCELED"}),
    ],
)
async def test_an_unanswered_subscription_cancel_is_decided_by_a_read(
    service: ScriptedService, b: Bench, at: str, seen: dict[str, object]
) -> None:
    # case: C26
    service.will(*LOST, Reply(200, {"id": "sub_1"} | seen))
    await b.client.subscriptions.cancel("sub_1", at=at)  # type: ignore[arg-type] # parametrised
    assert service.paths[-1] == "GET /v1/subscriptions/sub_1"


async def test_a_subscription_cancel_that_did_not_happen_is_not_done(service: ScriptedService, b: Bench) -> None:
    # case: C26
    service.will(*LOST, Reply(200, {"id": "sub_1", "status": "ACTIVE", "merchant_cancel_requested": False}))
    with pytest.raises(AmbiguousWrite):
        await b.client.subscriptions.cancel("sub_1", at="period_end")
    ended = Reply(200, {"id": "sub_1", "status": "ENDED", "end_reason": "PAYMENT_FAILED"})
    service.will(CUT, error_reply(409, "subscription_already_ended"), ended)
    with pytest.raises(SubscriptionAlreadyEnded):
        await b.client.subscriptions.cancel("sub_1", at="now")


async def test_a_cancel_is_done_whatever_its_answer_looks_like(service: ScriptedService, b: Bench) -> None:
    # case: C13, U18
    for body in (b"", b"ok", b"[]", b'{"anything": 1}'):
        service.will(Reply(200, body), Reply(204, b""))
        await b.client.checkout_sessions.cancel("cs_1")
        await b.client.subscriptions.cancel("sub_1", at="now")


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
    from consumer.payments import BudgetExhausted

    service.answering = lambda _seen: Reply(202, b"")
    for _ in range(10):
        await b.client.webhook.test_event()
    with pytest.raises(BudgetExhausted) as caught:
        await b.client.webhook.test_event()
    assert 3600 <= caught.value.retry_after_s <= 3660
    assert len(service.seen) == 10
    b.clock.elapsed_s += 3660
    await b.client.webhook.test_event()
