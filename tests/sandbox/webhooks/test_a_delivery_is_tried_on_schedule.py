"""Webhook deliveries: retries, the log, faults, signatures."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from consumer.sandbox import DEFAULT_APP_ID, DEFAULT_WEBHOOK_SECRET, Engine, Sandbox, SandboxConfig
from consumer.sandbox.engine.records import Delivery, DeliveryStatus
from tests.sandbox.support import Receiver, create, make_engine, subscribe


@pytest.fixture
async def sandbox(receiver: Receiver) -> AsyncIterator[Sandbox]:
    async with Sandbox(SandboxConfig(driven=True, seed=7, limits=False, webhook_url=receiver.url)) as running:
        yield running


def pay(engine: Engine, count: int = 1) -> None:
    for _ in range(count):
        engine.payments.pay(create(engine))


def log(sandbox: Sandbox) -> list[Delivery]:
    return list(sandbox.engine.world.deliveries)


async def test_an_event_is_posted_as_json_in_order(sandbox: Sandbox, receiver: Receiver) -> None:
    # case: X6
    pay(sandbox.engine, 3)
    assert await sandbox.settled()
    assert receiver.types() == ["order.paid", "checkout.session.completed"] * 3
    assert receiver.received[0].headers["Content-Type"] == "application/json"
    assert {d.status for d in log(sandbox)} == {DeliveryStatus.DELIVERED}
    assert receiver.most_at_once == 1


async def test_a_refused_delivery_is_retried_on_schedule_with_the_same_id(sandbox: Sandbox, receiver: Receiver) -> None:
    # case: X58, X62
    receiver.answers = [500, 302, 404]
    sandbox.engine.sessions.cancel(create(sandbox.engine))
    assert await sandbox.settled()
    for wait_s, seen in ((4, 1), (1, 2), (299, 2), (1, 3), (1800, 4), (86400, 4)):
        await sandbox.advance(wait_s)
        assert len(receiver.received) == seen
    assert {one.json["id"] for one in receiver.received} == {log(sandbox)[0].event_id}
    assert [attempt.status for attempt in log(sandbox)[0].attempts] == [500, 302, 404, 200]


async def test_a_redelivery_may_have_a_new_id(sandbox: Sandbox, receiver: Receiver) -> None:
    # case: X58
    sandbox.assumptions.set({"redelivered_event_id": "new"})
    receiver.answers = [500]
    sandbox.engine.sessions.cancel(create(sandbox.engine))
    await sandbox.settled()
    await sandbox.advance(5)
    assert len({one.json["id"] for one in receiver.received}) == 2


async def test_attempts_come_to_an_end(sandbox: Sandbox, receiver: Receiver) -> None:
    # case: X58
    receiver.answers = [500] * 100
    sandbox.engine.sessions.cancel(create(sandbox.engine))
    await sandbox.settled()
    await sandbox.advance(40 * 3600)
    assert (log(sandbox)[0].status, len(receiver.received)) == (DeliveryStatus.FAILED, 8)


async def test_an_endpoint_that_is_away_or_slow_is_an_attempt(sandbox: Sandbox, receiver: Receiver) -> None:
    # case: X58
    sandbox.assumptions.set({"delivery_timeout_s": 0.1, "delivery_schedule": "short"})
    never = asyncio.Event()
    receiver.before_answer = never.wait
    sandbox.engine.sessions.cancel(create(sandbox.engine))
    assert await sandbox.settled()
    assert log(sandbox)[0].attempts[0].error == "timeout"
    sandbox.set_webhook_url("http://127.0.0.1:9/")
    sandbox.engine.sessions.cancel(create(sandbox.engine))
    assert await sandbox.settled()
    assert log(sandbox)[1].attempts[0].error == "ClientConnectorError"


async def test_dropped_deliveries_never_arrive(sandbox: Sandbox, receiver: Receiver) -> None:
    # case: X58
    sandbox.engine.faults.set({"drop": 0.5})
    pay(sandbox.engine, 50)
    assert await sandbox.settled()
    await sandbox.advance(86400)
    dropped = [d for d in log(sandbox) if d.status is DeliveryStatus.DROPPED]
    assert 25 < len(dropped) < 75
    assert len(receiver.received) == 100 - len(dropped)
    assert len(sandbox.engine.world.events) == 100, "the events are there all the same"


async def test_duplicates_carry_the_same_id(sandbox: Sandbox, receiver: Receiver) -> None:
    # case: X58
    sandbox.engine.faults.set({"duplicate": True, "duplicate_copies": 2})
    sandbox.engine.sessions.cancel(create(sandbox.engine))
    assert await sandbox.settled()
    assert len(receiver.received) == 3
    assert len({one.raw for one in receiver.received}) == 1


async def test_reordered_deliveries_overtake_each_other(sandbox: Sandbox, receiver: Receiver) -> None:
    # case: X58
    sandbox.engine.faults.set({"reorder": True})
    pay(sandbox.engine, 10)
    assert receiver.received == []
    assert await sandbox.settled()
    assert len(receiver.received) == 20
    assert receiver.types() != ["order.paid", "checkout.session.completed"] * 10


async def test_delayed_deliveries_wait(sandbox: Sandbox, receiver: Receiver) -> None:
    # case: X58
    sandbox.engine.faults.set({"delay_s": 600})
    sandbox.engine.sessions.cancel(create(sandbox.engine))
    await sandbox.advance(599)
    assert receiver.received == []
    await sandbox.advance(1)
    assert len(receiver.received) == 1


async def test_truncated_bodies_are_no_json_and_come_whole_later(sandbox: Sandbox, receiver: Receiver) -> None:
    # case: X58
    sandbox.engine.faults.set({"truncate_next": 1})
    receiver.answers = [400]
    sandbox.engine.sessions.cancel(create(sandbox.engine))
    assert await sandbox.settled()
    with pytest.raises(ValueError, match=r"Unterminated|Expecting"):
        _ = receiver.received[0].json
    await sandbox.advance(5)
    assert receiver.received[1].json["type"] == "checkout.session.canceled"


async def test_slow_bodies_arrive_whole(sandbox: Sandbox, receiver: Receiver) -> None:
    # case: X58
    sandbox.engine.faults.set({"slow_s": 0.05})
    sandbox.engine.sessions.cancel(create(sandbox.engine))
    assert await sandbox.settled()
    assert receiver.received[0].json["type"] == "checkout.session.canceled"


async def test_a_wrong_signature_is_well_formed_but_does_not_verify(sandbox: Sandbox, receiver: Receiver) -> None:
    # case: X58
    sandbox.engine.faults.set({"wrong_signature_next": 1})
    pay(sandbox.engine)
    assert await sandbox.settled()
    forged, true = receiver.received
    with pytest.raises(WebhookVerificationError):
        Webhook(DEFAULT_WEBHOOK_SECRET).verify(forged.raw, forged.headers)
    Webhook(DEFAULT_WEBHOOK_SECRET).verify(true.raw, true.headers)


async def test_parallel_deliveries_are_in_flight_together(sandbox: Sandbox, receiver: Receiver) -> None:
    # case: X58
    sandbox.engine.faults.set({"parallel": 8})
    together = asyncio.Event()

    async def wait_for_all() -> None:
        if receiver.at_once == 8:
            together.set()
        await asyncio.wait_for(together.wait(), 5)

    receiver.before_answer = wait_for_all
    pay(sandbox.engine, 4)
    assert await sandbox.settled()
    assert receiver.most_at_once == 8


def test_the_same_seed_gives_the_same_faults() -> None:
    # case: X58
    def story() -> list[tuple[str, bool, bool]]:
        engine = with_endpoint(seed=11)
        engine.faults.set({"drop": 0.3, "duplicate": 0.3, "truncate": 0.3, "reorder": True})
        pay(engine, 10)
        return [(d.status.value, d.truncate, d.copy_number > 0) for d in engine.world.deliveries]

    assert story() == story()


def with_endpoint(seed: int) -> Engine:
    engine = make_engine(seed=seed)
    engine.applications.set_webhook(DEFAULT_APP_ID, "http://127.0.0.1:9/")
    return engine


async def test_standard_webhooks_signature_with_two_secrets(sandbox: Sandbox, receiver: Receiver) -> None:
    # case: X60
    second = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    sandbox.engine.applications.set_webhook_secrets(DEFAULT_APP_ID, (DEFAULT_WEBHOOK_SECRET, second))
    sandbox.engine.sessions.cancel(create(sandbox.engine))
    assert await sandbox.settled()
    one = receiver.received[0]
    lowered = {name.lower(): value for name, value in one.headers.items()}
    assert lowered["webhook-signature"].count("v1,") == 2
    assert lowered["webhook-id"] == one.json["id"]
    for secret in (DEFAULT_WEBHOOK_SECRET, second):
        Webhook(secret).verify(one.raw, one.headers)


async def test_hmac_signature_with_timestamp(sandbox: Sandbox, receiver: Receiver) -> None:
    # case: X60
    sandbox.assumptions.set({"signature": "hmac", "signature_time": "sandbox"})
    sandbox.engine.sessions.cancel(create(sandbox.engine))
    assert await sandbox.settled()
    one = receiver.received[0]
    stamp, signature = one.headers["X-Signature"].split(",")
    assert stamp == f"t={int(sandbox.clock.now().timestamp())}"
    signed = stamp.removeprefix("t=").encode() + b"." + one.raw
    assert signature == "v1=" + hmac.new(DEFAULT_WEBHOOK_SECRET.encode(), signed, hashlib.sha256).hexdigest()
    assert not any(name.lower().startswith("webhook-") for name in one.headers)


async def test_no_signature(sandbox: Sandbox, receiver: Receiver) -> None:
    # case: X60
    sandbox.assumptions.set({"signature": "none"})
    sandbox.engine.sessions.cancel(create(sandbox.engine))
    assert await sandbox.settled()
    assert not any("signature" in name.lower() for name in receiver.received[0].headers)


async def test_the_log_shows_each_answer(sandbox: Sandbox, receiver: Receiver) -> None:
    # case: X58
    receiver.answers = [503]
    pay(sandbox.engine)
    assert await sandbox.settled()
    async with aiohttp.ClientSession() as http, http.get(f"{sandbox.base_url}/_sandbox/deliveries") as answer:
        shown: dict[str, Any] = await answer.json()
    assert [(one["status"], one["answer"]) for one in shown["items"]] == [("pending", 503), ("delivered", 200)]
    assert shown["items"][0]["attempts"][0]["status"] == 503


@pytest.mark.parametrize(("chosen", "expected"), [("orders", 3), ("subscriptions", 1), ("all", 4)])
async def test_an_endpoint_may_filter_types(sandbox: Sandbox, receiver: Receiver, chosen: str, expected: int) -> None:
    # case: X58
    sandbox.assumptions.set({"endpoint_filter": chosen})
    pay(sandbox.engine)
    subscribe(sandbox.engine)
    assert await sandbox.settled()
    assert len(receiver.received) == expected


async def test_forced_deliveries_are_sent_once_even_when_their_time_comes(sandbox: Sandbox, receiver: Receiver) -> None:
    # case: X58
    sandbox.engine.faults.set({"delay_s": 60})
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        arrived.set()
        await go_on.wait()

    receiver.before_answer = hold
    sandbox.engine.sessions.cancel(create(sandbox.engine))
    forced = asyncio.create_task(sandbox.deliver_pending())
    await asyncio.wait_for(arrived.wait(), 5)
    sandbox.engine.advance(60)
    sandbox.sender.wake()
    go_on.set()
    assert await forced
    assert await sandbox.settled()
    assert len(receiver.received) == 1
