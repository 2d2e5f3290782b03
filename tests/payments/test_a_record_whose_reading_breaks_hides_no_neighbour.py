"""Nobody foresees every record. One whose reading breaks is told by a word of its own and kept as it came; those beside
it are read, and a single read of it fails alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from consumer.payments import Credentials, EventRecord, Order, PaymentsClient, Record, UnexpectedAnswer, models
from tests.support.loopback import LoopbackServer

CREDENTIALS = Credentials("svc_app_test", ["svc_sk_live_test"])
ITEMS = [{"id": f"x_{number}", "order_id": f"A-{number}", "status": "PAID"} for number in range(3)]


def breaking(monkeypatch: pytest.MonkeyPatch, kind: type[Record]) -> None:
    """The middle one of the records cannot be read."""
    read = kind.read

    def broken(document: Mapping[str, Any], raw_bytes: bytes | None = None) -> Record:
        if document.get("id") == "x_1":
            raise RuntimeError("nobody has thought of 4012 8888 8888 1881")
        return read(document, raw_bytes)

    monkeypatch.setattr(kind, "read", broken)


async def answer(request: web.BaseRequest) -> web.Response:
    is_list = request.path in ("/v1/orders", "/v1/events")
    return web.json_response({"items": ITEMS, "next_cursor": None} if is_list else ITEMS[1])


@pytest.mark.parametrize(
    ("kind", "listing"),
    [(Order, lambda client: client.orders), (EventRecord, lambda client: client.events)],
    ids=["orders", "events"],
)
async def test_its_neighbours_on_the_page_are_read(
    monkeypatch: pytest.MonkeyPatch, kind: type[Record], listing: Callable[[PaymentsClient], Any]
) -> None:
    # case: U1, B1
    breaking(monkeypatch, kind)
    async with LoopbackServer(answer, "") as api, PaymentsClient(api.url, CREDENTIALS) as client:
        with capture_logs() as lines:
            page = await listing(client).list()
        assert [item.id for item in page.items] == ["x_0", "x_1", "x_2"], "by its id it can be read singly"
        assert getattr(page.items[1], "status", None) is None
        assert (page.items[1].raw, page.items[1].raw_bytes) == (ITEMS[1], models.dumped(ITEMS[1]))
        [line] = lines
        assert (line["event"], line["error"]) == ("listed_record_broke_its_reading", "RuntimeError")
        assert "4012" not in str(line)


async def test_a_single_read_of_it_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    # case: U1
    breaking(monkeypatch, Order)
    async with LoopbackServer(answer, "") as api, PaymentsClient(api.url, CREDENTIALS) as client:
        for reading in (client.orders.retrieve("x_1"), client.orders.lookup("A-1")):
            with pytest.raises(UnexpectedAnswer, match=r"cannot be read") as caught:
                await reading
            assert "4012" not in str(caught.value)


def test_even_what_breaks_at_every_look_is_a_record_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    # case: U1
    def breaks(_: object) -> Any:
        raise RuntimeError

    monkeypatch.setattr(models, "_id", breaks)
    monkeypatch.setattr(models, "dumped", breaks)
    found = Order.unread(ITEMS[1])
    assert (found.id, found.order_id, found.status, found.raw, found.raw_bytes) == (None, None, None, ITEMS[1], b"")
