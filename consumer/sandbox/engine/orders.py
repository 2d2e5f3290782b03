"""Orders: one per merchant `order_id` and application, PENDING until a payment finalizes (spec, States, Order)."""

from __future__ import annotations

from dataclasses import replace

from consumer.sandbox.engine import records as r
from consumer.sandbox.engine.events import Events
from consumer.sandbox.engine.world import World


class Orders:
    """PAID is never left: nothing here un-pays."""

    def __init__(self, world: World, events: Events) -> None:
        self._world = world
        self._events = events
        self._by_order_id: dict[tuple[str, str], str] = {}

    def restore(self) -> None:
        """Rebuild the index after loading."""
        self._by_order_id = {(order.app_id, order.order_id): order.id for order in self._world.orders}

    def find(self, app_id: str, order_id: str) -> r.Order | None:
        """By the merchant's own id."""
        found = self._by_order_id.get((app_id, order_id))
        return self._world.orders.get(found) if found else None

    def open_for(self, session: r.Session) -> r.Order:
        """The order a new payment session is for: made, or reopened (back to PENDING) for it."""
        world = self._world
        known = self.find(session.app_id, session.order_id)
        if known is not None:
            reopened = replace(
                known,
                status=r.OrderStatus.PENDING,
                amount=session.amount,
                fee=session.fee,
                description=session.description,
                customer_email=session.customer_email,
                customer_reference=session.customer_reference,
                metadata=session.metadata,
                session_id=session.id,
            )
            return world.put(world.orders, reopened)
        order = r.Order(
            id=world.new_id("order"), seq=world.next_seq(), app_id=session.app_id, order_id=session.order_id,
            status=r.OrderStatus.PENDING, amount=session.amount, fee=session.fee, description=session.description,
            customer_email=session.customer_email, customer_reference=session.customer_reference,
            metadata=session.metadata, session_id=session.id, created_at=world.now(),
        )  # fmt: skip
        self._by_order_id[(order.app_id, order.order_id)] = order.id
        return world.put(world.orders, order)

    def pay(self, order_ref: str, payment_id: str) -> bool:
        """PENDING or expired to PAID, with `order.paid`; False when it was paid already (then no event)."""
        world = self._world
        order = world.orders.get(order_ref)
        if order is None or order.status is r.OrderStatus.PAID:
            return False
        paid = replace(order, status=r.OrderStatus.PAID, payment_id=payment_id, paid_at=world.now())
        self._events.order("paid", world.put(world.orders, paid))
        return True

    def expire(self, order_ref: str) -> None:
        """The expiry check expired its session: `order.expired`. A paid order is left alone."""
        world = self._world
        order = world.orders.get(order_ref)
        if order is None or order.status is r.OrderStatus.PAID:
            return
        status = r.OrderStatus(world.assumptions.text("order_status_after_expiry"))
        self._events.order("expired", world.put(world.orders, replace(order, status=status)))
