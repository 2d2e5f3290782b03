"""Lists: limits, cursors, order."""

from __future__ import annotations

from typing import Any

import pytest

from consumer.sandbox import Engine, Sandbox
from tests.sandbox.support import Api, create


def fill(engine: Engine, orders: int) -> None:
    for number in range(orders):
        engine.sessions.cancel(create(engine, order_id=f"o{number:03}"))


async def walk(api: Api, path: str, limit: int) -> tuple[list[Any], int]:
    """Follow the cursors as the spec says; all items and the number of pages."""
    items: list[Any] = []
    cursor: Any = None
    for page in range(1, 100):
        query = {"limit": limit} | ({} if cursor is None else {"cursor": cursor})
        reply = (await api.get(path, **query)).json
        assert set(reply) == {"items", "next_cursor"}
        items += reply["items"]
        cursor = reply["next_cursor"]
        if cursor is None or not reply["items"]:
            return items, page
    raise AssertionError("an endless list")


async def test_twenty_by_default_one_to_a_hundred_on_request(api: Api, sandbox: Sandbox) -> None:
    # case: X55
    fill(sandbox.engine, 101)
    for path in ("/v1/orders", "/v1/events"):
        assert len(await api.items(path)) == 20
        assert len(await api.items(path, limit=1)) == 1
        assert len(await api.items(path, limit=100)) == 100
        for wrong in ("0", "101", "x", "-1", "1.5", "", "٣"):
            reply = await api.get(path, limit=wrong)
            assert (reply.status, reply.code, reply.json["field"]) == (400, "validation_failed", "limit")


@pytest.mark.parametrize("order", ["newest_first", "oldest_first"])
@pytest.mark.parametrize("style", ["seek", "offset"])
@pytest.mark.parametrize("kind", ["number", "string"])
async def test_a_full_last_page_still_has_a_numeric_cursor(
    api: Api, sandbox: Sandbox, order: str, style: str, kind: str
) -> None:
    # case: X55
    sandbox.assumptions.set({"lists_order": order, "numeric_cursor": style, "cursor_type": kind})
    fill(sandbox.engine, 6)
    items, pages = await walk(api, "/v1/orders", 3)
    assert pages == 3, "two full pages and an empty one"
    expected = [f"o{number:03}" for number in range(6)]
    assert [item["order_id"] for item in items] == (expected[::-1] if order == "newest_first" else expected)
    cursor = (await api.get("/v1/orders", limit=3)).json["next_cursor"]
    assert isinstance(cursor, str if kind == "string" else int)
    fill(sandbox.engine, 1)
    assert (await walk(api, "/v1/orders", 4))[1] == 2


@pytest.mark.parametrize("order", ["newest_first", "oldest_first"])
@pytest.mark.parametrize("style", ["exclusive", "inclusive"])
async def test_events_page_by_event_id_until_null(api: Api, sandbox: Sandbox, order: str, style: str) -> None:
    # case: X55, X57
    sandbox.assumptions.set({"events_order": order, "events_cursor": style})
    fill(sandbox.engine, 6)
    for limit, expected_pages in ((3, 2), (4, 2), (1, 6), (6, 1), (100, 1)):
        items, pages = await walk(api, "/v1/events", limit)
        assert pages == expected_pages, "a full last event page has no cursor"
        names = [item["data"]["object"]["order_id"] for item in items]
        assert names == sorted(names, reverse=order == "newest_first")
        assert len(set(names)) == 6
    page = (await api.get("/v1/events", limit=2)).json
    assert page["next_cursor"].startswith("evt_")
    assert (page["next_cursor"] == page["items"][-1]["id"]) is (style == "exclusive")


async def test_no_events_is_one_empty_page(api: Api) -> None:
    # case: X55
    assert await walk(api, "/v1/events", 100) == ([], 1)


@pytest.mark.parametrize(("switch", "expected"), [("refuse", None), ("first_page", 3), ("empty", 0)])
async def test_what_a_senseless_cursor_does_is_a_switch(
    api: Api, sandbox: Sandbox, switch: str, expected: int | None
) -> None:
    # case: X55
    sandbox.assumptions.set({"invalid_cursor": switch})
    fill(sandbox.engine, 3)
    for path, cursor in (("/v1/orders", "abc"), ("/v1/orders", ""), ("/v1/events", "evt_nope"), ("/v1/events", "3")):
        reply = await api.get(path, cursor=cursor)
        if expected is None:
            assert (reply.status, reply.code, reply.json["field"]) == (400, "validation_failed", "cursor")
        else:
            assert len(reply.json["items"]) == expected


async def test_an_unknown_parameter_is_refused(api: Api) -> None:
    # case: X55
    reply = await api.get("/v1/orders", offset=3)
    assert (reply.status, reply.json["field"]) == (400, "offset")


async def test_seeking_is_not_disturbed_by_what_is_new(api: Api, sandbox: Sandbox) -> None:
    # case: X55, X57
    fill(sandbox.engine, 4)
    for path in ("/v1/orders", "/v1/events"):
        first = (await api.get(path, limit=2)).json
        sandbox.engine.sessions.cancel(create(sandbox.engine))
        second = (await api.get(path, limit=2, cursor=first["next_cursor"])).json
        assert len({item["id"] for item in first["items"] + second["items"]}) == 4


async def test_payments_that_did_not_succeed_are_hidden_by_a_switch(api: Api, sandbox: Sandbox) -> None:
    # case: X55
    payment = sandbox.engine.payments.pay(create(sandbox.engine), until="confirmed")
    assert (await api.items("/v1/payments"))[0]["status"] == "PENDING"
    sandbox.assumptions.set({"payments_listed": "succeeded"})
    assert await api.items("/v1/payments") == []
    assert (await api.get(f"/v1/payments/{payment.id}")).status == 404
    sandbox.engine.payments.finalize(payment)
    assert (await api.get(f"/v1/payments/{payment.id}")).json["status"] == "SUCCEEDED"
