"""What the hosted checkout page shows: one closed set of states, decided from the session (cases X16-X18)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from consumer.sandbox.engine import records as r
from consumer.sandbox.engine.engine import Engine
from consumer.sandbox.engine.payments import MAX_BUILD_ATTEMPTS, MAX_BUILDS, NO_BUILD_IN_LAST

State = Literal[
    "ready",
    "processing",
    "succeeded",
    "canceled",
    "expired",
    "subscription_preparing",
    "subscription_plan_failed",
    "build_limit_reached",
    "too_close_to_expiry",
]


@dataclass(frozen=True)
class PageState:
    """`status` is what a popup posts: succeeded, canceled or expired; None while the payer is still deciding."""

    state: State
    status: str | None
    plan_status: str | None
    can_cancel: bool
    final: bool


def page_state(engine: Engine, session: r.Session) -> PageState:
    """The page of a session as it is now. Confirmed already shows success (spec, What the service does, 6)."""
    plan = engine.plans.get(session.plan_id)
    plan_status = plan.status.value if plan else None
    payment = engine.world.payments.get(session.payment_id) if session.payment_id else None
    if payment is not None and payment.status in (r.PaymentStatus.CONFIRMED, r.PaymentStatus.SUCCEEDED):
        final = payment.status is r.PaymentStatus.SUCCEEDED
        return PageState("succeeded", "succeeded", plan_status, can_cancel=False, final=final)
    if payment is not None and payment.status is r.PaymentStatus.BROADCAST:
        return PageState("processing", None, plan_status, can_cancel=False, final=False)
    if session.status is r.SessionStatus.CANCELED:
        return PageState("canceled", "canceled", plan_status, can_cancel=False, final=True)
    if session.status is r.SessionStatus.EXPIRED or session.expires_at <= engine.clock.now():
        return PageState("expired", "expired", plan_status, can_cancel=False, final=True)
    return PageState(_open_state(engine, session, plan), None, plan_status, can_cancel=True, final=False)


def _open_state(engine: Engine, session: r.Session, plan: r.Plan | None) -> State:
    if session.mode == "subscription":
        if plan is None or plan.status is r.PlanStatus.FAILED:
            return "subscription_plan_failed"
        if plan.status is r.PlanStatus.PREPARING:
            return "subscription_preparing"
    if session.expires_at - engine.clock.now() < NO_BUILD_IN_LAST:
        return "too_close_to_expiry"
    if session.builds >= MAX_BUILDS or session.build_attempts >= MAX_BUILD_ATTEMPTS:
        return "build_limit_reached"
    return "ready"


def origin_of(url: str) -> str:
    """The origin a popup posts to: scheme, host and port of `success_url`."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
