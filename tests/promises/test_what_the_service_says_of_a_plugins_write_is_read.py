"""A plugin creates or cancels something, and the answer says that more has happened than we know: it is read."""

from __future__ import annotations

from contextlib import suppress

import pytest
from sqlalchemy import select

from consumer.app.read_after_write import asking
from consumer.clock import SystemClock
from consumer.ledger import Database
from consumer.ledger.tables import ReadRow
from consumer.payments import Credentials, OrderAlreadyPaid, PaymentsClient, SubscriptionAlreadyEnded
from consumer.sandbox import Sandbox, SandboxConfig
from consumer.sandbox.scenarios.stage import Stage
from tests.support.merchant.terms import PAYMENT

READS = ReadRow.__table__


async def asked(database: Database) -> set[tuple[str, str]]:
    async with database.reading() as session:
        return {(row.kind, row.object_id) for row in await session.execute(select(READS))}


def client_of(sandbox: Sandbox, database: Database) -> PaymentsClient:
    credentials = Credentials(sandbox.config.app_id, [sandbox.config.app_secret])
    told = asking(database, "default", SystemClock())
    return PaymentsClient(sandbox.base_url, credentials, on_evidence=told)


# case: F27
async def test_an_order_that_is_paid_already(sqlite_ledger: Database) -> None:
    async with Sandbox(SandboxConfig(seed=1)) as sandbox, client_of(sandbox, sqlite_ledger) as client:
        await client.checkout_sessions.create(**PAYMENT)
        assert await asked(sqlite_ledger) == set(), "nothing is known of an order that was just made"
        stage = Stage(sandbox, sandbox.config.app_id, 1)
        [session] = [one for one in sandbox.engine.world.sessions if one.order_id == "order-1"]
        stage.pay(session)
        with pytest.raises(OrderAlreadyPaid):
            await client.checkout_sessions.create(**PAYMENT)
    assert await asked(sqlite_ledger) == {("order", "order-1")}


# case: A38, A39
@pytest.mark.parametrize("ended", [False, True])
async def test_a_subscription_whose_cancel_was_tried(sqlite_ledger: Database, ended: bool) -> None:
    async with Sandbox(SandboxConfig(seed=1)) as sandbox, client_of(sandbox, sqlite_ledger) as client:
        subscription_id = Stage(sandbox, sandbox.config.app_id, 1).subscribe().id
        if ended:
            await client.subscriptions.cancel(subscription_id, at="now")
            async with sqlite_ledger.transaction() as session:
                await session.execute(READS.delete())
        with suppress(SubscriptionAlreadyEnded):
            await client.subscriptions.cancel(subscription_id, at="now")
    assert await asked(sqlite_ledger) == {("subscription", subscription_id)}


async def test_a_ledger_that_is_away_changes_no_answer() -> None:
    away = Database("postgresql+asyncpg://nobody@127.0.0.1:1/none")
    async with Sandbox(SandboxConfig(seed=1)) as sandbox, client_of(sandbox, away) as client:
        subscription_id = Stage(sandbox, sandbox.config.app_id, 1).subscribe().id
        assert await client.subscriptions.cancel(subscription_id, at="now")
    await away.stop()
