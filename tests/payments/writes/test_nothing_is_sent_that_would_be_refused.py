"""Request bodies are checked here as the service would check them, before anything is sent."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer.payments import ValidationError
from consumer.payments.requests import amount_text, cancel_body, checked_limit, path_id, session_amount, session_body
from tests.payments.support import SESSION_FIELDS, START, Bench, ScriptedService

PAYMENT = SESSION_FIELDS
SUBSCRIPTION = {k: v for k, v in PAYMENT.items() if k not in ("amount", "description")} | {
    "mode": "subscription",
    "price_id": "svc_price_monthly",
}


def refusal(fields: dict[str, Any]) -> tuple[str, str | None]:
    with pytest.raises(ValidationError) as caught:
        session_body(fields, START)
    assert caught.value.status is None, "refused here, not by the service"
    return caught.value.code, caught.value.field


def body(**more: Any) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(session_body({**PAYMENT, **more}, START))
    return found


@pytest.mark.parametrize("amount", ["0.01", "1", "1000000", "1000000.000000", "12.345678", Decimal("0.01"), Decimal(7)])
def test_a_good_amount_is_sent_as_a_string(amount: Any) -> None:
    # case: C21
    sent = body(amount=amount)["amount"]
    assert isinstance(sent, str)
    assert Decimal(sent) == Decimal(amount)


@pytest.mark.parametrize(
    "amount",
    [1, 1.5, True, "1e3", "1E3", " 1", "1 ", "1.", ".5", "+1", "-1", "1,5", "1_000", "0x1", "", "abc", "NaN",
     "Infinity", "1.1234567", "１", "1\n", b"1", Decimal("NaN"), Decimal("Infinity"), Decimal("1.1234567"),
     Decimal("1e400")],
)  # fmt: skip
def test_a_bad_amount_is_refused(amount: Any) -> None:
    # case: C21
    assert refusal({**PAYMENT, "amount": amount}) == ("validation_failed", "amount")


@pytest.mark.parametrize("amount", ["0", "0.009999", "0.00", "1000000.000001", "1000001", Decimal(0), Decimal("1e9")])
def test_an_amount_out_of_range_is_refused(amount: Any) -> None:
    # case: C21
    assert refusal({**PAYMENT, "amount": amount}) == ("amount_out_of_range", "amount")


@given(st.decimals(min_value="0.01", max_value=1000000, places=6))
def test_every_amount_in_range_arrives_unchanged(amount: Decimal) -> None:
    # case: C21
    assert Decimal(session_amount(amount)) == amount
    assert Decimal(session_amount(format(amount, "f"))) == amount


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=0, max_value=10**15))
def test_a_decimal_is_sent_exactly_or_not_at_all(amount: Decimal) -> None:
    # case: C21
    try:
        text = amount_text(amount)
    except ValidationError:
        assert amount != round(amount, 6)
    else:
        assert Decimal(text) == amount
        assert "e" not in text.lower()


@given(st.floats())
def test_no_float_is_ever_taken(amount: float) -> None:
    # case: C21
    with pytest.raises(ValidationError):
        amount_text(amount)


@given(st.text(max_size=12))
def test_text_is_an_amount_only_when_it_is_a_plain_decimal(text: str) -> None:
    # case: C21
    try:
        sent = amount_text(text)
    except ValidationError:
        return
    assert sent == text
    assert set(text) <= set("0123456789.")
    assert Decimal(text).is_finite()
    assert text[0] != "."
    assert text[-1] != "."


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"surprise": 1}, ("validation_failed", "surprise")),
        ({"mode": None}, ("validation_failed", "mode")),
        ({"mode": "gift"}, ("validation_failed", "mode")),
        ({"order_id": None}, ("validation_failed", "order_id")),
        ({"order_id": ""}, ("validation_failed", "order_id")),
        ({"order_id": 7}, ("validation_failed", "order_id")),
        ({"order_id": "x" * 129}, ("validation_failed", "order_id")),
        ({"order_id": "\ud800"}, ("validation_failed", "order_id")),
        ({"success_url": None}, ("validation_failed", "success_url")),
        ({"success_url": "http://shop.example"}, ("url_insecure", "success_url")),
        ({"cancel_url": "javascript:alert(1)"}, ("url_insecure", "cancel_url")),
        ({"cancel_url": "shop.example"}, ("url_insecure", "cancel_url")),
        ({"cancel_url": "https://"}, ("validation_failed", "cancel_url")),
        ({"cancel_url": "https://[::1"}, ("validation_failed", "cancel_url")),
        ({"cancel_url": "https://shop.example/" + "x" * 2028}, ("validation_failed", "cancel_url")),
        ({"description": "x" * 1001}, ("validation_failed", "description")),
        ({"line_items": "no"}, ("validation_failed", "line_items")),
        ({"line_items": [{"name": "a", "quantity": 1, "amount": "1"}] * 51}, ("validation_failed", "line_items")),
        ({"line_items": [{"name": "a", "quantity": 1}]}, ("validation_failed", "line_items")),
        ({"line_items": [{"name": "a", "quantity": 0, "amount": "1"}]}, ("validation_failed", "line_items")),
        ({"line_items": [{"name": "a", "quantity": 1, "amount": 1.5}]}, ("validation_failed", "line_items")),
        ({"customer_email": 1}, ("validation_failed", "customer_email")),
        ({"ui_mode": "window"}, ("validation_failed", "ui_mode")),
        ({"metadata": []}, ("validation_failed", "metadata")),
        ({"metadata": {str(n): "x" for n in range(21)}}, ("validation_failed", "metadata")),
        ({"metadata": {"k" * 41: "x"}}, ("validation_failed", "metadata")),
        ({"metadata": {"k": "x" * 501}}, ("validation_failed", "metadata")),
        ({"metadata": {"k": 1}}, ("validation_failed", "metadata")),
        ({"expires_at": "tomorrow"}, ("validation_failed", "expires_at")),
        ({"expires_at": START.replace(tzinfo=None)}, ("validation_failed", "expires_at")),
        ({"expires_at": START + timedelta(minutes=4, seconds=59)}, ("expires_at_out_of_range", "expires_at")),
        ({"expires_at": START + timedelta(hours=24, seconds=1)}, ("expires_at_out_of_range", "expires_at")),
    ],
)  # fmt: skip
def test_a_field_against_its_rule_is_refused(change: dict[str, Any], expected: tuple[str, str]) -> None:
    # case: C22
    assert refusal({**PAYMENT, **change}) == expected


def test_fields_at_their_limits_pass() -> None:
    # case: C22
    full = body(
        order_id="ö/&" + "x" * 125,
        success_url="https://shop.example/" + "x" * 2027,
        description="x" * 1000,
        line_items=[{"name": "a", "quantity": 3, "amount": Decimal("1.5")}] * 50,
        customer_email="a@b.example",
        customer_reference="c-1",
        ui_mode="popup",
        metadata={f"{n:040}": "x" * 500 for n in range(20)},
    )
    assert len(full["order_id"]) == 128
    assert full["line_items"][0] == {"name": "a", "quantity": 3, "amount": "1.5"}
    assert len(full["metadata"]) == 20


@pytest.mark.parametrize("ahead", [timedelta(minutes=5), timedelta(hours=24)])
def test_an_expiry_at_its_limits_passes(ahead: timedelta) -> None:
    # case: C22, C25
    sent = body(expires_at=START + ahead)["expires_at"]
    assert datetime.fromisoformat(sent) == START + ahead
    assert sent.endswith("Z")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({**PAYMENT, "amount": None}, ("amount_or_price_required", "amount")),
        ({**PAYMENT, "price_id": "p"}, ("amount_or_price_required", "amount")),
        ({**PAYMENT, "description": None}, ("amount_or_price_required", "description")),
        ({**PAYMENT, "description": ""}, ("amount_or_price_required", "description")),
        ({**SUBSCRIPTION, "price_id": None}, ("price_id_required", "price_id")),
        ({**SUBSCRIPTION, "amount": "1"}, ("amount_not_allowed", "amount")),
        ({**SUBSCRIPTION, "description": "x"}, ("amount_not_allowed", "description")),
    ],
)
def test_the_rules_of_the_modes(fields: dict[str, Any], expected: tuple[str, str]) -> None:
    # case: C23
    assert refusal(fields) == expected


@pytest.mark.parametrize("amount", ["-1.5", "-0.000001", "-0", Decimal("-1.5"), "−1"])
def test_a_negative_line_item_is_refused(amount: Any) -> None:
    # case: C23
    items = [{"name": "a discount", "quantity": 1, "amount": amount}]
    assert refusal({**PAYMENT, "line_items": items}) == ("validation_failed", "line_items")
    assert body(line_items=[{**items[0], "amount": "0"}])["line_items"][0]["amount"] == "0"


@pytest.mark.parametrize("amount", ["9" * 30, "9" * 30 + ".5", Decimal("9" * 18)])
def test_an_amount_of_thirty_digits_is_out_of_range(amount: Any) -> None:
    # case: C21, C23
    assert refusal({**PAYMENT, "amount": amount}) == ("amount_out_of_range", "amount")


def test_both_modes_pass_with_their_fields() -> None:
    # case: C23
    assert orjson.loads(session_body(SUBSCRIPTION, START))["mode"] == "subscription"
    by_price = {**PAYMENT, "amount": None, "description": None, "price_id": "svc_price_once"}
    assert "amount" not in orjson.loads(session_body(by_price, START))


def test_the_same_fields_give_the_same_bytes() -> None:
    # case: C3
    assert session_body(PAYMENT, START) == session_body(dict(reversed(PAYMENT.items())), START)


async def test_nothing_is_sent_when_a_field_is_refused(service: ScriptedService, b: Bench) -> None:
    # case: C22
    with pytest.raises(ValidationError):
        await b.client.checkout_sessions.create(
            mode="payment",
            order_id="o",
            success_url="https://a.example",
            cancel_url="https://a.example",
            amount=1.5,  # type: ignore[arg-type] # what a caller without a type checker does
            description="x",
        )
    with pytest.raises(TypeError):
        await b.client.checkout_sessions.create(surprise=1)  # type: ignore[call-arg] # as above
    with pytest.raises(ValidationError):
        await b.client.subscriptions.cancel("sub_1", at="tomorrow")  # type: ignore[arg-type] # as above
    assert service.seen == []


@pytest.mark.parametrize("at", [None, "", "NOW", "tomorrow", 1])
def test_a_cancel_needs_now_or_period_end(at: Any) -> None:
    # case: C22
    with pytest.raises(ValidationError) as caught:
        cancel_body(at)
    assert caught.value.field == "at"


@pytest.mark.parametrize("limit", [0, 101, -1, "x", "20", True, 1.0, None])
def test_a_bad_limit_is_never_sent(limit: Any) -> None:
    # case: B17, C29
    with pytest.raises(ValidationError) as caught:
        checked_limit(limit)
    assert caught.value.field == "limit"


def test_ids_are_opaque_and_quoted() -> None:
    # case: F26
    assert path_id("a/b?c#d e%ä") == "a%2Fb%3Fc%23d%20e%25%C3%A4"
    for bad in ("", ".", "..", "x" * 256, None, 7, "\ud800"):
        with pytest.raises(ValidationError):
            path_id(bad)
