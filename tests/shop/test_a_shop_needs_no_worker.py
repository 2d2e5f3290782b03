"""A web shop that imports `consumer.shop` gets the client of the service and of the query API, and nothing that stores,
consumes or handles. What goes wrong between the two is told apart."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from consumer.payments import OrderAlreadyPaid
from consumer.shop import NotRegistered, QueryApi, QueryFailed, Shop
from consumer.shop import client as shop_client
from consumer.testing import PaymentsFake

FOREIGN = ("sqlalchemy", "sqlmodel", "alembic", "aiokafka", "asyncpg", "typer", "handlers", "prometheus_client")
OURS = ("consumer.ledger", "consumer.broker", "consumer.work", "consumer.plugin", "consumer.settings", "consumer.app")


class Fake(PaymentsFake):
    """The service in memory, as the shop holds its client."""

    async def __aenter__(self) -> Fake:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None


class Consumer:
    """A query API that answers as it is told, and keeps what it was asked."""

    def __init__(self) -> None:
        self.status, self.code = 200, "not_found"
        self.asked: list[tuple[str, str, object]] = []
        self.queries: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.queries.append(request.query_string)
        self.asked.append(
            (request.method, request.rel_url.raw_path, await request.json() if request.can_read_body else None)
        )
        answer: dict[str, Any] = {"error": {"code": self.code}} if self.status == 404 else {}
        answer |= {"status": "PAID", "fulfilment": "odd"} if "odd" in request.path else {}
        return web.json_response(answer, status=self.status)


@pytest.fixture
async def consumer() -> AsyncIterator[tuple[Consumer, str]]:
    played = Consumer()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", played.answer)
    async with TestServer(app, host="127.0.0.1") as server:
        yield played, str(server.make_url("/"))


@pytest.fixture
def shop(consumer: tuple[Consumer, str], monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setattr(shop_client, "REGISTER_AGAIN_S", 0.0)
    return Shop(Fake(), QueryApi(consumer[1]))  # type: ignore[arg-type]  # the client on a service in memory


SALE = {"mode": "payment", "order_id": "A/1", "amount": "12.50", "description": "A book", "customer": "ada"}
PAGES = {"success_url": "https://shop.example/ok", "cancel_url": "https://shop.example/no"}


# case: H12
def test_it_imports_nothing_of_the_worker() -> None:
    told = f"import consumer.shop, sys; print([one for one in {FOREIGN + OURS} if one in sys.modules])"
    done = subprocess.run([sys.executable, "-P", "-c", told], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


# case: C21, F21
async def test_the_amount_is_registered_as_it_was_sent(shop: Shop, consumer: tuple[Consumer, str]) -> None:
    async with shop:
        await shop.checkout(**{**SALE, "amount": Decimal(120).normalize()}, **PAGES)  # type: ignore[arg-type]  # as below
    [(_, _, said)] = consumer[0].asked
    assert isinstance(said, dict)
    assert said["expected_amount"] == "120", "1.2E+2 is no amount to the query API"


# case: A37, F21
async def test_a_checkout_is_registered(shop: Shop, consumer: tuple[Consumer, str]) -> None:
    async with shop:
        made = await shop.checkout(**SALE, **PAGES)  # type: ignore[arg-type]  # a mapping of texts
    assert made.url.startswith("https://")
    assert made.url not in repr(made)
    said = {"order_id": "A/1", "customer": "ada", "expected_amount": "12.50", "mode": "payment"}
    assert consumer[0].asked == [("PUT", f"/api/checkouts/{made.session_id}", said)]


async def test_one_that_cannot_be_registered_is_held(shop: Shop, consumer: tuple[Consumer, str]) -> None:
    consumer[0].status = 503
    async with shop:
        with pytest.raises(NotRegistered) as missed:
            await shop.checkout(**SALE, **PAGES)  # type: ignore[arg-type]  # as above
        assert missed.value.checkout.url
        assert len(consumer[0].asked) == shop_client.REGISTER_TRIES
        consumer[0].status = 200
        await shop.register(missed.value.checkout, customer="ada", expected_amount="12.50")


# case: G8
async def test_an_application_is_named_where_the_shop_names_one(consumer: tuple[Consumer, str]) -> None:
    """It named `default` unasked: where the only one has another name, every order was unknown."""
    for named, sent in ((None, ""), ("near", "application=near")):
        async with Shop.at(consumer[1], "svc_app_1", "svc_sk_live_1", query_api=consumer[1], application=named) as shop:
            await shop.query_api.read_order("A-1")
        assert consumer[0].queries.pop() == sent


# case: F27
async def test_an_order_that_is_paid_already_is_read(shop: Shop, consumer: tuple[Consumer, str]) -> None:
    assert isinstance(shop.payments, Fake)
    shop.payments.pay("A/1")
    async with shop:
        with pytest.raises(OrderAlreadyPaid):
            await shop.checkout(**SALE, **PAGES)
    assert consumer[0].asked == [("POST", "/api/orders/A%2F1/read", {})]


async def test_unknown_is_no_failure_and_a_failure_is_no_answer(shop: Shop, consumer: tuple[Consumer, str]) -> None:
    async with shop:
        consumer[0].status = 404
        standing = await shop.order("A-1")
        assert (standing.is_known, standing.is_paid, standing.fulfilment) == (False, False, "none")
        with pytest.raises(QueryFailed):  # of everybody is known there what he may use
            await shop.access("ada")
        for status, code in ((401, ""), (500, ""), (503, ""), (404, "unknown_path")):
            consumer[0].status, consumer[0].code = status, code
            with pytest.raises(QueryFailed):
                await shop.order("A-1")
        consumer[0].status = 200
        with pytest.raises(QueryFailed):
            await shop.order("odd")
