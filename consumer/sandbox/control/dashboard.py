"""The dashboard by hand: merchants, applications, secrets, endpoints, catalog (spec, Authentication; cases X47-X53)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from consumer.sandbox.control.describe import application_record, merchant_record, plan_record
from consumer.sandbox.control.payer import text_of
from consumer.sandbox.engine import views
from consumer.sandbox.engine.engine import MERCHANT_ID
from consumer.sandbox.errors import Refusal
from consumer.sandbox.simulator import Simulator

Body = dict[str, Any]
Action = Callable[[Simulator, web.Request, Body], Awaitable[Any]]


def _needed(body: Body, name: str) -> str:
    value = text_of(body, name)
    if value is None:
        raise Refusal("validation_failed", f"{name} is required.", field=name)
    return value


def _flag(body: Body, name: str) -> bool | None:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise Refusal("validation_failed", f"{name} must be true or false.", field=name)
    return value


def _whole(body: Body, name: str) -> int | None:
    value = body.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise Refusal("validation_failed", f"{name} must be an integer.", field=name)
    return value


async def _list_merchants(sandbox: Simulator, _request: web.Request, _body: Body) -> Any:
    return {"items": [merchant_record(merchant) for merchant in sandbox.engine.world.merchants]}


async def _add_merchant(sandbox: Simulator, _request: web.Request, body: Body) -> Any:
    """A merchant with one application; the answer holds the credentials, shown once."""
    applications = sandbox.engine.applications
    fee_bps = _whole(body, "fee_bps") or 0
    merchant = applications.add_merchant(text_of(body, "name", "Merchant") or "Merchant")
    applications.change_merchant(merchant.id, fee_bps=fee_bps)
    return merchant_record(merchant) | {"application": _new_application(sandbox, merchant.id, body)}


async def _change_merchant(sandbox: Simulator, request: web.Request, body: Body) -> Any:
    """`active`, `fee_bps`, `new_wallet`, `has_token_account`."""
    merchant = sandbox.engine.applications.change_merchant(
        request.match_info["id"],
        active=_flag(body, "active"),
        fee_bps=_whole(body, "fee_bps"),
        new_wallet=bool(_flag(body, "new_wallet")),
        has_token_account=_flag(body, "has_token_account"),
    )
    return merchant_record(merchant)


async def _list_applications(sandbox: Simulator, _request: web.Request, _body: Body) -> Any:
    return {"items": [application_record(sandbox.engine, one) for one in sandbox.engine.world.applications]}


def _new_application(sandbox: Simulator, merchant_id: str, body: Body) -> Any:
    application, secret = sandbox.engine.applications.add(
        merchant_id, text_of(body, "app_name", "Application") or "Application", webhook_url=text_of(body, "webhook_url")
    )
    return application_record(sandbox.engine, application) | {
        "app_secret": secret,
        "webhook_secret": application.webhook_secrets[0],
    }


async def _add_application(sandbox: Simulator, _request: web.Request, body: Body) -> Any:
    return _new_application(sandbox, text_of(body, "merchant_id", MERCHANT_ID) or MERCHANT_ID, body)


async def _roll(sandbox: Simulator, request: web.Request, body: Body) -> Any:
    """`grace`: immediately, 1h (default) or 24h. The new secret is shown once."""
    app_id = request.match_info["id"]
    secret = sandbox.engine.applications.roll_secret(app_id, text_of(body, "grace", "1h") or "1h")
    return application_record(sandbox.engine, sandbox.engine.applications.get(app_id)) | {"app_secret": secret}


async def _revoke(sandbox: Simulator, request: web.Request, _body: Body) -> Any:
    sandbox.engine.applications.revoke_secrets(request.match_info["id"])
    return application_record(sandbox.engine, sandbox.engine.applications.get(request.match_info["id"]))


async def _disable(sandbox: Simulator, request: web.Request, _body: Body) -> Any:
    app_id = request.match_info["id"]
    canceled = sandbox.engine.disable(app_id)
    shown = application_record(sandbox.engine, sandbox.engine.applications.get(app_id))
    return shown | {"canceled_deliveries": canceled}


async def _webhook(sandbox: Simulator, request: web.Request, body: Body) -> Any:
    """`url` (null switches the endpoint off) and, if given, `secrets`."""
    app_id = request.match_info["id"]
    applications = sandbox.engine.applications
    if "url" in body:
        applications.set_webhook(app_id, text_of(body, "url"))
    if "secrets" in body:
        secrets = body["secrets"]
        if not isinstance(secrets, list) or not all(isinstance(one, str) and one for one in secrets):
            raise Refusal("validation_failed", "secrets must be an array of strings.", field="secrets")
        applications.set_webhook_secrets(app_id, tuple(secrets))
    return application_record(sandbox.engine, applications.get(app_id))


async def _test_event(sandbox: Simulator, request: web.Request, _body: Body) -> Any:
    """The dashboard's test button: it shares the API's limit."""
    event = sandbox.engine.send_test_event(request.match_info["id"])
    return {"event_id": event.id.rpartition("/")[2]}


async def _list_prices(sandbox: Simulator, _request: web.Request, _body: Body) -> Any:
    return {"items": [views.price_view(price) for price in sandbox.engine.world.prices]}


async def _add_product(sandbox: Simulator, _request: web.Request, body: Body) -> Any:
    merchant_id = text_of(body, "merchant_id", MERCHANT_ID) or MERCHANT_ID
    sandbox.engine.applications.merchant(merchant_id)
    return views.product_view(sandbox.engine.catalog.add_product(merchant_id, _needed(body, "name")))


async def _add_price(sandbox: Simulator, _request: web.Request, body: Body) -> Any:
    merchant_id = text_of(body, "merchant_id", MERCHANT_ID) or MERCHANT_ID
    sandbox.engine.applications.merchant(merchant_id)
    price = sandbox.engine.catalog.add_price(
        merchant_id,
        text_of(body, "product_id", "prod_access") or "prod_access",
        _needed(body, "amount"),
        interval_days=_whole(body, "interval_days"),
        price_id=text_of(body, "id"),
    )
    return views.price_view(price)


async def _archive_price(sandbox: Simulator, request: web.Request, _body: Body) -> Any:
    return views.price_view(sandbox.engine.catalog.archive_price(request.match_info["id"]))


async def _archive_product(sandbox: Simulator, request: web.Request, _body: Body) -> Any:
    return views.product_view(sandbox.engine.catalog.archive_product(request.match_info["id"]))


async def _list_plans(sandbox: Simulator, _request: web.Request, _body: Body) -> Any:
    return {"items": [plan_record(plan) for plan in sandbox.engine.world.plans]}


ROUTES: tuple[tuple[str, str, Action], ...] = (
    ("GET", "/merchants", _list_merchants),
    ("POST", "/merchants", _add_merchant),
    ("POST", "/merchants/{id}", _change_merchant),
    ("GET", "/applications", _list_applications),
    ("POST", "/applications", _add_application),
    ("POST", "/applications/{id}/roll-secret", _roll),
    ("POST", "/applications/{id}/revoke-secrets", _revoke),
    ("POST", "/applications/{id}/disable", _disable),
    ("POST", "/applications/{id}/webhook", _webhook),
    ("POST", "/applications/{id}/test-event", _test_event),
    ("GET", "/prices", _list_prices),
    ("POST", "/prices", _add_price),
    ("POST", "/prices/{id}/archive", _archive_price),
    ("POST", "/products", _add_product),
    ("POST", "/products/{id}/archive", _archive_product),
    ("GET", "/plans", _list_plans),
)
