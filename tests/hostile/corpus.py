"""The corpus: PAID orders with anything in any field, and a service that lists and answers them as they are."""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any

from aiohttp import web
from hypothesis import HealthCheck, Phase, given, seed, settings

from consumer.events import parse_time
from tests.hostile.texts import texts, values, written

PAGE = 100
AT = datetime(2026, 1, 1, tzinfo=UTC)
FIELDS = ("description", "customer_reference", "amount", "metadata", "note", "success_url", "mode", "created_at", "id")
PLAIN = {"amount": "10.00", "currency": "USDC", "created_at": AT.isoformat(), "customer_reference": "jane",
         "mode": "payment", "price_id": "price_1"}  # fmt: skip


class Record(dict[str, Any]):
    """A record. `twice`: each of its fields is written twice, an older value first. `envelope`: what is odd about the
    event that shows it."""

    def __init__(self, said: Mapping[str, Any]) -> None:
        super().__init__(said)
        self.twice = False
        self.envelope: Mapping[str, Any] = {}

    def items(self) -> Any:
        """What is written."""
        older = [(name, "PENDING") for name in self if name != "order_id"] if self.twice else []
        return [*older, *super().items()]


def _odd(count: int, value: Any, name: str) -> Record:
    """The four sorts in turn: a field with an odd value, a field that is missing, fields that come twice, an event with
    an odd envelope."""
    paid = {"id": f"ord_{count}", "session_id": f"cs_{count}", "payment_id": f"pay_{count}", **PLAIN}
    field = FIELDS[count // 4 % len(FIELDS)]
    match count % 4:
        case 0:
            record = Record({**paid, field: value, name: value})
        case 1:
            record = Record({one: said for one, said in paid.items() if one != list(paid)[count // 4 % len(paid)]})
        case 2:
            record = Record({**paid, field: value})
            record.twice = True
        case _:
            record = Record(paid)
            which = ("created_at", "data_version", "api_version", "request")[count // 4 % 4]
            long_ago = which == "created_at" and parse_time(value) is not None  # then it is history (B30)
            record.envelope = {name: value, which: f"about {value}" if long_ago else value}
    record |= {"order_id": f"A-{count}", "status": "PAID"}
    return record


@cache
def drawn(number: int) -> tuple[tuple[Any, str], ...]:
    """So many odd values, and names of fields; always the same. Drawing them takes longer than most of what is done
    with them, so who reads them changes none."""
    found: list[tuple[Any, str]] = []

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
        found.append((value, name))

    draw()
    dice = random.Random(1)
    while len(found) < number:  # equal examples are drawn once
        found.append(dice.choice(found))
    return tuple(found[:number])


def corpus(number: int) -> list[dict[str, Any]]:
    """PAID orders, each odd in one of four ways."""
    return [_odd(count, value, name) for count, (value, name) in enumerate(drawn(number))]


def as_event(number: int, order: dict[str, Any], at: datetime = AT) -> dict[str, Any]:
    """What the service says when this order, the corpus's `number`, is paid."""
    odd = order.envelope if isinstance(order, Record) else {}
    said = {"created_at": at.isoformat(), **odd}
    return {**said, "id": f"evt_{number}", "type": "order.paid", "data": {"object": order}}


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
