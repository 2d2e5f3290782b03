"""Handlers as the workers know them; a pause stays until an operator ends it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from consumer.ledger import Database, health
from consumer.ledger.handling import handlers, lanes, queue, runs
from consumer.ledger.tables import REASON_CHARS, RunStatus
from consumer.plugin import Context, Event, Handler
from tests.contract.ledger.facts import HANDLER, NOW, claim, end, finish, later, persistently, run, store
from tests.support.ledger.parked import release_stranded


async def _nothing(event: Event, ctx: Context) -> None:
    return


def handler(name: str, *, version: str = "v1", types: tuple[str, ...] = ("order.paid",)) -> Handler:
    return Handler(name=name, types=types, function=_nothing, version=version, plugin="shop")


async def register(database: Database, *given: Handler, at_s: float = 0) -> None:
    async with database.transaction() as session:
        await handlers.register(session, given, later(at_s))


async def paused(database: Database) -> frozenset[str]:
    async with database.reading() as session:
        return (await handlers.paused(session)).wholly


async def pause(database: Database, name: str, reason: str = "the warehouse is closed") -> bool:
    async with database.transaction() as session:
        return await handlers.pause(session, name, by="ops", reason=reason, now=NOW)


# case: H9
async def test_a_pause_stays_until_it_is_ended(database: Database) -> None:
    await register(database, handler("shop:ship"), handler("shop:mail"))
    assert await pause(database, "shop:ship")
    await register(database, handler("shop:ship", version="v2"), at_s=60)
    assert await paused(database) == {"shop:ship"}
    async with database.transaction() as session:
        assert await handlers.resume(session, "shop:ship")
    assert await paused(database) == frozenset()


async def test_an_unknown_handler_can_neither_be_paused_nor_resumed(database: Database) -> None:
    assert not await pause(database, "shop:nobody")
    async with database.transaction() as session:
        assert not await handlers.resume(session, "shop:nobody")


async def test_who_paused_it_and_why_is_kept_and_cut(database: Database) -> None:
    await register(database, handler("shop:ship"))
    await pause(database, "shop:ship", "ß" * 2000)
    async with database.reading() as session:
        row = (await handlers.everyone(session))[0]
    assert (row.paused_at, row.paused_by, row.paused_reason) == (NOW, "ops", "ß" * REASON_CHARS)


async def test_registering_again_keeps_when_it_was_first_seen(database: Database) -> None:
    await register(database, handler("shop:ship"))
    await register(database, handler("shop:ship", version="v2", types=("order.*", "order.paid")), at_s=60)
    async with database.reading() as session:
        found = await handlers.everyone(session)
    assert [(row.first_seen_at, row.last_seen_at, row.code_version, row.types) for row in found] == [
        (NOW, later(60), "v2", "order.* order.paid"),
    ]


async def test_workers_that_start_at_once_with_other_orders_do_not_hurt_each_other(
    database: Database, other: Database
) -> None:
    known = [handler(f"shop:{number:02}") for number in range(30)]
    await asyncio.gather(
        *(
            persistently(
                (database, other)[number % 2],
                lambda session, given=known[:: 1 if number % 2 else -1]: handlers.register(session, given, NOW),  # type: ignore[misc]  # binds this worker's order
                attempts=1,
            )
            for number in range(6)
        )
    )
    async with database.reading() as session:
        assert [row.name for row in await handlers.everyone(session)] == [one.name for one in known]


# case: R11
async def test_one_that_was_noted_to_wait_holds_up_what_waits_of_it_and_nothing_else(database: Database) -> None:
    """Who noted it may be gone, and what waited given up by an operator: it would be told for ever."""
    await register(database, handler(HANDLER), handler("shop:mail"))
    async with database.transaction() as session:
        for name in (HANDLER, "shop:mail"):
            await handlers.set_waiting(session, name, since=NOW, reason="the carrier is away")
    await store(database, run(1), replace(run(1, handler="shop:mail"), status=RunStatus.DEAD))
    async with database.reading() as session:
        assert (await health.figures(session, NOW)).waiting_handlers == (HANDLER,)


async def pause_for(database: Database, application: str, *, name: str = HANDLER) -> bool:
    async with database.transaction() as session:
        return await handlers.pause(session, name, by="ops", reason="far sells junk", now=NOW, application=application)


def of(application: str, number: int, *, due_s: float = 0.0) -> runs.Run:
    """A run with a lane of its own."""
    return run(number, key=f"order:{number}", application=application, due_s=due_s)


# case: H9
async def test_one_that_is_paused_for_an_application_gets_no_claim_of_it_and_goes_on_for_others(
    database: Database,
) -> None:
    await register(database, handler(HANDLER))
    await store(database, of("far", 1, due_s=-9), of("near", 2, due_s=-5), of("far", 3, due_s=-7), of("far", 4))
    assert await pause_for(database, "far")
    assert [one.seq for one in await claim(database, limit=2)] == [2]
    added = [of("far", 5), of("near", 6)]
    async with database.transaction() as session:
        await runs.add(session, added, NOW)
        assert [one.seq for one in await runs.claim_new(session, added, worker="one", now=NOW, lease_s=15)] == [6]
    assert await claim(database, "two") == []
    async with database.transaction() as session:
        assert await release_stranded(session, NOW) == 0, "nothing lets it go while it is paused"
        assert await handlers.resume(session, HANDLER, "far")
        assert await release_stranded(session, NOW) == 4
    assert [one.seq for one in await claim(database, "two")] == [1, 3, 4, 5], "in the order in which they came"


# case: H9
async def test_however_many_wait_of_one_application_others_are_found_behind_them_by_one_claim(
    database: Database,
) -> None:
    await register(database, handler(HANDLER))
    await store(database, *(of("far", number, due_s=-9) for number in range(1, 3 * runs.PUT_ASIDE_AT_ONCE)))
    await store(database, of("near", 9001, due_s=-1))
    await pause_for(database, "far")
    assert [one.seq for one in await claim(database, limit=1)] == [9001]
    async with database.reading() as session:
        assert await queue.next_due(session, NOW) == {}, "and nobody looks for them again and again"


# case: H9
async def test_what_of_it_is_being_worked_on_comes_to_its_end_and_what_is_behind_waits(database: Database) -> None:
    await register(database, handler(HANDLER))
    behind = replace(of("far", 2), key="order:1", status=RunStatus.PARKED, next_at=None)
    await store(database, of("far", 1), behind)
    [begun] = await claim(database)
    await pause_for(database, "far")
    await end(database, "one", finish(begun))
    assert await claim(database, at_s=2) == []
    async with database.reading() as session:
        found = [one for number in (1, 2) for one in await runs.of_event(session, "far", f"evt_{number}")]
    assert [one.status for one in found] == ["succeeded", "parked"]


# case: H9, G2
async def test_a_success_that_comes_after_it_was_put_aside_counts(database: Database) -> None:
    """The effect is there: it must not be begun again when the pause is lifted."""
    await register(database, handler(HANDLER))
    await store(database, of("far", 1))
    [begun] = await claim(database)
    await pause_for(database, "far")
    assert await claim(database, "two", at_s=60) == []
    async with database.reading() as session:
        assert [one.status for one in await runs.of_event(session, "far", "evt_1")] == ["parked"]
    await end(database, "one", finish(begun))
    async with database.transaction() as session:
        await handlers.resume(session, HANDLER, "far")
        assert await release_stranded(session, later(61)) == 0
        assert [one.status for one in await runs.of_event(session, "far", "evt_1")] == ["succeeded"]
    assert await claim(database, "two", at_s=62) == []


# case: H9
async def test_a_look_at_what_is_stranded_passes_over_those_of_a_pause(database: Database) -> None:
    await register(database, handler(HANDLER))
    await store(database, *(of("far", number) for number in range(1, 40)))
    await store(database, *(replace(of("near", number), status=RunStatus.PARKED, next_at=None) for number in (77, 78)))
    await pause_for(database, "far")
    assert await claim(database, limit=1) == []
    async with database.reading() as session:
        held = (await handlers.paused(session)).of
        page = await lanes.stranded(session, limit=5, held=held)
        assert (page.stranded, page.after) == ([], (HANDLER, "far", None))
        page = await lanes.stranded(session, page.after, limit=5, held=held)
        assert sorted(one[1] for one in page.stranded) == ["evt_77", "evt_78"]
        assert page.after is None


# case: H9
async def test_what_a_worker_left_behind_before_it_was_paused_counts_no_more(database: Database) -> None:
    await register(database, handler(HANDLER))
    await store(database, of("far", 1))
    async with database.transaction() as session:
        [left] = await runs.claim(session, handler=HANDLER, worker="gone", limit=1, now=NOW, lease_s=5, alone=True)
    await pause_for(database, "far")
    assert await claim(database, at_s=6) == []
    async with database.transaction() as session:
        await handlers.resume(session, HANDLER, "far")
        await release_stranded(session, later(7))
    assert [(one.seq, one.left_by) for one in await claim(database, at_s=8)] == [(left.seq, None)]


# case: H9
async def test_who_lets_it_go_on_for_all_lifts_what_it_was_paused_for_alone(database: Database) -> None:
    await register(database, handler(HANDLER), handler("shop:mail"))
    assert not await pause_for(database, "far", name="shop:nobody")
    for application in ("far", "near"):
        assert await pause_for(database, application)
    assert await pause_for(database, "far", name="shop:mail")
    async with database.transaction() as session:
        found = await handlers.paused(session)
        assert found.of == {(HANDLER, "far"), (HANDLER, "near"), ("shop:mail", "far")}
        assert (found.wholly, found.only(HANDLER)) == (frozenset(), ("far", "near"))
        assert not await handlers.resume(session, HANDLER, "other")
        assert await handlers.resume(session, HANDLER, "near")
        assert (await handlers.paused(session)).only(HANDLER) == ("far",)
        await handlers.pause(session, HANDLER, by="ops", reason="all", now=NOW)
        assert await handlers.resume(session, HANDLER)
        assert (await handlers.paused(session)).of == {("shop:mail", "far")}
        assert [(one.handler, one.application, one.paused_by) for one in await handlers.pauses(session)] == [
            ("shop:mail", "far", "ops")
        ]


# case: H9, O5
async def test_the_figures_say_for_which_and_call_overdue_what_waits_for_others(database: Database) -> None:
    await register(database, handler(HANDLER))
    await store(database, of("far", 1, due_s=-900), of("near", 2, due_s=-60))
    await pause_for(database, "far")
    assert [one.seq for one in await claim(database, limit=1)] == [2]
    async with database.reading() as session:
        found = await health.figures(session, NOW)
    assert (found.paused_handlers, found.paused_for) == ((HANDLER,), {HANDLER: ("far",)})
    assert (found.retrying, found.parked, found.oldest_due_at) == (1, 1, later(-60))
