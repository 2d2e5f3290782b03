"""While the ledger is away a worker tries again every second: what fails is said once, and its end is said."""

from __future__ import annotations

import io
import json
from collections import Counter
from contextlib import asynccontextmanager
from typing import Any

import pytest

from consumer.broker import Broker
from consumer.errors import LedgerUnavailable
from consumer.ledger import Database
from consumer.plugin import Context, Event, handles
from consumer.work.rounds import poll_loop
from tests.support.ports import eventually
from tests.work.workshop import Workshop, order_paid

TRIES = 4


@handles("order.paid", transactional=True, name="shop:note")
async def note(event: Event, ctx: Context) -> None:
    """Nothing."""


# case: O2
async def test_a_batch_that_cannot_be_stored(
    sqlite_ledger: Database, broker: Broker, monkeypatch: pytest.MonkeyPatch, stream: io.StringIO
) -> None:
    shop, tried = Workshop(sqlite_ledger, broker, [note]), Counter[str]()

    @asynccontextmanager
    async def away(*_: Any, **__: Any) -> Any:
        tried["ledger"] += 1
        raise LedgerUnavailable("away")
        yield

    monkeypatch.setattr(poll_loop, "RETRY_FIRST_S", 0.02)
    async with shop.working():
        await shop.publish(order_paid(1))
        await eventually(lambda: shop.all_succeeded(1))
        with monkeypatch.context() as patch:
            patch.setattr(sqlite_ledger, "transaction", away)
            await shop.publish(order_paid(2))
            await eventually(lambda: tried["ledger"] >= TRIES and "batch_not_stored" in stream.getvalue(), within_s=20)
        await eventually(lambda: shop.all_succeeded(2), within_s=20)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    said = [line for line in lines if line["event"].startswith("batch_not_stored")]
    assert [line["event"] for line in said] == ["batch_not_stored", "batch_not_stored_over"]
    assert (said[0]["code"], said[0]["records"], said[1]["was"]) == ("ledger_unavailable", 1, "ledger_unavailable")
    assert all(count == 1 for count in Counter(line["event"] for line in lines).values())
