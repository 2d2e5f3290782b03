"""Random operations on the engine; after each, the spec's invariants hold (cases G4, X1-X48)."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from consumer.sandbox import DEFAULT_APP_ID, Engine, PageRefusal, Refusal
from consumer.sandbox.engine.events import TYPES
from consumer.sandbox.engine.payments import MAX_BUILD_ATTEMPTS, MAX_BUILDS
from consumer.sandbox.engine.plans import MAX_NEW
from consumer.sandbox.engine.records import Order, OrderStatus, PaymentStatus, SessionStatus, SubscriptionStatus
from tests.sandbox.support import make_engine, request

PRICES = ("svc_price_monthly", "svc_price_yearly")
SWITCHES = {
    "late_payment_newer_session": ("orphan", "pays_order"),
    "late_payment_session": ("unchanged", "completed"),
    "fourth_payment_failed": (True, False),
    "failure_count_resets": (True, False),
    "ended_on_resubscribe": (True, False),
    "withdraw_event_when_merchant_stands": (True, False),
    "auto_renew": (True, False),
    "order_status_after_expiry": ("EXPIRED", "PENDING"),
}
# What each operation may say, whatever else falls due: the emission tables of the spec.
BY_TIME = {
    "order.expired", "checkout.session.expired", "subscription.renewed", "subscription.payment_failed",
    "subscription.past_due", "subscription.ended",
}  # fmt: skip


class Service(RuleBasedStateMachine):
    """Merchants, payers, the chain and time act in any order."""

    sessions: Bundle[str] = Bundle("sessions")
    subscriptions: Bundle[str] = Bundle("subscriptions")

    def __init__(self) -> None:
        super().__init__()
        self.engine: Engine = make_engine()
        self.paid: set[str] = set()
        self.ended: dict[str, tuple[str | None, Any]] = {}
        self.seen = 0

    @initialize(switches=st.fixed_dictionaries({name: st.sampled_from(values) for name, values in SWITCHES.items()}))
    def assume(self, switches: dict[str, Any]) -> None:
        self.engine.assumptions.set(switches)

    @initialize(target=sessions)
    def open_shop(self) -> Any:
        return multiple(
            *(
                self.engine.sessions.create(self.engine.application, request(order_id=f"order-{n}")).session.id
                for n in range(2)
            )
        )

    @initialize(target=subscriptions)
    def first_customers(self) -> Any:
        made = []
        for number in range(2):
            wanted = request(
                mode="subscription",
                price_id=PRICES[number],
                order_id=f"first-sub-{number}",
                customer_reference=f"customer-{number}",
            )
            session = self.engine.sessions.create(self.engine.application, wanted).session
            self.engine.payments.pay(session)
            made.append(self.engine.session(session.id).subscription_id)
        self.new_events()
        return multiple(*made)

    # --- acting ------------------------------------------------------------------------------------------------

    def attempt(self, act: Any, *allowed: str) -> Any:
        """Run it; a refusal changes nothing and sends nothing; a success sends only what is allowed."""
        before = self.state()
        try:
            result = act()
        except (Refusal, PageRefusal):
            assert self.state() == before, "a refusal left something behind"
            return None
        for event in self.new_events():
            assert event.type in allowed, f"{event.type} was not to be sent"
        return result

    def state(self) -> Any:
        world = self.engine.world
        return [
            [(one.id, one) for one in shelf]
            for shelf in (world.sessions, world.orders, world.payments, world.subscriptions, world.plans, world.events)
        ]

    def new_events(self) -> list[Any]:
        fresh = [event for event in self.engine.world.events if event.seq > self.seen]
        self.seen = max([self.seen, *(event.seq for event in fresh)])
        return sorted(fresh, key=lambda event: event.seq)

    @rule(target=sessions, order=st.integers(0, 4), minutes=st.sampled_from([5, 30, 1440]))
    def sell(self, order: int, minutes: int) -> Any:
        expires_at = self.engine.clock.now() + timedelta(minutes=minutes)
        wanted = request(order_id=f"order-{order}", expires_at=expires_at)
        made = self.attempt(
            lambda: self.engine.sessions.create(self.engine.application, wanted), "checkout.session.expired"
        )
        return multiple() if made is None else made.session.id

    @rule(target=sessions, customer=st.integers(0, 2), price=st.sampled_from(PRICES), number=st.integers(0, 3))
    def offer(self, customer: int, price: str, number: int) -> Any:
        wanted = request(
            mode="subscription", price_id=price, order_id=f"sub-{number}", customer_reference=f"customer-{customer}"
        )
        made = self.attempt(
            lambda: self.engine.sessions.create(self.engine.application, wanted), "checkout.session.expired"
        )
        return multiple() if made is None else made.session.id

    @rule(session=sessions, succeeds=st.booleans(), times=st.sampled_from([1, 11, 31]))
    def build(self, session: str, succeeds: bool, times: int) -> None:
        for _ in range(times):
            self.attempt(lambda: self.engine.payments.build(self.engine.session(session), succeeds=succeeds))

    @rule(session=sessions, until=st.sampled_from(["broadcast", "confirmed"]))
    def send(self, session: str, until: str) -> None:
        self.attempt(lambda: self.engine.payments.pay(self.engine.session(session), until=until))

    @rule(target=subscriptions, session=sessions)
    def pay(self, session: str) -> Any:
        self.attempt(
            lambda: self.engine.payments.pay(self.engine.session(session)),
            "order.paid", "checkout.session.completed", "subscription.created", "subscription.ended",
        )  # fmt: skip
        made = self.engine.session(session).subscription_id
        return multiple() if made is None else made

    @rule(session=sessions)
    def drop(self, session: str) -> None:
        moving = self.engine.sessions.payment_in_flight(self.engine.session(session))
        if moving is not None:
            self.attempt(lambda: self.engine.payments.fail(moving))

    @rule(session=sessions)
    def cancel(self, session: str) -> None:
        self.attempt(lambda: self.engine.sessions.cancel(self.engine.session(session)), "checkout.session.canceled")

    @rule(session=sessions)
    def reissue(self, session: str) -> None:
        old = self.engine.session(session).token
        made = self.attempt(lambda: self.engine.sessions.reissue(self.engine.session(session)))
        if made is not None:
            assert self.engine.sessions.by_token(old) is None

    @rule(one=subscriptions)
    def renew(self, one: str) -> None:
        self.attempt(
            lambda: self.engine.subscriptions.renew(self.engine.subscriptions.any(one)), "subscription.renewed"
        )

    @rule(one=subscriptions)
    def fail(self, one: str) -> None:
        self.attempt(
            lambda: self.engine.subscriptions.fail(self.engine.subscriptions.any(one)),
            "subscription.payment_failed", "subscription.past_due", "subscription.ended",
        )  # fmt: skip

    @rule(one=subscriptions, charge=st.sampled_from(["ok", "fail", "uncounted", "skip"]))
    def wallet(self, one: str, charge: str) -> None:
        self.attempt(lambda: self.engine.subscriptions.set_charge(self.engine.subscriptions.any(one), charge))

    @rule(one=subscriptions, at=st.sampled_from(["now", "period_end"]))
    def merchant_cancels(self, one: str, at: str) -> None:
        allowed = "subscription.ended" if at == "now" else "subscription.cancel_scheduled"
        self.attempt(lambda: self.engine.subscriptions.cancel(self.engine.subscriptions.any(one), at), allowed)

    @rule(one=subscriptions)
    def payer_cancels(self, one: str) -> None:
        self.attempt(
            lambda: self.engine.subscriptions.payer_cancel(self.engine.subscriptions.any(one)),
            "subscription.cancel_scheduled",
        )

    @rule(one=subscriptions)
    def payer_withdraws(self, one: str) -> None:
        self.attempt(
            lambda: self.engine.subscriptions.payer_withdraw(self.engine.subscriptions.any(one)),
            "subscription.cancel_withdrawn",
        )

    @rule(one=subscriptions, action=st.sampled_from(["cancel_on_solana", "reclaim_rent"]))
    def on_chain(self, one: str, action: str) -> None:
        act = getattr(self.engine.subscriptions, action)
        self.attempt(lambda: act(self.engine.subscriptions.any(one)))

    @rule(grace=st.sampled_from(["immediately", "1h", "24h"]))
    def roll(self, grace: str) -> None:
        self.attempt(lambda: self.engine.applications.roll_secret(DEFAULT_APP_ID, grace))

    @rule(failures=st.integers(0, 6))
    def plans_fail(self, failures: int) -> None:
        self.engine.faults.set({"plan_failures": failures})

    @rule(fee_bps=st.sampled_from([0, 100]))
    def fee(self, fee_bps: int) -> None:
        self.engine.applications.change_merchant(self.engine.application.merchant_id, fee_bps=fee_bps)

    @rule(seconds=st.sampled_from([1, 29, 31, 300, 1800, 86400, 5 * 86400, 31 * 86400]))
    def time_passes(self, seconds: int) -> None:
        moving = [
            session.id
            for session in self.engine.world.sessions
            if session.status is SessionStatus.OPEN and self.engine.sessions.payment_in_flight(session)
        ]
        self.engine.advance(seconds)
        for event in self.new_events():
            assert event.type in BY_TIME, f"time alone sent {event.type}"
        for session_id in moving:
            assert self.engine.session(session_id).status is SessionStatus.OPEN, "expired with a payment in flight"

    # --- what always holds -------------------------------------------------------------------------------------

    @invariant()
    def an_order_is_paid_only_by_a_final_payment_and_stays_paid(self) -> None:
        # case: X6, X7, X13
        world = self.engine.world
        for order in world.orders:
            if order.status is OrderStatus.PAID:
                payment = world.payments.get(order.payment_id or "")
                assert payment is not None
                assert payment.status is PaymentStatus.SUCCEEDED
                assert payment.order_ref == order.id
                self.paid.add(order.id)
        for order_ref in self.paid:
            kept: Order | None = world.orders.get(order_ref)
            assert kept is not None
            assert kept.status is OrderStatus.PAID

    @invariant()
    def every_paid_order_has_one_event_and_no_other_has_one(self) -> None:
        # case: X6, X13, X14
        said = Counter(e.object_id for e in self.engine.world.events if e.type == "order.paid")
        paid = Counter(o.id for o in self.engine.world.orders if o.status is OrderStatus.PAID)
        assert said == paid

    @invariant()
    def an_order_expires_with_every_session_that_was_not_replaced(self) -> None:
        # case: X8, X10
        world = self.engine.world
        said = Counter(e.object_id for e in world.events if e.type == "order.expired")
        lapsed = Counter(
            s.order_ref for s in world.sessions if s.status is SessionStatus.EXPIRED and s.replaced_by is None
        )
        for order in world.orders:
            if order.status is OrderStatus.PAID:
                assert said[order.id] <= sum(1 for s in world.sessions if s.order_ref == order.id)
            else:
                assert said[order.id] == lapsed[order.id]

    @invariant()
    def a_session_ends_once_and_says_so_once(self) -> None:
        # case: X8, X10, X11
        world = self.engine.world
        ends = {
            "completed": SessionStatus.COMPLETED,
            "canceled": SessionStatus.CANCELED,
            "expired": SessionStatus.EXPIRED,
        }
        said: dict[str, list[str]] = {}
        for event in world.events:
            if event.object_kind == "checkout.session":
                said.setdefault(event.object_id, []).append(event.type.rpartition(".")[2])
        late = self.engine.assumptions.text("late_payment_session") == "completed"
        for session in world.sessions:
            words = said.get(session.id, [])
            if session.status is SessionStatus.OPEN:
                assert words == []
            else:
                assert len(words) == 1
                assert ends[words[0]] is session.status or (late and session.status is SessionStatus.COMPLETED)

    @invariant()
    def an_order_has_at_most_one_open_session(self) -> None:
        # case: X3, X10
        open_ones = Counter(s.order_id for s in self.engine.world.sessions if s.status is SessionStatus.OPEN)
        assert not open_ones or max(open_ones.values()) == 1

    @invariant()
    def a_subscription_session_makes_no_order(self) -> None:
        # case: X32
        orders = {order.order_id for order in self.engine.world.orders}
        assert not {name for name in orders if name.startswith("sub-")}

    @invariant()
    def ended_is_final(self) -> None:
        # case: X37, X39
        for one in self.engine.world.subscriptions:
            if one.status is SubscriptionStatus.ENDED:
                assert one.end_reason in ("PAYMENT_FAILED", "PAYER_CANCELED", "MERCHANT_CANCELED")
                assert self.ended.setdefault(one.id, (one.end_reason, one.ended_at)) == (one.end_reason, one.ended_at)
            else:
                assert one.end_reason is None
                assert one.id not in self.ended, "left ENDED"

    @invariant()
    def subscription_events_are_those_of_its_life(self) -> None:
        # case: X32, X34, X37, X40
        said: dict[str, list[str]] = {}
        for event in sorted(self.engine.world.events, key=lambda e: e.seq):
            if event.object_kind == "subscription":
                said.setdefault(event.object_id, []).append(event.type.removeprefix("subscription."))
        silent = not self.engine.assumptions.flag("ended_on_resubscribe")
        for one in self.engine.world.subscriptions:
            words = said[one.id]
            assert words[0] == "created"
            assert words.count("created") == 1
            ended = one.status is SubscriptionStatus.ENDED
            expected = (0, 1) if silent and one.end_reason == "PAYER_CANCELED" else (int(ended),)
            assert words.count("ended") in expected
            if "ended" in words:
                after = words[words.index("ended") + 1 :]
                assert after in ([], ["renewed"]), "after the end only a charge in flight may land"
            assert words.count("past_due") <= words.count("payment_failed")

    @invariant()
    def what_ends_by_a_scheduled_cancel_was_paid_no_further(self) -> None:
        # case: X38, X40
        for one in self.engine.world.subscriptions:
            if one.end_at is not None:
                assert one.period_end <= one.end_at

    @invariant()
    def a_wallet_holds_one_live_subscription_per_price(self) -> None:
        # case: X42, X43
        live = Counter(
            (s.wallet, s.price_id) for s in self.engine.world.subscriptions if s.status is not SubscriptionStatus.ENDED
        )
        assert not live or max(live.values()) == 1

    @invariant()
    def limits_hold(self) -> None:
        # case: X16, X46, X50
        engine = self.engine
        assert 1 <= len(engine.applications.valid_secrets(engine.application)) <= 2
        for session in engine.world.sessions:
            assert session.builds <= MAX_BUILDS
            assert session.build_attempts <= MAX_BUILD_ATTEMPTS
        day_ago = engine.clock.now() - timedelta(hours=24)
        assert sum(1 for plan in engine.world.plans if plan.started_at > day_ago) <= MAX_NEW

    @invariant()
    def events_have_unique_ids_known_types_and_the_order_of_time(self) -> None:
        events = sorted(self.engine.world.events, key=lambda e: e.seq)
        assert {event.type for event in events} <= set(TYPES)
        assert [event.created_at for event in events] == sorted(event.created_at for event in events)

    @invariant()
    def money_is_what_was_agreed(self) -> None:
        # case: X19, X47
        world = self.engine.world
        for payment in world.payments:
            if payment.session_id is not None:
                session = self.engine.session(payment.session_id)
                assert (payment.amount, payment.fee) == (session.amount, session.fee)
            elif payment.subscription_id is not None:
                one = self.engine.subscriptions.any(payment.subscription_id)
                assert (payment.amount, payment.fee, payment.to_wallet) == (one.amount, one.fee, one.to_wallet)


QUICK = settings(
    max_examples=120, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
LONG = settings(max_examples=300, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck))

TestQuick = Service.TestCase
TestQuick.settings = QUICK


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_for_longer() -> None:
    """The same with many more examples, new ones in every run."""
    run_state_machine_as_test(Service, settings=LONG)
