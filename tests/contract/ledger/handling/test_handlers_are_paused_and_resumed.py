"""Handlers as the workers know them; a pause stays until an operator ends it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from consumer.ledger import Database, health
from consumer.ledger.handling import handlers
from consumer.ledger.tables import REASON_CHARS, RunStatus
from consumer.plugin import Context, Event, Handler
from tests.contract.ledger.facts import HANDLER, NOW, later, persistently, run, store


async def _nothing(event: Event, ctx: Context) -> None:
    return


def handler(name: str, *, version: str = "v1", types: tuple[str, ...] = ("order.paid",)) -> Handler:
    return Handler(name=name, types=types, function=_nothing, version=version, plugin="shop")


async def register(database: Database, *given: Handler, at_s: float = 0) -> None:
    async with database.transaction() as session:
        await handlers.register(session, given, later(at_s))


async def paused(database: Database) -> frozenset[str]:
    async with database.reading() as session:
        return await handlers.paused(session)


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
