"""Engine: the nouns put together, and time. `advance_step` fires what is due, in order, one instant at a time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from consumer.sandbox.assumptions import Assumptions
from consumer.sandbox.clock import SandboxClock
from consumer.sandbox.config import SandboxConfig
from consumer.sandbox.engine import deliveries, payments, plans, sessions, subscriptions
from consumer.sandbox.engine import records as r
from consumer.sandbox.engine.applications import Applications
from consumer.sandbox.engine.catalog import Catalog
from consumer.sandbox.engine.deliveries import Deliveries
from consumer.sandbox.engine.events import Events
from consumer.sandbox.engine.limits import Limits
from consumer.sandbox.engine.orders import Orders
from consumer.sandbox.engine.payments import Payments
from consumer.sandbox.engine.plans import Plans
from consumer.sandbox.engine.sessions import Sessions
from consumer.sandbox.engine.subscriptions import Subscriptions
from consumer.sandbox.engine.world import World
from consumer.sandbox.errors import Refusal
from consumer.sandbox.faults import Faults

MERCHANT_ID = "mer_sandbox"


class Engine:
    """The whole simulated service, without HTTP. Everything is synchronous: what returns has happened."""

    def __init__(self, config: SandboxConfig, clock: SandboxClock, assumptions: Assumptions) -> None:
        self.config = config
        self.clock = clock
        self.assumptions = assumptions
        self.world = World(clock, assumptions, seed=config.seed, max_records=config.max_records)
        self.faults = Faults(self.world.chance)
        self.events = Events(self.world)
        self.applications = Applications(self.world)
        self.catalog = Catalog(self.world)
        self.orders = Orders(self.world, self.events)
        self.plans = Plans(self.world, self.faults)
        self.sessions = Sessions(self.world, self.events, self.orders, self.applications, self.catalog, self.plans)
        self.subscriptions = Subscriptions(self.world, self.events)
        self.payments = Payments(
            self.world, self.applications, self.orders, self.sessions, self.plans, self.subscriptions
        )
        self.deliveries = Deliveries(self.world, self.faults)
        self.limits = Limits(self.world, enabled=config.limits)
        self.world.on_event = self._on_event
        self.on_change: Callable[[], None] = lambda: None

    def seed(self) -> None:
        """The seeded merchant, application, products and prices (contract, Sandbox)."""
        config = self.config
        self.applications.add_merchant("Sandbox merchant", merchant_id=MERCHANT_ID)
        self.applications.add(
            MERCHANT_ID,
            "Sandbox application",
            app_id=config.app_id,
            secrets=config.app_secrets,
            webhook_url=config.webhook_url,
            webhook_secrets=config.webhook_secrets,
        )
        add_price = self.catalog.add_price
        goods = self.catalog.add_product(MERCHANT_ID, "Sandbox goods", product_id="prod_goods")
        access = self.catalog.add_product(MERCHANT_ID, "Sandbox access", product_id="prod_access")
        gone = self.catalog.add_product(MERCHANT_ID, "Sandbox archived", product_id="prod_archived")
        add_price(MERCHANT_ID, goods.id, "10", price_id="svc_price_once")
        add_price(MERCHANT_ID, access.id, "5", interval_days=30, price_id="svc_price_monthly")
        add_price(MERCHANT_ID, access.id, "50", interval_days=365, price_id="svc_price_yearly")
        add_price(MERCHANT_ID, goods.id, "9", price_id="svc_price_archived")
        add_price(MERCHANT_ID, gone.id, "8", price_id="svc_price_of_archived_product")
        self.catalog.archive_price("svc_price_archived")
        self.catalog.archive_product(gone.id)

    def restore(self) -> None:
        """Indexes and timers, after the records were loaded."""
        self.orders.restore()
        self.sessions.restore()
        self.payments.arm()
        self.plans.arm()
        self.subscriptions.arm()
        self.deliveries.arm()

    @property
    def application(self) -> r.Application:
        """The seeded application."""
        return self.applications.get(self.config.app_id)

    def _on_event(self, event: r.Event) -> None:
        self.deliveries.plan(event)
        self.on_change()

    # --- dashboard actions that touch several nouns ------------------------------------------------------------

    def disable(self, app_id: str) -> int:
        """Disable an application for ever; returns how many pending deliveries were cancelled (case X52)."""
        self.applications.disable(app_id)
        return self.deliveries.cancel_for(app_id)

    def send_test_event(self, app_id: str) -> r.Event:
        """The API's test event and the dashboard's button: one shared limit (case X54)."""
        self.applications.get(app_id)
        self.limits.test_event(app_id)
        return self.events.test(app_id)

    def session(self, session_id: str) -> r.Session:
        """Any application's session, for the payer's side."""
        session = self.world.sessions.get(session_id)
        if session is None:
            raise Refusal("not_found")
        return session

    # --- time --------------------------------------------------------------------------------------------------

    def next_due(self) -> datetime | None:
        """When the next timer rings."""
        return self.world.timers.next_due()

    def run_due(self) -> int:
        """Fire every timer that is due now, in order; returns how many rang."""
        fired = 0
        now = self.clock.now()
        while (timer := self.world.timers.pop_due(now)) is not None:
            _, kind, record_id = timer
            self._fire(kind, record_id, now)
            fired += 1
        self.events.purge()
        return fired

    def advance_step(self, target: datetime) -> bool:
        """Move to the next timer up to `target` and fire it; False when `target` itself was reached."""
        due_at = self.next_due()
        if due_at is None or due_at > target:
            self.clock.advance_to(target)
            self.run_due()
            return False
        self.clock.advance_to(due_at)
        self.run_due()
        return True

    def advance(self, seconds: float) -> None:
        """Move the time without sending webhooks; `Sandbox.advance` sends them on the way."""
        target = self.world.in_seconds(seconds)
        while self.advance_step(target):
            pass

    def _fire(self, kind: str, record_id: str, now: datetime) -> None:
        if kind == sessions.TIMER:
            self.sessions.due(record_id, now)
        elif kind == payments.TIMER:
            self.payments.due(record_id, now)
        elif kind == plans.TIMER:
            self.plans.due(record_id, now)
        elif kind == deliveries.TIMER:
            self.on_change()
        elif kind in (
            subscriptions.RENEWAL_TIMER,
            subscriptions.RETRY_TIMER,
            subscriptions.END_TIMER,
            subscriptions.CHAIN_TIMER,
        ):
            self.subscriptions.due(kind, record_id, now)
