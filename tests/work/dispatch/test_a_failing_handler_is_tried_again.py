"""A failing handler is tried again by its policy, and is dead after the last attempt; nobody else is harmed."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from consumer.broker import Broker
from consumer.ledger import Database
from consumer.ledger.handling import runs
from consumer.plugin import Context, Event, Reject, RetryLater, handles
from tests.support.ports import eventually
from tests.work.workshop import Workshop, order_paid


# case: H3
@pytest.mark.parametrize("transactional", [True, False])
async def test_fails_twice_then_succeeds(database: Database, broker: Broker, transactional: bool) -> None:
    attempts: list[int] = []

    @handles("order.paid", transactional=transactional, first_wait_s=0.02)
    async def flaky(event: Event, ctx: Context) -> None:
        attempts.append(ctx.attempt)
        if ctx.attempt < 3:
            raise ConnectionError("not yet")

    shop = Workshop(database, broker, [flaky])
    await shop.publish(order_paid(1))
    async with shop.working():
        await until_statuses(shop, ["succeeded"])
        # The first of a transactional one was its batch's.
        told = 2 if transactional else 3
        await eventually(lambda: shop.figure("consumer_work_run_seconds_count", handler="flaky") == told)
    # A transactional first attempt is made twice: with its batch, and again apart from it.
    assert [number for number in attempts if number > 1] == [2, 3]
    async with database.reading() as session:
        kept = await runs.attempts_of(session, "default", "evt_1")
    assert [(row.number, row.outcome) for row in kept] == [(1, "retrying"), (2, "retrying"), (3, "succeeded")]
    assert kept[0].fingerprint == kept[1].fingerprint
    assert kept[0].code_version


# case: R10
async def test_the_last_attempt_makes_it_dead_and_others_go_on(database: Database, broker: Broker) -> None:
    @handles("order.paid", attempts=2, first_wait_s=0.01)
    async def broken(event: Event, ctx: Context) -> None:
        raise ValueError("never")

    @handles("order.paid", attempts=2)
    async def fine(event: Event, ctx: Context) -> None:
        return None

    shop = Workshop(database, broker, [broken, fine])
    await shop.publish(order_paid(1), order_paid(2))
    async with shop.working():
        await until_statuses(shop, ["dead", "dead"], ".broken")
        await until_statuses(shop, ["succeeded", "succeeded"], ".fine")
    row = (await shop.runs("broken"))[0]
    assert row.attempts == 2
    assert row.reason == "2 attempts used: ValueError: never"


async def test_retry_later_costs_no_attempt_and_reject_is_dead_at_once(database: Database, broker: Broker) -> None:
    asked: list[int] = []

    @handles("order.paid", attempts=1)
    async def later(event: Event, ctx: Context) -> None:
        asked.append(ctx.attempt)
        if len(asked) < 4:
            raise RetryLater(0.01, "stock is being counted")

    @handles("order.paid", attempts=9)
    async def refuses(event: Event, ctx: Context) -> None:
        raise Reject("no such product")

    shop = Workshop(database, broker, [later, refuses])
    await shop.publish(order_paid(1))
    async with shop.working():
        await until_statuses(shop, ["succeeded"], ".later")
        await until_statuses(shop, ["dead"], ".refuses")
    assert asked == [1, 1, 1, 1]
    assert (await shop.runs("refuses"))[0].attempts == 1


# case: H4
async def test_whatever_a_handler_does_stays_its_own(database: Database, broker: Broker) -> None:
    """Hangs, ends the process, cancels itself, returns nonsense, writes nonsense: others run."""

    @handles("order.paid", attempts=1, timeout_s=0.05)
    async def hangs(event: Event, ctx: Context) -> None:
        await asyncio.Event().wait()

    @handles("order.paid", attempts=1, timeout_s=0.05, transactional=True)
    async def hangs_in_transaction(event: Event, ctx: Context) -> None:
        await asyncio.Event().wait()

    @handles("order.paid", attempts=1)
    async def exits(event: Event, ctx: Context) -> None:
        sys.exit(3)

    @handles("order.paid", attempts=1, transactional=True)
    async def exits_in_transaction(event: Event, ctx: Context) -> None:
        sys.exit(3)

    @handles("order.paid", attempts=1)
    async def cancels(event: Event, ctx: Context) -> None:
        raise asyncio.CancelledError

    @handles("order.paid", attempts=1)
    async def uses_the_session(event: Event, ctx: Context) -> None:
        await ctx.session.flush()

    @handles("order.paid", attempts=1)
    async def returns(event: Event, ctx: Context) -> Any:
        return "done"

    @handles("order.paid")
    async def fine(event: Event, ctx: Context) -> None:
        return None

    broken = [hangs, hangs_in_transaction, exits, exits_in_transaction, cancels, uses_the_session, returns]
    shop = Workshop(database, broker, [*broken, fine])
    await shop.publish(*[order_paid(number) for number in range(3)])
    async with shop.working():
        await until_statuses(shop, ["succeeded"] * 3, ".fine")
        for function in broken:
            await until_statuses(shop, ["dead"] * 3, function.__name__)
    codes = {row.handler.rsplit(".", 1)[-1]: row.code for row in await shop.runs()}
    assert codes["hangs"] == codes["hangs_in_transaction"] == "handler_timeout"
    assert codes["exits"] == codes["exits_in_transaction"] == codes["cancels"] == "handler_crashed"
    assert codes["uses_the_session"] == codes["returns"] == "handler_misuse"


async def until_statuses(shop: Workshop, wanted: list[str], handler: str = "") -> None:
    """Wait until the runs of the handler whose name ends so stand like this."""

    async def stands() -> bool:
        return await shop.statuses(handler) == wanted

    await eventually(stands, within_s=20, what=f"{handler} {wanted}")
