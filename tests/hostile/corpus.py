"""The corpus: PAID orders with anything in any field, and a service that lists and answers them as they are."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

from aiohttp import web
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.hostile.texts import texts, values, written

PAGE = 100
AT = datetime(2026, 1, 1, tzinfo=UTC)
FIELDS = ("description", "customer_reference", "amount", "metadata", "note", "success_url", "mode", "created_at", "id")


def corpus(number: int) -> list[dict[str, Any]]:
    """PAID orders, each with an odd value in a field in turn, with a field missing or with a field twice as a name."""
    drawn: list[tuple[Any, str]] = []

    @seed(20260101)
    @settings(
        max_examples=number,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(values, texts)
    def draw(value: Any, name: str) -> None:
        drawn.append((value, name))

    draw()
    dice = random.Random(1)
    while len(drawn) < number:  # equal examples are drawn once
        drawn.append(dice.choice(drawn))
    orders = []
    for count, (value, name) in enumerate(drawn[:number]):
        odd = {FIELDS[count % len(FIELDS)]: value, name: value}
        orders.append({"id": f"ord_{count}", "amount": "10.00", **odd, "order_id": f"A-{count}", "status": "PAID"})
    return orders


def as_event(number: int, order: dict[str, Any], at: datetime = AT) -> dict[str, Any]:
    """What the service says when this order, the corpus's `number`, is paid."""
    return {"id": f"evt_{number}", "type": "order.paid", "created_at": at.isoformat(), "data": {"object": order}}


class OddService:
    """Lists the orders and their events page by page, and answers one of them by its id, bytes as careless services
    write them. `shown`: which lists there are already."""

    def __init__(self, orders: list[dict[str, Any]], at: datetime = AT) -> None:
        self.events = [as_event(number, order, at) for number, order in enumerate(orders)]
        self.lists = {"orders": orders, "events": self.events}
        self.shown = set(self.lists)
        self._orders = {order["order_id"]: order for order in orders}
        self._events = {event["id"]: event for event in self.events}

    async def answer(self, request: web.BaseRequest) -> web.Response:
        """Of any address; of one it does not have, an empty list of the application."""
        kind, _, id_ = request.path.removeprefix("/v1/").partition("/")
        if request.path == "/v1/orders/lookup":
            return self._found(self._orders.get(request.query["order_id"]))
        if id_:
            return self._found(self._events.get(id_) if kind in self.shown else None)
        items = self.lists[kind] if kind in self.shown else None
        if items is None:
            return self._json({"id": "svc_app_test", "items": [], "next_cursor": None})
        start = int(request.query.get("cursor", "0").removeprefix("evt_"))
        more = start + PAGE < len(items)
        cursor: Any = None if not more else (f"evt_{start + PAGE}" if kind == "events" else start + PAGE)
        return self._json({"items": items[start : start + PAGE], "next_cursor": cursor})

    def _found(self, record: dict[str, Any] | None) -> web.Response:
        return self._json({"code": "not_found"}, 404) if record is None else self._json(record)

    def _json(self, document: Any, status: int = 200) -> web.Response:
        return web.Response(body=written(document), content_type="application/json", status=status)
