"""A statement of a handler's that is cut off, or whose connection breaks, takes its transaction with it: the one is the
handler's failure, told under its own name; the other is nobody's, and costs no attempt."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from consumer.broker import Broker
from consumer.errors import HandlerTimeout
from consumer.ledger import Database
from consumer.ledger.handling import handlers
from consumer.plugin import Context, Event, handles
from tests.support.ports import eventually
from tests.work.workshop import Workshop, order_paid

ENDLESS = {
    "postgresql": "SELECT pg_sleep(600)",
    "sqlite": "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 4000000) SELECT count(*) FROM n",
}


# case: R11, H4
@pytest.mark.slow
async def test_who_hangs_in_a_statement_is_paused_for_it(database: Database, broker: Broker) -> None:
    @handles("order.paid", transactional=True, name="test:hangs", timeout_s=0.1, attempts=20)
    async def hangs(event: Event, ctx: Context) -> None:
        await ctx.session.execute(text(ENDLESS[database.dialect]))

    shop = Workshop(database, broker, [hangs])

    async def is_paused() -> bool:
        async with database.reading() as session:
            return "test:hangs" in (await handlers.paused(session)).wholly

    await shop.publish(*[order_paid(number) for number in range(8)])
    async with shop.working():
        await eventually(is_paused, within_s=60)
    assert {run.code for run in await shop.runs() if run.attempts} == {HandlerTimeout.code}


# case: R11
@pytest.mark.parametrize("database_url", [pytest.param("postgresql", marks=pytest.mark.postgres)], indirect=True)
async def test_a_connection_that_breaks_under_a_handler_costs_no_attempt(
    database: Database, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []

    @handles("order.paid", transactional=True, name="test:projects", attempts=2, first_wait_s=0.1)
    async def projects(event: Event, ctx: Context) -> None:
        tries.append(ctx.attempt)
        if len(tries) <= 2:  # together with others, and singly: an ordinary failure
            raise ValueError("once")
        if len(tries) == 3:  # its database restarts under its further attempt
            await ctx.session.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    shop = Workshop(database, broker, [projects])
    for module in ("dispatch.dispatcher", "ingest.claiming"):
        monkeypatch.setattr(f"consumer.work.{module}.CLAIM_LEASE_S", 0.5)
    await shop.publish(order_paid(1))
    async with shop.working():
        await eventually(lambda: shop.all_succeeded(1), within_s=60)
    [run] = await shop.runs()
    assert (tries, run.attempts) == ([1, 1, 2, 2], 2)
