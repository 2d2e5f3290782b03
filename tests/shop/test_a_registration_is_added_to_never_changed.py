"""What is registered of a session may be added to and not changed: an open link sells what is registered (cases C18,
F21, U24)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from sqlalchemy import Table

from consumer.clock import DrivenClock
from consumer.console.operators.words import say
from consumer.console.query import query_routes
from consumer.errors import TermsDiffer
from consumer.ledger import Database
from consumer.ledger.tables import AuditRow
from handlers.access.tables import LINKS
from handlers.fulfilment.tables import CHECKOUTS, ORDERS
from tests.support.handling.projections import OUTBOX, START, Projections, said

Client = TestClient[web.Request, web.Application]
AUDIT: Table = AuditRow.__table__
FULL = {"order_id": "A1", "customer": "alice", "expected_amount": "10.00", "mode": "payment", "price_id": "p1"}


@pytest.fixture
def clock() -> DrivenClock:
    return DrivenClock(START)


@pytest.fixture
async def api(database: Database, clock: DrivenClock) -> AsyncIterator[Client]:
    app = web.Application()
    query_routes(app, database=database, clock=clock, token=None, applications=["default"])
    async with TestClient(TestServer(app, host="127.0.0.1")) as client:
        yield client


@pytest.fixture
def projections(database: Database) -> Projections:
    options = {"handlers.fulfilment.handler": {"matching": "off"}, "handlers.access.handler": {}}
    return Projections(database, *options, options=options)


async def put(api: Client, session_id: str = "s1", **body: Any) -> tuple[int, Any]:
    async with api.put(f"/api/checkouts/{session_id}", json=body) as response:
        return response.status, await response.json()


async def stored(projections: Projections) -> list[Any]:
    return [await projections.rows(table) for table in (CHECKOUTS, ORDERS, LINKS, OUTBOX, AUDIT)]


CHANGES: list[tuple[dict[str, Any], list[str]]] = [
    ({"order_id": "A2"}, ["order_id"]),
    ({"customer": "bob"}, ["customer"]),
    ({"expected_amount": "50"}, ["expected_amount"]),
    ({"mode": "subscription"}, ["mode"]),
    ({"price_id": "p2"}, ["price_id"]),
    ({"customer": None}, ["customer"]),
    ({"order_id": "A2", "customer": "bob", "expected_amount": None}, ["order_id", "customer", "expected_amount"]),
]


@pytest.mark.parametrize(("change", "differing"), CHANGES, ids=["+".join(names) for _, names in CHANGES[:-1]] + ["all"])
async def test_another_term_is_409_names_it_and_writes_nothing(
    api: Client, projections: Projections, change: dict[str, Any], differing: list[str]
) -> None:
    # case: C18, F21
    assert (await put(api, **FULL))[0] == 200
    before = await stored(projections)
    status, answer = await put(api, **{**FULL, **change})
    assert (status, answer["error"]["code"], answer["error"]["differing"]) == (409, "terms_differ", differing)
    assert not [value for value in ("A1", "A2", "alice", "bob", "10", "50", "p1", "p2") if value in str(answer)]
    assert await stored(projections) == before


@pytest.mark.parametrize("known", [FULL, {name: FULL[name] for name in FULL if name != "expected_amount"}])
async def test_who_registers_again_need_not_know_the_price(
    api: Client, projections: Projections, known: dict[str, Any]
) -> None:
    # case: C18
    assert (await put(api, **known))[0] == 200
    before = await stored(projections)
    assert (await put(api, **{**known, "price_id": None}))[0] == 200
    assert await stored(projections) == before, "the same again is no news"


@pytest.mark.parametrize("heard_of", [False, True])
async def test_of_two_that_contradict_each_other_at_once_one_counts(
    api: Client, projections: Projections, heard_of: bool
) -> None:
    if heard_of:  # by an event: its row is there, and nobody registered it
        await projections.feed(said("checkout.session.expired", "evt_1", id="s1", order_id="A1"))
    bodies = [{**FULL, "customer": f"customer-{number}"} for number in range(6)]
    answers = await asyncio.gather(*(put(api, **body) for body in bodies))
    assert sorted(status for status, _ in answers) == [200, 409, 409, 409, 409, 409]
    [won] = [answer["customer"] for status, answer in answers if status == 200]
    assert (await projections.row(LINKS))["customer"] == (await projections.row(CHECKOUTS))["customer"] == won
    assert len(await projections.rows(OUTBOX)) == 1


async def test_a_customer_is_no_number(api: Client) -> None:
    assert (await put(api, **{**FULL, "customer": "7"}))[0] == 200
    assert (await put(api, **{**FULL, "customer": "7.0"}))[0] == 409


async def test_what_was_not_said_may_be_said_later(api: Client, projections: Projections, clock: DrivenClock) -> None:
    # case: A37, F21
    said_so_far = {"order_id": "A1"}
    for name in ("customer", "expected_amount", "price_id"):
        clock.advance(1)
        said_so_far |= {name: FULL[name]}
        assert (await put(api, **said_so_far))[0] == 200
    checkout = await projections.row(CHECKOUTS)
    assert {name: checkout[name] for name in FULL} == FULL
    assert (await projections.row(LINKS))["customer"] == "alice"
    assert len(await projections.rows(OUTBOX)) == 3
    await projections.relay()
    checkout = await projections.row(CHECKOUTS)
    assert {name: checkout[name] for name in FULL} == FULL, "the handler stores the same"


async def test_what_only_the_service_said_is_contradicted_freely(api: Client, projections: Projections) -> None:
    await projections.feed(said("checkout.session.completed", "evt_1", id="s1", order_id="A9"))
    assert (await put(api, **FULL))[0] == 200
    assert (await projections.row(CHECKOUTS))["order_id"] == "A1"


async def test_another_session_of_the_order_may_have_other_terms(api: Client, projections: Projections) -> None:
    # case: F21
    assert (await put(api, **FULL))[0] == 200
    assert (await put(api, "s2", order_id="A1", customer="bob"))[0] == 200
    assert (await projections.row(ORDERS))["expected_amount"] is None


async def test_of_a_session_that_is_paid_the_customer_may_still_be_said(api: Client, projections: Projections) -> None:
    # case: A37
    await put(api, order_id="A1", expected_amount="10.00")
    await projections.feed(said("order.paid", "evt_1", order_id="A1", amount="10.00"))
    assert (await put(api, order_id="A1", expected_amount="10.00", customer="alice"))[0] == 200
    assert (await put(api, order_id="A1", expected_amount="11.00", customer="alice"))[0] == 409


async def test_an_operators_word_is_refused_like_it(api: Client, database: Database) -> None:
    await put(api, order_id="A1", customer="alice", expected_amount="10.00")

    async def speak(**data: Any) -> None:
        async with database.transaction() as session:
            data = {"session_id": "s1", "order_id": "A1", **data}
            await say(session, "checkout.registered", "A1", application="default", by="op", reason="a test", now=START,
                      data=data)  # fmt: skip

    with pytest.raises(TermsDiffer) as caught:
        await speak(customer="bob", expected_amount="10.00")
    assert caught.value.line().endswith("(differing=customer)")
    await speak(customer="alice", expected_amount="10", price_id="p1")
