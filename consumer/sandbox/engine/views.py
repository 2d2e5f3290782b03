"""Views: a record as the API and the events show it. Field names the spec does not show are a guess."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from consumer.sandbox.assumptions import Assumptions
from consumer.sandbox.clock import iso
from consumer.sandbox.engine import records as r
from consumer.sandbox.engine.money import amount_text

_TIME_FIELDS = frozenset(
    {
        "created_at",
        "expires_at",
        "paid_at",
        "succeeded_at",
        "ended_at",
        "disabled_at",
        "current_period_start",
        "current_period_end",
    }
)
_PERSONAL = ("customer_email", "customer_reference", "metadata")
_TERMS = (*_PERSONAL, "amount", "service_fee", "price_id", "line_items")


def _time(at: datetime | None) -> str | None:
    return iso(at) if at is not None else None


def application_view(application: r.Application, merchant: r.Merchant) -> dict[str, Any]:
    """The calling application (fields not shown by the spec)."""
    return {
        "id": application.id,
        "object": "application",
        "name": application.name,
        "merchant": {"id": merchant.id, "name": merchant.name},
        "webhook_url": application.webhook_url,
        "created_at": _time(application.created_at),
    }


def product_view(product: r.Product) -> dict[str, Any]:
    """A product as the API shows it."""
    return {
        "id": product.id,
        "object": "product",
        "name": product.name,
        "archived": product.archived,
        "created_at": _time(product.created_at),
    }


def price_view(price: r.Price) -> dict[str, Any]:
    """A price as the API shows it."""
    return {
        "id": price.id,
        "object": "price",
        "product_id": price.product_id,
        "type": "recurring" if price.interval_days else "one_time",
        "interval_days": price.interval_days,
        "amount": amount_text(price.amount),
        "currency": "USDC",
        "archived": price.archived,
        "created_at": _time(price.created_at),
    }


def order_view(order: r.Order) -> dict[str, Any]:
    """An order as the API shows it."""
    return {
        "id": order.id,
        "object": "order",
        "order_id": order.order_id,
        "status": order.status.value,
        "amount": amount_text(order.amount),
        "service_fee": amount_text(order.fee),
        "currency": "USDC",
        "description": order.description,
        "customer_email": order.customer_email,
        "customer_reference": order.customer_reference,
        "metadata": dict(order.metadata),
        "session_id": order.session_id,
        "payment_id": order.payment_id,
        "created_at": _time(order.created_at),
        "paid_at": _time(order.paid_at),
    }


def session_view(session: r.Session, order: r.Order | None, url: str | None = None) -> dict[str, Any]:
    """A session with its embedded order; `url` only where a create or a reissue answers (spec, response fields)."""
    return {
        "id": session.id,
        "object": "checkout.session",
        "mode": session.mode,
        "status": session.status.value,
        "url": url,
        "order_id": session.order_id,
        "order": order_view(order) if order else None,
        "price_id": session.price_id,
        "amount": amount_text(session.amount),
        "service_fee": amount_text(session.fee),
        "currency": "USDC",
        "description": session.description,
        "line_items": [dict(item) for item in session.line_items],
        "customer_email": session.customer_email,
        "customer_reference": session.customer_reference,
        "metadata": dict(session.metadata),
        "ui_mode": session.ui_mode,
        "success_url": session.success_url,
        "cancel_url": session.cancel_url,
        "payment_id": session.payment_id,
        "subscription_id": session.subscription_id,
        "created_at": _time(session.created_at),
        "expires_at": _time(session.expires_at),
    }


def without_terms(session: dict[str, Any]) -> dict[str, Any]:
    """A session, and its order, that shows neither what it costs nor whose it is (U24)."""
    kept = {name: value for name, value in session.items() if name not in _TERMS}
    order = session.get("order")
    return kept | {"order": {name: value for name, value in order.items() if name not in _TERMS}} if order else kept


def payment_view(payment: r.Payment, in_flight_word: str) -> dict[str, Any]:
    """A payment as the API shows it; `in_flight_word` is the status of one that is not final."""
    in_flight = payment.status in (r.PaymentStatus.BROADCAST, r.PaymentStatus.CONFIRMED)
    return {
        "id": payment.id,
        "object": "payment",
        "status": in_flight_word if in_flight else payment.status.value,
        "amount": amount_text(payment.amount),
        "service_fee": amount_text(payment.fee),
        "currency": "USDC",
        "order_id": payment.order_id,
        "order": payment.order_ref,
        "session_id": payment.session_id,
        "subscription_id": payment.subscription_id,
        "from_wallet": payment.wallet,
        "to_wallet": payment.to_wallet,
        "transaction_signature": payment.signature,
        "created_at": _time(payment.created_at),
        "succeeded_at": _time(payment.succeeded_at),
    }


def subscription_view(subscription: r.Subscription, status_after_second_failure: str) -> dict[str, Any]:
    """A subscription as the API shows it."""
    status = subscription.status.value
    if subscription.status is r.SubscriptionStatus.PAST_DUE and subscription.failures >= 2:
        status = status_after_second_failure
    pending = subscription.status is not r.SubscriptionStatus.ENDED and subscription.end_at is not None
    return {
        "id": subscription.id,
        "object": "subscription",
        "status": status,
        "end_reason": subscription.end_reason,
        "cancel_at_period_end": pending,
        "cancel_reason": subscription.cancel_reason,
        "merchant_cancel_requested": subscription.merchant_cancel_requested,
        "price_id": subscription.price_id,
        "product_id": subscription.product_id,
        "session_id": subscription.session_id,
        "amount": amount_text(subscription.amount),
        "service_fee": amount_text(subscription.fee),
        "currency": "USDC",
        "interval_days": subscription.interval_days,
        "customer_email": subscription.customer_email,
        "customer_reference": subscription.customer_reference,
        "metadata": dict(subscription.metadata),
        "wallet": subscription.wallet,
        "current_period_start": _time(subscription.period_start),
        "current_period_end": _time(subscription.period_end),
        "created_at": _time(subscription.started_at),
        "ended_at": _time(subscription.ended_at),
    }


def present(document: Any, assumptions: Assumptions) -> Any:
    """A view as it goes out: timestamps, personal and surprising fields follow the assumptions (U10, U22, U26)."""
    shown = _present(document, assumptions)
    if assumptions.flag("surprise_fields") and isinstance(shown, dict):
        shown["added_later"] = {"version": 2, "parts": [None, "new"]}
    return shown


def _present(document: Any, assumptions: Assumptions) -> Any:
    if isinstance(document, list):
        return [_present(item, assumptions) for item in document]
    if not isinstance(document, dict):
        return document
    style = assumptions.text("timestamps")
    expose = assumptions.flag("expose_customer")
    if document.get("object") == "subscription" and assumptions.text("subscription_customer") == "session_only":
        expose = False
    shown: dict[str, Any] = {}
    for name, value in document.items():
        if name in _PERSONAL and not expose:
            continue
        if name in ("metadata", "line_items"):
            shown[name] = value
        elif name in _TIME_FIELDS and isinstance(value, str) and style != "iso":
            shown[name] = _epoch(value, style)
        else:
            shown[name] = _present(value, assumptions)
    return shown


def _epoch(text: str, style: str) -> int:
    seconds = datetime.fromisoformat(text).astimezone(UTC).timestamp()
    return int(seconds * 1000) if style == "epoch_ms" else int(seconds)
