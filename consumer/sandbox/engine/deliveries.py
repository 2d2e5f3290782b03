"""Deliveries: which webhook requests an event makes, when each is due, and the log of the answers."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from consumer.sandbox.engine import records as r
from consumer.sandbox.engine.events import public_id
from consumer.sandbox.engine.world import World
from consumer.sandbox.faults import Faults

SCHEDULES_S: dict[str, tuple[float, ...]] = {
    "standard": (5, 300, 1800, 7200, 18000, 36000, 36000),
    "short": (1, 2, 4, 8),
    "none": (),
}
TIMER = "delivery"
KEPT = 20_000


class Deliveries:
    """Every delivery ends delivered, failed (attempts used up), dropped (a fault) or canceled (disabled)."""

    def __init__(self, world: World, faults: Faults) -> None:
        self._world = world
        self._faults = faults
        self._pending: dict[str, r.Delivery] = {}
        self._closed: list[str] = []

    def arm(self) -> None:
        """Take up what was pending after loading."""
        for delivery in self._world.deliveries:
            if delivery.status is r.DeliveryStatus.PENDING:
                self._pending[delivery.id] = delivery
                self._world.timers.at(delivery.due_at, TIMER, delivery.id)
            else:
                self._closed.append(delivery.id)

    def plan(self, event: r.Event) -> list[r.Delivery]:
        """The deliveries of an event under the present faults; none without an endpoint."""
        application = self._world.applications.get(event.app_id)
        if application is None or application.webhook_url is None or application.disabled_at is not None:
            return []
        faults = self._faults
        if faults.strikes("drop"):
            return [self._put(self._new(event, application.webhook_url, 0, dropped=True))]
        copies = 1 + (int(faults.number("duplicate_copies")) if faults.strikes("duplicate") else 0)
        return [self._put(self._new(event, application.webhook_url, copy)) for copy in range(copies)]

    def _new(self, event: r.Event, url: str, copy_number: int, *, dropped: bool = False) -> r.Delivery:
        world, faults = self._world, self._faults
        wait_s = faults.number("delay_s")
        if faults.flag("reorder"):
            wait_s += faults.random_s(faults.number("reorder_s"))
        return r.Delivery(
            id=world.new_id("delivery"),
            seq=world.next_seq(),
            app_id=event.app_id,
            event_id=event.id,
            event_type=event.type,
            sent_event_id=public_id(event),
            url=url,
            status=r.DeliveryStatus.DROPPED if dropped else r.DeliveryStatus.PENDING,
            due_at=world.in_seconds(wait_s),
            created_at=world.now(),
            copy_number=copy_number,
            truncate=not dropped and faults.strikes("truncate"),
            wrong_signature=not dropped and faults.strikes("wrong_signature"),
            slow_s=0.0 if dropped else faults.number("slow_s"),
        )

    def due(self, now: datetime) -> list[r.Delivery]:
        """Pending deliveries whose time has come, the earliest first."""
        return sorted((d for d in self._pending.values() if d.due_at <= now), key=lambda d: (d.due_at, d.seq))

    def untried(self) -> list[r.Delivery]:
        """Pending deliveries that were never attempted, in order of their due time."""
        return sorted((d for d in self._pending.values() if not d.attempts), key=lambda d: (d.due_at, d.seq))

    def record(self, delivery_id: str, *, status: int | None, error: str | None = None) -> r.Delivery | None:
        """The outcome of one attempt: 2xx is delivered, anything else waits for the schedule or has failed."""
        world = self._world
        delivery = self._pending.get(delivery_id)
        if delivery is None:
            return None
        attempts = (*delivery.attempts, r.Attempt(at=world.now(), status=status, error=error))
        if status is not None and 200 <= status < 300:
            return self._put(replace(delivery, status=r.DeliveryStatus.DELIVERED, attempts=attempts))
        waits = SCHEDULES_S[world.assumptions.text("delivery_schedule")]
        if len(attempts) > len(waits):
            return self._put(replace(delivery, status=r.DeliveryStatus.FAILED, attempts=attempts))
        renamed = world.assumptions.text("redelivered_event_id") == "new"
        return self._put(
            replace(
                delivery,
                attempts=attempts,
                due_at=world.in_seconds(waits[len(attempts) - 1]),
                sent_event_id=world.new_id("event") if renamed else delivery.sent_event_id,
                truncate=False,
                wrong_signature=False,
                slow_s=0.0,
            )
        )

    def cancel_for(self, app_id: str) -> int:
        """The application was disabled: its pending deliveries are cancelled (case X52). Returns how many."""
        mine = [d for d in self._pending.values() if d.app_id == app_id]
        for delivery in mine:
            self._put(replace(delivery, status=r.DeliveryStatus.CANCELED))
        return len(mine)

    def _put(self, delivery: r.Delivery) -> r.Delivery:
        world = self._world
        world.put(world.deliveries, delivery)
        if delivery.status is r.DeliveryStatus.PENDING:
            self._pending[delivery.id] = delivery
            world.timers.at(delivery.due_at, TIMER, delivery.id)
        else:
            self._pending.pop(delivery.id, None)
            self._closed.append(delivery.id)
            if len(self._closed) > KEPT:
                world.deliveries.drop(self._closed.pop(0))
        return delivery
