"""A record of 200,000 levels stands on a page: its neighbours are read, it too as far as it goes, and meanwhile the
event loop does other things."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pytest
from aiohttp import web

from consumer.document import DEPTH_MAX, TOKENS_MAX, shallow
from consumer.payments import Credentials, PaymentsClient, answers, transport
from tests.support.loopback import LoopbackServer

LEVELS = 200_000
PAGE = 100
TOWERS = {
    "lists": b"[" * LEVELS + b"]" * LEVELS,
    "objects": b'{"a":' * LEVELS + b"1" + b"}" * LEVELS,
    "both, and a text": b'[{"a\\"]":' * (LEVELS // 2) + b'"[{"' + b"}]" * (LEVELS // 2),
}


def page(tower: bytes, at: int) -> bytes:
    """A page of events; one of them holds the tower."""
    items = []
    for number in range(PAGE):
        note = tower if number == at else b'"x"'
        items.append(
            b'{"id":"evt_%d","type":"order.paid","data":{"object":{"note":%b,"order_id":"A-%d"}}}'
            % (number, note, number)
        )
    return b'{"items":[%b],"next_cursor":null}' % b",".join(items)


@pytest.mark.parametrize("tower", TOWERS.values(), ids=TOWERS)
async def test_every_record_of_the_page_is_read(tower: bytes) -> None:
    # case: U1, B1
    async def answer(_: web.BaseRequest) -> web.Response:
        return web.Response(body=page(tower, 50), content_type="application/json")

    async with (
        LoopbackServer(answer, "") as api,
        PaymentsClient(api.url, Credentials("svc_app_test", ["svc_sk_live_test"])) as client,
    ):
        found = await client.events.list()
    assert [item.id for item in found.items] == [f"evt_{number}" for number in range(PAGE)]
    assert [item.raw["data"]["object"]["order_id"] for item in found.items] == [f"A-{number}" for number in range(PAGE)]


def test_what_is_more_than_can_be_looked_through_is_not_begun() -> None:
    # case: I10
    assert shallow(b"[" * (TOKENS_MAX + 1)) is None
    assert shallow(b"[" * (DEPTH_MAX + 2) + b"]" * (DEPTH_MAX + 2)) == b"[" * DEPTH_MAX + b"null" + b"]" * DEPTH_MAX


async def test_the_event_loop_goes_on_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    # case: I10
    """While a large answer is read, others of the loop are done."""
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    understood = answers.understood

    def held(
        status: int, headers: Mapping[str, str], raw: bytes, now: datetime, *, body_needed: bool, **_: Any
    ) -> answers.Answer:
        loop.call_soon_threadsafe(over.set)
        asyncio.run_coroutine_threadsafe(over.wait(), loop).result(60)
        return understood(status, headers, raw, now, body_needed=body_needed)

    async def answer(_: web.BaseRequest) -> web.Response:
        return web.Response(body=page(TOWERS["lists"], 1), content_type="application/json")

    monkeypatch.setattr(transport, "understood", held)
    async with (
        LoopbackServer(answer, "") as api,
        PaymentsClient(api.url, Credentials("svc_app_test", ["svc_sk_live_test"])) as client,
    ):
        assert len((await client.events.list()).items) == PAGE
