"""An open session is handed out for the sale it was registered for, whichever process of a shop asks, whatever the
service shows of it: the ledger knows its terms (cases C18, U24, F21)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from sqlalchemy import select

from consumer.app.registering import registering
from consumer.clock import SystemClock
from consumer.console.query import query_routes
from consumer.ledger import Database
from consumer.ledger.handling import outbox
from consumer.ledger.tables import OutboxRow
from consumer.payments import Credentials, PaymentsClient, SessionMismatch
from consumer.sandbox import Sandbox, SandboxConfig
from consumer.shop import Checkout, Shop
from handlers.access.tables import LINKS
from handlers.fulfilment.tables import CHECKOUTS, ORDERS

PAGES = {"success_url": "https://shop.example/ok", "cancel_url": "https://shop.example/no"}
ALICE: dict[str, Any] = {
    "mode": "payment",
    "order_id": "A-1",
    "amount": "10.00",
    "description": "A book",
    "customer": "alice",
}
BY_PRICE: dict[str, Any] = {"mode": "payment", "order_id": "A-1", "price_id": "svc_price_once", "customer": "alice"}
WRITTEN = (CHECKOUTS, ORDERS, LINKS, OutboxRow.__table__)


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    """A service whose answers show neither what a session costs nor whose it is."""
    async with Sandbox(SandboxConfig(seed=1, assumptions={"expose_terms": False})) as found:
        yield found


@pytest.fixture
async def query_api(database: Database) -> AsyncIterator[str]:
    app = web.Application()
    query_routes(app, database=database, clock=SystemClock(), token=None, applications=["default"])
    async with TestServer(app, host="127.0.0.1") as server:
        yield str(server.make_url("/"))


async def sold(sandbox: Sandbox, query_api: str, **asked: Any) -> Checkout:
    """By a process of the shop that has just started: it remembers nothing."""
    config = sandbox.config
    async with Shop.at(sandbox.base_url, config.app_id, config.app_secret, query_api=query_api) as shop:
        return await shop.checkout(**{**PAGES, **asked})


async def written(database: Database) -> list[Any]:
    async with database.reading() as session:
        return [[tuple(row) for row in (await session.execute(select(table))).all()] for table in WRITTEN]


OTHER_SALES: list[tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]] = [
    (ALICE, {**ALICE, "amount": "50.00"}, ("amount",)),
    (ALICE, {**ALICE, "customer": "bob"}, ("customer_reference",)),
    (ALICE, {**ALICE, "customer": None}, ("customer_reference",)),
    (ALICE, BY_PRICE, ("amount",)),
    (BY_PRICE, ALICE, ("price_id",)),
]


# case: C18, U24, F21
@pytest.mark.parametrize(
    ("first", "then", "differing"), OTHER_SALES, ids=["amount", "customer", "no customer", "by price", "by amount"]
)
async def test_another_process_is_not_handed_it_for_another_sale(
    database: Database,
    sandbox: Sandbox,
    query_api: str,
    first: dict[str, Any],
    then: dict[str, Any],
    differing: tuple[str, ...],
) -> None:
    made = await sold(sandbox, query_api, **first)
    before = await written(database)
    with pytest.raises(SessionMismatch) as caught:
        await sold(sandbox, query_api, **then)
    assert caught.value.differing == differing
    assert (caught.value.session.id, caught.value.session.url) == (made.session_id, None)
    assert "bob" not in f"{caught.value} {caught.value.__cause__}"
    assert await written(database) == before, "nothing of it was registered"


# case: C18
@pytest.mark.parametrize("sale", [ALICE, BY_PRICE], ids=["by amount", "by price"])
async def test_after_a_restart_the_same_sale_gets_a_new_link(
    database: Database, sandbox: Sandbox, query_api: str, sale: dict[str, Any]
) -> None:
    made = await sold(sandbox, query_api, **sale)
    before = await written(database)
    again = await sold(sandbox, query_api, **sale)
    assert (again.session_id, again.url == made.url) == (made.session_id, False)
    assert await written(database) == before, "no news"


# case: C21, F21
@pytest.mark.parametrize("amount", [Decimal("100.00").normalize(), Decimal("100.0000000")], ids=["1E+2", "zeros"])
async def test_an_amount_is_registered_as_it_was_sent(
    database: Database, sandbox: Sandbox, query_api: str, amount: Decimal
) -> None:
    """However Python writes the number: what the service takes is not refused here, where it holds a sale up."""
    await sold(sandbox, query_api, **{**ALICE, "amount": amount})
    await created(database, sandbox, order_id="A-2", amount=amount)
    async with database.reading() as session:
        amounts = (await session.execute(select(ORDERS.c.expected_amount))).scalars().all()
    assert [Decimal(one) for one in amounts] == [Decimal(100)] * 2


async def created(database: Database, sandbox: Sandbox, **asked: Any) -> None:
    """By a plugin, through `ctx.payments`."""
    credentials = Credentials(sandbox.config.app_id, [sandbox.config.app_secret])
    told = registering(database, "default", SystemClock())
    async with PaymentsClient(sandbox.base_url, credentials, on_session=told) as client:
        await client.checkout_sessions.create_from({"mode": "payment", "description": "A book", **PAGES, **asked})


# case: A37
async def test_whose_it_is_may_be_said_later(database: Database, sandbox: Sandbox, query_api: str) -> None:
    made = await sold(sandbox, query_api, **{**ALICE, "customer": None})
    again = await sold(sandbox, query_api, **ALICE)
    assert again.session_id == made.session_id
    async with database.reading() as session:
        assert (await session.execute(select(LINKS.c.customer))).scalars().all() == ["alice"]
        assert (await session.execute(select(ORDERS.c.customer))).scalars().all() == ["alice"]
        waiting = await outbox.due(session, SystemClock().now(), 10)
    assert [row.type for row in waiting] == ["checkout.registered"] * 2


# case: C18, U24
async def test_a_plugin_is_not_handed_it_either(database: Database, sandbox: Sandbox, query_api: str) -> None:
    await sold(sandbox, query_api, **ALICE)
    credentials = Credentials(sandbox.config.app_id, [sandbox.config.app_secret])
    told = registering(database, "default", SystemClock())
    async with PaymentsClient(sandbox.base_url, credentials, on_session=told) as client:
        asked = {**PAGES, **ALICE, "amount": "50.00"}
        with pytest.raises(SessionMismatch) as caught:
            await client.checkout_sessions.create(customer_reference=asked.pop("customer"), **asked)
    assert (caught.value.differing, caught.value.session.url) == (("amount",), None)
