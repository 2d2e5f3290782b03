"""How far the worker is behind is measured from the log, also while the ledger takes nothing."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import Any

import pytest

from consumer.broker import Broker
from consumer.errors import LedgerUnavailable
from consumer.ledger import Database
from consumer.plugin import Context, Event, handles
from consumer.work.rounds import backlog, housekeeping, poll_loop
from tests.support.ports import eventually
from tests.work.workshop import Workshop, order_paid


@handles("order.paid", transactional=True, name="shop:note")
async def note(event: Event, ctx: Context) -> None:
    """Nothing."""


# case: O2
async def test_the_lag_grows_while_nothing_can_be_stored(
    sqlite_ledger: Database, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Workshop(sqlite_ledger, broker, [note])

    def oldest_s() -> float:
        values = [
            sample.value
            for metric in shop.metrics.registry.collect()
            for sample in metric.samples
            if sample.name == "consumer_lag_seconds"
        ]
        return max(values, default=0.0)

    @asynccontextmanager
    async def away(*_: Any, **__: Any) -> Any:
        raise LedgerUnavailable("away")
        yield

    monkeypatch.setattr(backlog, "LOOK_EVERY_S", 0.1)
    monkeypatch.setattr(housekeeping, "RETRY_S", 0.1)  # it may not have registered before the ledger is away
    monkeypatch.setattr(poll_loop, "RETRY_MOST_S", 0.1)
    async with shop.working():
        await shop.publish(order_paid(1))
        with monkeypatch.context() as patch:
            patch.setattr(sqlite_ledger, "transaction", away)
            await shop.publish(order_paid(2))
            await eventually(lambda: oldest_s() > 0.5, within_s=20)
        await eventually(lambda: oldest_s() == 0, within_s=20)
