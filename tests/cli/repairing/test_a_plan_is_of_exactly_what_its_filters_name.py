"""Each filter of `replay plan` names exactly what it says, also events that do not name their customer; what is
mistyped is refused; and a new effect key is asked for, and given, wherever it was said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime

import pytest
from sqlalchemy import Table, select

from consumer.broker import Broker
from consumer.cli.repairing.replay_filter import with_belongings
from consumer.ledger import Database
from consumer.ledger.plans import candidates
from consumer.ledger.plans.candidates import PlanFilter
from consumer.ledger.tables import RunRow
from consumer.plugin import Context, Event, declared, handles, idempotency_key
from tests.replay.stage import Shop
from tests.support.desk import Desk
from tests.support.handling.live import Live
from tests.support.handling.projections import observed, said

RUNS: Table = RunRow.__table__
Found = set[tuple[str, str]]


@dataclass(frozen=True)
class History:
    """Two customers, an order each, and cu-B's subscription: every effect of them died. `half`: between the orders."""

    database: Database
    dead: dict[tuple[str, str], RunRow]
    half: datetime

    async def planned(self, **filters: object) -> Found:
        """(type, key) of what a plan with these filters holds."""
        async with self.database.reading() as session:
            wanted = await with_belongings(session, PlanFilter(**filters))  # type: ignore[arg-type]  # as typed
            found, is_more = await candidates.pairs(session, wanted, (), 1_000)
        assert not is_more
        return {(pair.type, pair.key) for pair in found}


@pytest.fixture
async def history(database: Database) -> AsyncIterator[History]:
    @handles(
        "fulfilment.requested", "order.paid", "access.granted", "subscription.active", attempts=1, name="shop:ship"
    )
    async def ship(event: Event, ctx: Context) -> None:
        if event.type == "access.granted":
            raise LookupError("no such door")
        raise ValueError("the shop is broken")

    made = declared(ship)
    assert made is not None
    live = Live(database, {"fulfilment": {}, "access": {}}, application="default", more=[made])
    half = live.clock.now()
    for name in ("A", "B"):
        half = live.clock.now()
        await live.register(f"s-{name}", order_id=name, customer=f"cu-{name}", expected_amount="10")
        await live.pass_time(1)
        await live.arrive(said("order.paid", f"evt_{name}", at=live.clock.now(), order_id=name, amount="10"))
        await live.pass_time(1)
    record = {"status": "ACTIVE", "price_id": "p", "customer_reference": "cu-B"}
    await live.arrive(
        said("subscription.active", "evt_S", at=live.clock.now(), id="S1", customer_reference="cu-B"),
        observed("subscription:S1", 1, record, at=live.clock.now()),
    )
    await live.pass_time(1)
    async with database.reading() as session:
        rows = (await session.execute(select(RunRow).where(RUNS.c.status == "dead"))).scalars().all()
    dead = {(row.event_id, row.key): row for row in rows}
    yield History(database, dead, half)
    await live.close()


A = {("order.paid", "order:A"), ("fulfilment.requested", "order:A")}
PARKED = "fulfilment.requested"
B = {("order.paid", "order:B"), ("fulfilment.requested", "order:B")}
S = {("subscription.active", "subscription:S1"), ("access.granted", "customer:cu-B")}


# case: R2
async def test_each_filter_is_of_exactly_what_it_names(history: History) -> None:
    plans = {
        "customer": {"cu-A": A, "cu-B": B | S},
        "order": {"A": A, "B": B},
        "subscription": {"S1": S},
        "event": {"evt_A": A, "evt_S": {("subscription.active", "subscription:S1")}},
    }
    assert await history.planned() == A | B | S
    for name, expected in plans.items():
        for value, wanted in expected.items():
            assert await history.planned(**{name: value}) == wanted, (name, value)
    granted = history.dead[next(one for one in history.dead if one[1] == "customer:cu-B")]
    assert await history.planned(type="order.paid") == {("order.paid", "order:A"), ("order.paid", "order:B")} | A | B
    assert await history.planned(type="access.*") == {("access.granted", "customer:cu-B")}
    assert await history.planned(since=history.half) == B | S
    assert await history.planned(until=history.half) == A
    assert await history.planned(fingerprint=granted.fingerprint) == {("access.granted", "customer:cu-B")}
    assert await history.planned(reason_code=granted.code, customer="cu-A") == A
    assert await history.planned(customer="cu-B", type="access.*") == {("access.granted", "customer:cu-B")}
    assert await history.planned(customer="cu-B", status="retrying") == set()


# case: R2
async def test_events_and_dead_runs_are_listed_by_whose_they_are(history: History, database_url: str) -> None:
    """Also those that name an order or a subscription, and not the customer. What waits behind is not dead."""
    desk = Desk({"CONSUMER_DATABASE_URL": database_url, "CONSUMER_LOG_LEVEL": "error"})
    for customer, theirs in (("cu-A", A), ("cu-B", B | S)):
        listed = (await asyncio.to_thread(desk.ask, "events", "list", "--customer", customer))["events"]
        assert {(one["type"], one["key"]) for one in listed} >= theirs
        assert {one["key"] for one in listed} == {key for _, key in theirs}
        assert [one["received_at"] for one in listed] == sorted((one["received_at"] for one in listed), reverse=True)
        dead = (await asyncio.to_thread(desk.ask, "dead", "list", "--customer", customer))["dead"]
        assert {(one["type"], one["key"]) for one in dead} == {one for one in theirs if one[0] != PARKED}
    words = ("--customer", "cu-B", "--type", "access.*", "--application", "default")
    for group in ("events", "dead"):
        [one] = (await asyncio.to_thread(desk.ask, group, "list", *words))[group]
        assert one["key"] == "customer:cu-B"
        assert (await asyncio.to_thread(desk.ask, group, "list", *words, "--event", "evt_A"))[group] == []
        refused = await asyncio.to_thread(desk.ask, group, "list", "--customer", "nobody", code=1)
        assert "nothing is known of this customer" in refused
    done = await asyncio.to_thread(desk.ask, "dead", "redrive", "--customer", "cu-A", "--reason", "mended", "--yes")
    assert done["changed"] == 1, "and of nobody else"


# case: R10
async def test_events_are_listed_by_what_their_runs_died_of(history: History, database_url: str) -> None:
    desk = Desk({"CONSUMER_DATABASE_URL": database_url, "CONSUMER_LOG_LEVEL": "error"})
    granted = history.dead[next(one for one in history.dead if one[1] == "customer:cu-B")]
    words = ("events", "list", "--fingerprint", str(granted.fingerprint))
    [one] = (await asyncio.to_thread(desk.ask, *words))["events"]
    assert (one["type"], one["key"]) == ("access.granted", "customer:cu-B")
    refused = await asyncio.to_thread(desk.ask, "events", "list", "--fingerprint", "0" * 16, code=2)
    assert "no run died of this" in refused


# case: R2
@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("--event", "evt_nope"), 1, "no event has this id"),
        (("--order", "nope-1"), 1, "nothing is known of this order"),
        (("--subscription", "nope-1"), 1, "nothing is known of this subscription"),
        (("--customer", "nobody"), 1, "nothing is known of this customer"),
        (("--application", "nope"), 2, "there is no such application"),
        (("--since", "2h", "--until", "3h"), 2, "--until must be later"),
        (("--new-effect-key",), 2, "goes with --force"),
    ],
)
async def test_what_is_mistyped_is_refused_and_nothing_is_stored(
    sqlite_ledger: Database, desk: Desk, words: tuple[str, ...], code: int, told: str
) -> None:
    refused = await asyncio.to_thread(desk.ask, "replay", "plan", *words, code=code)
    assert told in refused
    assert refused.count("\n") == 1, "one line"
    assert await asyncio.to_thread(desk.ask, "replay", "list") == {"plans": [], "more": False}


# case: R5
async def test_a_dead_run_gets_a_new_effect_key_where_that_was_said(sqlite_ledger: Database, broker: Broker) -> None:
    shop = Shop(sqlite_ledger, broker)
    async with shop.with_dead_mail():
        plan = await shop.replaying().plan(handler="shop:mail", forced=True, reason="lost", renews_keys=True)
        assert plan["actions"] == {"retry": 1}
        [renewed] = plan["effects"]["shop:mail"]["idempotency_keys"]
        assert (await shop.replaying().apply(plan)).is_as_planned
    assert [key for name, key in shop.keys if name == "mail"] == [renewed]
    assert renewed != idempotency_key("default", "evt_1", "shop:mail")
