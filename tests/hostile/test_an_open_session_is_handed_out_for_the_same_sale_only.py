"""A create with the order id of an open session: its link is handed out only if price, customer and items are those."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from consumer.payments import LinkUnavailable, ResourceNotFound, SessionMismatch
from tests.payments.support import (
    SESSION_FIELDS,
    Bench,
    Reply,
    ScriptedService,
    bench,
    error_reply,
    scripted_service,
    session_json,
)

LINKED = Reply(200, session_json(url="https://pay.example/cs_1?n=2"))
BY_PRICE = {name: value for name, value in SESSION_FIELDS.items() if name not in ("amount", "description")}
ITEM = {"name": "a book", "quantity": 2, "amount": "5.25"}


@pytest.fixture
async def service() -> AsyncIterator[ScriptedService]:
    async with scripted_service() as found:
        yield found


@pytest.fixture
async def b(service: ScriptedService) -> AsyncIterator[Bench]:
    async with bench(service.base_url) as found:
        yield found


async def again(b: Bench, service: ScriptedService, fields: dict[str, Any], **shown: Any) -> tuple[str, ...]:
    """Ask for these while the session is open; the names of what differs, empty when a link is handed out."""
    service.will(Reply(200, session_json(url=None, **shown)), LINKED)
    try:
        session = await b.client.checkout_sessions.create_from(fields)
    except SessionMismatch as error:
        service.script.clear()
        return error.differing
    assert session.url is not None
    return ()


async def test_a_price_for_an_amount_is_another_sale(b: Bench, service: ScriptedService) -> None:
    # case: C18, U24
    asked = {**BY_PRICE, "price_id": "svc_price_fifty"}
    assert await again(b, service, asked, amount="10.50", price_id=None) == ("price_id",)
    assert await again(b, service, SESSION_FIELDS, amount=None, price_id="svc_price_fifty") == ("price_id", "amount")


@pytest.mark.parametrize(
    ("price", "names"),
    [
        ({"amount": "50"}, ("price_id",)),
        ({"amount": "10.500000"}, ()),
        ({"unit_amount": "50"}, ("price_id",)),
        ({"unit_amount": "10.50"}, ()),
        ({}, ()),
        ({"amount": None, "unit_amount": 50}, ()),
    ],
)
async def test_a_price_is_read_where_nothing_else_tells_what_is_sold(
    b: Bench, service: ScriptedService, price: dict[str, Any], names: tuple[str, ...]
) -> None:
    """The session was created elsewhere and shows its amount alone. A price that says none cannot be compared."""
    # case: C18, U24
    asked = {**BY_PRICE, "price_id": "svc_price_fifty"}
    service.will(
        Reply(200, session_json(url=None, amount="10.50")), Reply(200, {"id": "svc_price_fifty", **price}), LINKED
    )
    if names:
        with pytest.raises(SessionMismatch) as caught:
            await b.client.checkout_sessions.create_from(asked)
        assert caught.value.differing == names
    else:
        assert (await b.client.checkout_sessions.create_from(asked)).url is not None
    assert [(one.method, one.path) for one in service.seen][1] == ("GET", "/v1/prices/svc_price_fifty")
    assert len(service.seen) == (2 if names else 3)


async def test_a_price_that_cannot_be_read_sends_nobody_to_pay(b: Bench, service: ScriptedService) -> None:
    # case: C18, U24
    asked = {**BY_PRICE, "price_id": "svc_price_gone"}
    service.will(Reply(200, session_json(url=None, amount="10.50")), error_reply(404, "not_found"))
    with pytest.raises(LinkUnavailable) as caught:
        await b.client.checkout_sessions.create_from(asked)
    assert isinstance(caught.value.reason, ResourceNotFound)
    assert [one.method for one in service.seen] == ["POST", "GET"], "no link was asked for"


async def test_no_price_is_read_where_the_sale_is_known(b: Bench, service: ScriptedService) -> None:
    # case: U24
    asked = {**BY_PRICE, "price_id": "svc_price_fifty"}
    assert await again(b, service, asked, amount="50.00", price_id="svc_price_fifty") == ()
    assert await again(b, service, asked) == ()
    service.will(Reply(200, session_json()))
    await b.client.checkout_sessions.create_from(asked)
    assert await again(b, service, asked, amount="50.00") == ()
    assert {one.method for one in service.seen} == {"POST"}


async def test_another_customer_is_another_sale(b: Bench, service: ScriptedService) -> None:
    # case: C18, A37
    bob = {**SESSION_FIELDS, "customer_reference": "bob", "customer_email": "Bob@shop.example"}
    assert await again(b, service, bob, customer_reference="alice") == ("customer_reference",)
    assert await again(b, service, bob, customer_reference="bob", customer_email="bob@shop.example") == ()
    assert await again(b, service, SESSION_FIELDS, customer_reference="alice") == ("customer_reference",)


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({"amount": "50.00"}, ("amount",)),
        ({"amount": "10.500000"}, ()),
        ({"customer_reference": "bob"}, ("customer_reference",)),
        ({"customer_reference": None}, ("customer_reference",)),
        ({"line_items": [ITEM, ITEM]}, ("line_items",)),
        ({"line_items": [{**ITEM, "name": "two halves", "quantity": 4, "amount": "2.625"}]}, ()),
        ({}, ()),
    ],
)
async def test_what_the_answer_does_not_show_is_remembered(
    b: Bench, service: ScriptedService, changed: dict[str, Any], names: tuple[str, ...]
) -> None:
    # case: C18, U24
    asked = {**SESSION_FIELDS, "customer_reference": "alice", "line_items": [ITEM]}
    service.will(Reply(200, session_json()))
    await b.client.checkout_sessions.create_from(asked)
    assert await again(b, service, {**asked, **changed}) == names


async def test_a_null_is_no_difference_where_we_know_better(b: Bench, service: ScriptedService) -> None:
    # case: U24
    asked = {**SESSION_FIELDS, "customer_reference": "alice"}
    service.will(Reply(200, session_json()))
    await b.client.checkout_sessions.create_from(asked)
    assert await again(b, service, asked, customer_reference=None, line_items=None) == ()


async def test_what_is_remembered_names_nobody(b: Bench, service: ScriptedService) -> None:
    # case: C18
    service.will(Reply(200, session_json()))
    await b.client.checkout_sessions.create_from({**SESSION_FIELDS, "customer_reference": "alice@shop.example"})
    stored = str(vars(b.client.budget.store))
    assert "terms/" in stored
    assert "alice" not in stored


async def test_a_description_beside_a_price_is_the_services_to_judge(b: Bench, service: ScriptedService) -> None:
    # case: C21
    service.will(Reply(200, session_json()))
    await b.client.checkout_sessions.create_from({**BY_PRICE, "price_id": "p", "description": "A year"})
    assert service.seen[-1].json["description"] == "A year"
