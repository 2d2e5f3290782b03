"""Stage: what a story acts on - one application, its orders and subscriptions - and the final state it reports."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from consumer.sandbox.engine import records as r
from consumer.sandbox.engine.money import parse_amount
from consumer.sandbox.engine.sessions import SessionRequest, tick_after
from consumer.sandbox.engine.views import order_view, subscription_view
from consumer.sandbox.errors import Refusal
from consumer.sandbox.simulator import Simulator

MAX_COUNT = 100
MONTH_S = 30 * 86400.0


class Stage:
    """One story's props. Ids are new in every run, so that stories can be repeated."""

    def __init__(self, simulator: Simulator, app_id: str, count: int) -> None:
        """Raises not_found for an unknown application, validation_failed for a count out of range."""
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MAX_COUNT:
            raise Refusal("validation_failed", f"count must be an integer from 1 to {MAX_COUNT}.", field="count")
        self.simulator = simulator
        self.engine = simulator.engine
        self.application = self.engine.applications.get(app_id)
        self.count = count
        self.notes: dict[str, Any] = {}
        self._first_seq = self.engine.world.seq
        self._order_ids: list[str] = []
        self._sessions: list[str] = []

    # --- acts --------------------------------------------------------------------------------------------------

    def order(
        self, word: str = "order", *, order_id: str | None = None, expires_at: datetime | None = None
    ) -> r.Session:
        """A payment session for a new order, or for `order_id` again."""
        wanted = order_id or f"{word}-{self.engine.world.opaque(8)}"
        if wanted not in self._order_ids:
            self._order_ids.append(wanted)
        request = SessionRequest(
            mode="payment",
            order_id=wanted,
            success_url="https://shop.example/success",
            cancel_url="https://shop.example/cancel",
            amount=parse_amount("25.00"),
            description=f"Scenario order {wanted}",
            customer_reference=f"customer-of-{wanted}",
            expires_at=expires_at,
        )
        return self._create(request)

    def subscribe(self, customer: str | None = None, price_id: str = "svc_price_monthly") -> r.Subscription:
        """A customer subscribes: session, payment, ACTIVE."""
        reference = customer or f"customer-{self.engine.world.opaque(8)}"
        request = SessionRequest(
            mode="subscription",
            order_id=f"sub-{self.engine.world.opaque(8)}",
            success_url="https://shop.example/success",
            cancel_url="https://shop.example/cancel",
            price_id=price_id,
            customer_reference=reference,
        )
        session = self._create(request)
        self.engine.payments.pay(session)
        return self.engine.subscriptions.any(self.engine.session(session.id).subscription_id or "")

    def by_hand(self, subscription: r.Subscription) -> r.Subscription:
        """From now on nothing is charged by itself: the story says when."""
        return self.engine.subscriptions.set_charge(subscription, "skip")

    def again(self, subscription: r.Subscription) -> r.Subscription:
        """The subscription as it is now."""
        return self.engine.subscriptions.any(subscription.id)

    def pay(self, session: r.Session, until: str = "finalized") -> r.Payment:
        """The payer pays; for a session that is no longer open it is the late payment."""
        return self.engine.payments.pay(self.engine.session(session.id), until=until)

    def _create(self, request: SessionRequest) -> r.Session:
        session = self.engine.sessions.create(self.application, request).session
        if session.id not in self._sessions:
            self._sessions.append(session.id)
        return session

    async def advance(self, seconds: float) -> None:
        """Time passes, with its timers and webhooks."""
        await self.simulator.advance(seconds)

    async def expire(self, session: r.Session) -> None:
        """Time passes until the expiry check has seen that the session is over."""
        wait = tick_after(session.expires_at) - self.engine.clock.now()
        await self.advance(max(0.0, wait.total_seconds()))

    def just_after_tick(self) -> datetime:
        """A time, five minutes from now, that leaves almost 30 s before the next expiry check."""
        return tick_after(self.engine.clock.now() + timedelta(minutes=5)) + timedelta(seconds=1)

    # --- the report --------------------------------------------------------------------------------------------

    def result(self) -> dict[str, Any]:
        """Ids and the service's own final state: what a correct consumer ends up with."""
        world = self.engine.world
        orders = [self.engine.orders.find(self.application.id, order_id) for order_id in self._order_ids]
        known = [order_view(order) for order in orders if order is not None]
        word = self.engine.assumptions.text("status_after_second_failure")
        mine = [one for one in world.subscriptions if one.session_id in self._sessions]
        access: dict[str, bool] = {}
        for one in mine:
            reference = one.customer_reference or one.wallet
            access[reference] = access.get(reference, False) or one.status is not r.SubscriptionStatus.ENDED
        foreign = {one.id for one in world.subscriptions} - {one.id for one in mine}
        events = [
            e
            for e in world.events
            if e.seq > self._first_seq and e.app_id == self.application.id and e.object_id not in foreign
        ]
        return {
            "application": self.application.id,
            "sessions": list(self._sessions),
            "orders": [{"order_id": one["order_id"], "id": one["id"], "status": one["status"]} for one in known],
            "subscriptions": [
                {
                    "id": one.id,
                    "customer_reference": one.customer_reference,
                    "status": subscription_view(one, word)["status"],
                    "end_reason": one.end_reason,
                }
                for one in mine
            ],
            "events": [
                {"id": e.id.rpartition("/")[2], "type": e.type, "listed": e.listed}
                for e in sorted(events, key=lambda e: e.seq)
            ],
            "expected": {
                "orders": {one["order_id"]: one["status"] for one in known},
                "subscriptions": {one.id: subscription_view(one, word)["status"] for one in mine},
                "fulfilled": [one["order_id"] for one in known if one["status"] == "PAID"],
                "access": access,
            },
            **self.notes,
        }
