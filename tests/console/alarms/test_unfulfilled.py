"""Paid but not fulfilled is always visible, with its age and its reason, and nothing else is."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import select, update

from consumer.app.upkeep.taking import move_on
from consumer.console.alarms import taken
from consumer.console.alarms import unfulfilled as unfulfilled_
from consumer.console.alarms.unfulfilled import OBSERVES, PROVES, longest_held, orders_of, unfulfilled
from consumer.console.explain import explain_order
from consumer.events import Trust
from consumer.ledger import Database
from consumer.ledger.handling import events
from consumer.ledger.handling import runs as runs_
from consumer.ledger.handling.runs import Run
from consumer.ledger.reading import observations
from consumer.ledger.reading.observations import Observed
from consumer.ledger.tables import OutboxRow, RunStatus
from consumer.plugin import declared, derived_id
from consumer.wire import SEED
from handlers.fulfilment.handler import order_observed, order_paid
from tests.support.handling.projections import START, Projections, observed, own, said

MODULE = "handlers.fulfilment.handler"


async def waiting(database: Database) -> dict[tuple[str, str], tuple[int, timedelta]]:
    """(application, reason) to (count, age at START plus a day)."""
    async with database.reading() as session:
        found = await unfulfilled(session)
    return {(one.application, one.reason): (one.count, START + timedelta(days=1) - one.oldest_at) for one in found}


async def ran(database: Database, order_id: str, *statuses: str) -> None:
    key = f"order:{order_id}"
    made = [
        Run(
            application="default",
            event_id=derived_id("default", "fulfilment.requested", key, "order"),
            handler=f"shop:ship{number}",
            seq=number,
            key=key,
            status=RunStatus(status),
            blocking=False,
        )
        for number, status in enumerate(statuses)
    ]
    async with database.transaction() as session:
        await runs_.add(session, made, START)


async def test_nothing_waits_when_nothing_is_paid(database: Database) -> None:
    orders = Projections(database, MODULE, options={"matching": "off"})
    await orders.feed(said("order.expired", "evt_1", order_id="A1"))
    assert await waiting(database) == {}


async def test_from_unsent_to_no_handler_to_done(database: Database) -> None:
    # case: O5
    orders = Projections(database, MODULE, options={"matching": "off"})
    await orders.feed(
        said("order.paid", "evt_1", trust=Trust.READ, order_id="A1"),
        said("order.paid", "evt_2", trust=Trust.READ, order_id="A2"),
    )
    assert await waiting(database) == {("default", "unsent"): (2, timedelta(days=1))}
    await orders.relay()
    assert await waiting(database) == {("default", "no_handler"): (2, timedelta(days=1))}
    await ran(database, "A1", "succeeded")
    await ran(database, "A2", "succeeded", "skipped")
    assert await waiting(database) == {}


async def test_an_order_that_waits_for_two_reasons_is_one_order(database: Database) -> None:
    """Its parcel is retrying, and its mail is dead: the metric said two orders."""
    # case: O5
    orders = Projections(database, MODULE, options={"matching": "off"})
    await orders.feed(*(said("order.paid", f"evt_{one}", trust=Trust.READ, order_id=one) for one in ("A1", "A2")))
    await orders.relay()
    await ran(database, "A1", "retrying", "dead")
    await ran(database, "A2", "retrying")
    async with database.reading() as session:
        found = await unfulfilled(session)
    assert {one.reason: one.count for one in found} == {"retrying": 2, "dead": 1}
    assert orders_of(found) == {"default": 2}


async def test_history_that_a_seed_took_in_waits_for_no_handler(database: Database) -> None:
    """It was seeded before the first plugin was there: nobody is to fulfil it, then or later."""
    # case: B30, O5
    orders = Projections(database, MODULE, options={"matching": "off"})
    old = [f"old-{number}" for number in range(5)]
    await orders.feed(*(said("order.paid", f"evt_{one}", trust=Trust.READ, order_id=one) for one in old))
    async with database.transaction() as session:
        await session.execute(update(OutboxRow).values(plan=SEED))
    await orders.feed(said("order.paid", "evt_new", trust=Trust.READ, order_id="new"))
    await orders.relay()
    assert await waiting(database) == {("default", "no_handler"): (1, timedelta(days=1))}
    async with database.reading() as session:
        told = [await explain_order(session, "default", one) for one in (old[0], "new")]
    assert [[one["code"] for one in found["next"]] for found in told] == [[], ["no_handler"]]
    while await move_on(database):
        pass
    async with database.reading() as session:
        assert await taken.until(session) > 0, "nobody has to look at it again and again"


async def test_what_nobody_took_stays_in_sight_however_many_newer_ones_there_are(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case: O5
    monkeypatch.setattr(unfulfilled_, "NEWEST", 2)
    monkeypatch.setattr(taken, "PAGE", 2)
    orders = Projections(database, MODULE, options={"matching": "off"})
    ids = [f"A{number}" for number in range(8)]
    await orders.feed(*(said("order.paid", f"evt_{one}", trust=Trust.READ, order_id=one) for one in ids))
    await orders.relay()
    for one in ids:
        if one != "A3":
            await ran(database, one, "succeeded")
    while await move_on(database):
        pass
    assert await waiting(database) == {("default", "no_handler"): (1, timedelta(days=1))}
    await ran(database, "A3", "succeeded")
    while await move_on(database):
        pass
    assert await waiting(database) == {}


async def test_what_is_not_settled_is_looked_at_again(database: Database) -> None:
    orders = Projections(database, MODULE, options={"matching": "off"})
    await orders.feed(said("order.paid", "evt_1", trust=Trust.READ, order_id="A1"))
    await orders.relay()
    await ran(database, "A1", "succeeded")
    async with database.reading() as session:
        recorded_at = await session.scalar(select(taken.EVENTS.c.recorded_at).where(taken.EVENTS.c.seq > 1))
        assert recorded_at is not None
        assert (await taken.further(session, recorded_at + taken.SETTLED_AFTER - timedelta(seconds=1)))[0] is None
        assert (await taken.further(session, recorded_at + taken.SETTLED_AFTER))[0] is not None


@pytest.mark.parametrize("status", ["retrying", "parked", "dead"])
async def test_a_run_that_is_not_done_waits(database: Database, status: str) -> None:
    # case: O5
    orders = Projections(database, MODULE, options={"matching": "off"})
    await orders.feed(said("order.paid", "evt_1", trust=Trust.READ, order_id="A1"))
    await orders.relay()
    await ran(database, "A1", "succeeded", status)
    assert await waiting(database) == {("default", status): (1, timedelta(days=1))}


@pytest.mark.parametrize("status", ["retrying", "parked", "dead"])
async def test_it_is_seen_behind_all_else_that_its_handler_has_not_done(
    database: Database, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler of `*` that broke has far more runs than are looked at."""
    monkeypatch.setattr(unfulfilled_, "NEWEST", 2)
    orders = Projections(database, MODULE, options={"matching": "off"})
    others = [said("product.created", f"evt_{number}") for number in range(3)]
    await orders.feed(*others, said("order.paid", "evt_9", order_id="A1"))
    made = [
        Run(application="default", event_id=one.id, handler="shop:ship0", seq=0, key=f"a{one.id}", next_at=START,
            status=RunStatus(status), blocking=False)
        for one in others
    ]  # fmt: skip
    async with database.transaction() as session:
        await runs_.add(session, made, START)
    await orders.relay()
    await ran(database, "A1", status)
    assert await waiting(database) == {("default", status): (1, timedelta(days=1))}


async def test_a_held_order_waits(database: Database) -> None:
    # case: O5, F20, F21
    orders = Projections(database, MODULE, options={"matching": "on"})
    await orders.feed(said("order.paid", "evt_1", order_id="A1", at=START + timedelta(hours=1), application="other"))
    assert await waiting(database) == {("other", "held"): (1, timedelta(hours=23))}
    await orders.feed(own("fulfilment.released", "order:A1", {"by": "op"}, application="other"))
    assert set(await waiting(database)) == {("other", "unsent")}


@pytest.mark.parametrize("status", ["retrying", "parked", "dead"])
async def test_a_proof_that_is_not_worked_off_counts_too(database: Database, status: str) -> None:
    """Money was taken and the order is not even known to be paid: the handler of the proof itself fails. Case O5."""
    proof = said("order.paid", "evt_1", trust=Trust.READ, order_id="A1")
    async with database.transaction() as session:
        [seq] = (await events.record(session, [proof], START)).values()
        run = Run(
            application="default",
            event_id=proof.id,
            handler=PROVES,
            seq=seq,
            key=proof.key,
            status=RunStatus(status),
            blocking=True,
        )
        await runs_.add(session, [run], START)
    assert list(await waiting(database)) == [("default", status)]


def test_the_handler_of_the_proof_is_called_so() -> None:
    found = declared(order_paid)
    assert found is not None
    assert found.name == PROVES


async def test_an_order_that_is_being_asked_for_can_be_found(database: Database) -> None:
    # case: O5, F24
    orders = Projections(database, MODULE)
    for number, id_ in enumerate(["A2", "A1"]):
        at = START + timedelta(minutes=number)
        await orders.feed(said("order.paid", f"evt_{id_}", trust=Trust.READ, order_id=id_, at=at, arrives=at))
    async with database.reading() as session:
        held = await longest_held(session)
    assert [(one.application, one.order_id, one.hold) for one in held] == [
        ("default", "A2", "asked"),
        ("default", "A1", "asked"),
    ]
    async with database.reading() as session:
        assert len(await longest_held(session, limit=1)) == 1


async def read_in_vain(database: Database, status: str) -> None:
    """A read has shown order A1 so, and what works that off is dead."""
    shown = observed("order:A1", 10, {"order_id": "A1", "status": status})
    seen = Observed(application="default", kind="order", object_id="A1", version=10, digest="d", read_at=START,
                    state=f"{status}|9")  # fmt: skip
    async with database.transaction() as session:
        [seq] = (await events.record(session, [shown], START)).values()
        run = Run(application="default", event_id=shown.id, handler=OBSERVES, seq=seq, key=shown.key,
                  status=RunStatus.DEAD, blocking=True)  # fmt: skip
        await runs_.add(session, [run], START)
        await observations.keep(session, [seen])


@pytest.mark.parametrize(("status", "waits"), [("PAID", [("default", "dead")]), ("PENDING", [])])
async def test_so_does_a_read_that_shows_it_paid(database: Database, status: str, waits: list[tuple[str, str]]) -> None:
    # case: O5
    await read_in_vain(database, status)
    assert list(await waiting(database)) == waits


async def test_a_further_read_of_an_order_that_is_known_to_be_paid_does_not(database: Database) -> None:
    # case: O5
    orders = Projections(database, MODULE, options={"matching": "off"})
    await orders.feed(said("order.paid", "evt_1", trust=Trust.READ, order_id="A1"))
    await orders.relay()
    await ran(database, "A1", "succeeded")
    await read_in_vain(database, "PAID")
    assert await waiting(database) == {}


def test_the_handler_of_such_a_read_is_called_so() -> None:
    found = declared(order_observed)
    assert found is not None
    assert found.name == OBSERVES
