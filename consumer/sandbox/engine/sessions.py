"""Checkout sessions: create, cancel, reissue, expire (spec, States, Checkout session; cases X1-X15)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from consumer.sandbox.engine import records as r
from consumer.sandbox.engine.applications import Applications
from consumer.sandbox.engine.catalog import Catalog
from consumer.sandbox.engine.events import Events
from consumer.sandbox.engine.money import service_fee
from consumer.sandbox.engine.orders import Orders
from consumer.sandbox.engine.plans import Plans
from consumer.sandbox.engine.world import World
from consumer.sandbox.errors import Refusal

TICK_S = 30
MIN_LIFE = timedelta(minutes=5)
MAX_LIFE = timedelta(hours=24)
DEFAULT_LIFE = timedelta(minutes=30)
REISSUE_NEEDS = timedelta(seconds=120)
TIMER = "expiry"


@dataclass(frozen=True, kw_only=True)
class SessionRequest:
    """A create request whose fields are valid one by one."""

    mode: str
    order_id: str
    success_url: str
    cancel_url: str
    price_id: str | None = None
    amount: int | None = None
    description: str | None = None
    line_items: tuple[dict[str, Any], ...] = ()
    customer_email: str | None = None
    customer_reference: str | None = None
    ui_mode: str = "redirect"
    expires_at: datetime | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Created:
    """A create's outcome: the session, and whether it is new (only then it has a link)."""

    session: r.Session
    new: bool


def tick_after(at: datetime) -> datetime:
    """The first run of the expiry check after `at`; it runs every 30 seconds, on the half minute."""
    seconds = math.floor(at.timestamp() / TICK_S) * TICK_S + TICK_S
    return datetime.fromtimestamp(seconds, UTC)


class Sessions:
    """One payment link per session, one open session per order."""

    def __init__(
        self,
        world: World,
        events: Events,
        orders: Orders,
        applications: Applications,
        catalog: Catalog,
        plans: Plans,
    ) -> None:
        self._world = world
        self._events = events
        self._orders = orders
        self._applications = applications
        self._catalog = catalog
        self._plans = plans
        self._newest: dict[tuple[str, str], str] = {}
        self._by_token: dict[str, str] = {}

    def restore(self) -> None:
        """Rebuild the indexes and set the timers again after loading."""
        for session in self._world.sessions:
            self._newest[(session.app_id, session.order_id)] = session.id
            self._by_token[session.token] = session.id
            if session.status is r.SessionStatus.OPEN:
                self._world.timers.at(tick_after(session.expires_at), TIMER, session.id)

    # --- the merchant's side -----------------------------------------------------------------------------------

    def create(self, application: r.Application, request: SessionRequest) -> Created:
        """A new session, or the open one of that order. Raises the refusals of the error table."""
        world = self._world
        now = world.now()
        merchant = self._applications.merchant(application.merchant_id)
        expires_at = request.expires_at or now + DEFAULT_LIFE
        if not MIN_LIFE <= expires_at - now <= MAX_LIFE:
            raise Refusal("expires_at_out_of_range", field="expires_at")
        previous = self.newest(application.id, request.order_id)
        if previous is not None and previous.status is not r.SessionStatus.OPEN:
            previous = None
        order = self._orders.find(application.id, request.order_id)
        is_paid = order is not None and order.status is r.OrderStatus.PAID
        if previous is not None and not is_paid and (previous.expires_at > now or self.payment_in_flight(previous)):
            self._check_same(previous, request)
            return Created(previous, new=False)  # whatever became of its price since
        price, product = None, None
        if request.price_id is not None:
            price, product = self._catalog.for_session(merchant.id, request.price_id, request.mode)
        if not merchant.has_token_account:
            raise Refusal("merchant_token_account_missing")
        if is_paid:
            raise Refusal("order_already_paid", field="order_id")
        plan = self._plans.ensure(price, merchant) if price is not None and request.mode == "subscription" else None
        session = self._new(application, merchant, request, expires_at, price, product, plan)
        if previous is not None:
            self._replace(previous, session.id)
        return Created(self._open(session), new=True)

    def _new(
        self,
        application: r.Application,
        merchant: r.Merchant,
        request: SessionRequest,
        expires_at: datetime,
        price: r.Price | None,
        product: r.Product | None,
        plan: r.Plan | None,
    ) -> r.Session:
        world = self._world
        amount = price.amount if price else request.amount or 0
        fee_bps = plan.fee_bps if plan else merchant.fee_bps
        subscription = request.mode == "subscription"
        return r.Session(
            id=world.new_id("session"),
            seq=world.next_seq(),
            app_id=application.id,
            merchant_id=merchant.id,
            mode=request.mode,
            order_id=request.order_id,
            order_ref=None,
            status=r.SessionStatus.OPEN,
            success_url=request.success_url,
            cancel_url=request.cancel_url,
            ui_mode=request.ui_mode,
            amount=amount,
            fee=service_fee(amount, fee_bps),
            price_id=request.price_id,
            product_id=product.id if product else None,
            plan_id=plan.id if plan else None,
            description=product.name if subscription and product else request.description,
            line_items=request.line_items,
            customer_email=request.customer_email,
            customer_reference=request.customer_reference,
            metadata=dict(request.metadata),
            created_at=world.now(),
            expires_at=expires_at,
            token=world.opaque(32),
        )

    def _open(self, session: r.Session) -> r.Session:
        world = self._world
        if session.mode == "payment":
            session = replace(session, order_ref=self._orders.open_for(session).id)
        self._newest[(session.app_id, session.order_id)] = session.id
        self._by_token[session.token] = session.id
        world.timers.at(tick_after(session.expires_at), TIMER, session.id)
        return world.put(world.sessions, session)

    def _replace(self, lapsed: r.Session, new_id: str) -> None:
        """A lapsed session gives way: `checkout.session.expired`, but no `order.expired` (case X10)."""
        world = self._world
        expired = replace(lapsed, status=r.SessionStatus.EXPIRED, replaced_by=new_id)
        self._events.session("expired", world.put(world.sessions, expired))

    def _check_same(self, session: r.Session, request: SessionRequest) -> None:
        amount = session.amount if request.price_id is not None else request.amount  # a price is never edited
        same = (session.mode, session.price_id, session.amount) == (request.mode, request.price_id, amount)
        if not same and self._world.assumptions.text("create_again_different") == "refuse":
            raise Refusal("payment_in_progress", "the order has an open session with other parameters")

    def get(self, app_id: str, session_id: str) -> r.Session:
        """An application's own session; not_found otherwise (case X56)."""
        session = self._world.sessions.get(session_id)
        if session is None or session.app_id != app_id:
            raise Refusal("not_found")
        return session

    def newest(self, app_id: str, order_id: str) -> r.Session | None:
        """The last session that was opened for the merchant's order id."""
        found = self._newest.get((app_id, order_id))
        return self._world.sessions.get(found) if found else None

    def by_token(self, token: str) -> r.Session | None:
        """The session behind a working link; None for a dead or unknown one."""
        found = self._by_token.get(token)
        return self._world.sessions.get(found) if found else None

    def payment_in_flight(self, session: r.Session) -> r.Payment | None:
        """The payment that is broadcast or confirmed, but neither finalized nor failed."""
        payment = self._world.payments.get(session.payment_id) if session.payment_id else None
        moving = (r.PaymentStatus.BROADCAST, r.PaymentStatus.CONFIRMED)
        return payment if payment is not None and payment.status in moving else None

    def cancel(self, session: r.Session) -> r.Session:
        """By merchant or payer. Raises session_not_cancelable, payment_in_progress (cases X11, X12)."""
        if session.status is not r.SessionStatus.OPEN:
            raise Refusal("session_not_cancelable")
        if self.payment_in_flight(session):
            raise Refusal("payment_in_progress")
        world = self._world
        canceled = world.put(world.sessions, replace(session, status=r.SessionStatus.CANCELED))
        self._events.session("canceled", canceled)
        return canceled

    def reissue(self, session: r.Session, *, chain_reachable: bool = True) -> r.Session:
        """A new link; the old one is dead (case X15)."""
        world = self._world
        now = world.now()
        if session.status is not r.SessionStatus.OPEN or session.expires_at - now < REISSUE_NEEDS:
            raise Refusal("session_not_reissuable")
        if self.payment_in_flight(session):
            raise Refusal("payment_in_progress")
        if not chain_reachable:
            raise Refusal("checkout_unavailable", retry_after_s=5)
        if session.prepared_until is not None and session.prepared_until > now:
            raise Refusal("payment_in_progress", "The last prepared transaction could still land.")
        self._by_token.pop(session.token, None)
        token = world.opaque(32)
        self._by_token[token] = session.id
        return world.put(world.sessions, replace(session, token=token, prepared_until=None))

    # --- the expiry check ------------------------------------------------------------------------------------

    def due(self, session_id: str, now: datetime) -> None:
        """The expiry check looks at one session (cases X8, X9). A payment in flight keeps it from expiring."""
        world = self._world
        session = world.sessions.get(session_id)
        if session is None or session.status is not r.SessionStatus.OPEN or session.expires_at > now:
            return
        if self.payment_in_flight(session):
            return
        expired = world.put(world.sessions, replace(session, status=r.SessionStatus.EXPIRED))
        self._events.session("expired", expired)
        if expired.order_ref is not None:
            self._orders.expire(expired.order_ref)
        elif world.assumptions.text("subscription_session_events") == "session_and_order":
            self._events.made_up("order.expired", expired.app_id, {"id": expired.id, "order_id": expired.order_id}, {})

    def settled(self, session: r.Session) -> None:
        """A payment in flight is over without success: a lapsed session is looked at again by the next check."""
        self._world.timers.at(tick_after(max(session.expires_at, self._world.now())), TIMER, session.id)

    def complete(self, session: r.Session, **changes: Any) -> r.Session:
        """The payment is final: COMPLETED, `checkout.session.completed`."""
        world = self._world
        completed = world.put(world.sessions, replace(session, status=r.SessionStatus.COMPLETED, **changes))
        self._events.session("completed", completed)
        return completed
