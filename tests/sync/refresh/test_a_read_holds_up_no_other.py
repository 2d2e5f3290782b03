"""A read is answered, put off, or holds all of them up; of how full a record of an order is, the newest are kept."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from consumer.ledger.tables import ReadRow
from consumer.payments import CheckoutSession, Order, ServiceUnreachable, UnexpectedAnswer
from consumer.sync.api import Cooldown
from consumer.sync.refresh.single_reads import SHAPES_MAX, SingleReads
from tests.sync.conftest import World

AT = datetime(2026, 1, 1, tzinfo=UTC)


def rows(number: int) -> list[ReadRow]:
    return [ReadRow(application="default", kind="order", object_id=f"A-{one}", asked=1, due_at=AT, created_at=AT)
            for one in range(number)]  # fmt: skip


class Desk:
    """Single reads of orders; `shown` is what each read shows or raises, `told` what became of them."""

    def __init__(self, world: World, *shown: dict[str, Any] | Exception, allowed: int = 100) -> None:
        self.shown, self.told, self.allowed = list(shown), list[str](), allowed
        here: Any = self
        resources: Any = SimpleNamespace(orders=self, checkout_sessions=self)
        self.cooldown = Cooldown(world.clock)
        self.it = SingleReads(world.app, resources, here, quota=here, cooldown=self.cooldown)

    async def lookup(self, order_id: str) -> Any:
        """As the API's orders do."""
        found = self.shown.pop(0)
        if isinstance(found, Exception):
            raise found
        return Order.read({"order_id": order_id, **found})

    async def retrieve(self, session_id: str) -> Any:
        """As the API's sessions do: one whose order is odd."""
        order = await self.lookup("A-0")
        return CheckoutSession.read({"id": session_id, "status": "COMPLETED", "order": order.raw})

    async def allows(self, _: str) -> bool:
        """As a quota does."""
        self.allowed -= 1
        return self.allowed >= 0

    async def version(self, asked: Sequence[ReadRow]) -> int:
        """As answers do."""
        return len(self.told) + 1

    async def failed(self, row: ReadRow, _: int, error: Exception) -> None:
        """As answers do."""
        self.told.append(f"{row.object_id} failed")

    async def put_off(self, row: ReadRow, error: Exception) -> None:
        """As answers do."""
        self.told.append(f"{row.object_id} put off")

    async def found(self, seen: Sequence[tuple[ReadRow, Any]], version: int) -> None:
        """As answers do."""
        self.told += [f"{row.object_id} found" for row, _ in seen]

    def service_answered(self) -> None:
        """As answers do."""


# case: G7
async def test_one_that_fails_keeps_no_other_waiting_and_what_concerns_all_ends_the_round(world: World) -> None:
    away = ServiceUnreachable("nobody answers")
    desk, answered = Desk(world, {"status": "PAID"}, UnexpectedAnswer("no"), {"status": "PAID"}, away), list[ReadRow]()
    await desk.it.work_off(iter(rows(6)), answered)
    assert desk.told == ["A-0 found", "A-1 failed", "A-2 found"]
    assert [row.object_id for row in answered] == ["A-0", "A-2"]
    assert desk.cooldown.error is away


# case: I10
async def test_a_record_that_cannot_be_kept_is_put_off(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    desk, answered = Desk(world, {"status": "PAID"}, {"status": "ODD"}), list[ReadRow]()
    monkeypatch.setattr(desk.it.odd, "is_whole", lambda one: one.record["status"] != "ODD")
    await desk.it.work_off(iter(rows(2)), answered)
    assert desk.told == ["A-0 found", "A-1 put off"]
    assert [row.object_id for row in answered] == ["A-0"]


# case: I10
async def test_a_session_whose_order_cannot_be_kept_is_put_off(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order is what it was read for: with the session alone it were answered, and nobody heard of it."""
    desk, answered = Desk(world, {"status": "ODD"}), list[ReadRow]()
    monkeypatch.setattr(desk.it.odd, "is_whole", lambda one: one.record["status"] != "ODD")
    row = ReadRow(application="default", kind="session", object_id="cs_1", asked=1, due_at=AT, created_at=AT)
    await desk.it.work_off(iter([row]), answered)
    assert (desk.told, answered) == (["cs_1 put off"], [])


# case: B23
async def test_what_the_share_does_not_allow_is_left(world: World) -> None:
    desk, answered = Desk(world, {}, {}, allowed=2), list[ReadRow]()
    await desk.it.work_off(iter(rows(4)), answered)
    assert [row.object_id for row in answered] == ["A-0", "A-1"]


# case: B22
async def test_the_newest_shapes_of_orders_are_kept(world: World) -> None:
    desk, answered = Desk(world, *({f"field_{number}": 1} for number in range(SHAPES_MAX + 2))), list[ReadRow]()
    counts = []
    for row in rows(SHAPES_MAX + 2):
        before = list(desk.it.order_shapes)
        await desk.it.do(row, answered)
        counts.append(len(desk.it.order_shapes))
        assert list(desk.it.order_shapes)[:-1] == (before if len(before) < SHAPES_MAX else before[1:])
    assert counts == [*range(1, SHAPES_MAX + 1), SHAPES_MAX, SHAPES_MAX]
