"""What a plugin creates through `ctx.payments` is registered: its order is known, and what it should cost."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from consumer.app.registering import registering
from consumer.clock import SystemClock
from consumer.ledger import Database
from consumer.payments import Credentials, PaymentsClient
from consumer.sandbox import Sandbox, SandboxConfig
from handlers.fulfilment.tables import CHECKOUTS, ORDERS
from tests.support.merchant.terms import PAYMENT


# case: F20, F21, A37
async def test_of_a_one_time_payment(sqlite_ledger: Database) -> None:
    async with Sandbox(SandboxConfig(seed=1)) as sandbox:
        credentials = Credentials(sandbox.config.app_id, [sandbox.config.app_secret])
        told = registering(sqlite_ledger, "default", SystemClock())
        async with PaymentsClient(sandbox.base_url, credentials, on_session=told) as client:
            created = await client.with_priority(client.priority).checkout_sessions.create(
                **PAYMENT, customer_reference="customer-1"
            )
    async with sqlite_ledger.reading() as session:
        [checkout] = (await session.execute(select(CHECKOUTS))).mappings().all()
        [order] = (await session.execute(select(ORDERS))).mappings().all()
    assert checkout["session_id"] == created.id
    assert (order["order_id"], order["customer"], order["expected_amount"]) == ("order-1", "customer-1", "25.00")
    assert order["registered_at"] is not None


@pytest.mark.parametrize(
    ("asked", "amount", "customer"),
    [
        ({"amount": Decimal(20).normalize()}, "20", None),
        ({"amount": Decimal("25.0000000")}, "25.000000", None),
        ({"customer_reference": "c" * 255}, "25.00", "c" * 255),
        ({"customer_reference": "c" * 256}, None, None),
    ],
)
async def test_of_whatever_the_client_sends(
    sqlite_ledger: Database, asked: dict[str, Any], amount: str | None, customer: str | None
) -> None:
    # case: C21, F21
    async with Sandbox(SandboxConfig(seed=1)) as sandbox:
        credentials = Credentials(sandbox.config.app_id, [sandbox.config.app_secret])
        told = registering(sqlite_ledger, "default", SystemClock())
        async with PaymentsClient(sandbox.base_url, credentials, on_session=told) as client:
            created = await client.checkout_sessions.create(**{**PAYMENT, **asked})
    assert created.url, "the session is there, whoever can be told of it"
    async with sqlite_ledger.reading() as session:
        rows = (await session.execute(select(ORDERS))).mappings().all()
    assert [(row["expected_amount"], row["customer"]) for row in rows] == ([(amount, customer)] if amount else [])


async def test_a_ledger_that_is_away_does_not_fail_the_create(tmp_path: Path) -> None:
    away = Database("postgresql+asyncpg://nobody@127.0.0.1:1/none")
    async with Sandbox(SandboxConfig(seed=1)) as sandbox:
        credentials = Credentials(sandbox.config.app_id, [sandbox.config.app_secret])
        told = registering(away, "default", SystemClock())
        async with PaymentsClient(sandbox.base_url, credentials, on_session=told) as client:
            created = await client.checkout_sessions.create(**PAYMENT)
    assert created.url
    await away.stop()
