"""The client against the sandbox: all 20 endpoints, in every shape the sandbox can give them."""

from __future__ import annotations

from typing import Any

import pytest

from consumer.payments import Credentials, Priority, ResourceNotFound, SessionMismatch
from consumer.sandbox import DEFAULT_APP_ID, DEFAULT_APP_SECRET
from tests.payments.against_sandbox.stage import stage
from tests.payments.support import SESSION_FIELDS

PROFILES: list[dict[str, Any]] = [
    {},
    {"cursor_type": "string", "numeric_cursor": "offset", "events_cursor": "inclusive", "events_order": "oldest_first"},
    {"ids": "uuid", "timestamps": "epoch_ms", "cancel_answer": "empty", "not_found_answer": "html"},
    {"ids": "numeric", "timestamps": "epoch_s", "not_found_answer": "plain", "test_event_answer": "empty",
     "event_container": "flat", "event_payload": "thin", "create_status": 200, "subscription_session_order": "absent"},
]  # fmt: skip


@pytest.mark.parametrize("profile", PROFILES, ids=["default", "lists", "uuid", "numeric"])
async def test_all_20_endpoints(profile: dict[str, Any]) -> None:
    # case: C24, C25, U11, U18, U19, U22
    async with stage(**profile) as s:
        client = s.client
        assert (await client.application.retrieve()).raw

        session = await s.created()
        assert session.url
        assert session.status == "OPEN"
        assert session.expires_at is not None
        assert (session.expires_at - s.sandbox.clock.now()).total_seconds() == pytest.approx(1800, abs=1)
        assert session.id is not None
        read = await client.checkout_sessions.retrieve(session.id)
        assert (read.url, read.status) == (None, "OPEN")
        assert read.order is not None
        assert read.order.status == "PENDING"
        linked = await client.checkout_sessions.reissue_link(session.id)
        assert linked.url not in (None, session.url)

        await s.control(f"/sessions/{session.id}/pay")
        order = await client.orders.lookup("order-1")
        assert order.is_paid
        assert order.id is not None
        assert (await client.orders.retrieve(order.id)).is_paid
        assert [one.id async for one in client.orders.iterate(limit=1)] == [order.id]
        payments = [one async for one in client.payments.iterate(limit=1)]
        assert [one.status for one in payments] == ["SUCCEEDED"]
        assert (await client.payments.retrieve(str(payments[0].id))).status == "SUCCEEDED"

        other = await s.created(order_id="order 2/ä&?#%")
        await client.checkout_sessions.cancel(str(other.id))
        assert (await client.checkout_sessions.retrieve(str(other.id))).status == "CANCELED"
        assert (await client.orders.lookup("order 2/ä&?#%")).status == "PENDING"

        subscription = await s.subscribed(order_id="sub-1")
        assert (await client.subscriptions.retrieve(subscription)).status == "ACTIVE"
        await client.subscriptions.cancel(subscription, at="period_end")
        ending = await client.subscriptions.retrieve(subscription)
        assert ending.will_end
        await client.subscriptions.cancel(subscription, at="now")
        ended = await client.subscriptions.retrieve(subscription)
        assert (ended.status, ended.end_reason) == ("ENDED", "MERCHANT_CANCELED")

        products = [one async for one in client.products.iterate(limit=1)]
        assert (await client.products.retrieve(str(products[0].id))).id == products[0].id
        prices = {one.id async for one in client.prices.iterate(limit=2)}
        assert {"svc_price_once", "svc_price_monthly", "svc_price_yearly"} <= prices
        assert (await client.prices.retrieve("svc_price_once")).id == "svc_price_once"

        await client.webhook.test_event()
        events = [one async for one in client.events.iterate(limit=2)]
        assert {str(one.id)[:4] for one in events} == {"evt_"}
        assert len({one.id for one in events}) >= 7
        event = await client.events.retrieve(str(events[0].id))
        assert event.raw == events[0].raw
        assert len({(attempt.method, attempt.route) for attempt in s.attempts}) == 20
        assert {attempt.code for attempt in s.attempts} == {None}


@pytest.mark.parametrize("answer", ["json", "plain", "html"])
async def test_what_is_not_there_is_not_found(answer: str) -> None:
    # case: C13, U18, G7
    async with stage(not_found_answer=answer) as s:
        for read in (
            s.client.checkout_sessions.retrieve,
            s.client.orders.retrieve,
            s.client.orders.lookup,
            s.client.payments.retrieve,
            s.client.subscriptions.retrieve,
            s.client.products.retrieve,
            s.client.prices.retrieve,
            s.client.events.retrieve,
        ):
            with pytest.raises(ResourceNotFound):
                await read("evt_nothing")


async def test_an_application_sees_only_its_own() -> None:
    # case: S8, F25
    async with stage() as s:
        session = await s.created()
        other = await s.control("/applications")
        async with s.another([other["app_secret"]], app_id=other["app_id"]) as client:
            with pytest.raises(ResourceNotFound):
                await client.checkout_sessions.retrieve(str(session.id))
            with pytest.raises(ResourceNotFound):
                await client.orders.lookup("order-1")
            assert [one async for one in client.orders.iterate()] == []
            assert len([one async for one in client.prices.iterate()]) >= 3


async def test_creating_again_gives_the_open_session_with_a_fresh_link() -> None:
    # case: C18
    async with stage() as s:
        first = await s.created()
        again = await s.created()
        assert again.id == first.id
        assert again.url not in (None, first.url)


async def test_creating_again_with_other_terms_is_refused() -> None:
    # case: U24
    async with stage() as s:
        await s.created()
        with pytest.raises(SessionMismatch) as caught:
            await s.created(amount="11.00")
        assert caught.value.differing == ("amount",)


@pytest.mark.parametrize("reuse", ["replay", "rerun"])
async def test_a_create_whose_answer_is_lost_still_gives_a_working_link(reuse: str) -> None:
    # case: C18, C26, C3
    async with stage(idempotency_reuse=reuse) as s:
        await s.control("/faults", lost_response_next=1)
        session = await s.created()
        assert session.url
        assert len((await s.shown("/sessions"))["items"]) == 1, "one session, not two"
        creates = [attempt for attempt in s.attempts if attempt.route == "/v1/checkout-sessions"]
        assert creates[0].status is None


async def test_a_cancel_whose_answer_is_lost_is_found_out() -> None:
    # case: C26
    async with stage(idempotency_reuse="rerun") as s:
        session = await s.created()
        await s.control("/faults", lost_response_next=1)
        await s.client.checkout_sessions.cancel(str(session.id))
        subscription = await s.subscribed(order_id="sub-1")
        await s.control("/faults", lost_response_next=1)
        await s.client.subscriptions.cancel(subscription, at="now")
        assert (await s.client.subscriptions.retrieve(subscription)).end_reason == "MERCHANT_CANCELED"


async def test_a_rolled_secret_with_both_configured_fails_no_operation() -> None:
    # case: S2
    async with stage() as s:
        rolled = await s.control(f"/applications/{DEFAULT_APP_ID}/roll-secret", grace="1h")
        seen: list[Any] = []
        async with s.another([DEFAULT_APP_SECRET, rolled["app_secret"]], on_attempt=seen.append) as client:
            for _ in range(14):
                await client.orders.list()
                await s.sandbox.advance(600)
            assert not client.circuit.is_open
        assert sum(attempt.status == 401 for attempt in seen) == 1


async def test_deactivation_and_disabling_open_the_circuit() -> None:
    # case: S5, S6, S7
    from consumer.payments import AuthenticationError, CircuitOpen

    async with stage() as s:
        (merchant, *_) = (await s.shown("/merchants"))["items"]
        await s.control(f"/merchants/{merchant['id']}", active=False)
        with pytest.raises(AuthenticationError):
            await s.client.orders.list()
        with pytest.raises(CircuitOpen):
            await s.client.orders.list()
        await s.control(f"/merchants/{merchant['id']}", active=True)
        await s.sandbox.advance(31)
        await s.client.orders.list()
        await s.control(f"/applications/{DEFAULT_APP_ID}/disable")
        with pytest.raises(AuthenticationError):
            await s.client.orders.list()
        for _ in range(60):
            await s.sandbox.advance(10)
            with pytest.raises(CircuitOpen):
                await s.client.orders.list()
        assert sum(attempt.status == 401 for attempt in s.attempts) <= 2 + 20


async def test_faults_of_the_service_are_survived() -> None:
    # case: C31, C13, X66
    async with stage() as s:
        for fault in ("server_error", "html", "rate_limited", "lost_response"):
            await s.control("/faults", clear=True, **{f"{fault}_next": 2})
            await s.client.orders.list()
        statuses = [attempt.status for attempt in s.attempts]
        assert [statuses.count(one) for one in (503, 502, 429, None, 200)] == [2, 2, 2, 2, 4]


@pytest.mark.parametrize("window", ["sliding", "bucket", "fixed"])
async def test_under_the_real_limits_nothing_draws_a_429(window: str) -> None:
    # case: C15, C34
    async with stage(limits=True, limit_window=window) as s:
        background = s.client.with_priority(Priority.BACKFILL)
        for number in range(700):
            await background.orders.list(limit=1)
            if number % 6 == 0:
                await s.client.with_priority(Priority.REFRESH).checkout_sessions.create_from(
                    {**SESSION_FIELDS, "order_id": f"order-{number}"}
                )
        assert {attempt.status for attempt in s.attempts} <= {200, 201}
        elapsed_s = background._caller.clock.monotonic()
        assert len(s.attempts) >= 0.95 * 300 * elapsed_s / 60


def test_the_sandbox_credentials_are_well_formed() -> None:
    # case: S11
    assert "sandbox" not in repr(Credentials(DEFAULT_APP_ID, [DEFAULT_APP_SECRET]))
