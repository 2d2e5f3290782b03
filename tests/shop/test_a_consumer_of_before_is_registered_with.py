"""A shop that is newer than its consumer registers with it all the same: a consumer of before refuses a field that it
does not know."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from consumer.shop import QueryApi, QueryFailed


@pytest.mark.parametrize(("unknown", "asked"), [("price_id", 2), ("order_id", 2), (None, 1)])
async def test_a_price_that_it_does_not_know_is_left_out(unknown: str | None, asked: int) -> None:
    # case: C18
    bodies: list[dict[str, Any]] = []

    async def register(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        return web.json_response({}, status=400 if unknown in bodies[-1] else 200)

    app = web.Application()
    app.router.add_put("/api/checkouts/s1", register)
    async with TestServer(app, host="127.0.0.1") as server, QueryApi(str(server.make_url("/"))) as api:
        said = {"order_id": "A1", "customer": "alice", "price_id": "p1"}
        if unknown == "order_id":
            with pytest.raises(QueryFailed):
                await api.register("s1", **said)
        else:
            await api.register("s1", **said)
    assert len(bodies) == asked
    assert bodies[0] == {**said, "mode": "payment"}
    assert ("price_id" in bodies[-1]) is (unknown is None)
