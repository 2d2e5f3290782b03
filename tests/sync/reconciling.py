"""What the tests of reconcile share: the three lists of a scripted service, and what the ledger knows beforehand."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from consumer.events import Event, Source, Trust
from consumer.ledger.handling import events
from consumer.sync.backfill.cutover import Began
from consumer.sync.reconcile.policy import ReconcilePolicy
from consumer.sync.reconcile.stage import Reconcile
from consumer.sync.reconcile.state import ReconcileState, keep_state, load_state
from tests.sync.conftest import World
from tests.sync.service import EventsList, Json


async def events_walked(world: World, began: datetime | None = None) -> None:
    """The first walk of the events began then, or now."""
    async with world.database.transaction() as session:
        await Began(began=began or world.clock.now()).keep(session, "default", now=world.clock.now())


async def baselined(world: World) -> None:
    """The first walk of this installation was made, of empty lists."""
    async with world.database.transaction() as session:
        made = ReconcileState(began=world.clock.now(), baselined=True, payments_baselined=True)
        await keep_state(session, "default", made, token=1, now=world.clock.now())


async def remembered(world: World) -> ReconcileState:
    async with world.database.reading() as session:
        return await load_state(session, "default")


def reconcile(world: World, policy: ReconcilePolicy | None = None) -> Reconcile:
    return Reconcile(
        world.app,
        world.publisher,
        policy=policy,
    )


def listing(items: list[Json]) -> EventsList:
    """A numeric list with the rule of the full last page (case B15)."""

    def page(cursor: str | None, limit: int) -> Json:
        start = int(cursor or 0)
        shown = items[start : start + limit]
        return {"items": shown, "next_cursor": start + limit if len(shown) == limit else None}

    return page


def lists(
    world: World,
    *,
    orders: list[Json] | None = None,
    subscriptions: list[Json] | None = None,
    payments: list[Json] | None = None,
) -> None:
    world.service.lists["/v1/orders"] = listing(orders or [])
    world.service.lists["/v1/subscriptions"] = listing(subscriptions or [])
    world.service.lists["/v1/payments"] = listing(payments or [])


def order(number: int, status: str = "PENDING") -> Json:
    return {"id": f"ord_{number}", "order_id": f"A-{number}", "status": status}


def subscription(number: int, status: str = "ACTIVE", **more: Any) -> Json:
    return {"id": f"sub_{number}", "status": status, **more}


async def seen(world: World) -> list[tuple[str, str]]:
    found = await world.published()
    by_version = sorted(found, key=lambda event: event.data["data"]["version"])
    return [(event.key, event.data["data"]["record"]["status"]) for event in by_version]


async def recorded(world: World, event_type: str, *object_ids: str, at: datetime | None = None) -> None:
    """The ledger has an event of this type of each of these orders or subscriptions, received then or now."""
    kind = "subscription" if event_type.startswith("subscription.") else "order"
    found = [
        Event(
            application="default",
            id=f"evt_{event_type}_{one}_{world.clock.now().timestamp()}",
            type=event_type,
            key=f"{kind}:{one}",
            trust=Trust.READ,
            source=Source.BACKFILL,
            raw=b"{}",
            received_at=at or world.clock.now(),
        )
        for one in object_ids
    ]
    async with world.database.transaction() as session:
        await events.record(session, found, world.clock.now())
