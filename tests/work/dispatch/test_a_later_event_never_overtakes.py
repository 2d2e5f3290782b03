"""While an earlier run of (handler, key) is unresolved, later ones wait behind it; other keys never wait."""

from __future__ import annotations

from collections import defaultdict

import pytest

from consumer.broker import Broker
from consumer.ledger import Database
from consumer.plugin import Context, Event, handles
from tests.support.ports import eventually
from tests.work.workshop import Workshop, service_event


@pytest.mark.parametrize("transactional", [True, False])
async def test_a_retry_keeps_its_place(database: Database, broker: Broker, transactional: bool) -> None:
    succeeded: dict[str, list[str]] = defaultdict(list)
    failures: dict[str, int] = defaultdict(int)

    @handles("order.*", transactional=transactional, first_wait_s=0.05, attempts=20)
    async def picky(event: Event, ctx: Context) -> None:
        if event.id.endswith("-0") and event.key == "order:slow" and failures[event.id] < 4:
            failures[event.id] += 1
            raise RuntimeError("the first of its key fails a few times")
        succeeded[event.key].append(event.id)

    shop = Workshop(database, broker, [picky])
    events = [service_event(f"evt_{key}-{n}", "order.paid", key) for n in range(5) for key in ("slow", "a", "b")]
    await shop.publish(*events)
    async with shop.working():
        await eventually(lambda: len(succeeded["order:a"]) >= 5 and len(succeeded["order:b"]) >= 5)
        await eventually(lambda: len(succeeded["order:slow"]) == 5, within_s=20)
    assert succeeded["order:slow"] == [f"evt_slow-{n}" for n in range(5)]


async def test_a_dead_run_keeps_its_key_waiting_unless_told_otherwise(database: Database, broker: Broker) -> None:
    went: dict[str, list[str]] = defaultdict(list)

    def refuse_the_first(name: str, event: Event) -> None:
        if event.id == "evt_0":
            raise ValueError("for good")
        went[name].append(event.id)

    @handles("order.paid", attempts=1)
    async def blocks(event: Event, ctx: Context) -> None:
        refuse_the_first("blocks", event)

    @handles("order.paid", attempts=1, on_dead="continue")
    async def goes_on(event: Event, ctx: Context) -> None:
        refuse_the_first("goes_on", event)

    shop = Workshop(database, broker, [blocks, goes_on])
    await shop.publish(*[service_event(f"evt_{n}", "order.paid", "one") for n in range(3)])
    async with shop.working():
        await eventually(lambda: went["goes_on"] == ["evt_1", "evt_2"])
    assert await shop.statuses(".blocks") == ["dead", "parked", "parked"]
    assert not went["blocks"]
