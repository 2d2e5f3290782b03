"""All tries of a write carry one key and the same bytes, stored before the first is sent."""

from __future__ import annotations

import asyncio

import pytest

from consumer.payments import (
    MemoryIdempotencyKeys,
    MerchantTokenAccountMissing,
    RateLimitError,
    ValidationError,
)
from tests.payments.support import SESSION_FIELDS, Bench, Reply, ScriptedService, bench, error_reply
from tests.payments.writes.answers import CREATED, CUT, keys


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
