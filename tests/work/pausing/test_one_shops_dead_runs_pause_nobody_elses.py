"""One shop's dead runs pause nobody else's: the handler waits for that shop alone, the others' orders are shipped."""

from __future__ import annotations

from collections import Counter

import pytest
from sqlalchemy import select

from consumer.broker import Broker
from consumer.errors import LedgerUnavailable
from consumer.ledger import Database
from consumer.ledger.handling import handlers
from consumer.ledger.handling.handlers import Paused
from consumer.ledger.tables import AuditRow, RunStatus
from consumer.plugin import Context, Event, Handler, handles
from consumer.work.pausing import pauser
from consumer.work.pausing.rules import PauseRules
from tests.support.ports import eventually
from tests.work.workshop import Workshop, order_paid

SHOPS = ("far", "near")
EVENTS = 30
DEAD, DONE = RunStatus.DEAD, RunStatus.SUCCEEDED


async def paused(database: Database) -> Paused:
    async with database.reading() as session:
        return await handlers.paused(session)


# case: H9, R10
@pytest.mark.parametrize("transactional", [True, False])
async def test_the_others_go_on_and_it_does_when_it_is_resumed(
    database: Database, broker: Broker, transactional: bool
) -> None:
    mended = False

    @handles("order.paid", name="test:ship", attempts=1, pause_after=5, concurrency=4, transactional=transactional)
    async def ship(event: Event, ctx: Context) -> None:
        if event.application == "far" and not mended:
            raise KeyError("an article without a weight")

    shop = Workshop(database, broker, [ship], applications=SHOPS)
    wanted = [order_paid(f"{one}{number}", application=one) for number in range(EVENTS) for one in SHOPS]

    async def how(application: str, status: str) -> int:
        return [(run.application, run.status) for run in await shop.runs("ship")].count((application, status))

    async def near_is_done() -> bool:
        return await how("near", "succeeded") >= 2 * EVENTS

    async def far_is_paused() -> bool:
        return (await paused(database)).of == {("test:ship", "far")}

    async def far_is_done() -> bool:
        return await how("far", "succeeded") + await how("far", "dead") == EVENTS

    await shop.publish(*wanted)
    async with shop.working() as worker:
        await eventually(far_is_paused, within_s=20)
        await shop.publish(*[order_paid(f"more{number}", application="near") for number in range(EVENTS)])
        await eventually(near_is_done, within_s=20)
        assert (await paused(database)).of == {("test:ship", "far")}
        died = await how("far", "dead")
        assert 5 <= died < EVENTS
        assert await how("far", "succeeded") == 0
        await eventually(lambda: worker._housekeeping._paused.of == {("test:ship", "far")}, within_s=10)
        assert shop.figure("consumer_work_handler_stopped_total", handler="ship") == 1
        async with database.reading() as session:
            noted = (await session.execute(select(AuditRow))).scalars().all()
        assert [(one.application, one.action, one.subject) for one in noted] == [
            ("far", "handler.pause", "handler:test:ship")
        ]
        mended = True
        async with database.transaction() as session:
            assert await handlers.resume(session, "test:ship", "far")
        await eventually(far_is_done, within_s=20)
    assert (await how("far", "dead"), await how("near", "succeeded")) == (died, 2 * EVENTS)


# case: H9
async def test_a_worker_that_has_not_heard_of_it_begins_nothing_of_that_shop(
    database: Database, broker: Broker
) -> None:
    begun = Counter[str]()

    @handles("order.paid", name="test:ship", concurrency=2)
    async def ship(event: Event, ctx: Context) -> None:
        begun[event.application] += 1

    shop = Workshop(database, broker, [ship], applications=SHOPS)
    worker = shop.worker()
    async with database.transaction() as session:
        await handlers.register(session, worker._housekeeping._registry.handlers, shop.clock.now())
        await handlers.pause(session, "test:ship", by="op", reason="x", now=shop.clock.now(), application="far")
    assert worker._dispatcher.paused == Paused()
    await worker._ingest.take([])
    await shop.publish(*[order_paid(f"{one}{number}", application=one) for number in range(9) for one in SHOPS])
    async with shop.working():
        await eventually(lambda: begun["near"] == 9, within_s=20)
    assert begun == {"near": 9}


# case: H9
async def test_a_pause_for_one_shop_that_the_ledger_did_not_take_holds_it_until_it_does(
    database: Database, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it is stored no claim knows of it: so long the handler begins nothing here; then it goes on for others."""

    @handles("order.paid", name="test:ship", pause_after=3)
    async def ship(event: Event, ctx: Context) -> None:
        """Nothing."""

    shop, real = Workshop(database, broker, [ship], applications=SHOPS), pauser.pause_in
    worker = shop.worker()
    house = worker._housekeeping
    async with database.transaction() as session:
        await handlers.register(session, house._registry.handlers, shop.clock.now())

    async def broken(*_: object, **__: object) -> None:
        raise LedgerUnavailable

    monkeypatch.setattr(pauser, "pause_in", broken)
    found = house._registry.get("test:ship")
    assert found is not None
    for _ in range(3):
        worker._pauser._ended(found, "far", DEAD)
    with pytest.raises(LedgerUnavailable):
        await house._tidy(renew=False)
    assert worker._dispatcher.paused.holds("test:ship", "near"), "it is not known there for whom"
    monkeypatch.setattr(pauser, "pause_in", real)
    await house._tidy(renew=False)
    assert worker._dispatcher.paused.of == worker._ingest.paused.of == {("test:ship", "far")}
    assert (await paused(database)).of == {("test:ship", "far")}
    for _ in range(3):
        worker._pauser._ended(found, "near", DEAD)
    assert worker._pauser.unstored == {("test:ship", "near")}, "each for itself"


# case: H9
async def test_one_that_was_resumed_before_its_worker_looked_is_paused_again(
    database: Database, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    @handles("order.paid", name="test:ship", pause_after=3)
    async def ship(event: Event, ctx: Context) -> None:
        """Nothing."""

    async def resumed_at_once(*_: object, **__: object) -> None:
        """An operator lifts it between its storing and the look."""

    worker = Workshop(database, broker, [ship], applications=SHOPS).worker()
    found = worker._housekeeping._registry.get("test:ship")
    assert found is not None
    monkeypatch.setattr(pauser, "pause_in", resumed_at_once)
    for _ in range(2):
        for _ in range(3):
            worker._pauser._ended(found, "far", DEAD)
        assert worker._pauser.unstored == {("test:ship", "far")}
        await worker._housekeeping._tidy(renew=False)
        assert worker._dispatcher.paused == Paused()


# case: H9
@pytest.mark.parametrize("transactional", [True, False])
async def test_a_bad_deploy_that_fails_for_many_shops_is_stopped_for_all_at_once(
    database: Database, broker: Broker, transactional: bool
) -> None:
    """Not after so many dead runs of each."""

    @handles("order.paid", name="test:ship", attempts=1, pause_after=6, concurrency=4, transactional=transactional)
    async def ship(event: Event, ctx: Context) -> None:
        raise KeyError("a field that no event has")

    many = tuple(f"shop{number}" for number in range(8))
    shop = Workshop(database, broker, [ship], applications=many)

    async def is_paused() -> bool:
        return (await paused(database)).wholly == {"test:ship"}

    await shop.publish(*[order_paid(f"{one}{number}", application=one) for number in range(4) for one in many])
    async with shop.working():
        await eventually(is_paused, within_s=20)
    died = [run.status for run in await shop.runs("ship")].count("dead")
    assert 6 <= died < 6 + 4, "what was begun is not cut off"


def test_what_dies_for_several_pauses_it_for_all_where_none_counts_for_more_than_half() -> None:
    rules, ship = PauseRules(), Handler(name="h", types=("*",), function=nothing, pause_after=5)

    def seen(*whose: str) -> list[str | None]:
        return [rules.saw_of_several(ship, DEAD, one) for one in whose]

    assert seen("far", "far", "far", "far", "far", "near") == [None] * 6, "four of five would be far's own"
    assert seen("near") == ["7 runs dead in a row, of 2 applications"]
    assert seen("near") == [None], "once"
    rules.forget("h")
    assert seen("far", "near", "far", "near") == [None] * 4
    assert rules.saw_of_several(ship, DONE, "third") is None
    assert seen("far") == [None], "a success of any begins the row anew"
    rules.forget("h")
    assert [rules.saw(ship, DEAD, "far") for _ in range(5)][-1] == "5 runs dead in a row"
    assert seen("far", "far", "far", "near", "near") == [None] * 5, "one that is paused alone counts no more"
    assert seen("third", "third", "near") == [None, None, "5 runs dead in a row, of 2 applications"]
    rules.forget("h")
    assert seen("far", "far", "near", "near") == [None] * 4
    rules.forget("h", "far")
    assert seen("near", "far") == [None, None], "one that was resumed alone begins anew"
    assert seen("far") == ["5 runs dead in a row, of 2 applications"]
    rules.forget("h")
    mixed = [(DEAD, "far"), (DEAD, "near"), (DONE, "third")] * 4
    assert [rules.saw_of_several(ship, *one) for one in mixed[:9]] == [None] * 9, "fewer than twice the limit were seen"
    told = [rules.saw_of_several(ship, *one) for one in mixed[9:]]
    assert told == ["7 of the newest 10 runs dead, of 2 applications", None, None], "a success does not hide the rest"
    rules.forget("h")
    most = [(DEAD, "far"), (DEAD, "far"), (DONE, "near")] * 40
    assert not any(rules.saw_of_several(ship, *one) for one in most), "that is far's own"
    none = Handler(name="none", types=("*",), function=nothing, pause_after=0)
    assert [rules.saw_of_several(none, DEAD, one) for one in SHOPS * 50] == [None] * 100
    assert not [*rules._records["none"].row, *rules._records["none"].newest], "nothing is kept of what is never judged"


async def nothing(event: Event, ctx: Context) -> None:
    return None


def test_each_shops_dead_are_counted_alone_and_what_a_process_suffers_for_all() -> None:
    rules, ship = PauseRules(), Handler(name="h", types=("*",), function=nothing, pause_after=3)
    for _ in range(2):
        assert [rules.saw(ship, DEAD, one) for one in SHOPS] == [None, None]
    assert rules.saw(ship, DONE, "near") is None
    assert rules.saw(ship, DEAD, "far") == "3 runs dead in a row"
    assert [rules.saw(ship, DEAD, "far"), rules.saw(ship, DEAD, "near")] == [None, None]
    assert rules.lost("h", 3) == "blocked 3 event loops for good"
    assert rules.saw(ship, DEAD, "near") is None, "it is paused for all"
    rules.forget("h")
    assert [rules.saw(ship, DEAD, "near") for _ in range(3)][-1] == "3 runs dead in a row"
    assert [rules.saw(ship, DEAD, "far") for _ in range(2)] == [None, None]
    rules.forget("h", "near")
    assert rules.saw(ship, DEAD, "far") == "3 runs dead in a row", "another's record stays"
    assert [rules.saw(ship, DEAD, "near") for _ in range(3)] == [None, None, "3 runs dead in a row"]
