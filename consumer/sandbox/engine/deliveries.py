"""Deliveries: which webhook requests an event makes, when each is due, and the log of the answers."""

from __future__ import annotations

import heapq
from collections import deque
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
        self._waiting: list[tuple[datetime, int, str]] = []
        self._ready: dict[str, deque[str]] = {}
        self._queued: set[str] = set()
        self._untried: set[str] = set()
        self._closed: deque[str] = deque()

    def arm(self) -> None:
        """Take up what was pending after loading."""
        for delivery in self._world.deliveries:
            if delivery.status is r.DeliveryStatus.PENDING:
                self._wait(delivery)
            else:
                self._closed.append(delivery.id)

    def plan(self, event: r.Event) -> list[r.Delivery]:
        """The deliveries of an event under the present faults; none without an endpoint."""
        application = self._world.applications.get(event.app_id)
        if application is None or application.webhook_url is None or application.disabled_at is not None:
            return []
        if not self._wanted(event.type):
            return []
        faults = self._faults
        if faults.strikes("drop"):
            return [self._put(self._new(event, application.webhook_url, 0, dropped=True))]
        copies = 1 + (int(faults.number("duplicate_copies")) if faults.strikes("duplicate") else 0)
        return [self._put(self._new(event, application.webhook_url, copy)) for copy in range(copies)]

    def _wanted(self, event_type: str) -> bool:
        """Whether the endpoint's filter lets the type through (assumption, case U5)."""
        chosen = self._world.assumptions.text("endpoint_filter")
        is_subscription = event_type.startswith("subscription.")
        return chosen == "all" or (chosen == "subscriptions") is is_subscription

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

    def ready(self) -> list[str]:
        """The applications that have a delivery to be sent now."""
        now = self._world.now()
        while self._waiting and self._waiting[0][0] <= now:
            due_at, _, delivery_id = heapq.heappop(self._waiting)
            delivery = self._pending.get(delivery_id)
            if delivery is not None and delivery.due_at == due_at:
                self._queue(delivery)
        return [app_id for app_id, queue in self._ready.items() if queue]

    def take(self, app_id: str) -> r.Delivery | None:
        """The next delivery of an application, in order of its due time; None when there is none."""
        queue = self._ready.get(app_id, deque())
        while queue:
            delivery_id = queue.popleft()
            self._queued.discard(delivery_id)
            if (delivery := self._pending.get(delivery_id)) is not None:
                return delivery
        return None

    def force(self) -> None:
        """What was never attempted becomes due now, in order of its due time."""
        untried = (self._pending[delivery_id] for delivery_id in self._untried)
        for delivery in sorted(untried, key=lambda one: (one.due_at, one.seq)):
            self._queue(delivery)

    def untried(self) -> int:
        """How many pending deliveries were never attempted."""
        return len(self._untried)

    def _queue(self, delivery: r.Delivery) -> None:
        if delivery.id not in self._queued:
            self._queued.add(delivery.id)
            self._ready.setdefault(delivery.app_id, deque()).append(delivery.id)

    def _wait(self, delivery: r.Delivery) -> None:
        self._pending[delivery.id] = delivery
        if not delivery.attempts:
            self._untried.add(delivery.id)
        heapq.heappush(self._waiting, (delivery.due_at, delivery.seq, delivery.id))
        self._world.timers.at(delivery.due_at, TIMER, delivery.id)

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
        self._untried.discard(delivery.id)
        if delivery.status is r.DeliveryStatus.PENDING:
            self._wait(delivery)
        else:
            self._pending.pop(delivery.id, None)
            self._closed.append(delivery.id)
            if len(self._closed) > KEPT:
                world.deliveries.drop(self._closed.popleft())
        return delivery
