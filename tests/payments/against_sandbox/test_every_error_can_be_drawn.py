"""Every error code of the spec's table, drawn from the sandbox by a client: a code without a way to draw it fails."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from consumer.payments import ApiError, RateLimitError
from consumer.payments.errors import BY_CODE, DOCUMENTED_CODES
from tests.payments.against_sandbox.stage import Stage, stage
from tests.payments.support import SESSION_FIELDS

CREATE = "/v1/checkout-sessions"
BY_PRICE = {name: value for name, value in SESSION_FIELDS.items() if name not in ("amount", "description")}
SUBSCRIBE = BY_PRICE | {"mode": "subscription", "price_id": "svc_price_monthly"}

Provocation = Callable[[Stage], Awaitable[Any]]


def creating(fields: dict[str, Any]) -> Provocation:
    """A create that only the service refuses."""

    async def provoke(s: Stage) -> None:
        await s.posted(CREATE, fields)

    return provoke


async def invalid_api_credentials(s: Stage) -> None:
    async with s.another(["svc_sk_live_wrong"]) as client:
        await client.application.retrieve()


async def order_already_paid(s: Stage) -> None:
    session = await s.created()
    await s.control(f"/sessions/{session.id}/pay")
    await s.created()


async def merchant_token_account_missing(s: Stage) -> None:
    (merchant, *_) = (await s.shown("/merchants"))["items"]
    await s.control(f"/merchants/{merchant['id']}", has_token_account=False)
    await s.created()


async def session_not_reissuable(s: Stage) -> None:
    session = await s.created()
    await s.sandbox.advance(1800 - 119)
    await s.client.checkout_sessions.reissue_link(str(session.id))


async def payment_in_progress(s: Stage) -> None:
    session = await s.created()
    await s.control(f"/sessions/{session.id}/pay", until="confirmed")
    await s.client.checkout_sessions.cancel(str(session.id))


async def session_not_cancelable(s: Stage) -> None:
    session = await s.created()
    await s.client.checkout_sessions.cancel(str(session.id))
    await s.client.checkout_sessions.cancel(str(session.id))


async def checkout_unavailable(s: Stage) -> None:
    session = await s.created()
    await s.control("/faults", checkout_unavailable=1)
    await s.client.checkout_sessions.reissue_link(str(session.id))


async def subscription_already_ended(s: Stage) -> None:
    subscription = await s.subscribed()
    await s.client.subscriptions.cancel(subscription, at="now")
    await s.client.subscriptions.cancel(subscription, at="period_end")


async def plan_limit_reached(s: Stage) -> None:
    for number in range(51):
        price = await s.control("/prices", amount="5.00", interval_days=30)
        await s.posted(CREATE, SUBSCRIBE | {"order_id": f"plan-{number}", "price_id": price["id"]})


async def rate_limited(s: Stage) -> None:
    await s.control("/faults", rate_limited=1, retry_after_s=60)
    await s.client.orders.list()


PROVOCATIONS: dict[str, Provocation] = {
    "invalid_api_credentials": invalid_api_credentials,
    "validation_failed": creating(SESSION_FIELDS | {"amount": 10.5}),
    "amount_or_price_required": creating(SESSION_FIELDS | {"price_id": "svc_price_once"}),
    "amount_out_of_range": creating(SESSION_FIELDS | {"amount": "0.009999"}),
    "url_insecure": creating(SESSION_FIELDS | {"success_url": "http://shop.example"}),
    "expires_at_out_of_range": creating(SESSION_FIELDS | {"expires_at": "2001-01-01T00:00:00Z"}),
    "price_id_required": creating({name: value for name, value in SUBSCRIBE.items() if name != "price_id"}),
    "amount_not_allowed": creating(SUBSCRIBE | {"amount": "1.00"}),
    "price_not_found": creating(BY_PRICE | {"price_id": "svc_price_nowhere"}),
    "price_archived": creating(BY_PRICE | {"price_id": "svc_price_archived"}),
    "product_archived": creating(BY_PRICE | {"price_id": "svc_price_of_archived_product"}),
    "price_type_mismatch": creating(BY_PRICE | {"price_id": "svc_price_monthly"}),
    "order_already_paid": order_already_paid,
    "merchant_token_account_missing": merchant_token_account_missing,
    "price_not_recurring": creating(SUBSCRIBE | {"price_id": "svc_price_once"}),
    "session_not_reissuable": session_not_reissuable,
    "payment_in_progress": payment_in_progress,
    "session_not_cancelable": session_not_cancelable,
    "checkout_unavailable": checkout_unavailable,
    "subscription_already_ended": subscription_already_ended,
    "plan_limit_reached": plan_limit_reached,
    "rate_limited": rate_limited,
}


@pytest.mark.parametrize("code", DOCUMENTED_CODES)
async def test_the_sandbox_draws_every_documented_code_and_the_client_has_its_class(code: str) -> None:
    # case: C10, C11, C12
    assert code in PROVOCATIONS, "a code without a test"
    async with stage() as s:
        with pytest.raises(BY_CODE[code]) as caught:
            await PROVOCATIONS[code](s)
    error = caught.value
    assert isinstance(error, ApiError)
    assert error.service_code == code
    assert error.request_id is not None
    assert error.request_id.startswith("req_")
    assert error.status is not None


@pytest.mark.parametrize("status", [400, 404, 409, 422])
@pytest.mark.parametrize("code", ["price_not_found", "price_archived", "product_archived", "price_type_mismatch"])
async def test_price_errors_are_known_at_any_status(code: str, status: int) -> None:
    # case: C33, U23
    async with stage(price_error_status=status) as s:
        with pytest.raises(BY_CODE[code]) as caught:
            await PROVOCATIONS[code](s)
        assert caught.value.status == status


@pytest.mark.parametrize(
    ("fields", "field"),
    [(SESSION_FIELDS | {"surprise": 1}, "surprise"), (SESSION_FIELDS | {"amount": "1.1234567"}, "amount"),
     (SESSION_FIELDS | {"order_id": "x" * 129}, "order_id")],
)  # fmt: skip
async def test_a_validation_error_names_its_field(fields: dict[str, Any], field: str) -> None:
    # case: C12
    async with stage() as s:
        with pytest.raises(BY_CODE["validation_failed"]) as caught:
            await s.posted(CREATE, fields)
        assert caught.value.field == field


async def test_the_eleventh_test_event_is_refused_and_holds_up_nothing() -> None:
    # case: C34
    from consumer.sandbox import DEFAULT_APP_ID

    async with stage(limits=True) as s:
        for _ in range(10):
            await s.control(f"/applications/{DEFAULT_APP_ID}/test-event")
        with pytest.raises(RateLimitError) as caught:
            await s.client.webhook.test_event()
        assert caught.value.retry_after_seconds > 10, "used up by the dashboard's button"
        before = s.sandbox.clock.now()
        await s.client.orders.list()
        await s.created()
        assert s.sandbox.clock.now() == before
