"""A write that nobody answered is decided by a read, repeated with its key, or told as ambiguous."""

from __future__ import annotations

import gzip

import pytest

from consumer.payments import (
    AmbiguousWrite,
    OrderAlreadyPaid,
    SessionNotCancelable,
    SubscriptionAlreadyEnded,
    UnexpectedAnswer,
)
from tests.payments.support import SESSION_FIELDS, Bench, Reply, ScriptedService, bench, error_reply, session_json
from tests.payments.writes.answers import (
    CREATE,
    CREATED,
    CREATED_AGAIN,
    CUT,
    LINK,
    LINKED,
    LOOKUP,
    LOST,
    NOT_FOUND,
    PENDING_ORDER,
    keys,
)


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


async def test_a_create_that_was_found_out_is_over(service: ScriptedService, b: Bench) -> None:
    """Who cancelled and bought again within half an hour was sent to the cancelled session: its answer was played
    back."""
    # case: C3, U17
    service.will(*LOST, PENDING_ORDER, CREATED)
    await b.client.checkout_sessions.create_from(SESSION_FIELDS)
    service.will(CREATED)
    await b.client.checkout_sessions.create_from(SESSION_FIELDS)
    *tries, again = keys(service)
    assert len(set(tries)) == 1, "the key of the first try, until its outcome is known"
    assert again not in tries


async def test_an_answer_found_out_that_is_of_an_old_session_is_asked_for_anew(
    service: ScriptedService, b: Bench
) -> None:
    # case: C18, U17
    service.will(*LOST, PENDING_ORDER, Reply(200, session_json(expires_at="2025-12-31T23:00:00Z")), CREATED)
    session = await b.client.checkout_sessions.create_from(SESSION_FIELDS)
    assert session.expires_at is not None
    assert session.expires_at > b.clock.now()
    *tries, again = keys(service)
    assert again not in tries


async def test_the_merchants_own_key_is_repeated_after_a_look(service: ScriptedService, b: Bench) -> None:
    # case: C26
    service.will(*LOST, PENDING_ORDER, CREATED)
    await b.client.checkout_sessions.create_from(SESSION_FIELDS, idempotency_key="mine")
    assert set(keys(service)) == {"mine"}


async def test_an_unanswered_create_of_a_paid_order_is_told_as_paid(service: ScriptedService, b: Bench) -> None:
    # case: C26, F27
    service.will(*LOST, Reply(200, {"id": "ord_1", "status": "PAID"}))
    with pytest.raises(OrderAlreadyPaid):
        await b.client.checkout_sessions.create_from(SESSION_FIELDS)
    assert service.paths == [CREATE] * 4 + [LOOKUP]
    service.will(error_reply(409, "order_already_paid"))
    with pytest.raises(OrderAlreadyPaid):
        await b.client.checkout_sessions.create_from(SESSION_FIELDS)
    *tries, again = keys(service)
    assert again not in tries, "its session, paid by now, would be played back"


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


@pytest.mark.parametrize("shown", [{}, {"id": "ord_9", "order_id": "a-1", "status": "PAID"}], ids=["none", "another"])
async def test_what_is_no_order_of_this_id_settles_no_create(
    service: ScriptedService, b: Bench, shown: dict[str, str]
) -> None:
    # case: C26, U18
    service.will(*LOST, Reply(200, shown))
    with pytest.raises(AmbiguousWrite) as caught:
        await b.client.checkout_sessions.create_from(SESSION_FIELDS)
    assert caught.value.order is None
    assert service.paths == [CREATE] * 4 + [LOOKUP]


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


@pytest.mark.parametrize(
    ("at", "shown"),
    [
        ("now", {"status": "ACTIVE", "cancel_at_period_end": True, "merchant_cancel_requested": True}),
        ("period_end", {"status": "ACTIVE", "cancel_at_period_end": True, "cancel_reason": "PAYER_CANCELED"}),
    ],
)
async def test_another_cancel_that_stands_is_not_the_unanswered_one(
    service: ScriptedService, b: Bench, at: str, shown: dict[str, object]
) -> None:
    # case: A19, A20, A21, A39
    service.will(*LOST, Reply(200, {"id": "sub_1", **shown}))
    with pytest.raises(AmbiguousWrite):
        await b.client.subscriptions.cancel("sub_1", at=at)  # type: ignore[arg-type] # parametrised


async def test_a_cancel_is_done_whatever_its_answer_looks_like(service: ScriptedService, b: Bench) -> None:
    # case: C13, U18
    for body in (b"", b"ok", b"[]", b'{"anything": 1}'):
        service.will(Reply(200, body), Reply(204, b""))
        await b.client.checkout_sessions.cancel("cs_1")
        await b.client.subscriptions.cancel("sub_1", at="now")


@pytest.mark.parametrize(("headers", "body", "tries"), [
    ({"Content-Encoding": "br"}, b"packed by what stands between", 1),
    ({"Content-Encoding": "gzip"}, gzip.compress(b'{"id": "cs_1"}')[:-9], 4),
    ({}, b"{" + b" " * 2000 + b"}", 1),
], ids=["packed otherwise", "cut short", "too large"])  # fmt: skip
async def test_a_success_that_cannot_be_read_keeps_its_key(
    service: ScriptedService, b: Bench, headers: dict[str, str], body: bytes, tries: int
) -> None:
    # case: C3, C26
    b.client._transport._max_answer_bytes = 1000
    service.will(*[Reply(200, body, headers)] * tries, NOT_FOUND)
    with pytest.raises(AmbiguousWrite) as caught:
        await b.client.checkout_sessions.create_from(SESSION_FIELDS)
    service.will(CREATED)
    await b.client.checkout_sessions.create_from(SESSION_FIELDS)
    assert set(keys(service)) == {caught.value.idempotency_key}


async def test_a_redirect_did_nothing(service: ScriptedService, b: Bench) -> None:
    # case: C26, C27
    service.will(Reply(302, b"", {"Location": "https://maintenance.example/"}))
    with pytest.raises(UnexpectedAnswer):
        await b.client.checkout_sessions.create_from(SESSION_FIELDS)
    assert service.paths == [CREATE]
