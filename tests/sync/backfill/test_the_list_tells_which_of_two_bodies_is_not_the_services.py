"""Of an event that came by signed webhooks with two bodies both are kept and counted, and the list tells which of them
is not the service's: once (case I16)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import orjson
import pytest
from sqlalchemy import event as hooks
from structlog.testing import capture_logs

from consumer.events import Event, Source, Trust, build_event
from consumer.ledger import Database
from consumer.ledger.handling import events
from consumer.ledger.reading import quarantine
from consumer.reason import Reason
from consumer.sync.backfill.report import BackfillOptions
from tests.support.ports import eventually
from tests.sync.backfilling import backfill
from tests.sync.conftest import LOCATORS, World, counted_by, delivery
from tests.work.workshop import AT, Workshop

EVENT = "evt_000001"
TOLD = "delivery_differs_from_record"


def body(amount: str, **more: str) -> bytes:
    document = {"id": "ord_1", "amount": amount, **more}
    return orjson.dumps({"id": EVENT, "type": "order.paid", "data": {"object": document}})


def signed(raw: bytes, number: int) -> Event:
    return build_event(
        raw, LOCATORS, application="default", trust=Trust.SIGNED, source=Source.WEBHOOK, received_at=AT,
        delivery_id=f"dlv_{number}",
    )  # fmt: skip


class Shop:
    """Signed webhooks worked off by a real worker, and walks of the list, of which the service says `amount`."""

    def __init__(self, world: World, amount: str = "10.00") -> None:
        self.world = world
        self.workshop = Workshop(world.database, world.broker, [])
        record = world.service.event(1, id="ord_1", amount=amount)
        world.service.lists["/v1/events"] = lambda _cursor, _limit: {"items": [record], "next_cursor": None}
        self.walker = backfill(world)

    async def hear(self, *bodies: bytes) -> None:
        """They come one after the other; the first is recorded, and the others are kept beside it."""
        async with self.workshop.working():
            for number, raw in enumerate(bodies):
                await self.workshop.publish(signed(raw, number))
                await eventually(lambda wanted=number: self._are_kept(wanted))  # type: ignore[misc]  # bound now

    async def _are_kept(self, wanted: int) -> bool:
        async with self.world.database.reading() as session:
            kept = await quarantine.newest(session, reason=Reason.OTHER_BODY)
            return len(kept) >= wanted and bool(await events.known(session, [("default", EVENT)]))

    async def walk(self) -> list[tuple[str, str, str]]:
        """What a walk tells of bodies: where it is kept, its delivery's id, and what differs."""
        with capture_logs() as logs:
            await self.walker.once()
        return [(one["kept"], one["delivery_id"][:6], one["differs"]) for one in logs if one["event"] == TOLD]

    def restarted(self) -> None:
        """Another process walks now."""
        self.walker = backfill(self.world)

    @property
    def mismatches(self) -> float:
        return counted_by(self.world.metrics, "mismatches", "default")


@pytest.fixture
def world_here(world: World, database: Database) -> World:
    return replace(world, database=database)


@contextmanager
def statements_of(database: Database, table: str) -> Iterator[list[str]]:
    found: list[str] = []

    def note(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if table in statement:
            found.append(statement)

    hooks.listen(database.engine.sync_engine, "before_cursor_execute", note)
    yield found
    hooks.remove(database.engine.sync_engine, "before_cursor_execute", note)


# case: I16
async def test_the_one_in_quarantine(world_here: World) -> None:
    shop = Shop(world_here)
    await shop.hear(body("10.00"), body("99.00"))
    assert counted_by(shop.workshop.metrics, "quarantined", "default", Reason.OTHER_BODY) == 1
    assert await shop.walk() == [("quarantine", "other:", "amount")]
    assert await shop.walk() == []
    shop.restarted()
    assert await shop.walk() == [], "once"
    assert shop.mismatches == 1


# case: I16
async def test_the_recorded_one_that_was_worked_on(world_here: World) -> None:
    shop = Shop(world_here)
    await shop.hear(body("99.00"), body("10.00"))
    assert await shop.walk() == [("recorded", "dlv_0", "amount")]
    await shop.hear(body("99.00"), body("10.00"), body("10.00", customer_reference="bob"))
    shop.restarted()
    assert await shop.walk() == [], "what the record leaves out is no difference, and the recorded one was told of"
    assert shop.mismatches == 1


# case: I16
async def test_both_where_neither_is(world_here: World) -> None:
    shop = Shop(world_here, amount="1.00")
    await shop.hear(body("99.00"), body("10.00"))
    assert await shop.walk() == [("recorded", "dlv_0", "amount"), ("quarantine", "other:", "amount")]
    assert shop.mismatches == 2


# case: I16, B22
async def test_where_the_list_is_brief_a_read_tells_it_and_nothing_is_ticked_off_before(world_here: World) -> None:
    shop, service = Shop(world_here), world_here.service
    service.lists["/v1/events"] = lambda _cursor, _limit: {"items": [{"id": EVENT}], "next_cursor": None}
    await shop.hear(body("10.00"), body("99.00"))
    service.failing[f"/v1/events/{EVENT}"] = 422
    assert await shop.walk() == []
    service.failing.clear()
    service.lists["/v1/events"] = lambda _cursor, _limit: {"items": [], "next_cursor": None}
    assert await shop.walk() == [("quarantine", "other:", "amount")]
    asked = service.calls[f"/v1/events/{EVENT}"]
    assert await shop.walk() == []
    assert service.calls[f"/v1/events/{EVENT}"] == asked, "once"
    assert shop.mismatches == 1


# case: B22, B23
async def test_these_reads_are_the_walks_own(world_here: World) -> None:
    """A walk for hints, which makes only so many, made more."""
    shop, service = Shop(world_here), world_here.service
    service.lists["/v1/events"] = lambda _cursor, _limit: {"items": [{"id": EVENT}], "next_cursor": None}
    await shop.hear(body("10.00"), body("99.00"))
    begun = await shop.walker.start.begin(BackfillOptions(), world_here.api.client.events, sweeps=True)
    await shop.walker.read(begun)
    assert begun.reads == service.calls[f"/v1/events/{EVENT}"] == 1


async def test_it_costs_a_page_one_statement_where_there_is_no_other_body(world_here: World) -> None:
    shop = Shop(world_here)
    await shop.hear(body("99.00"))
    async with world_here.database.transaction() as session:
        strange = replace(delivery(b"{}", event_id=EVENT), id="dlv_9")
        await quarantine.put(session, [(strange, Reason.NOT_CONFIRMED)], AT)
    await shop.walk()
    with statements_of(world_here.database, "quarantine") as found:
        assert await shop.walk() == []
    assert len(found) == 1
    assert shop.mismatches == 0
