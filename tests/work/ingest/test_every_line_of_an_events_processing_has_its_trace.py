"""What is logged while an event is handled can be found by its trace: alone, among many, and when it is done again."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from consumer.events import Event
from consumer.ledger import Database
from consumer.plugin import Context, declared, handles
from consumer.telemetry.way import TOGETHER_MAX, trace_id
from tests.support.handling.live import Live
from tests.work.workshop import order_paid

LIBRARY = logging.getLogger("warehouse")


@handles("order.paid", transactional=True, batch=True, name="test:many")
async def many(batch: Sequence[tuple[Event, Context]]) -> None:
    LIBRARY.info("all")
    for event, ctx in batch:
        ctx.log.info("one", id=event.id, events=7)


def lines(stream: io.StringIO, event: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in stream.getvalue().splitlines()]
    return [line for line in found if line["event"] == event]


# case: O1
@pytest.mark.parametrize("count", [1, 3, TOGETHER_MAX + 5])
async def test_of_many_at_once(database: Database, stream: io.StringIO, count: int) -> None:
    events = [order_paid(number, f"key-{number}") for number in range(count)]
    shop = Live(database, {}, application="default", more=[one for one in [declared(many)] if one is not None])
    await shop.arrive(*events)
    traces = {event.id: trace_id(event) for event in events}
    assert len(set(traces.values())) == count
    assert {line["id"]: line["trace_id"] for line in lines(stream, "one")} == traces
    assert not any("trace_ids" in line for line in lines(stream, "one"))
    assert {line["events"] for line in lines(stream, "one")} == {7}, "what the handler says stays"
    [of_all] = lines(stream, "all")
    if count == 1:
        assert of_all["trace_id"] == traces[events[0].id]
    else:
        assert of_all["of_events"] == count
        assert set(of_all["trace_ids"]) <= set(traces.values())
        assert len(of_all["trace_ids"]) == min(count, TOGETHER_MAX)
