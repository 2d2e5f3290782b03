"""A handler that takes many events gets those of a batch at once; one that fails harms none of the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from sqlalchemy import ForeignKey, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from consumer.broker import Broker
from consumer.errors import HandlerInvalid
from consumer.events import Event
from consumer.ledger import Database
from consumer.ledger.tables import OutboxRow, ReadRow, RunRow
from consumer.plugin import Context, Reject, RetryLater, declared, handles
from consumer.testing import Workbench, assert_idempotent
from tests.support.handling.live import Live
from tests.support.ports import eventually
from tests.work.workshop import Workshop, order_paid, service_event

Batch = Sequence[tuple[Event, Context]]


def live(database: Database, *functions: Any) -> Live:
    """A worker's ingest with these handlers."""
    found = [declared(one) for one in functions]
    return Live(database, {}, application="default", more=[one for one in found if one is not None])


async def outbox(database: Database) -> list[tuple[str, str]]:
    """What was emitted: (key, cause)."""
    async with database.reading() as session:
        rows = (await session.execute(select(OutboxRow).order_by(OutboxRow.__table__.c.seq))).scalars().all()
        return [(row.key, row.cause) for row in rows]


async def states(database: Database) -> dict[str, tuple[str, str | None]]:
    """The runs: event id to state and code."""
    async with database.reading() as session:
        rows = (await session.execute(select(RunRow))).scalars().all()
    return {row.event_id: (row.status, row.code) for row in rows}


# case: G2, H1
async def test_it_gets_the_batch_at_once_and_each_key_in_order(database: Database) -> None:
    calls: list[list[str]] = []

    @handles("order.paid", transactional=True, batch=True, name="test:many")
    async def many(batch: Batch) -> None:
        calls.append([event.id for event, _ in batch])
        for event, ctx in batch:
            ctx.emit("shop.seen", event.key, {}, once=event.id)

    shop = live(database, many)
    await shop.arrive(order_paid(1, "a"), order_paid(2, "b"), order_paid(3, "a"), order_paid(4, "c"))
    await shop.arrive(order_paid(1, "a"), order_paid(5, "a"))
    assert [sorted(call) for call in calls] == [["evt_1", "evt_2", "evt_3", "evt_4"], ["evt_5"]]
    assert calls[0].index("evt_1") < calls[0].index("evt_3")
    assert {state for state, _ in (await states(database)).values()} == {"succeeded"}
    assert sorted(cause for _, cause in await outbox(database)) == [f"evt_{n}" for n in range(1, 6)]


async def test_each_application_has_a_batch_of_its_own(database: Database, broker: Broker) -> None:
    calls: list[set[str]] = []

    @handles("order.paid", transactional=True, batch=True, name="test:many")
    async def many(batch: Batch) -> None:
        calls.append({ctx.application for _, ctx in batch})

    shop = Workshop(database, broker, [many], applications=("first", "second"))
    names = ("first", "second") * 3
    await shop.publish(*[order_paid(number, application=name) for number, name in enumerate(names)])
    async with shop.working():
        await eventually(lambda: shop.all_succeeded(6))
    assert all(len(call) == 1 for call in calls)


async def test_another_handlers_event_of_the_key_keeps_its_place(database: Database) -> None:
    """paid, expired, paid of one order: whoever takes many gets no later event before an earlier one is handled."""
    order: list[str] = []

    @handles("order.paid", transactional=True, batch=True, name="test:many")
    async def many(batch: Batch) -> None:
        order.extend(event.id for event, _ in batch)

    @handles("order.expired", "order.paid", transactional=True, name="test:one")
    async def one(event: Event, ctx: Context) -> None:
        order.append(event.id)

    shop = live(database, many, one)
    await shop.arrive(
        order_paid(1, "a"), order_paid(2, "b"), service_event("evt_3", "order.expired", "a"), order_paid(4, "a")
    )
    places = {name: [place for place, seen in enumerate(order) if seen == name] for name in order}
    assert {name: len(found) for name, found in places.items()} == {"evt_1": 2, "evt_2": 2, "evt_3": 1, "evt_4": 2}
    assert max(places["evt_1"]) < min(places["evt_3"])
    assert max(places["evt_3"]) < min(places["evt_4"])


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (Reject("never"), ("dead", "rejected")),
        (RetryLater(60), ("retrying", "retry_later")),
        (ValueError("odd"), ("retrying", "handler_failed")),
        (asyncio.CancelledError(), ("retrying", "handler_crashed")),
    ],
)
# case: H3, H4
async def test_one_that_fails_is_taken_out(database: Database, error: BaseException, state: tuple[str, str]) -> None:
    calls: list[int] = []

    @handles("order.paid", transactional=True, batch=True, name="test:many")
    async def many(batch: Batch) -> None:
        calls.append(len(batch))
        for event, ctx in batch:
            ctx.emit("shop.seen", event.key, {}, once=event.id)
            if event.id == "evt_2":
                raise error

    shop = live(database, many)
    await shop.arrive(*[order_paid(number) for number in range(4)], order_paid("behind", "order-2"))
    assert calls == [5, 1, 1, 1, 1], "together; and then each alone, but for the one that waits behind the failed one"
    found = await states(database)
    assert found.pop("evt_2") == state
    assert found.pop("evt_behind") == ("parked", None)
    assert set(found.values()) == {("succeeded", None)}
    assert sorted(cause for _, cause in await outbox(database)) == ["evt_0", "evt_1", "evt_3"]
    await shop.arrive(*[order_paid(number) for number in range(5, 8)])
    await shop.arrive(*[order_paid(number) for number in range(8, 11)])
    assert calls[5:] == [1, 1, 1, 3], "a batch without a failure: the next goes together again"


@pytest.mark.parametrize("fails", [False, True], ids=["together", "apart"])
# case: A1, F5, G2
async def test_every_read_that_somebody_asks_for_in_a_batch_is_asked_for(database: Database, *, fails: bool) -> None:
    @handles("order.paid", transactional=True, name="test:one")
    async def one(event: Event, ctx: Context) -> None:
        ctx.request_read("order", str(event.order_id))
        if fails and event.id == "evt_2":
            raise Reject("never")

    @handles("order.paid", transactional=True, name="test:another")
    async def another(event: Event, ctx: Context) -> None:
        ctx.request_read("session", f"of-{event.order_id}")

    shop = live(database, one, another)
    await shop.arrive(*[order_paid(number) for number in range(1, 4)])
    async with database.reading() as session:
        asked = {(row.kind, row.object_id) for row in await session.scalars(select(ReadRow))}
    orders = {("order", f"order-{number}") for number in ((1, 3) if fails else (1, 2, 3))}
    assert asked == orders | {("session", f"of-order-{number}") for number in (1, 2, 3)}


async def test_what_fails_is_tried_again_alone(database: Database) -> None:
    attempts: list[tuple[str, int]] = []

    @handles("order.paid", transactional=True, batch=True, name="test:many", first_wait_s=1)
    async def many(batch: Batch) -> None:
        attempts.extend((event.id, ctx.attempt) for event, ctx in batch)
        if ("evt_1", 1) in attempts[-len(batch) :]:
            raise ValueError("once")

    shop = live(database, many)
    await shop.arrive(order_paid(1), order_paid(2))
    await shop.pass_time(10)
    assert attempts[-1] == ("evt_1", 2)
    assert {state for state, _ in (await states(database)).values()} == {"succeeded"}


def test_the_kit_runs_it_like_any_other(workbench: Workbench) -> None:
    @handles("order.paid", transactional=True, batch=True, name="test:many")
    async def many(batch: Batch) -> None:
        for event, ctx in batch:
            ctx.emit("shop.seen", event.key, {"order": event.order_id})

    ran = workbench.run(many, workbench.event("order.paid", order_id="A-1"))
    assert ran.succeeded
    assert [event.key for event in workbench.emitted] == ["order:A-1"]
    assert_idempotent(many, [workbench.event("order.paid", order_id="A-2")])


def test_what_cannot_be_is_refused() -> None:
    async def pair(event: Event, ctx: Context) -> None:
        """Not a batch."""

    async def many(batch: Batch) -> None:
        """A batch."""

    with pytest.raises(HandlerInvalid, match=r"takes exactly \(batch\)"):
        handles("order.paid", transactional=True, batch=True)(pair)  # type: ignore[arg-type]  # what it is about
    with pytest.raises(HandlerInvalid, match=r"takes exactly \(event, ctx\)"):
        handles("order.paid", transactional=True)(many)  # type: ignore[arg-type]  # what it is about
    with pytest.raises(HandlerInvalid, match="for projections"):
        handles("order.paid", batch=True)(many)  # type: ignore[call-overload]  # what it is about


KEPT = 3
ORDERS = 12


class Tickets(DeclarativeBase):
    """Tables of a plugin's own."""


class Customer(Tickets):
    """Whose tickets."""

    __tablename__ = "odd_customer"

    id: Mapped[int] = mapped_column(primary_key=True)
    tickets: Mapped[list[Ticket]] = relationship(
        back_populates="customer", cascade="all, delete-orphan", lazy="selectin", order_by="Ticket.number"
    )


class Ticket(Tickets):
    """One of the newest KEPT."""

    __tablename__ = "odd_ticket"

    number: Mapped[int] = mapped_column(primary_key=True)
    customer_id: Mapped[int] = mapped_column(ForeignKey("odd_customer.id"))
    customer: Mapped[Customer] = relationship(back_populates="tickets")


@pytest.fixture
async def tables(database: Database) -> AsyncIterator[Database]:
    """A ledger with those tables, and a customer."""
    async with database.engine.begin() as connection:
        await connection.run_sync(Tickets.metadata.create_all)
    async with database.transaction() as session:
        session.add(Customer(id=1))
    yield database
    async with database.engine.begin() as connection:
        await connection.run_sync(Tickets.metadata.drop_all)


# case: G2
@pytest.mark.parametrize("way", ["singly", "together", "apart"])
async def test_a_batch_leaves_what_its_events_leave_singly(way: str, tables: Database) -> None:
    """51 tickets stood where 35 were wanted: what was deleted stayed in the collection that the next event found."""

    @handles("order.paid", transactional=True, attempts=1, name="test:keeps_the_newest")
    async def keeps_the_newest(event: Event, ctx: Context) -> None:
        if event.id == "evt_refused":
            raise Reject("never")
        number = int(str(event.order_id).removeprefix("order-"))
        customer = await ctx.session.get_one(Customer, 1)
        customer.tickets.append(Ticket(number=number))
        if len(customer.tickets) > KEPT:
            await ctx.session.delete(customer.tickets[0])

    shop = live(tables, keeps_the_newest)
    orders = [order_paid(number) for number in range(ORDERS)]
    if way == "singly":
        for order in orders:
            await shop.arrive(order)
    else:
        await shop.arrive(*orders, *([order_paid("refused", "order-refused")] if way == "apart" else []))
    left = {name: state for name, (state, _) in (await states(tables)).items() if state != "succeeded"}
    assert left == ({"evt_refused": "dead"} if way == "apart" else {})
    async with tables.reading() as session:
        found = (await session.execute(select(Ticket.number).order_by(Ticket.number))).scalars().all()
    assert list(found) == list(range(ORDERS - KEPT, ORDERS))
