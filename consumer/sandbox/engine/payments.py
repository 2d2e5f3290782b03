"""Payments: the payer's side of a session - build, broadcast, confirm, finalize (cases X6-X16)."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from consumer.sandbox.engine import records as r
from consumer.sandbox.engine.applications import Applications
from consumer.sandbox.engine.orders import Orders
from consumer.sandbox.engine.plans import Plans
from consumer.sandbox.engine.sessions import Sessions
from consumer.sandbox.engine.subscriptions import Subscriptions
from consumer.sandbox.engine.world import World
from consumer.sandbox.errors import PageRefusal, Refusal

MAX_BUILDS = 10
MAX_BUILD_ATTEMPTS = 30
NO_BUILD_IN_LAST = timedelta(seconds=120)
TIMER = "finalize"


class Payments:
    """At most one payment per session is in flight."""

    def __init__(
        self,
        world: World,
        applications: Applications,
        orders: Orders,
        sessions: Sessions,
        plans: Plans,
        subscriptions: Subscriptions,
    ) -> None:
        self._world = world
        self._applications = applications
        self._orders = orders
        self._sessions = sessions
        self._plans = plans
        self._subscriptions = subscriptions

    def wallet_of(self, session: r.Session) -> str:
        """The payer's wallet when none is named: the same customer of a merchant always pays from the same one."""
        payer = session.customer_reference or session.customer_email or session.id
        return f"wallet-of-{session.merchant_id}-{payer}"

    # --- the checkout page -------------------------------------------------------------------------------------

    def build(self, session: r.Session, *, wallet: str | None = None, succeeds: bool = True) -> r.Session:
        """Prepare a transaction for the wallet to sign. Raises PageRefusal (case X16).

        Every try is an attempt, at most 30; at most 10 may succeed; none in the session's last 120 seconds.
        """
        world = self._world
        now = world.now()
        if session.status is not r.SessionStatus.OPEN:
            raise Refusal("session_not_cancelable", "The session is no longer open.")
        self.check_plan(session, wallet or self.wallet_of(session))
        if session.expires_at - now < NO_BUILD_IN_LAST:
            raise PageRefusal("too_close_to_expiry")
        if session.builds >= MAX_BUILDS or session.build_attempts >= MAX_BUILD_ATTEMPTS:
            raise PageRefusal("build_limit_reached")
        until = world.in_seconds(world.assumptions.number("prepared_landable_s"))
        return world.put(
            world.sessions,
            replace(
                session,
                build_attempts=session.build_attempts + 1,
                builds=session.builds + (1 if succeeds else 0),
                prepared_until=until if succeeds else session.prepared_until,
            ),
        )

    def check_plan(self, session: r.Session, wallet: str) -> None:
        """A subscription session needs a plan on chain and a wallet that is free for it. Raises PageRefusal."""
        if session.mode != "subscription":
            return
        plan = self._plans.get(session.plan_id)
        if plan is None or plan.status is r.PlanStatus.FAILED:
            raise PageRefusal("subscription_plan_failed")
        if plan.status is r.PlanStatus.PREPARING:
            raise PageRefusal("subscription_preparing")
        self._subscriptions.check_wallet(wallet, plan.id)

    def broadcast(self, session: r.Session, *, wallet: str | None = None) -> r.Payment:
        """The signed transaction is sent to Solana: a payment is in progress."""
        world = self._world
        moving = self._sessions.payment_in_flight(session)
        if moving is not None:
            return moving
        payment = r.Payment(
            id=world.new_id("payment"),
            seq=world.next_seq(),
            app_id=session.app_id,
            status=r.PaymentStatus.BROADCAST,
            amount=session.amount,
            fee=session.fee,
            to_wallet=self._receiving_wallet(session),
            wallet=wallet or self.wallet_of(session),
            signature=world.opaque(64),
            created_at=world.now(),
            order_ref=session.order_ref,
            order_id=session.order_id if session.mode == "payment" else None,
            session_id=session.id,
        )
        world.put(world.payments, payment)
        world.put(world.sessions, replace(session, payment_id=payment.id, prepared_until=None))
        return payment

    def confirm(self, payment: r.Payment, *, finalize_after_s: float | None = None) -> r.Payment:
        """Confirmed: the page shows success, the order is not PAID, nothing is sent (case X7)."""
        world = self._world
        if payment.status is not r.PaymentStatus.BROADCAST:
            return payment
        finalize_at = None if finalize_after_s is None else world.in_seconds(finalize_after_s)
        if finalize_at is not None:
            world.timers.at(finalize_at, TIMER, payment.id)
        confirmed = replace(payment, status=r.PaymentStatus.CONFIRMED, finalize_at=finalize_at)
        return world.put(world.payments, confirmed)

    # --- finality ----------------------------------------------------------------------------------------------

    def finalize(self, payment: r.Payment) -> r.Payment:
        """Final on Solana: SUCCEEDED, and what follows from it for order or subscription (cases X6, X13, X14, X32)."""
        world = self._world
        if payment.status in (r.PaymentStatus.SUCCEEDED, r.PaymentStatus.FAILED):
            return payment
        session = world.sessions.get(payment.session_id or "")
        if session is None:
            raise Refusal("not_found")
        succeeded = replace(payment, status=r.PaymentStatus.SUCCEEDED, succeeded_at=world.now(), finalize_at=None)
        world.put(world.payments, succeeded)
        if session.mode == "subscription":
            return self._subscribe(session, succeeded)
        self._pay_order(session, succeeded)
        return succeeded

    def fail(self, payment: r.Payment) -> r.Payment:
        """The transaction can no longer land. The session is free again, and may expire."""
        world = self._world
        if payment.status in (r.PaymentStatus.SUCCEEDED, r.PaymentStatus.FAILED):
            raise Refusal("conflict", "the payment is over")
        failed = world.put(world.payments, replace(payment, status=r.PaymentStatus.FAILED, finalize_at=None))
        session = world.sessions.get(payment.session_id or "")
        if session is not None:
            self._sessions.settled(session)
        return failed

    def pay(self, session: r.Session, *, until: str = "finalized", wallet: str | None = None) -> r.Payment:
        """The payer pays, up to `confirmed` or `finalized`; a payment in flight goes on.

        For an EXPIRED or CANCELED session it is the late payment: a transaction prepared before, landing now.
        """
        if until not in ("broadcast", "confirmed", "finalized"):
            raise Refusal("validation_failed", "until must be confirmed or finalized", field="until")
        moving = self._sessions.payment_in_flight(session)
        if moving is None:
            known = self._world.payments.get(session.payment_id or "")
            if known is not None and known.status is r.PaymentStatus.SUCCEEDED:
                raise Refusal("conflict", "the session is paid")
            self.check_plan(session, wallet or self.wallet_of(session))
            moving = self.broadcast(session, wallet=wallet)
        if until == "broadcast":
            return moving
        confirmed = self.confirm(moving)
        return self.finalize(confirmed) if until == "finalized" else confirmed

    def arm(self) -> None:
        """Set the timers again after loading."""
        for payment in self._world.payments:
            if payment.finalize_at is not None:
                self._world.timers.at(payment.finalize_at, TIMER, payment.id)

    def due(self, payment_id: str, now: datetime) -> None:
        """A confirmed payment's time to become final."""
        payment = self._world.payments.get(payment_id)
        if payment is not None and payment.finalize_at is not None and payment.finalize_at <= now:
            self.finalize(payment)

    # --- parts -------------------------------------------------------------------------------------------------

    def _receiving_wallet(self, session: r.Session) -> str:
        plan = self._plans.get(session.plan_id)
        return plan.wallet if plan is not None else self._applications.merchant(session.merchant_id).wallet

    def _pay_order(self, session: r.Session, payment: r.Payment) -> None:
        """An open session completes with its order. A late payment pays the order alone, if it may."""
        world = self._world
        order = world.orders.get(session.order_ref or "")
        if order is None:
            return
        if session.status is r.SessionStatus.OPEN:
            self._orders.pay(order.id, payment.id)
            self._sessions.complete(session)
            return
        newer = order.session_id != session.id
        if newer and world.assumptions.text("late_payment_newer_session") == "orphan":
            return
        self._orders.pay(order.id, payment.id)
        if world.assumptions.text("late_payment_session") == "completed":
            world.put(world.sessions, replace(session, status=r.SessionStatus.COMPLETED))

    def _subscribe(self, session: r.Session, payment: r.Payment) -> r.Payment:
        world = self._world
        plan = self._plans.get(session.plan_id)
        price = world.prices.get(session.price_id or "")
        if plan is None or price is None:
            raise Refusal("not_found")
        subscription = self._subscriptions.start(session, plan, price, payment.wallet)
        changes: dict[str, Any] = {"subscription_id": subscription.id}
        if session.status is r.SessionStatus.OPEN:
            self._sessions.complete(session, **changes)
        else:
            world.put(world.sessions, replace(session, **changes))
        return world.put(world.payments, replace(payment, **changes))
