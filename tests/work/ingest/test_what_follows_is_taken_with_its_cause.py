"""What a transactional handler emits for its event's own key is taken with it, in one transaction, as if it had come by
the log; and what comes by the log is overtaken by none of its key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import column, select, table

from consumer.broker import Broker
from consumer.events import Event, Locators
from consumer.ledger import Database
from consumer.ledger.handling import events, outbox
from consumer.ledger.handling.outbox import Emitted, derived_event
from consumer.ledger.tables import EventRow, OutboxRow, RunRow
from consumer.plugin import Context, Emission, Reject, declared, derived_id, handles
from consumer.wire import SEED, pack_event, unpack_event
from consumer.work.ingest import onwards
from consumer.work.ingest.onwards import EVENTS_MAX, GENERATIONS
from consumer.work.outbound.relay import Relay
from tests.support.handling.live import Live
from tests.support.ports import eventually
from tests.work.workshop import AT, Workshop, order_paid, service_event

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
OUTBOX = OutboxRow.__table__


def live(database: Database, *functions: Any) -> Live:
    """A worker's ingest with these handlers, which takes what follows with its cause."""
    found = [declared(one) for one in functions]
    more = [one for one in found if one is not None]
    return Live(database, {}, application="default", more=more, generations=GENERATIONS)


def emitting(key: Callable[[Event], str] = lambda event: event.key, **given: Any) -> Any:
    """A projection that derives `shop.seen` of each `order.paid`, for this key."""

    @handles("order.paid", transactional=True, name="test:project")
    async def project(event: Event, ctx: Context) -> None:
        ctx.emit("shop.seen", key(event), {"of": event.id}, **given)

    return project


@handles("shop.seen", name="test:ship")
async def ship(event: Event, ctx: Context) -> None:
    """An effect; who looks at its run needs no more."""


async def recorded(database: Database, event_type: str = "shop.seen") -> list[EventRow]:
    """The events of this type, by arrival."""
    async with database.reading() as session:
        wanted = select(EventRow).where(EventRow.__table__.c.type == event_type)
        return list((await session.execute(wanted.order_by(EventRow.__table__.c.seq))).scalars())


async def on_way(database: Database) -> list[bool]:
    """Of what was emitted, in that order, what comes by the log and has not come."""
    async with database.reading() as session:
        return [bool(one) for one in await session.scalars(select(OUTBOX.c.on_way).order_by(OUTBOX.c.seq))]


async def runs(database: Database, handler: str = "test:ship") -> dict[str, str]:
    """Event id to state, by arrival."""
    async with database.reading() as session:
        rows = (await session.execute(select(RunRow).order_by(RunRow.__table__.c.seq))).scalars()
        return {row.event_id: row.status for row in rows if row.handler == handler}


# case: H1, F1
async def test_it_is_recorded_as_the_log_would_bring_it_and_its_handlers_have_runs(database: Database) -> None:
    shop = live(database, emitting(), ship)
    taken = await shop.arrive(order_paid(1), order_paid(2))
    assert (len(taken.recorded), taken.duplicates, taken.emitted) == (4, 0, 0)
    seen = await recorded(database)
    assert [row.key for row in seen] == ["order:order-1", "order:order-2"]
    assert await runs(database) == {row.id: "retrying" for row in seen}
    async with database.reading() as session:
        rows = (await session.execute(select(OUTBOX).order_by(OUTBOX.c.seq))).all()
        kept = await events.load(session, [("default", row.id) for row in seen])
    for row in rows:
        packed = pack_event(derived_event(row), plan=row.plan)
        as_it_comes = unpack_event(packed.key, packed.value, packed.headers, Locators())
        assert kept["default", row.event_id] == as_it_comes


async def test_the_copy_that_the_relay_publishes_changes_nothing(database: Database) -> None:
    shop = live(database, emitting(), ship)
    await shop.arrive(order_paid(1))
    assert await shop.make_up() == 1
    before = await runs(database)
    assert await shop.relay() == 1, "others read the log, too"
    assert await shop.relay() == 0
    assert await runs(database) == before
    assert set(before.values()) == {"succeeded"}
    assert len(await recorded(database)) == 1


async def test_transactional_handlers_go_on_as_far_as_is_bounded_and_the_log_brings_the_rest(
    database: Database,
) -> None:
    @handles("order.paid", "shop.step", transactional=True, name="test:steps")
    async def steps(event: Event, ctx: Context) -> None:
        number = event.find("/data/number") or 0
        if number < GENERATIONS + 2:
            ctx.emit("shop.step", event.key, {"number": number + 1}, once=str(number))

    shop = live(database, steps)
    taken = await shop.arrive(order_paid(1))
    assert (len(taken.recorded), taken.emitted) == (1 + GENERATIONS, 1)
    assert await on_way(database) == [False] * GENERATIONS + [True]
    await shop.relay()
    assert len(await recorded(database, "shop.step")) == GENERATIONS + 2
    assert set((await runs(database, "test:steps")).values()) == {"succeeded"}
    assert not any(await on_way(database))


@pytest.mark.parametrize(
    ("given", "plan"),
    [
        ({"key": lambda event: f"customer:{event.id}"}, None),
        ({"not_before": NOW + timedelta(days=999)}, None),
        ({}, SEED),
        ({}, "rpl_1"),
    ],
    ids=["of another key", "not yet due", "of a seed", "of a replay"],
)
async def test_what_the_log_might_bring_to_another_or_later_goes_by_the_log(
    database: Database, given: dict[str, Any], plan: str | None
) -> None:
    shop = live(database, emitting(**given), ship)
    taken = await shop.arrive(order_paid(1), plan=plan)
    assert taken.emitted == (0 if "not_before" in given else 1), "the relay has something to do, or not yet"
    assert (await recorded(database), await on_way(database)) == ([], [True])


# case: G2
@pytest.mark.parametrize("is_published", [False, True], ids=["in the outbox", "in the log"])
async def test_none_overtakes_one_of_its_key_that_is_on_its_way(database: Database, *, is_published: bool) -> None:
    """Another event's, of another key, emitted for this key before."""
    shop = live(database, emitting(), ship)
    first = Emission(id="drv_first", type="shop.seen", key="order:a", data={})
    async with database.transaction() as session:
        cause = replace(order_paid(9), key="customer:c")
        await outbox.put(session, [Emitted(emission=first, cause=cause, handler="x")], shop.clock.now())
        rows = await outbox.due(session, shop.clock.now(), 10)
        if is_published:
            await outbox.mark_published(session, rows, shop.clock.now())
    taken = await shop.arrive(order_paid(1, "a"), order_paid(2, "b"))
    assert taken.emitted == 1
    assert [row.key for row in await recorded(database)] == ["order:b"]
    await shop.arrive(derived_event(rows[0]))
    await shop.relay()
    assert next(row.id for row in await recorded(database) if row.key == "order:a") == "drv_first"
    assert await on_way(database) == [False] * 3
    await shop.arrive(order_paid(3, "a"))
    assert len(await recorded(database)) == 4, "what was on its way has come"


# case: G2, O9
async def test_none_overtakes_what_a_worker_that_knows_no_marks_emitted(database: Database) -> None:
    """Beside code from before `ledger_0020`, in a rolling deploy: it names the columns that it knows."""
    shop = live(database, emitting(), ship)
    now = shop.clock.now()
    before = {"application": "default", "event_id": "drv_before", "type": "shop.seen", "key": "order:a", "data": b"{}",
              "not_before": now, "created_at": now, "cause": "evt_before", "handler": "x"}  # fmt: skip
    old = table("outbox", *(column(name, OUTBOX.c[name].type) for name in before))
    async with database.transaction() as session:
        await session.execute(old.insert(), before)
    await shop.arrive(order_paid(1, "a"), order_paid(2, "b"))
    assert [row.key for row in await recorded(database)] == ["order:b"]
    async with database.reading() as session:
        rows = await outbox.due(session, now, 10)
    await shop.arrive(derived_event(rows[0]))
    await shop.relay()
    assert next(row.id for row in await recorded(database) if row.key == "order:a") == "drv_before"
    assert await on_way(database) == [False] * 3


async def test_a_timer_that_is_not_due_is_overtaken(database: Database) -> None:
    @handles("order.paid", transactional=True, name="test:timers")
    async def timers(event: Event, ctx: Context) -> None:
        ctx.emit("shop.late", event.key, {}, ctx.now + timedelta(hours=1))
        ctx.emit("shop.seen", event.key, {})

    shop = live(database, timers, ship)
    assert (await shop.arrive(order_paid(1))).emitted == 0
    assert (await on_way(database), len(await runs(database))) == ([True, False], 1)
    await shop.pass_time(3601, steps=1)
    assert len(await recorded(database, "shop.late")) == 1
    assert not any(await on_way(database))


async def test_one_that_was_emitted_already_comes_as_it_was(database: Database) -> None:
    """Not at once because it is emitted again without its time; and of two in a batch the first is taken."""
    shop = live(database, emitting(once="one"), ship)
    later = Emission(
        id=order_event(shop, "a"), type="shop.seen", key="order:a", data={}, not_before=NOW.replace(year=2030)
    )
    async with database.transaction() as session:
        given = Emitted(emission=later, cause=order_paid(9, "a"), handler="test:project")
        await outbox.put(session, [given], shop.clock.now())
    await shop.arrive(order_paid(1, "a"), order_paid(2, "b"), order_paid(3, "b"))
    [seen] = await recorded(database)
    assert (seen.key, b'"of":"evt_2"' in seen.raw) == ("order:b", True)


def order_event(shop: Live, order: str) -> str:
    """The id of what the projection derives of this order."""
    return derived_id(shop.application, "shop.seen", f"order:{order}", "one")


# case: G2, H3
async def test_it_waits_behind_an_earlier_run_of_its_lane(database: Database) -> None:
    @handles("shop.seen", name="test:ship")
    async def never(event: Event, ctx: Context) -> None:
        raise Reject("never")

    shop = live(database, emitting(), never)
    await shop.arrive(order_paid(1, "a"), order_paid(2, "a"))
    await shop.arrive(order_paid(3, "a"))
    assert list((await runs(database)).values()) == ["retrying", "parked", "parked"]
    await shop.make_up()
    assert list((await runs(database)).values()) == ["dead", "parked", "parked"]


# case: H3, H4
async def test_one_that_fails_undoes_nothing_of_its_cause(database: Database) -> None:
    """The batch is taken apart, and what was emitted comes by the log."""
    calls: list[str] = []

    @handles("shop.seen", transactional=True, name="test:seen")
    async def seen(event: Event, ctx: Context) -> None:
        calls.append(event.type)
        raise Reject("never")

    shop = live(database, emitting(), seen)
    taken = await shop.arrive(order_paid(1))
    assert (await runs(database, "test:project"), taken.emitted) == ({"evt_1": "succeeded"}, 1)
    assert (await recorded(database), await runs(database, "test:seen"), calls) == ([], {}, ["shop.seen"])
    await shop.relay()
    assert list((await runs(database, "test:seen")).values()) == ["dead"]


def test_behind_one_that_goes_by_the_log_all_of_its_key_go_there() -> None:
    def emitted(number: int, key: str, **given: Any) -> Emitted:
        emission = Emission(id=f"drv_{number}", type="x.y", key=key, data={}, not_before=given.pop("not_before", None))
        return Emitted(emission=emission, cause=service_event("evt_1", "order.paid", "a"), handler="h", **given)

    def by_log(given: Sequence[Emitted]) -> list[bool]:
        found = onwards.at_hand(given, AT, room=5)
        assert [one.emission for one in found] == [one.emission for one in given]
        return [one.by_log for one in found]

    mine, other = "order:a", "order:b"
    assert by_log([emitted(1, mine), emitted(2, other), emitted(3, mine)]) == [False, True, False]
    assert by_log([emitted(1, mine, plan="rpl_1"), emitted(2, mine)]) == [True, True]
    assert by_log([emitted(1, mine, not_before=AT + timedelta(days=1)), emitted(2, mine)]) == [True, False]
    assert by_log([emitted(1, mine, not_before=AT)]) == [False]
    many = by_log([emitted(number, mine) for number in range(7)])
    assert many == [False] * 5 + [True] * 2


# case: F1
async def test_a_transaction_has_no_more_events_than_a_full_batch(database: Database) -> None:
    shop = live(database, emitting(), ship)
    taken = await shop.arrive(*[order_paid(number) for number in range(EVENTS_MAX - 2)])
    assert (len(taken.recorded), taken.emitted) == (EVENTS_MAX, EVENTS_MAX - 4)
    await shop.relay()
    assert len(await runs(database)) == EVENTS_MAX - 2


# case: F1, H1
async def test_an_effect_is_begun_while_nobody_publishes(
    database: Database, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = asyncio.Event()
    publish = Relay.once
    published: list[int] = []

    async def nothing(self: Relay) -> int:
        return 0

    @handles("shop.seen")
    async def send(event: Event, ctx: Context) -> None:
        shipped.set()

    monkeypatch.setattr(Relay, "once", nothing)
    shop = Workshop(database, broker, [emitting(), send])
    await shop.publish(order_paid(1))
    async with shop.working():
        await asyncio.wait_for(shipped.wait(), 10)
        assert await on_way(database) == [False]

        async def counted(self: Relay) -> int:
            published.append(await publish(self))
            return published[-1]

        monkeypatch.setattr(Relay, "once", counted)
        await eventually(lambda: 1 in published, what="others read the log, too")
        await eventually(lambda: shop.all_succeeded(2))
