"""What the tests of refresh share: a stage, how it is asked, and what it answered."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

from consumer.events import Event
from consumer.ledger.reading import read_requests
from consumer.ledger.tables import ReadRow
from consumer.payments import CallKind, PaymentsClient, Priority
from consumer.plugin import ReadKind, ReadRequest
from consumer.sync.api import ApplicationApi
from consumer.sync.refresh.policy import RefreshPolicy
from consumer.sync.refresh.stage import Refresh
from tests.sync.conftest import World
from tests.sync.service import EventsList, Json


def refresh(world: World) -> Refresh:
    policy = RefreshPolicy(page_from=40)
    return Refresh(world.app, world.publisher, policy=policy)


async def ask(world: World, kind: ReadKind, object_id: str, after_s: float = 0, traceparent: str | None = None) -> None:
    at = world.clock.now() + timedelta(seconds=after_s)
    request = ReadRequest(kind=kind, object_id=object_id, not_before=at, traceparent=traceparent)
    async with world.database.transaction() as session:
        await read_requests.ask(session, "default", [request], world.clock.now())


async def pending(world: World) -> Sequence[ReadRow]:
    async with world.database.reading() as session:
        return await read_requests.due(session, world.clock.now() + timedelta(days=365), 100)


def subscription(world: World, status: str, name: str = "sub_1") -> None:
    world.service.records[f"/v1/subscriptions/{name}"] = {"id": name, "status": status}


async def answers(world: World) -> list[Event]:
    return sorted(await world.published(), key=lambda event: event.data["data"]["version"])


def paged(items: Sequence[dict[str, object]]) -> EventsList:
    def page(cursor: str | None, limit: int) -> Json:
        start = int(cursor or 0)
        return {"items": items[start : start + limit], "next_cursor": start + limit}

    return page


@asynccontextmanager
async def while_a_walk_goes_on(world: World, policy: RefreshPolicy) -> AsyncIterator[Callable[[], Awaitable[int]]]:
    """A round of the stage, in which nothing of the budget is idle: a walk of the events takes what it can get."""
    async with PaymentsClient(world.service.address, world.api.client.credentials, clock=world.clock) as client:
        api = ApplicationApi(application="default", client=client)
        stage = Refresh(replace(world.app, api=api), world.publisher, policy=policy)

        async def once() -> int:
            while await client.budget.predict_s(CallKind.READ, Priority.BACKFILL) == 0:
                await client.budget.acquire(CallKind.READ, Priority.BACKFILL, max_wait_s=0)
            return await stage.once()

        yield once
