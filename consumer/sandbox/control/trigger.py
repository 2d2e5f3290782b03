"""Trigger: make an event happen, with the state behind it (`consumer sandbox trigger order.paid --set …`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from consumer.sandbox.engine import records as r
from consumer.sandbox.engine.engine import Engine
from consumer.sandbox.engine.events import TEST_TYPE, TYPES, public_id
from consumer.sandbox.engine.money import parse_amount
from consumer.sandbox.engine.sessions import SessionRequest, tick_after
from consumer.sandbox.errors import Refusal
from consumer.sandbox.simulator import Simulator

_SETTABLE = (
    "order_id",
    "amount",
    "description",
    "price_id",
    "customer_email",
    "customer_reference",
    "wallet",
    "app_id",
)


async def trigger(sandbox: Simulator, body: Mapping[str, Any]) -> dict[str, Any]:
    """`{"type": "order.paid", "set": {"order_id": "A-1", "metadata.plan": "gold"}}`: plays what leads to the event.

    Real state stands behind the event: reads agree with it. `"subscription": ID` or `"order": ORDER_ID` plays it on one
    that is there. With `"any_type": true` the event is made up, whatever its type: `set` is its object, and nothing
    stands behind it (cases I7, F24, A47). Answers the events that were made and the ids. Raises validation_failed.
    """
    event_type, settings = body.get("type"), body.get("set", {})
    if not isinstance(event_type, str) or not 1 <= len(event_type) <= 100:
        raise Refusal("validation_failed", "type must be an event type.", field="type")
    if not isinstance(settings, dict):
        raise Refusal("validation_failed", "set must be an object.", field="set")
    engine = sandbox.engine
    before = engine.world.seq
    made = _play(engine, event_type, settings, body)
    events = [event for event in engine.world.events if event.seq > before]
    return made | {
        "type": event_type,
        "events": [{"id": public_id(event), "type": event.type} for event in sorted(events, key=lambda one: one.seq)],
    }


def _play(engine: Engine, event_type: str, settings: dict[str, Any], body: Mapping[str, Any]) -> dict[str, Any]:
    app_id = str(settings.get("app_id", engine.config.app_id))
    if body.get("any_type") is True:
        engine.applications.get(app_id)
        engine.events.made_up(event_type, app_id, {"id": engine.world.new_id("order"), **settings}, {})
        return {}
    if event_type == TEST_TYPE:
        engine.send_test_event(app_id)
        return {}
    if event_type not in TYPES:
        known = ", ".join((*TYPES, TEST_TYPE))
        raise Refusal(
            "validation_failed",
            f"no such event type; there are {known} (any_type, --any-type, makes one up)",
            field="type",
        )
    _check(settings)
    is_subscription = event_type.startswith("subscription.")
    target = _target(body, "subscription" if is_subscription else "order", settings)
    if is_subscription:
        kind = event_type.removeprefix("subscription.")
        return _subscription(engine, app_id, kind, settings) if target is None else _on(engine, app_id, kind, target)
    return _session(engine, app_id, event_type, settings, target)


def _target(body: Mapping[str, Any], kind: str, settings: Mapping[str, Any]) -> str | None:
    """Which one that is there already it is played on, if any."""
    other = "order" if kind == "subscription" else "subscription"
    if body.get(other) is not None:
        raise Refusal("validation_failed", f"this event is not one of an existing {other}.", field=other)
    target = body.get(kind)
    if target is None:
        return None
    if not isinstance(target, str) or not target:
        raise Refusal("validation_failed", f"{kind} must be an id.", field=kind)
    extra = sorted(set(settings) - {"app_id", "wallet"})
    if extra:
        raise Refusal("validation_failed", f"cannot set {extra[0]}: the {kind} is there already.", field=extra[0])
    return target


def _check(settings: Mapping[str, Any]) -> None:
    for name, value in settings.items():
        if name not in _SETTABLE and not name.startswith("metadata."):
            raise Refusal("validation_failed", f"cannot set {name}; there are {', '.join(_SETTABLE)}, metadata.*")
        if not isinstance(value, str) or not value:
            raise Refusal("validation_failed", f"{name} must be a string.", field=name)


def _create(engine: Engine, app_id: str, mode: str, settings: Mapping[str, Any]) -> r.Session:
    subscription = mode == "subscription"
    price_id = settings.get("price_id", "svc_price_monthly" if subscription else None)
    amount = None if price_id is not None else parse_amount(settings.get("amount", "10"))
    if price_id is None and amount is None:
        raise Refusal("validation_failed", "amount must be a decimal string.", field="amount")
    request = SessionRequest(
        mode=mode,
        order_id=settings.get("order_id", f"trigger-{engine.world.opaque(10)}"),
        success_url="https://example.com/success",
        cancel_url="https://example.com/cancel",
        price_id=price_id,
        amount=amount,
        description=None if price_id is not None else settings.get("description", "Triggered"),
        customer_email=settings.get("customer_email"),
        customer_reference=settings.get("customer_reference", f"customer-{engine.world.opaque(6)}"),
        metadata={k.removeprefix("metadata."): v for k, v in settings.items() if k.startswith("metadata.")},
    )
    return engine.sessions.create(engine.applications.get(app_id), request).session


def _session(
    engine: Engine, app_id: str, event_type: str, settings: Mapping[str, Any], order_id: str | None
) -> dict[str, Any]:
    session = _create(engine, app_id, "payment", settings) if order_id is None else _existing(engine, app_id, order_id)
    if event_type in ("order.paid", "checkout.session.completed"):
        if event_type != "order.paid" and session.status is not r.SessionStatus.OPEN:
            raise Refusal("conflict", "the order's session is over: a late payment completes no session")
        engine.payments.pay(session, wallet=settings.get("wallet"))
    elif event_type == "checkout.session.canceled":
        engine.sessions.cancel(session)
    elif session.status is not r.SessionStatus.OPEN:
        raise Refusal("conflict", "the order's session is over already")
    else:
        tick = tick_after(session.expires_at)
        engine.advance((tick - engine.clock.now()).total_seconds())
    order = engine.orders.find(app_id, session.order_id)
    return {"order_id": session.order_id, "order": order.id if order else None, "session_id": session.id}


def _existing(engine: Engine, app_id: str, order_id: str) -> r.Session:
    """The newest session of an order that is there; paid when it is over, it is the late payment."""
    session = engine.sessions.newest(app_id, order_id)
    if session is None:
        raise Refusal("not_found", "there is no such order", field="order")
    return session


Step = Callable[[r.Subscription], r.Subscription]


def _steps(engine: Engine) -> dict[str, Step]:
    """What leads to an event of a subscription that is there."""
    subscriptions = engine.subscriptions
    return {
        "renewed": subscriptions.renew,
        "payment_failed": subscriptions.fail,
        "past_due": subscriptions.fail,
        "cancel_scheduled": subscriptions.payer_cancel,
        "cancel_withdrawn": subscriptions.payer_withdraw,
        "ended": lambda one: subscriptions.cancel(one, "now"),
    }


def _on(engine: Engine, app_id: str, kind: str, subscription_id: str) -> dict[str, Any]:
    subscription = engine.subscriptions.get(app_id, subscription_id)
    if kind == "created":
        raise Refusal("conflict", "the subscription is there already")
    if kind == "past_due" and subscription.status is not r.SubscriptionStatus.ACTIVE:
        raise Refusal("conflict", "only an ACTIVE subscription becomes PAST_DUE")
    after = _steps(engine)[kind](subscription)
    return {"subscription_id": after.id, "status": after.status.value}


def _subscription(engine: Engine, app_id: str, kind: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    session = _create(engine, app_id, "subscription", settings)
    engine.payments.pay(session, wallet=settings.get("wallet"))
    subscription = engine.subscriptions.any(engine.session(session.id).subscription_id or "")
    if kind == "cancel_withdrawn":
        subscription = _steps(engine)["cancel_scheduled"](subscription)
    if kind != "created":
        subscription = _steps(engine)[kind](subscription)
    return {"subscription_id": subscription.id, "session_id": session.id, "status": subscription.status.value}
