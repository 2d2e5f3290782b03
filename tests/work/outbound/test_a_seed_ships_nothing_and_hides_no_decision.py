"""What a seed brings causes no effect, whatever shows those orders later; what is decided of today's access because of
it is told all the same: nothing else would correct what was told before."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from consumer.events import Event, Source, Trust
from consumer.ledger import Database
from consumer.ledger.reading.read_requests import due
from consumer.plugin import Context, Handler, declared, handles
from consumer.wire import SEED
from handlers.findings import open_finding
from handlers.fulfilment.tables import FINDINGS, ORDERS
from tests.access.test_rebuild import live_in, rebuild, same_after_rebuild
from tests.support.handling.live import Live
from tests.support.handling.projections import START, observed, said

TOLD: list[tuple[str, str]] = []


@handles("fulfilment.requested", "access.granted", "access.revoked", name="shop:tell")
async def tell(event: Event, ctx: Context) -> None:
    TOLD.append((event.type, event.key))


def teller() -> Handler:
    found = declared(tell)
    assert found is not None
    return replace(found, plugin="shop")


@pytest.fixture
async def live(database: Database) -> AsyncIterator[Live]:
    TOLD.clear()
    plugins: Mapping[str, Mapping[str, Any]] = {"access": {}, "fulfilment": {}}
    made = Live(database, plugins, application="default", more=[teller()])
    yield made
    await made.close()


def listed(type_: str, id_: str, *, age: timedelta = timedelta(days=90), **object_: Any) -> Event:
    """As a walk found it."""
    event = said(type_, id_, at=START - age, **object_)
    return replace(event, source=Source.BACKFILL, trust=Trust.READ, received_at=START)


async def asked(live: Live) -> set[tuple[str, str]]:
    async with live.database.reading() as session:
        found = await due(session, live.clock.now() + timedelta(days=1), 100, live.application)
    return {(row.kind, row.object_id) for row in found}


# case: B30, F20
@pytest.mark.parametrize("status", ["PAID", "PENDING"])
async def test_an_order_that_history_names_by_the_services_id_alone_is_not_shipped_once_it_is_read(
    live: Live, status: str
) -> None:
    await live.arrive(listed("order.paid", "evt_1", id="so1"), plan=SEED)
    assert await asked(live) == set()
    for version, word in enumerate((status, "PAID"), 1):
        await live.arrive(observed("order:A1", version, {"id": "so1", "order_id": "A1", "status": word}))
        await live.pass_time(60)
    async with live.database.reading() as session:
        [order] = (await session.execute(ORDERS.select())).mappings().all()
    assert (order["paid_at"] is not None, order["requested_at"] is not None, order["hold"]) == (True, True, None)
    assert TOLD == []


# case: B30, F20
async def test_one_that_is_paid_now_is_shipped_beside_it(live: Live) -> None:
    await live.arrive(listed("order.paid", "evt_1", id="so1"), plan=SEED)
    await live.arrive(said("order.paid", "evt_2", at=START, id="so2"))
    assert await asked(live) == {("service_order", "so2")}
    read = [observed(f"order:A{n}", n, {"id": f"so{n}", "order_id": f"A{n}", "status": "PAID"}) for n in (1, 2)]
    await live.arrive(*read)
    await live.pass_time(60)
    assert TOLD == [("fulfilment.requested", "order:A2")]


# case: B30, F5, F9
@pytest.mark.parametrize(
    "seeded",
    [
        ("checkout.session.completed", {"id": "cs_1", "order_id": "A1"}),
        ("checkout.session.completed", {"id": "cs_1"}),
        ("checkout.session.expired", {"id": "cs_1", "order_id": "A1"}),
        ("order.expired", {"id": "so1", "order_id": "A1"}),
    ],
)
async def test_what_history_says_beside_the_payment_has_nothing_read(
    live: Live, seeded: tuple[str, dict[str, Any]]
) -> None:
    """A read shows that it is paid, and not when: it may be shipped long since."""
    type_, object_ = seeded
    await live.arrive(listed(type_, "evt_1", **object_), plan=SEED)
    assert await asked(live) == set()
    await live.arrive(said("order.paid", "evt_2", at=START, id="so1", order_id="A1"))
    await live.pass_time(60)
    assert TOLD == [("fulfilment.requested", "order:A1")], "what is paid now is shipped all the same"


# case: B30, F21
@pytest.mark.parametrize(
    "named", [{"id": "so1"}, {"id": "so1", "order_id": "A1", "amount": "9"}], ids=["thin", "whole"]
)
async def test_history_is_held_for_no_amount_so_that_nothing_lets_it_go(live: Live, named: dict[str, Any]) -> None:
    await live.register("cs_1", order_id="A1", customer="c", expected_amount="10", mode="payment")
    await live.pass_time(1)
    await live.arrive(listed("order.paid", "evt_1", **named), plan=SEED)
    for version, amount in enumerate(("9", "10"), 1):
        record = {"id": "so1", "order_id": "A1", "status": "PAID", "amount": amount}
        await live.arrive(observed("order:A1", version, record, at=live.clock.now()))
        await live.pass_time(60)
    await live.register("cs_2", order_id="A1", customer="c", expected_amount="9", mode="payment")
    await live.pass_time(60)
    assert TOLD == []


async def as_before(ctx: Context, event: Event) -> None:
    """What a version before 2026-11-30 did with a seed's thin event."""
    subject, detail = str(event.object_id), {"event_id": event.id}
    await open_finding(ctx, FINDINGS, "paid_unidentified", subject, event.received_at, detail)
    ctx.note(f"object:{subject}", "order.paid_unidentified", {}, detail)
    ctx.request_read("service_order", subject)


# case: G9, B30
@pytest.mark.parametrize("matching", ["auto", "on", "read", "off"])
@pytest.mark.parametrize("status", ["PAID", "PENDING"])
async def test_what_an_older_version_made_of_history_is_rebuilt_as_it_was(
    database: Database, monkeypatch: pytest.MonkeyPatch, matching: str, status: str
) -> None:
    async with live_in(database, options={"matching": matching}) as live:
        with monkeypatch.context() as before:
            before.setattr("handlers.fulfilment.handler._unidentified", as_before)
            before.setattr("handlers.fulfilment.lookups.PAID_BEFORE", "none")
            await live.arrive(listed("order.paid", "evt_1", id="so1"), plan=SEED)
            live.clock.advance(10)
            record = {"id": "so1", "order_id": "A1", "status": status}
            await live.arrive(observed("order:A1", 1, record, at=live.clock.now()))
            await live.pass_time(60)
        await same_after_rebuild(live, [ORDERS])


# case: B30
async def test_a_rebuild_before_the_reads_makes_history_of_what_an_older_version_seeded(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    TOLD.clear()
    async with live_in(database, more=[teller()]) as live:
        with monkeypatch.context() as before:
            before.setattr("handlers.fulfilment.handler._unidentified", as_before)
            await live.arrive(listed("order.paid", "evt_1", id="so1"), plan=SEED)
        await rebuild(live).run(live.application)
        live.clock.advance(10)
        await live.arrive(
            observed("order:A1", 1, {"id": "so1", "order_id": "A1", "status": "PAID"}, at=live.clock.now())
        )
        await live.pass_time(60)
    assert TOLD == []


# case: G9, B30
async def test_a_seed_whose_clock_was_ahead_is_rebuilt_in_its_place(database: Database) -> None:
    async with live_in(database) as live:
        live.clock.advance(1.5)
        await live.arrive(listed("order.paid", "evt_1", id="so1"), plan=SEED)
        live.clock._now -= timedelta(seconds=1.2)
        record = {"id": "so1", "order_id": "A1", "status": "PENDING"}
        await live.arrive(observed("order:A1", 1, record, at=live.clock.now()))
        await live.pass_time(60)
        await same_after_rebuild(live, [ORDERS])


# case: A1, A37, A41, B30
@pytest.mark.parametrize("age", [timedelta(days=5), timedelta(days=20)])
async def test_grace_that_history_shortens_ends_for_the_merchant_too(live: Live, age: timedelta) -> None:
    """Adopted as past due, with access; a seed tells since when it is: the timer goes off sooner, or it is over."""
    record = {"id": "S1", "status": "PAST_DUE", "customer_reference": "cus_1", "price_id": "p"}
    await live.arrive(observed("subscription:S1", 1, record))
    await live.pass_time(60)
    assert TOLD == [("access.granted", "customer:cus_1")]
    old = listed("subscription.past_due", "evt_1", age=age, id="S1", customer_reference="cus_1")
    await live.arrive(old, plan=SEED)
    await live.pass_time(timedelta(days=10).total_seconds(), steps=40)
    assert TOLD == [("access.granted", "customer:cus_1"), ("access.revoked", "customer:cus_1")]


# case: A1, A37, B30
async def test_who_is_named_by_history_alone_is_told_to_have_access(live: Live) -> None:
    record = {"id": "S1", "status": "ACTIVE", "price_id": "p"}
    await live.arrive(observed("subscription:S1", 1, record))
    await live.arrive(listed("subscription.created", "evt_1", id="S1", customer_reference="cus_1"), plan=SEED)
    await live.pass_time(60)
    assert TOLD == [("access.granted", "customer:cus_1")]


# case: B30
async def test_of_a_subscription_that_only_history_tells_nobody_is_told_anything(live: Live) -> None:
    of: dict[str, Any] = {"id": "S1", "customer_reference": "cus_1"}
    await live.arrive(listed("subscription.created", "evt_1", **of), plan=SEED)
    await live.arrive(listed("subscription.renewed", "evt_2", age=timedelta(days=60), **of), plan=SEED)
    await live.arrive(listed("subscription.ended", "evt_3", age=timedelta(days=30), **of), plan=SEED)
    await live.pass_time(timedelta(days=1).total_seconds())
    assert TOLD == []
