"""assert_idempotent and assert_order_independent: good handlers pass, and each kind of bad one is told what it does."""

from __future__ import annotations

from typing import ClassVar

import pytest
from sqlalchemy import Table, update
from sqlmodel import Field, SQLModel

from consumer.plugin import Context, Event, handles
from consumer.testing import Workbench, assert_idempotent, assert_order_independent

URL = "https://shop.example/orders"


class KitStatus(SQLModel, table=True):
    """The last thing that was said about an order."""

    __tablename__ = "kit_status"
    __table__: ClassVar[Table]

    order_id: str = Field(primary_key=True)
    status: str = ""
    seen: int = 0


@handles("fulfilment.requested", name="kit:good")
async def good(event: Event, ctx: Context) -> None:
    headers = {"Idempotency-Key": ctx.idempotency_key}
    async with ctx.http.post(URL, json={"order": event.order_id}, headers=headers) as answer:
        answer.raise_for_status()


@handles("fulfilment.requested", name="kit:no-key")
async def without_a_key(event: Event, ctx: Context) -> None:
    async with ctx.http.post(URL, json={"order": event.order_id}) as answer:
        answer.raise_for_status()


@handles("order.*", name="kit:last-wins")
async def last_wins(event: Event, ctx: Context) -> None:
    async with ctx.http.put(f"{URL}/{event.order_id}", json={"status": event.type}) as answer:
        answer.raise_for_status()


@handles("order.*", transactional=True, name="kit:last-row-wins")
async def last_row_wins(event: Event, ctx: Context) -> None:
    await ctx.insert_new(KitStatus(order_id=event.order_id or ""))
    await ctx.session.execute(update(KitStatus).values(status=event.type, seen=KitStatus.seen + 1))


@handles("order.*", transactional=True, name="kit:paid-absorbs")
async def paid_absorbs(event: Event, ctx: Context) -> None:
    if event.type == "order.paid" and await ctx.insert_new(KitStatus(order_id=event.order_id or "", status="paid")):
        ctx.emit("shop.paid", event.key, {}, once="paid")


# case: H11, G2, G5
def test_a_good_effect_and_a_good_projection_pass() -> None:
    assert_idempotent(good)
    assert_idempotent(paid_absorbs, history())
    assert_order_independent(paid_absorbs, history())


# case: H11
def test_an_effect_without_the_key_is_found_out() -> None:
    with pytest.raises(AssertionError, match="the outside was told something else"):
        assert_idempotent(without_a_key)


# case: H11, G5
def test_a_crash_between_the_effect_and_its_mark_is_played() -> None:
    told: list[str] = []

    @handles("order.paid", transactional=True, name="kit:leaks")
    async def leaks(event: Event, ctx: Context) -> None:
        told.append(event.id)

    with pytest.raises(AssertionError, match="a crash between the effect and its mark: what `state` returns"):
        assert_idempotent(leaks, state=lambda: list(told), reset=told.clear)


# case: H11, G1
@pytest.mark.parametrize("handler", [last_wins, last_row_wins])
def test_the_last_one_wins_is_found_out(handler: object) -> None:
    with pytest.raises(AssertionError, match="in the order "):
        assert_order_independent(handler, history())  # type: ignore[arg-type]  # a parametrised object


# case: H11, G1
def test_many_events_are_reversed_made_late_and_shuffled() -> None:
    with Workbench() as bench:
        types = ["order.expired", "order.paid", "order.lapsed", "order.seen", "order.closed", "order.opened"]
        events = [bench.event(name, order_id="A-1") for name in types]
    assert_order_independent(paid_absorbs, events)
    with pytest.raises(AssertionError):
        assert_order_independent(last_wins, events)


def test_a_handler_that_never_succeeds_is_no_success() -> None:
    @handles("order.paid", name="kit:broken", attempts=2)
    async def broken(event: Event, ctx: Context) -> None:
        raise ValueError("always")

    with pytest.raises(AssertionError, match="does not succeed even when all is well"):
        assert_idempotent(broken)


def test_the_fixtures_are_the_functions(assert_idempotent: object, assert_order_independent: object) -> None:
    assert callable(assert_idempotent)
    assert callable(assert_order_independent)
    assert_idempotent(good)


def history() -> list[Event]:
    """Three events about one order, two of them proof of payment."""
    with Workbench() as bench:
        return [bench.event(name, order_id="A-1") for name in ("order.expired", "order.paid", "order.paid")]
