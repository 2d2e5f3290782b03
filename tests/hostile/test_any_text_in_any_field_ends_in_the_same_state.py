"""Whatever text stands in a field of an event or a record, both databases hold it, and hold the same."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings

from consumer.document import parse
from consumer.events import Event, Locators, Source, Trust, build_event
from consumer.ledger import Database
from handlers.access.tables import ENTITLEMENTS, SUBSCRIPTIONS
from handlers.access.tables import FINDINGS as ACCESS_FINDINGS
from handlers.fulfilment.tables import CHECKOUTS, FINDINGS, ORDERS, PAYMENTS
from tests.hostile.texts import ODD_TEXTS, texts, written
from tests.support.handling.projections import START, Projections, observed
from tests.support.postgres import copy_database

MODULES = ("handlers.fulfilment.handler", "handlers.access.handler")
TABLES = (ORDERS, CHECKOUTS, PAYMENTS, FINDINGS, SUBSCRIPTIONS, ENTITLEMENTS, ACCESS_FINDINGS)
EXAMPLES = max(10, int(os.environ.get("CONSUMER_TEST_HISTORIES", "0")) // 10)
ODD = (*ODD_TEXTS, 1e300, 2**70, -1, ["x"], {"a": "\0"}, True)
ORDER = (
    "id", "amount", "status", "customer_reference", "customer_email", "description", "metadata", "session_id",
    "payment_id", "currency", "mode", "price_id", "created_at",
)  # fmt: skip
SUBSCRIPTION = (
    "customer_reference", "price_id", "product_id", "checkout_session_id", "order_id", "status", "end_reason",
    "cancel_reason", "current_period_end", "ended_at", "past_due_since", "cancel_at_period_end", "created_at",
    "merchant_cancel_requested",
)  # fmt: skip


def event(application: str, number: int, kind: str, object_: dict[str, Any]) -> Event:
    body = {"id": f"evt_{number}", "type": kind, "created_at": START.isoformat(), "data": {"object": object_}}
    return build_event(
        written(body), Locators(), application=application, trust=Trust.SIGNED, source=Source.WEBHOOK, received_at=START
    )


def read(application: str, key: str, version: int, record: dict[str, Any]) -> Event:
    return observed(key, version, parse(written(record), tolerant=True), at=START, application=application)


def story(odd: Any, application: str) -> list[Event]:
    """Every field of every object in turn holds the odd value; each beside an order and a subscriber of its own."""
    told: list[Event] = []
    heard, seen = partial(event, application), partial(read, application)
    for field in ORDER:
        n = len(told)
        order_id = f"A-{field}"
        plain = {"id": f"ord_{n}", "order_id": order_id, "status": "PAID", "amount": "10.00"}
        told.append(heard(n, "order.paid", {**plain, field: odd}))
        told.append(seen(f"order:{order_id}", n, {**plain, field: odd}))
        told.append(heard(n + 100_000, "checkout.session.completed", {**plain, "id": f"cs_{n}", field: odd}))
        told.append(seen(f"payment:pay_{n}", n, {**plain, "id": f"pay_{n}", "status": "SUCCEEDED", field: odd}))
    for kind in ("order.paid", "order.expired", "checkout.session.completed", "checkout.session.expired"):
        n = len(told)  # the key itself
        told.append(heard(n, kind, {"id": f"ord_{n}", "order_id": odd, "status": "PAID", "amount": "10.00"}))
    told.append(seen("payment:pay_key", len(told), {"id": "pay_key", "order_id": odd, "status": "SUCCEEDED"}))
    for field in SUBSCRIPTION:
        n = len(told)
        plain = {"id": f"sub_{n}", "status": "ACTIVE", "customer_reference": f"c_{n}", "price_id": "p"}
        told.append(heard(n, "subscription.created", {**plain, field: odd}))
        told.append(seen(f"subscription:sub_{n}", n, {**plain, field: odd}))
        told.append(heard(n + 100_000, "subscription.ended", {**plain, field: odd}))
    return told


State = dict[str, list[dict[str, Any]]]


async def state(database: Database, odd: Any, application: str = "default") -> State:
    """What the handlers hold of the story, each row's application left out."""
    options = {MODULES[0]: {"matching": "off"}, MODULES[1]: {}}
    projections = Projections(database, *MODULES, options=options, application=application)
    await projections.feed_together(story(odd, application))
    await projections.relay()
    rows = {table.name: await projections.rows(table, application=application) for table in TABLES}
    return {name: sorted((one | {"application": ""} for one in found), key=repr) for name, found in rows.items()}


@pytest.mark.parametrize("odd", ODD[:4], ids=ascii)
async def test_every_paid_order_is_requested_whatever_stands_beside_its_state(
    sqlite_ledger: Database, odd: Any
) -> None:
    # case: F1, U1
    all_are_requested(await state(sqlite_ledger, odd))


def all_are_requested(found: State) -> None:
    orders = {row["order_id"]: row for row in found["fulfilment_order"] if row["order_id"].startswith("A-")}
    assert orders.keys() == {f"A-{field}" for field in ORDER}
    assert [name for name, row in orders.items() if row["requested_at"] is None] == []


class Both:
    """The same on each database, many times: each time is an application of its own."""

    def __init__(self, *urls: str) -> None:
        self._runner = asyncio.Runner()
        self._databases = [Database(url) for url in urls]
        self._names = (f"app{number}" for number in count())

    def states(self, odd: Any) -> list[State]:
        """What each holds of the story about this value."""
        name = next(self._names)
        return [self._runner.run(state(database, odd, name)) for database in self._databases]

    def close(self) -> None:
        for database in self._databases:
            self._runner.run(database.stop())
        self._runner.close()


@pytest.fixture(scope="module")
def both(
    postgres_base: str, postgres_template: str, sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Both]:
    file = shutil.copyfile(sqlite_template, tmp_path_factory.mktemp("both") / "ledger.db")
    found = Both(f"sqlite+aiosqlite:///{file}", copy_database(postgres_base, postgres_template))
    yield found
    found.close()


def examples(test: Callable[..., None]) -> Callable[..., None]:
    """Those that once broke something are always tried."""
    for odd in ODD:
        test = example(odd=odd)(test)
    return test


@pytest.mark.postgres
@examples
@given(odd=texts)
@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), print_blob=True)
def test_both_databases_hold_the_same(both: Both, odd: Any) -> None:
    # case: I10, U1
    sqlite, postgresql = both.states(odd)
    all_are_requested(sqlite)
    for name, rows in sqlite.items():
        assert rows == postgresql[name], name
