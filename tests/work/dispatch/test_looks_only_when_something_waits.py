"""A batch of which nothing is left to do sends the dispatcher to no look at the ledger."""

from __future__ import annotations

from functools import partial

import pytest

from consumer.broker import Broker
from consumer.ledger import Database
from consumer.plugin import Context, Event, handles
from consumer.work.dispatch.dispatcher import Dispatcher
from tests.support.ports import eventually
from tests.work.workshop import Workshop, order_paid


async def test_what_is_done_with_its_batch_or_begun_wakes_nobody(
    database: Database, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken = 0
    wake = Dispatcher.wake

    def counted(self: Dispatcher) -> None:
        nonlocal woken
        woken += 1
        wake(self)

    @handles("order.paid", transactional=True)
    async def note(event: Event, ctx: Context) -> None:
        """Nothing."""

    @handles("order.paid")
    async def ship(event: Event, ctx: Context) -> None:
        """Nothing."""

    monkeypatch.setattr(Dispatcher, "wake", counted)
    done = Workshop(database, broker, [note])
    async with done.working():
        for number in range(3):
            await done.publish(order_paid(number))
            await eventually(partial(done.all_succeeded, number + 1))
    assert woken == 1, "that it is over"

    both = Workshop(database, broker, [note, ship])
    async with both.working():
        await both.publish(order_paid(3))
        await eventually(lambda: both.count("ship", "succeeded", 1))
        woken = 0
        await both.publish(order_paid(4))
        await eventually(lambda: both.count("ship", "succeeded", 2))
        assert woken == 0, "it was claimed as it came, and lets nothing go"
        await both.publish(order_paid(5, "order-5"), order_paid(6, "order-5"))
        await eventually(lambda: both.count("ship", "succeeded", 4))
        assert woken == 1, "the next of the lane is due"
