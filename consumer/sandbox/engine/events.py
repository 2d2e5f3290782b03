"""Events: what the service says happened. Emitted at finalized, never at confirmed (spec, Events)."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from datetime import timedelta
from typing import Any

from consumer.sandbox.engine import records as r
from consumer.sandbox.engine.views import order_view, session_view, subscription_view
from consumer.sandbox.engine.world import World

TYPES: tuple[str, ...] = (
    "order.paid",
    "order.expired",
    "checkout.session.completed",
    "checkout.session.canceled",
    "checkout.session.expired",
    "subscription.created",
    "subscription.renewed",
    "subscription.payment_failed",
    "subscription.past_due",
    "subscription.cancel_scheduled",
    "subscription.cancel_withdrawn",
    "subscription.ended",
)
TEST_TYPE = "webhook.test"


class Events:
    """The log of one deployment; every application sees only its own."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._purged: dict[str, int] = {}

    def order(self, kind: str, order: r.Order) -> r.Event:
        """`order.<kind>`."""
        return self._emit(f"order.{kind}", order.app_id, "order", order.id, order_view(order))

    def session(self, kind: str, session: r.Session) -> r.Event | None:
        """`checkout.session.<kind>`; None where a subscription session sends none (assumption, case U21)."""
        world = self._world
        if session.mode == "subscription" and world.assumptions.text("subscription_session_events") == "none":
            return None
        return self._emit(
            f"checkout.session.{kind}",
            session.app_id,
            "checkout.session",
            session.id,
            self.session_snapshot(session),
        )

    def session_snapshot(self, session: r.Session) -> dict[str, Any]:
        """The session with its order; for a subscription session null or absent (assumption)."""
        order = self._world.orders.get(session.order_ref) if session.order_ref else None
        view = session_view(session, order)
        if session.mode == "subscription":
            view["order"] = None
            if self._world.assumptions.text("subscription_session_order") == "absent":
                del view["order"]
        return view

    def subscription(self, kind: str, subscription: r.Subscription) -> r.Event:
        """`subscription.<kind>`."""
        view = subscription_view(subscription, self._world.assumptions.text("status_after_second_failure"))
        return self._emit(f"subscription.{kind}", subscription.app_id, "subscription", subscription.id, view)

    def made_up(self, event_type: str, app_id: str, document: dict[str, Any], extra: dict[str, Any]) -> r.Event:
        """An event that no state change stands behind: an unknown type, or one of `consumer sandbox trigger`."""
        return self._emit(event_type, app_id, "thing", str(document.get("id", "")), document, extra)

    def test(self, app_id: str) -> r.Event:
        """A test event in the shape the assumption `test_event` says (cases X61, U8)."""
        world = self._world
        shape = world.assumptions.text("test_event")
        listed = world.assumptions.flag("test_event_listed")
        if shape == "own_type":
            document: dict[str, Any] = {
                "id": world.new_id("order"),
                "object": "test",
                "message": "This is a test event.",
            }
            return self._emit(TEST_TYPE, app_id, "test", str(document["id"]), document, {}, listed=listed)
        order = r.Order(
            id=world.new_id("order"), seq=0, app_id=app_id, order_id=f"test-{world.opaque(8)}",
            status=r.OrderStatus.PAID, amount=10_000_000, fee=0, description="Test event", customer_email=None,
            customer_reference=None, metadata={}, session_id=world.new_id("session"),
            payment_id=world.new_id("payment"), created_at=world.now(), paid_at=world.now(),
        )  # fmt: skip
        extra = {"test": True} if shape == "real_type_marked" else {}
        return self._emit("order.paid", app_id, "order", order.id, order_view(order), extra, listed=listed)

    def _emit(
        self,
        event_type: str,
        app_id: str,
        object_kind: str,
        object_id: str,
        snapshot: dict[str, Any],
        extra: dict[str, Any] | None = None,
        *,
        listed: bool = True,
    ) -> r.Event:
        world = self._world
        event = r.Event(
            id=self._new_id(app_id), seq=world.next_seq(), app_id=app_id, type=event_type, created_at=world.now(),
            object_kind=object_kind, object_id=object_id, snapshot=snapshot, extra=extra or {}, listed=listed,
        )  # fmt: skip
        world.put(world.events, event)
        world.on_event(event)
        return event

    def _new_id(self, app_id: str) -> str:
        # With per-application ids the same text may name another application's event: the shelf's own key differs.
        if self._world.assumptions.text("event_ids") == "unique":
            return self._world.new_id("event")
        return f"{app_id}/evt_{len(self._world.events.seqs(app_id)) + 1:06d}"

    def purge(self) -> int:
        """Take what is older than the assumption `retention_s` out of the list, for good (case X65). Returns how many.

        The record itself stays: a delivery that is still pending needs it.
        """
        world = self._world
        retention_s = world.assumptions.number("retention_s")
        if not retention_s:
            return 0
        horizon = world.now() - timedelta(seconds=retention_s)
        gone = 0
        for application in world.applications:
            seqs = world.events.seqs(application.id)
            for position in range(bisect_right(seqs, self._purged.get(application.id, 0)), len(seqs)):
                event = world.events.at_seq(seqs[position])
                if event.created_at >= horizon:
                    break
                self._purged[application.id] = event.seq
                world.put(world.events, replace(event, listed=False))
                gone += 1
        return gone


def public_id(event: r.Event) -> str:
    """The id as the outside sees it."""
    return event.id.rpartition("/")[2]
