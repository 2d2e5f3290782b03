"""Every documented error code has its class, whatever status it comes with."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from consumer.payments import (
    ApiError,
    AuthenticationError,
    CheckoutUnavailable,
    ConflictError,
    OrderAlreadyPaid,
    PaymentInProgress,
    PlanLimitReached,
    PriceArchived,
    PriceNotFound,
    PriceTypeMismatch,
    ProductArchived,
    RateLimitError,
    ResourceNotFound,
    ServerError,
    SessionNotCancelable,
    SessionNotReissuable,
    SubscriptionAlreadyEnded,
    UnexpectedAnswer,
    UnreadableAnswer,
    ValidationError,
)
from consumer.payments import errors as tree
from consumer.payments.errors import BY_CODE, DOCUMENTED_CODES, class_for
from tests.payments.support import Bench, Reply, ScriptedService, bench, error_reply

# The spec's Errors table, written out a second time on purpose: code, status (None: not shown), class, base.
TABLE: list[tuple[str, int | None, type[ApiError], type[ApiError]]] = [
    ("invalid_api_credentials", 401, AuthenticationError, ApiError),
    ("validation_failed", 400, ValidationError, ApiError),
    ("amount_or_price_required", 400, tree.AmountOrPriceRequired, ValidationError),
    ("amount_out_of_range", 400, tree.AmountOutOfRange, ValidationError),
    ("url_insecure", 400, tree.UrlInsecure, ValidationError),
    ("expires_at_out_of_range", 400, tree.ExpiresAtOutOfRange, ValidationError),
    ("price_id_required", 400, tree.PriceIdRequired, ValidationError),
    ("amount_not_allowed", 400, tree.AmountNotAllowed, ValidationError),
    ("price_not_found", None, PriceNotFound, tree.PriceError),
    ("price_archived", None, PriceArchived, tree.PriceError),
    ("product_archived", None, ProductArchived, tree.PriceError),
    ("price_type_mismatch", None, PriceTypeMismatch, tree.PriceError),
    ("order_already_paid", 409, OrderAlreadyPaid, ConflictError),
    ("merchant_token_account_missing", 422, tree.MerchantTokenAccountMissing, ApiError),
    ("price_not_recurring", 422, tree.PriceNotRecurring, tree.PriceError),
    ("session_not_reissuable", 409, SessionNotReissuable, ConflictError),
    ("payment_in_progress", 409, PaymentInProgress, ConflictError),
    ("session_not_cancelable", 409, SessionNotCancelable, ConflictError),
    ("checkout_unavailable", 409, CheckoutUnavailable, ConflictError),
    ("subscription_already_ended", 409, SubscriptionAlreadyEnded, ConflictError),
    ("plan_limit_reached", 429, PlanLimitReached, ApiError),
    ("rate_limited", 429, RateLimitError, ApiError),
]


def test_every_documented_code_has_a_row_here_and_a_class_of_its_own() -> None:
    # case: C10, C11
    assert [code for code, _, _, _ in TABLE] == list(DOCUMENTED_CODES)
    assert set(BY_CODE) == set(DOCUMENTED_CODES)
    assert len(set(BY_CODE.values())) == len(DOCUMENTED_CODES)


@pytest.mark.parametrize(("code", "status", "kind", "base"), TABLE)
async def test_a_code_decides_the_class_at_any_status(
    service: ScriptedService, code: str, status: int | None, kind: type[ApiError], base: type[ApiError]
) -> None:
    # case: C11, C12, C33
    for answered in sorted({status or 422, 400, 404, 409, 422}):
        assert class_for(answered, code) is kind
        service.will(error_reply(answered, code, retry_after="60", field="amount"))
        async with bench(service.base_url) as b:
            with pytest.raises(kind) as caught:
                await b.client.orders.retrieve("ord_1")
        error = caught.value
        assert isinstance(error, base)
        assert (error.code, error.service_code, error.status) == (code, code, answered)
        assert error.request_id == "req_1"
        assert error.field == "amount"
        assert error.detail == f"text of {code}"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, ApiError),
        (404, ResourceNotFound),
        (409, ConflictError),
        (401, AuthenticationError),
        (429, RateLimitError),
        (418, ApiError),
        (500, ServerError),
        (503, ServerError),
        (302, UnexpectedAnswer),
    ],
)
@pytest.mark.parametrize(
    "body",
    [
        b"<html>Bad gateway</html>",
        b"",
        b"[]",
        b'{"code": 7, "message": {}}',
        b'{"code": "brand_new_code"}',
        b"\xff\xfe",
    ],
)
async def test_an_error_of_unknown_shape_survives(
    service: ScriptedService, b: Bench, status: int, kind: type[ApiError], body: bytes
) -> None:
    # case: C13, U18
    service.answering = lambda _seen: Reply(status, body, {"Retry-After": "60"})
    with pytest.raises(kind) as caught:
        await b.client.orders.retrieve("ord_1")
    assert type(caught.value) is kind
    assert caught.value.status == status
    assert caught.value.raw == body
    assert caught.value.service_code == ("brand_new_code" if b"brand_new" in body else None)


async def test_a_success_without_the_record_asked_for_is_none_of_it(service: ScriptedService, b: Bench) -> None:
    # case: U10, U18
    client = b.client
    other: dict[str, str] = {"id": "other_1", "order_id": "B", "status": "PAID"}
    code = {"statusCode": 404, "code": "gone", "request_id": "req_7"}
    for body in (other, code):
        service.answering = lambda _seen, body=body: Reply(200, body)
        for read in (
            client.orders.lookup("A"),
            client.orders.retrieve("ord_1"),
            client.subscriptions.retrieve("sub_1"),
            client.checkout_sessions.retrieve("cs_1"),
        ):
            with pytest.raises(ResourceNotFound) as caught:
                await read
            assert (caught.value.status, caught.value.code) == (200, "resource_not_shown")
    assert (caught.value.service_code, caught.value.request_id) == ("gone", "req_7")
    service.answering = lambda _seen: Reply(200, {"id": "ord_1", "order_id": "A"})
    assert (await client.orders.retrieve("A")).id == "ord_1", "by either id"


async def test_the_raw_excerpt_is_bounded(service: ScriptedService, b: Bench) -> None:
    # case: C13
    service.will(Reply(404, b"x" * 100_000))
    with pytest.raises(ResourceNotFound) as caught:
        await b.client.orders.retrieve("ord_1")
    assert len(caught.value.raw) == tree.RAW_MAX_BYTES


@pytest.mark.parametrize("body", [b"<html>maintenance</html>", b"[1, 2]", b"null", b""])
async def test_a_success_that_is_no_json_object_is_an_error(service: ScriptedService, b: Bench, body: bytes) -> None:
    # case: C13
    service.answering = lambda _seen: Reply(200, body)
    with pytest.raises(UnreadableAnswer) as caught:
        await b.client.orders.retrieve("ord_1")
    assert caught.value.retryable


async def test_the_request_id_is_in_the_exception_and_in_what_is_observed(service: ScriptedService, b: Bench) -> None:
    # case: C12
    service.will(error_reply(409, "order_already_paid"))
    with pytest.raises(OrderAlreadyPaid) as caught:
        await b.client.orders.retrieve("ord_1")
    assert "req_1" in str(caught.value)
    assert "req_1" in caught.value.line()
    assert b.attempts[-1].request_id == "req_1"
    assert b.attempts[-1].code == "order_already_paid"
    assert b.attempts[-1].route == "/v1/orders/{id}"


async def test_what_the_service_quotes_is_not_printed(service: ScriptedService, b: Bench) -> None:
    # case: S9
    reply = error_reply(400, "validation_failed", field="customer_email")
    reply.body["message"] = "jane@example.com is no address"
    service.will(reply)
    with pytest.raises(ValidationError) as caught:
        await b.client.orders.retrieve("ord_1")
    for text in (str(caught.value), repr(caught.value), caught.value.line(), repr(b.attempts)):
        assert "jane@example.com" not in text
    assert caught.value.detail == "jane@example.com is no address"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("payment_in_progress", PaymentInProgress),
        ("session_not_reissuable", SessionNotReissuable),
        ("session_not_cancelable", SessionNotCancelable),
        ("order_already_paid", OrderAlreadyPaid),
        ("subscription_already_ended", SubscriptionAlreadyEnded),
    ],
)
async def test_a_conflict_is_told_and_not_retried(
    service: ScriptedService, b: Bench, code: str, kind: type[ConflictError]
) -> None:
    # case: C10
    service.will(error_reply(409, code))
    with pytest.raises(kind) as caught:
        await b.client.checkout_sessions.reissue_link("cs_1")
    assert len(service.seen) == 1
    assert not caught.value.retryable
    assert not caught.value.after_ambiguous


async def test_an_error_tells_which_call_failed(service: ScriptedService, b: Bench) -> None:
    # case: C11, O3
    service.answering = lambda _seen: Reply(403, {"message": "hush"})
    with pytest.raises(ApiError) as caught:
        await b.client.orders.retrieve("ord_hush")
    assert "status=403" in caught.value.line()
    assert "route=/v1/orders/{id}" in caught.value.line()
    assert "hush" not in caught.value.line()


async def test_a_status_code_in_the_body_that_is_not_the_answers_is_told_now_and_then(
    service: ScriptedService, b: Bench
) -> None:
    # case: C13, O1
    def told() -> list[tuple[int, int, int]]:
        return [(one["status"], one["status_code"], one["times"]) for one in logs if "status_code" in one]

    with capture_logs() as logs:
        service.will(error_reply(404, "not_found", statusCode=200))
        with pytest.raises(ResourceNotFound):
            await b.client.orders.retrieve("ord_1")
        assert told() == [(404, 200, 1)]
        for _ in range(12):
            await b.clock.sleep(30)
            service.will(Reply(200, {"id": "ord_1", "statusCode": 500}), Reply(200, {"id": "ord_1"}))
            for _ in range(2):
                assert (await b.client.orders.retrieve("ord_1")).id == "ord_1"
        assert told() == [(404, 200, 1), (200, 500, 3), (200, 500, 7)]
        await b.clock.sleep(3600)
        service.will(Reply(200, {"id": "ord_1"}))
        await b.client.orders.retrieve("ord_1")
    assert [(one["application"], one["times"]) for one in logs if "after_s" in one] == [("default", 13)]
