"""Lives of a shop on the sandbox's own engine: what happened, what was said of it, and what reads showed on the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from consumer.events import Event, Locators, Source, Trust, build_event
from consumer.sandbox import Assumptions, Engine, SandboxClock, SandboxConfig
from consumer.sandbox.engine import records as r
from consumer.sandbox.engine.money import parse_amount
from consumer.sandbox.engine.sessions import SessionRequest
from consumer.sandbox.engine.views import order_view, payment_view, present, subscription_view
from consumer.sandbox.errors import PageRefusal, Refusal
from consumer.sandbox.webhooks.envelopes import body_bytes, envelope
from consumer.wire import own_event

ORDERS = ("O-1", "O/2 &ü")
CUSTOMERS = ("cus_a", "cus_b")
MOVES = (
    "open", "open", "pay", "prepare", "land", "cancel", "lapse", "lapse", "reopen", "reopen", "late", "late",
    "subscribe", "subscribe", "renew", "fail", "fail", "payer_cancel", "withdraw", "merchant_cancel",
    "merchant_cancel_later", "failures", "month", "hour",
)  # fmt: skip
SHAPES = {
    "event_type_field": ("type", "event", "event_type"),
    "event_container": ("data.object", "data", "flat"),
    "event_payload": ("snapshot", "thin"),
    "event_payload_time": ("event", "current"),
    "timestamps": ("iso", "epoch_ms"),
    "ids": ("prefixed", "uuid", "numeric"),
    "order_status_after_expiry": ("EXPIRED", "PENDING"),
    "late_payment_session": ("unchanged", "completed"),
    "late_payment_newer_session": ("orphan", "pays_order"),
    "subscription_session_events": ("session", "none"),
    "ended_on_resubscribe": (True, False),
    "fourth_payment_failed": (True, False),
    "withdraw_event_when_merchant_stands": (True, False),
    "end_reason_when_merchant_stands": ("MERCHANT_CANCELED", "PAYER_CANCELED"),
}


@dataclass
class Life:
    """An engine and what reads showed while it lived: (kind, key, record) in the order of their versions. `orders`: the
    merchant's ids of those that may be opened."""

    engine: Engine
    orders: tuple[str, ...] = ORDERS
    shown: list[tuple[str, str, Mapping[str, Any]]] = field(default_factory=list)

    @property
    def now(self) -> datetime:
        """The service's time, which is ours too."""
        return self.engine.clock.now()

    def live(self, what: str, which: int) -> None:
        """One move; one that the service refuses changes nothing."""
        self.engine.advance(61)
        try:
            self._move(what, which)
        except (Refusal, PageRefusal):
            return
        finally:
            self.shown += self.records()

    def _move(self, what: str, which: int) -> None:
        engine = self.engine
        sessions = sorted(engine.world.sessions, key=lambda one: one.seq)
        payments = [one for one in sessions if one.mode == "payment"]
        subs = sorted(engine.world.subscriptions, key=lambda one: one.seq)
        match what:
            case "open":
                self._open(self.orders[which % len(self.orders)])
            case "pay" if payments:
                engine.payments.pay(payments[-1 - which % len(payments)])
            case "prepare" if payments:
                engine.payments.pay(payments[-1], until="confirmed")
            case "land" if payments:
                self._land(payments[-1 - which % len(payments)])
            case "cancel" if payments:
                engine.sessions.cancel(payments[-1 - which % len(payments)])
            case "lapse":
                engine.advance(31 * 60)
            case "reopen" if payments:
                self._open(payments[-1].order_id)
            case "late":
                self._late(which)
            case "subscribe":
                self._subscribe(CUSTOMERS[which % 2], "svc_price_monthly" if which < 2 else "svc_price_yearly")
            case "hour":
                engine.advance(3600)
            case "month" if not any(one.status is r.SubscriptionStatus.PAST_DUE for one in subs):
                engine.advance(30 * 86400)  # longer than a grace: whether that is over hangs on what was heard
            case _ if subs:
                self._on_subscription(what, subs[-1 - which % len(subs)])

    def _open(self, order_id: str) -> None:
        self._create(mode="payment", order_id=order_id, amount=parse_amount("12.5"), description="x")

    def _late(self, which: int) -> None:
        """A payment lands for a session that is over."""
        over = (r.SessionStatus.EXPIRED, r.SessionStatus.CANCELED)
        lapsed = [one for one in self.engine.world.sessions if one.mode == "payment" and one.status in over]
        if lapsed:
            self.engine.payments.pay(sorted(lapsed, key=lambda one: one.seq)[which % len(lapsed)])

    def _create(self, **request: Any) -> r.Session:
        urls: dict[str, Any] = {"success_url": "https://shop.example/done", "cancel_url": "https://shop.example/back"}
        made = self.engine.sessions.create(self.engine.application, SessionRequest(**urls, **request))
        return made.session

    def _subscribe(self, customer: str, price: str) -> None:
        session = self._create(
            mode="subscription", order_id=f"plan-{self.now.timestamp()}", price_id=price, customer_reference=customer
        )
        self.engine.payments.pay(session, wallet=f"wallet-{customer}")

    def _land(self, session: r.Session) -> None:
        payment = self.engine.world.payments.get(session.payment_id or "")
        if payment is not None:
            self.engine.payments.finalize(payment)
        elif session.status is not r.SessionStatus.OPEN:
            self.engine.payments.pay(session)

    def _on_subscription(self, what: str, sub: r.Subscription) -> None:
        subscriptions = self.engine.subscriptions
        match what:
            case "renew":
                subscriptions.renew(sub)
            case "fail":
                subscriptions.fail(sub)
            case "failures":
                for _ in range(4):
                    self.engine.advance(60)
                    subscriptions.fail(subscriptions.any(sub.id))
            case "payer_cancel":
                subscriptions.payer_cancel(sub)
            case "withdraw":
                subscriptions.payer_withdraw(sub)
            case "merchant_cancel":
                subscriptions.cancel(sub, "now")
            case "merchant_cancel_later":
                subscriptions.cancel(sub, "period_end")

    def records(self) -> list[tuple[str, str, Mapping[str, Any]]]:
        """Every order, subscription and payment as a read shows it now."""
        world, assumptions = self.engine.world, self.engine.assumptions
        found: list[tuple[str, str, Mapping[str, Any]]] = []
        for order in world.orders:
            found.append(("order", order.order_id, present(order_view(order), assumptions)))
        for sub in world.subscriptions:
            found.append(("subscription", sub.id, present(subscription_view(sub, "PAST_DUE"), assumptions)))
        for payment in world.payments:
            found.append(("payment", payment.id, present(payment_view(payment, "PENDING"), assumptions)))
        return found

    def webhooks(self, application: str) -> list[Event]:
        """Every event the service sent, as it arrives at the end of this life."""
        made = []
        for event in sorted(self.engine.world.events, key=lambda one: one.seq):
            raw = body_bytes(envelope(self.engine, event))
            made.append(
                build_event(
                    raw,
                    Locators(),
                    application=application,
                    trust=Trust.SIGNED,
                    source=Source.WEBHOOK,
                    received_at=self.now,
                )
            )
        return made

    def readings(self, application: str) -> list[Event]:
        """A read of every state on the way."""
        return [self.reading(application, n + 1, *one) for n, one in enumerate(self.shown)]

    def denials(self, application: str) -> list[Event]:
        """What reads that lag behind the events say of every order and subscription: there is none."""
        known = [(kind, id_) for kind, id_, _ in self.records() if kind != "payment"]
        return [
            own_event(
                application=application,
                id=f"obs_{application}_{number}_unreadable",
                type=f"{kind}.unreadable",
                key=f"{kind}:{id_}",
                source=Source.READ,
                at=self.now,
                data={"kind": kind, "id": id_, "version": number, "read_at": self.now.isoformat(), "status": 404},
            )
            for number, (kind, id_) in enumerate(known, start=1)
        ]

    def reconcile(self, application: str) -> list[Event]:
        """One pass over the final state of everything."""
        first = len(self.shown) + 1000
        return [self.reading(application, first + n, *one) for n, one in enumerate(self.records())]

    def reading(self, application: str, version: int, kind: str, id_: str, record: Mapping[str, Any]) -> Event:
        """An observation."""
        return own_event(
            application=application,
            id=f"obs_{application}_{version}",
            type=f"{kind}.observed",
            key=f"{kind}:{id_}",
            source=Source.READ,
            at=self.now,
            data={"version": version, "read_at": self.now.isoformat(), "record": dict(record)},
        )

    # --- the truth ---------------------------------------------------------------------------------------------

    @property
    def paid_orders(self) -> set[str]:
        """The orders the service holds for PAID."""
        return {one.order_id for one in self.engine.world.orders if one.status is r.OrderStatus.PAID}

    @property
    def every_order(self) -> set[str]:
        """All orders there are."""
        return {one.order_id for one in self.engine.world.orders}

    @property
    def succeeded(self) -> dict[str, int]:
        """Order id to the number of its SUCCEEDED payments."""
        counts: dict[str, int] = {}
        for one in self.engine.world.payments:
            if one.status is r.PaymentStatus.SUCCEEDED and one.order_id is not None:
                counts[one.order_id] = counts.get(one.order_id, 0) + 1
        return counts

    @property
    def subscriptions(self) -> dict[str, r.Subscription]:
        """All subscriptions by id."""
        return {one.id: one for one in self.engine.world.subscriptions}

    @property
    def with_access(self) -> set[str]:
        """The customers with a live subscription (none is PAST_DUE for longer than a grace here)."""
        live = [one for one in self.subscriptions.values() if one.status is not r.SubscriptionStatus.ENDED]
        return {one.customer_reference or "" for one in live}


def began(chosen: Mapping[str, Any], orders: tuple[str, ...] = ORDERS) -> Life:
    """A life in which nothing has happened yet, under these assumptions."""
    engine = Engine(SandboxConfig(driven=True, seed=7, limits=False), SandboxClock(driven=True), Assumptions(chosen))
    engine.seed()
    return Life(engine, orders)
