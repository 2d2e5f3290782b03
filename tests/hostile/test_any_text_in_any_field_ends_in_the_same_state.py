"""Whatever text stands in a field of an event or a record, both databases hold it, and hold the same."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from consumer.document import parse
from consumer.events import Event, Locators, Source, Trust, build_event
from consumer.ledger import Database
from handlers.access.tables import ENTITLEMENTS, SUBSCRIPTIONS
from handlers.access.tables import FINDINGS as ACCESS_FINDINGS
from handlers.fulfilment.tables import CHECKOUTS, FINDINGS, ORDERS, PAYMENTS
from tests.hostile.texts import ODD_TEXTS, written
from tests.support.handling.projections import START, Projections, observed
from tests.support.postgres import copy_database

MODULES = ("handlers.fulfilment.handler", "handlers.access.handler")
TABLES = (ORDERS, CHECKOUTS, PAYMENTS, FINDINGS, SUBSCRIPTIONS, ENTITLEMENTS, ACCESS_FINDINGS)
ODD = (*ODD_TEXTS, 1e300, 2**70, -1, ["x"], {"a": "\0"}, True)
ORDER = ("id", "amount", "status", "customer_reference", "description", "metadata")
SUBSCRIPTION = (
    "customer_reference", "price_id", "product_id", "checkout_session_id", "order_id", "status", "end_reason",
    "cancel_reason", "current_period_end", "ended_at", "past_due_since", "cancel_at_period_end",
)  # fmt: skip


def event(number: int, kind: str, object_: dict[str, Any]) -> Event:
    body = {"id": f"evt_{number}", "type": kind, "created_at": START.isoformat(), "data": {"object": object_}}
    return build_event(
        written(body), Locators(), application="default", trust=Trust.SIGNED, source=Source.WEBHOOK, received_at=START
    )


def read(key: str, version: int, record: dict[str, Any]) -> Event:
    return observed(key, version, parse(written(record), tolerant=True), at=START)


def story(odd_ones: tuple[Any, ...]) -> list[Event]:
    """Every field of every object in turn holds every odd value; each beside an order and a subscriber of its own."""
    told: list[Event] = []
    for number, odd in enumerate(odd_ones):
        for field in ORDER:
            n = len(told)
            order_id = f"A-{number}-{field}"
            plain = {"id": f"ord_{n}", "order_id": order_id, "status": "PAID", "amount": "10.00"}
            told.append(event(n, "order.paid", {**plain, field: odd}))
            told.append(read(f"order:{order_id}", n, {**plain, field: odd}))
            told.append(event(n + 100_000, "checkout.session.completed", {**plain, "id": f"cs_{n}", field: odd}))
            told.append(read(f"payment:pay_{n}", n, {**plain, "id": f"pay_{n}", "status": "SUCCEEDED", field: odd}))
        for field in SUBSCRIPTION:
            n = len(told)
            plain = {"id": f"sub_{n}", "status": "ACTIVE", "customer_reference": f"c_{n}", "price_id": "p"}
            told.append(event(n, "subscription.created", {**plain, field: odd}))
            told.append(read(f"subscription:sub_{n}", n, {**plain, field: odd}))
            told.append(event(n + 100_000, "subscription.ended", {**plain, field: odd}))
    return told


async def state(database: Database, told: list[Event]) -> dict[str, list[dict[str, Any]]]:
    projections = Projections(database, *MODULES, options={MODULES[0]: {"matching": "off"}, MODULES[1]: {}})
    for start in range(0, len(told), 200):
        await projections.feed_together(told[start : start + 200])
    await projections.relay()
    return {table.name: await projections.rows(table) for table in TABLES}


async def test_every_paid_order_is_requested_whatever_stands_beside_its_state(sqlite_ledger: Database) -> None:
    # case: F1, U1
    all_are_requested(await state(sqlite_ledger, story(ODD[:4])), 4)


def all_are_requested(found: dict[str, list[dict[str, Any]]], odd_ones: int) -> None:
    orders = {row["order_id"]: row for row in found["fulfilment_order"]}
    assert len(orders) == odd_ones * len(ORDER)
    assert [name for name, row in orders.items() if row["requested_at"] is None] == []


@pytest.mark.postgres
@pytest.mark.parametrize("part", range(3))
def test_both_databases_hold_the_same(
    postgres_base: str, postgres_template: str, sqlite_template: Path, tmp_path: Path, part: int
) -> None:
    # case: I10, U1
    odd_ones = ODD[part::3]
    shutil.copyfile(sqlite_template, tmp_path / "ledger.db")
    urls = [f"sqlite+aiosqlite:///{tmp_path}/ledger.db", copy_database(postgres_base, postgres_template)]

    async def both() -> list[dict[str, list[dict[str, Any]]]]:
        states = []
        for url in urls:
            database = Database(url)
            try:
                states.append(await state(database, story(odd_ones)))
            finally:
                await database.stop()
        return states

    sqlite, postgresql = asyncio.run(both())
    all_are_requested(sqlite, len(odd_ones))
    for name, rows in sqlite.items():
        assert rows == postgresql[name], name
