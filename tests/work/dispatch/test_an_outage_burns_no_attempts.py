"""While what a handler depends on does not answer, its runs wait; afterwards all succeed, none is dead (case R11)."""

from __future__ import annotations

import errno
from collections import Counter
from typing import NoReturn

import pytest

from consumer.broker import Broker
from consumer.ledger import Database
from consumer.ledger.handling import handlers, runs
from consumer.plugin import Context, Event, declared, handles
from tests.support.handling.live import Live
from tests.support.ports import eventually
from tests.work.workshop import Workshop, order_paid

EVENTS = 60


# case: R11, G5
@pytest.mark.slow
async def test_nothing_dies_and_everything_is_caught_up(database: Database, broker: Broker) -> None:
    answers = False
    calls: Counter[str] = Counter()
    shipped: set[str] = set()
    fine: set[str] = set()

    @handles("order.paid", attempts=3, first_wait_s=0.01, max_wait_s=0.05)
    async def ship(event: Event, ctx: Context) -> None:
        calls[event.id] += 1
        if not answers:
            raise ConnectionRefusedError("the warehouse does not answer")
        shipped.add(event.id)

    @handles("order.paid")
    async def mail(event: Event, ctx: Context) -> None:
        fine.add(event.id)

    shop = Workshop(database, broker, [ship, mail])
    await shop.publish(*[order_paid(number) for number in range(EVENTS)])
    async with shop.working():
        await eventually(lambda: shop.figure("consumer_work_breaker_open", handler="ship") == 1)
        await eventually(lambda: len(fine) == EVENTS, what="the other handler is not held up")
        # The outage lasts for several probes: far more failures than attempts, had they been counted.
        before = sum(calls.values())
        await eventually(lambda: sum(calls.values()) >= before + 2, within_s=20)
        async with database.reading() as session:
            row = next(one for one in await handlers.everyone(session) if one.name.endswith("ship"))
        assert row.waiting_since is not None
        assert "does not answer" in (row.waiting_reason or "")
        answers = True
        await eventually(lambda: len(shipped) == EVENTS, within_s=20)
        await eventually(lambda: shop.all_succeeded(2 * EVENTS), within_s=20)
    # The failures before it opened are few: each handler has 16 places, and only so many were under way.
    assert sum(calls.values()) < 3 * EVENTS
    assert shop.figure("consumer_work_breaker_open", handler="ship") == 0


# case: R10, R11
@pytest.mark.slow
async def test_an_event_that_never_gets_through_is_told_from_an_outage_by_others(
    database: Database, broker: Broker
) -> None:
    """It alone opens the breaker and waits; each later event is the probe, closes it, and so the poison dies."""
    shipped: list[str] = []

    @handles("order.paid", attempts=7, first_wait_s=0.01, max_wait_s=0.02)
    async def ship(event: Event, ctx: Context) -> None:
        if event.id == "evt_poison":
            raise ConnectionRefusedError("its own address does not answer")
        shipped.append(event.id)

    shop = Workshop(database, broker, [ship])
    await shop.publish(order_paid("poison"))
    async with shop.working():
        await eventually(lambda: shop.figure("consumer_work_breaker_open", handler="ship") == 1)

        async def told() -> bool:
            async with database.reading() as session:
                row = next(one for one in await handlers.everyone(session) if one.name.endswith("ship"))
            return "only default/evt_poison" in (row.waiting_reason or "")

        await eventually(told, within_s=10)
        assert await shop.statuses("ship") == ["retrying"]
        for number in range(12):
            await shop.publish(order_paid(number))
            await eventually(lambda number=number: f"evt_{number}" in shipped, within_s=20)  # type: ignore[misc]  # bound now
            if "dead" in await shop.statuses("ship"):
                break
        await eventually(lambda: shop.count("ship", "dead", 1), within_s=20)
    assert (await shop.runs("ship"))[0].attempts == 7
    assert set((await shop.statuses("ship"))[1:]) == {"succeeded"}


# case: R11, G8
@pytest.mark.slow
async def test_an_outage_of_one_shop_s_warehouse_costs_it_no_attempts_while_another_s_answers(
    database: Database, broker: Broker
) -> None:
    answers = False
    calls: Counter[str] = Counter()
    shipped: set[str] = set()

    @handles("order.paid", attempts=2, first_wait_s=0.01, max_wait_s=0.02)
    async def ship(event: Event, ctx: Context) -> None:
        calls[event.application] += 1
        if event.application == "far" and not answers:
            raise ConnectionRefusedError("its warehouse does not answer")
        shipped.add(event.id)

    async def whose_waits() -> bool:
        async with database.reading() as session:
            [row] = await handlers.everyone(session)
        return (row.waiting_reason or "").startswith("only far: ")

    shop = Workshop(database, broker, [ship], applications=("near", "far"))
    async with shop.working():
        for number in range(40):
            here, there = f"near-{number}", f"far-{number}"
            await shop.publish(order_paid(here, application="near"))
            await shop.publish(order_paid(there, application="far"))
            await eventually(lambda here=here: f"evt_{here}" in shipped)  # type: ignore[misc]  # bound now
        assert await shop.count("ship", "dead", 0)
        assert shop.figure("consumer_work_breaker_open", handler="ship") == 1
        assert calls["far"] < 40, "what waits is not tried"
        await eventually(whose_waits)
        answers = True
        await eventually(lambda: shop.all_succeeded(80), within_s=30)
    assert shop.figure("consumer_work_breaker_open", handler="ship") == 0


# case: R10, R11, G8
@pytest.mark.slow
async def test_one_order_that_never_gets_through_holds_up_its_shop_no_longer_than_where_it_is_the_only_shop(
    database: Database, broker: Broker
) -> None:
    shipped: set[str] = set()
    tried: Counter[str] = Counter()

    @handles("order.paid", attempts=7, first_wait_s=0.01, max_wait_s=0.02)
    async def ship(event: Event, ctx: Context) -> None:
        tried[event.id] += 1
        if event.id == "evt_poison":
            raise ConnectionRefusedError("its own address does not answer")
        shipped.add(event.id)

    shop = Workshop(database, broker, [ship], applications=("near", "far"))
    async with shop.working():
        await shop.publish(order_paid("near", application="near"))
        await eventually(lambda: "evt_near" in shipped)
        await shop.publish(order_paid("poison", application="far"))
        await eventually(
            lambda: tried["evt_poison"] >= 6 and shop.figure("consumer_work_breaker_open", handler="ship") == 1
        )
        await shop.publish(*[order_paid(f"good-{number}", application="far") for number in range(3)])
        await eventually(lambda: {f"evt_good-{number}" for number in range(3)} <= shipped, within_s=20)
        await eventually(lambda: shop.count("ship", "dead", 1), within_s=30)


# case: R11
@pytest.mark.parametrize("breaker_after", [1, 0])
@pytest.mark.parametrize(
    "error", [OSError(errno.EMFILE, "too many open files"), RuntimeError("can't start new thread")], ids=str
)
async def test_a_probe_that_cannot_begin_here_costs_no_attempt_and_another_follows(
    sqlite_ledger: Database, monkeypatch: pytest.MonkeyPatch, breaker_after: int, error: Exception
) -> None:
    """The process can make no loop for it: the breaker stayed half-open until a restart."""
    answers = False

    @handles("order.paid", name="test:ship", attempts=2, breaker_after=breaker_after)
    async def ship(event: Event, ctx: Context) -> None:
        if not answers:
            raise ConnectionRefusedError("the warehouse does not answer")

    def no_loop(_: object) -> NoReturn:
        raise error

    found = declared(ship)
    assert found is not None
    live = Live(sqlite_ledger, {}, application="default", more=[found])
    pool = live._executor.pool
    try:
        await live.arrive(order_paid(1))
        assert await live.make_up() == 1
        with monkeypatch.context() as patch:
            patch.setattr(pool, "_home", no_loop)
            live.clock.advance(60)
            assert await live.make_up() == 1
            live.clock.advance(60)
            assert await live.make_up() == 1
        assert pool._calls == set()
        answers = True
        await live.pass_time(300)
        assert await live.unfinished() == []
        async with sqlite_ledger.reading() as session:
            [run] = await runs.of_event(session, "default", "evt_1")
        assert (run.status, run.attempts) == ("succeeded", 2 if breaker_after == 0 else 1)
    finally:
        await live.close()
