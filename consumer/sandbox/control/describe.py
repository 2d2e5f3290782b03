"""What the control addresses show of a record."""

from __future__ import annotations

from typing import Any

from consumer.sandbox.clock import iso
from consumer.sandbox.engine import records as r
from consumer.sandbox.engine import views
from consumer.sandbox.engine.engine import Engine


def delivery_record(delivery: r.Delivery) -> dict[str, Any]:
    """A delivery with its attempts; `answer` is the last status."""
    last = delivery.attempts[-1] if delivery.attempts else None
    return {
        "id": delivery.id,
        "application": delivery.app_id,
        "event_id": delivery.event_id.rpartition("/")[2],
        "sent_event_id": delivery.sent_event_id,
        "type": delivery.event_type,
        "url": delivery.url,
        "status": delivery.status.value,
        "answer": last.status if last else None,
        "copy": delivery.copy_number,
        "faults": {
            "dropped": delivery.status is r.DeliveryStatus.DROPPED,
            "truncate": delivery.truncate,
            "wrong_signature": delivery.wrong_signature,
            "slow_s": delivery.slow_s,
        },
        "created_at": iso(delivery.created_at),
        "due_at": iso(delivery.due_at),
        "attempts": [
            {"at": iso(attempt.at), "status": attempt.status, "error": attempt.error} for attempt in delivery.attempts
        ],
    }


def session_record(engine: Engine, session: r.Session) -> dict[str, Any]:
    """A session as the API shows it, and what only the payer's side knows."""
    world = engine.world
    order = world.orders.get(session.order_ref) if session.order_ref else None
    payment = world.payments.get(session.payment_id) if session.payment_id else None
    plan = engine.plans.get(session.plan_id)
    return views.session_view(session, order) | {
        "payment": payment_record(payment) if payment else None,
        "plan_status": plan.status.value if plan else None,
        "builds": session.builds,
        "build_attempts": session.build_attempts,
        "replaced_by": session.replaced_by,
    }


def payment_record(payment: r.Payment) -> dict[str, Any]:
    """A payment with its true state (broadcast, confirmed, …)."""
    return views.payment_view(payment, payment.status.value)


def subscription_record(engine: Engine, subscription: r.Subscription) -> dict[str, Any]:
    """A subscription as the API shows it, and what only the chain knows."""
    view = views.subscription_view(subscription, engine.assumptions.text("status_after_second_failure"))
    return view | {
        "failures": subscription.failures,
        "charge": subscription.charge,
        "onchain": subscription.onchain,
        "onchain_end_at": iso(subscription.onchain_end_at) if subscription.onchain_end_at else None,
        "plan_id": subscription.plan_id,
        "end_at": iso(subscription.end_at) if subscription.end_at else None,
        "retry_at": iso(subscription.retry_at) if subscription.retry_at else None,
    }


def application_record(engine: Engine, application: r.Application) -> dict[str, Any]:
    """An application as the dashboard shows it; no secret."""
    return {
        "app_id": application.id,
        "name": application.name,
        "merchant_id": application.merchant_id,
        "webhook_url": application.webhook_url,
        "valid_secrets": len(engine.applications.valid_secrets(application)),
        "disabled": application.disabled_at is not None,
    }


def merchant_record(merchant: r.Merchant) -> dict[str, Any]:
    """A merchant as the admin sees it."""
    return {
        "id": merchant.id,
        "name": merchant.name,
        "active": merchant.active,
        "wallet": merchant.wallet,
        "has_token_account": merchant.has_token_account,
        "fee_bps": merchant.fee_bps,
    }


def plan_record(plan: r.Plan) -> dict[str, Any]:
    """A plan on chain, or on its way there."""
    return {
        "id": plan.id,
        "price_id": plan.price_id,
        "wallet": plan.wallet,
        "fee_bps": plan.fee_bps,
        "status": plan.status.value,
        "attempts": plan.attempts,
        "due_at": iso(plan.due_at) if plan.due_at else None,
    }
