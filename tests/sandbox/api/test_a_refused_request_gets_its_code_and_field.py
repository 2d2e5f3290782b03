"""Requests the service refuses: exact code, field, and body."""

from __future__ import annotations

import json
from typing import Any

import pytest

from consumer.sandbox import Sandbox
from tests.sandbox.support import Api, Reply, body

LONG_URL = "https://shop.example/"

REFUSED: list[tuple[str, dict[str, Any], int, str, str | None]] = [
    # case: X20
    ("unknown field", {"coupon": "x"}, 400, "validation_failed", "coupon"),
    # case: X21
    ("number", {"amount": 10}, 400, "validation_failed", "amount"),
    ("float", {"amount": 10.5}, 400, "validation_failed", "amount"),
    ("7 decimals", {"amount": "1.0000001"}, 400, "validation_failed", "amount"),
    ("words", {"amount": "abc"}, 400, "validation_failed", "amount"),
    ("exponent", {"amount": "1e3"}, 400, "validation_failed", "amount"),
    ("blank before", {"amount": " 1"}, 400, "validation_failed", "amount"),
    ("dot at the end", {"amount": "1."}, 400, "validation_failed", "amount"),
    ("sign", {"amount": "-1"}, 400, "validation_failed", "amount"),
    ("arabic digits", {"amount": "١٢"}, 400, "validation_failed", "amount"),
    # case: X22
    ("too little", {"amount": "0.009999"}, 400, "amount_out_of_range", "amount"),
    ("too much", {"amount": "1000000.000001"}, 400, "amount_out_of_range", "amount"),
    ("30 digits", {"amount": "9" * 30}, 400, "amount_out_of_range", "amount"),
    ("900 digits", {"amount": "9" * 900 + ".5"}, 400, "amount_out_of_range", "amount"),
    # case: X23
    ("neither", {"amount": None, "description": None}, 400, "amount_or_price_required", None),
    ("both", {"price_id": "svc_price_once"}, 400, "amount_or_price_required", None),
    ("no description", {"description": None}, 400, "amount_or_price_required", None),
    # case: X24
    ("insecure success", {"success_url": "http://shop.example/"}, 400, "url_insecure", "success_url"),
    ("insecure cancel", {"cancel_url": "http://shop.example/"}, 400, "url_insecure", "cancel_url"),
    ("long url", {"success_url": LONG_URL + "a" * (2049 - len(LONG_URL))}, 400, "validation_failed", "success_url"),
    ("no host", {"success_url": "https:///x"}, 400, "validation_failed", "success_url"),
    # case: X25
    ("4:59", {"expires_at": "2026-01-01T00:04:59Z"}, 400, "expires_at_out_of_range", "expires_at"),
    ("24:00:01", {"expires_at": "2026-01-02T00:00:01Z"}, 400, "expires_at_out_of_range", "expires_at"),
    ("no time", {"expires_at": "soon"}, 400, "validation_failed", "expires_at"),
    ("no zone", {"expires_at": "2026-01-01T00:10:00"}, 400, "validation_failed", "expires_at"),
    ("epoch", {"expires_at": 1767226200}, 400, "validation_failed", "expires_at"),
    ("ISO 8601 that is no date-time", {"expires_at": "20260101T001000Z"}, 400, "validation_failed", "expires_at"),
    ("arabic digits in a time", {"expires_at": "٢٠٢٦-01-01T00:10:00Z"}, 400, "validation_failed", "expires_at"),
    # case: X28
    ("archived", {"amount": None, "description": None, "price_id": "svc_price_archived"}, 422, "price_archived",
     "price_id"),
    ("archived product", {"amount": None, "description": None, "price_id": "svc_price_of_archived_product"}, 422,
     "product_archived", "price_id"),
    ("unknown price", {"amount": None, "description": None, "price_id": "svc_price_nope"}, 422, "price_not_found",
     "price_id"),
    # case: X27
    ("recurring", {"amount": None, "description": None, "price_id": "svc_price_monthly"}, 422, "price_type_mismatch",
     "price_id"),
    # case: X29
    ("21 keys", {"metadata": {f"k{n}": "v" for n in range(21)}}, 400, "validation_failed", "metadata"),
    ("key of 41", {"metadata": {"k" * 41: "v"}}, 400, "validation_failed", "metadata"),
    ("value of 501", {"metadata": {"k": "v" * 501}}, 400, "validation_failed", "metadata"),
    ("value a number", {"metadata": {"k": 1}}, 400, "validation_failed", "metadata"),
    ("metadata a list", {"metadata": []}, 400, "validation_failed", "metadata"),
    ("51 items", {"line_items": [{"name": "a", "quantity": 1, "amount": "1"}] * 51}, 400, "validation_failed",
     "line_items"),
    ("item without name", {"line_items": [{"quantity": 1, "amount": "1"}]}, 400, "validation_failed", "line_items"),
    ("order_id of 129", {"order_id": "o" * 129}, 400, "validation_failed", "order_id"),
    ("no order_id", {"order_id": None}, 400, "validation_failed", "order_id"),
    ("description of 1001", {"description": "d" * 1001}, 400, "validation_failed", "description"),
    ("ui_mode", {"ui_mode": "iframe"}, 400, "validation_failed", "ui_mode"),
    ("mode", {"mode": "gift"}, 400, "validation_failed", "mode"),
    ("lone surrogate", {"description": "\ud800"}, 400, "validation_failed", "description"),
    ("NUL", {"order_id": "a\0b"}, 400, "validation_failed", "order_id"),
    ("NUL in metadata", {"metadata": {"a": "\0"}}, 400, "validation_failed", "metadata"),
    ("blank", {"order_id": " "}, 400, "validation_failed", "order_id"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "status", "code", "field"), [pytest.param(*row[1:], id=row[0]) for row in REFUSED])
async def test_refused(api: Api, changes: dict[str, Any], status: int, code: str, field: str | None) -> None:
    reply = await api.post("/v1/checkout-sessions", body(**changes))
    assert (reply.status, reply.code) == (status, code), reply.text
    assert field is None or reply.json["field"] == field
    assert set(reply.json) <= {"statusCode", "error", "code", "message", "request_id", "field"}
    assert reply.json["statusCode"] == status
    assert reply.json["request_id"].startswith("req_")
    assert await api.items("/v1/orders") == [], "a refused create leaves nothing behind"


ACCEPTED: list[tuple[str, dict[str, Any]]] = [
    # case: X22
    ("least", {"amount": "0.01"}),
    ("most", {"amount": "1000000"}),
    ("6 decimals", {"amount": "1.000001"}),
    # case: X25
    ("5 minutes", {"expires_at": "2026-01-01T00:05:00Z"}),
    ("24 hours", {"expires_at": "2026-01-02T01:00:00+01:00"}),
    # case: X29
    ("20 keys", {"metadata": {"k" * 38 + f"{n:02}": "v" * 500 for n in range(20)}}),
    ("50 items", {"line_items": [{"name": "a", "quantity": 1, "amount": "1"}] * 50}),
    ("order_id of 128", {"order_id": "ö/& " * 32}),
    ("description of 1000", {"description": "d" * 1000}),
    ("url of 2048", {"success_url": LONG_URL + "a" * (2048 - len(LONG_URL))}),
]


@pytest.mark.parametrize("changes", [pytest.param(row[1], id=row[0]) for row in ACCEPTED])
async def test_accepted(api: Api, changes: dict[str, Any]) -> None:
    session = await api.create(**changes)
    found = await api.get("/v1/orders/lookup", order_id=session["order_id"])
    assert found.json["id"] == session["order"]["id"]


SUBSCRIPTION = {"mode": "subscription", "amount": None, "description": None}


@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        # case: X26
        ({}, 400, "price_id_required"),
        ({"price_id": "svc_price_monthly", "amount": "5"}, 400, "amount_not_allowed"),
        ({"price_id": "svc_price_monthly", "description": "d"}, 400, "amount_not_allowed"),
        # case: X27
        ({"price_id": "svc_price_once"}, 422, "price_not_recurring"),
        # case: X28
        ({"price_id": "svc_price_nope"}, 422, "price_not_found"),
    ],
)
async def test_refused_for_a_subscription(api: Api, changes: dict[str, Any], status: int, code: str) -> None:
    reply = await api.post("/v1/checkout-sessions", body(**(SUBSCRIPTION | changes)))
    assert (reply.status, reply.code) == (status, code)


@pytest.mark.parametrize("status", [400, 404, 409])
async def test_the_status_of_price_errors_is_a_switch(api: Api, sandbox: Sandbox, status: int) -> None:
    # case: X27, X28
    sandbox.assumptions.set({"price_error_status": status})
    for price_id, code in (
        ("svc_price_nope", "price_not_found"),
        ("svc_price_archived", "price_archived"),
        ("svc_price_of_archived_product", "product_archived"),
        ("svc_price_monthly", "price_type_mismatch"),
    ):
        reply = await api.post("/v1/checkout-sessions", body(amount=None, description=None, price_id=price_id))
        assert (reply.status, reply.json["statusCode"], reply.code) == (status, status, code)


async def test_a_price_of_another_merchant_is_not_found(api: Api) -> None:
    # case: X28
    other = await api.control("/merchants", {"name": "Other"})
    product = await api.control("/products", {"merchant_id": other["id"], "name": "Theirs"})
    price = await api.control("/prices", {"merchant_id": other["id"], "product_id": product["id"], "amount": "3"})
    reply = await api.post("/v1/checkout-sessions", body(amount=None, description=None, price_id=price["id"]))
    assert reply.code == "price_not_found"


async def test_a_wallet_without_token_account_takes_no_session(api: Api) -> None:
    # case: X30
    await api.control("/merchants/mer_sandbox", {"has_token_account": False})
    reply = await api.post("/v1/checkout-sessions", body())
    assert (reply.status, reply.code) == (422, "merchant_token_account_missing")


@pytest.mark.parametrize("code", ["validation_failed", "idempotency_key_required"])
async def test_every_post_needs_an_idempotency_key(api: Api, sandbox: Sandbox, code: str) -> None:
    # case: X31
    sandbox.assumptions.set({"missing_idempotency_key": code})
    for path in (
        "/v1/checkout-sessions", "/v1/checkout-sessions/x/cancel", "/v1/checkout-sessions/x/link",
        "/v1/subscriptions/x/cancel", "/v1/webhook/test-event",
    ):  # fmt: skip
        reply = await api.post(path, body(), Idempotency_Key=None)
        assert (reply.status, reply.code) == (400, code), path


async def test_the_same_key_and_body_repeat_the_answer_without_the_link(api: Api) -> None:
    # case: X31
    wanted = body()
    first = await api.post("/v1/checkout-sessions", wanted, Idempotency_Key="k-1")
    second = await api.post("/v1/checkout-sessions", wanted, Idempotency_Key="k-1")
    assert second.status == first.status == 201
    assert second.json == first.json | {"url": None}
    other = await api.post("/v1/checkout-sessions", body(), Idempotency_Key="k-1")
    assert (other.status, other.code) == (409, "idempotency_key_reused")


async def test_what_a_repeated_key_does_is_a_switch(api: Api, sandbox: Sandbox) -> None:
    # case: X31
    sandbox.assumptions.set({"idempotency_reuse": "rerun", "idempotency_conflict": "run"})
    wanted = body()
    assert (await api.post("/v1/checkout-sessions", wanted, Idempotency_Key="k-1")).status == 201
    assert (await api.post("/v1/checkout-sessions", wanted, Idempotency_Key="k-1")).status == 200
    assert (await api.post("/v1/checkout-sessions", body(), Idempotency_Key="k-1")).status == 201


async def test_create_again_with_other_parameters_is_a_switch(api: Api, sandbox: Sandbox) -> None:
    # case: X3
    session = await api.create(order_id="o", amount="1")
    same = await api.post("/v1/checkout-sessions", body(order_id="o", amount="2"))
    assert (same.status, same.json["id"], same.json["amount"]) == (200, session["id"], "1.00")
    sandbox.assumptions.set({"create_again_different": "refuse"})
    assert (await api.post("/v1/checkout-sessions", body(order_id="o", amount="2"))).status == 409


@pytest.mark.parametrize("raw", [b"{", b"[]", b'"x"', b"nul", b"NaN", b"\xff\xfe", b'{"a":' * 5000])
async def test_what_is_no_json_object_is_refused(api: Api, raw: bytes) -> None:
    # case: X20
    reply = await _send(api, raw)
    assert (reply.status, reply.code) == (400, "validation_failed")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "utf-8-sig"])
async def test_json_is_utf_8_without_a_mark(api: Api, encoding: str) -> None:
    """RFC 8259, 8.1. Python's reader guesses."""
    # case: X20
    reply = await _send(api, json.dumps(body()).encode(encoding))
    assert (reply.status, reply.code) == (400, "validation_failed")


async def test_a_field_that_is_given_twice_is_refused_or_the_last_counts(api: Api, sandbox: Sandbox) -> None:
    """Readers differ: the merchant's tests would pass with one amount, and the service take the other."""
    # case: X20, X63
    wanted = json.dumps(body(amount="1"))
    for twice in (wanted[:-1] + ', "amount": "9"}', wanted[:-1] + ', "metadata": {"a": "1", "a": "2"}}'):
        reply = await _send(api, twice.encode())
        assert (reply.status, reply.code) == (400, "validation_failed")
    sandbox.assumptions.set({"repeated_names": "last"})
    reply = await _send(api, (wanted[:-1] + ', "amount": "9"}').encode())
    assert (reply.status, reply.json["amount"]) == (201, "9.00")


async def _send(api: Api, raw: bytes) -> Reply:
    return await api.call("POST", "/v1/checkout-sessions", data=raw, headers={"Content-Type": "application/json"})


@pytest.mark.parametrize("key", ["a b", "é", "a\tb", "k" * 256])
async def test_a_key_is_of_visible_ascii_unless_that_is_assumed_otherwise(api: Api, sandbox: Sandbox, key: str) -> None:
    """As its own OpenAPI document has it."""
    # case: X31, X63
    reply = await api.post("/v1/checkout-sessions", body(), Idempotency_Key=key)
    assert (reply.status, reply.code, reply.json["field"]) == (400, "validation_failed", "Idempotency-Key")
    sandbox.assumptions.set({"idempotency_key_text": "any", "idempotency_key_chars": 300})
    wanted = body()
    first, again = [await api.post("/v1/checkout-sessions", wanted, Idempotency_Key=key) for _ in range(2)]
    assert (first.status, again.status, again.json["id"]) == (201, 201, first.json["id"])


async def test_parameters_that_an_endpoint_lacks_are_refused_or_ignored(api: Api, sandbox: Sandbox) -> None:
    # case: X20, X63
    order = (await api.create(order_id="o"))["order"]["id"]
    reads = [f"/v1/orders/{order}?x=1", "/v1/application?limit=5", "/v1/orders?x=1", "/v1/orders?limit=1&limit=2",
             "/v1/orders/lookup?order_id=o&x=1", "/v1/orders/lookup?order_id=o&order_id=p"]  # fmt: skip
    for path in reads:
        reply = await api.call("GET", path)
        assert (reply.status, reply.code) == (400, "validation_failed"), path
    assert (await api.post("/v1/checkout-sessions?x=1", body())).code == "validation_failed"
    assert len(await api.items("/v1/orders")) == 1, "a refused create leaves nothing behind"
    sandbox.assumptions.set({"unknown_parameters": "ignore"})
    for path in reads:
        assert (await api.call("GET", path)).status == 200, path
    assert (await api.post("/v1/checkout-sessions?x=1", body())).status == 201


async def test_odd_texts_and_other_times_are_taken_where_that_is_assumed(api: Api, sandbox: Sandbox) -> None:
    # case: X63
    sandbox.assumptions.set({"odd_text": "accept", "expires_at_format": "any"})
    times = {"a\0b": "20260101T001000Z", " ": 1767226200, "  ": 1767226200000}
    for order_id, expires_at in times.items():
        session = await api.create(order_id=order_id, expires_at=expires_at)
        assert session["expires_at"].startswith("2026-01-01T00:10:00")
    assert (await api.get("/v1/orders/lookup", order_id="a\0b")).status == 200


async def test_other_media_types_and_large_bodies_are_refused(api: Api) -> None:
    # case: X20
    reply = await api.call("POST", "/v1/checkout-sessions", data=b"{}", headers={"Content-Type": "text/plain"})
    assert (reply.status, reply.code) == (415, "unsupported_media_type")
    reply = await api.call(
        "POST", "/v1/checkout-sessions", data=b" " * 300_000, headers={"Content-Type": "application/json"}
    )
    assert (reply.status, reply.code) == (413, "payload_too_large")


async def test_an_open_session_is_answered_again_whatever_became_of_its_price(api: Api, sandbox: Sandbox) -> None:
    # case: X6
    wanted = body(amount=None, description=None, price_id="svc_price_once")
    first = await api.post("/v1/checkout-sessions", wanted)
    sandbox.engine.catalog.archive_price("svc_price_once")
    again = await api.post("/v1/checkout-sessions", wanted)
    assert (again.status, again.json["id"]) == (200, first.json["id"])
    await api.post(f"/v1/checkout-sessions/{first.json['id']}/cancel")
    assert (await api.post("/v1/checkout-sessions", wanted)).code == "price_archived"


async def test_an_order_is_read_by_the_services_id_and_by_the_merchants_where_that_is_assumed(
    api: Api, sandbox: Sandbox
) -> None:
    # case: X56
    session = await api.create(order_id="mine")
    order = session["order"]["id"]
    assert (await api.get(f"/v1/orders/{order}")).json["order_id"] == "mine"
    assert (await api.get("/v1/orders/mine")).code == "not_found"
    sandbox.assumptions.set({"order_read": "either_id"})
    assert (await api.get("/v1/orders/mine")).json["id"] == order
    assert (await api.get(f"/v1/orders/{order}")).json["id"] == order
    lookup = f"/v1/orders/lookup?order_id={order}"
    assert (await api.get(lookup)).code == "not_found"
    sandbox.assumptions.set({"order_lookup": "either_id"})
    assert (await api.get(lookup)).json["order_id"] == "mine"
    assert (await api.get("/v1/orders/lookup?order_id=mine")).json["id"] == order
    assert (await api.get("/v1/orders/lookup?order_id=nobodys")).code == "not_found"


async def test_the_bounds_that_the_document_lacks_are_assumed(api: Api, sandbox: Sandbox) -> None:
    # case: X63
    longer = {"customer_reference": "c" * 1001, "customer_email": "e" * 321}
    item = {"name": "n" * 1001, "quantity": 2_000_000, "amount": "1"}
    for field, value in longer.items():
        assert (await api.post("/v1/checkout-sessions", body(**{field: value}))).json["field"] == field
    assert (await api.post("/v1/checkout-sessions", body(line_items=[item]))).json["field"] == "line_items"
    sandbox.assumptions.set({
        "customer_reference_chars": 2000, "customer_email_chars": 2000, "line_item_name_chars": 2000,
        "line_item_quantity_max": 3_000_000,
    })  # fmt: skip
    assert (await api.post("/v1/checkout-sessions", body(**longer, line_items=[item]))).status == 201
