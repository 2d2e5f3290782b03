"""One trace from the webhook to what is shipped, also where an order is proved by a read that was asked for."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from sqlmodel import col, select

from consumer.ledger.handling.events import to_event
from consumer.ledger.tables import EventRow
from consumer.telemetry.way import trace_id
from tests.promises.deployment import deployment, embedded, started
from tests.support.ports import eventually


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_from_the_webhook_to_the_parcel(tmp_path: Path) -> None:
    place = embedded(tmp_path)
    # The webhook tells, and no walk.
    async with deployment(tmp_path, **place, CONSUMER_LOG_LEVEL="debug", CONSUMER_SYNC_INTERVAL_S="60") as found:
        roles = {role: found.process(role) for role in ("serve", "work", "sync")}
        async with started(*roles.values()):

            async def has_compared() -> bool:
                return (await found.standing()).reconciled_at is not None

            await eventually(
                has_compared, within_s=60, what="the first comparison, which would show the order, is over"
            )
            found.hear(at_work=True)
            found.pay_order()
            await found.shipped(within_s=60)
            async with found.database.reading() as session:
                rows = await session.scalars(select(EventRow).where(col(EventRow.order_id) == found.paid[0]))
                traces = {row.type: trace_id(to_event(row)) for row in rows}
        asked_by = {traces[one] for one in ("order.paid", "checkout.session.completed")}
        assert traces["order.observed"] in asked_by, "of two that ask, the first one's"
        assert traces["fulfilment.requested"] == traces["order.observed"]
        logs = await asyncio.to_thread(lambda: [one.log for one in roles.values()])
    for log in logs:
        lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
        assert traces["fulfilment.requested"] in {line.get("trace_id") for line in lines}
