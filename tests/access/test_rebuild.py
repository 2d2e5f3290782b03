"""Rebuild: projections derived again from what the ledger keeps are the same, and nothing new goes out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Table, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.console.checkouts import ACTOR, REGISTERED, Checkout, write_checkout
from consumer.events import Event, Trust
from consumer.ledger import Database, schema
from consumer.ledger.tables import AuditRow, EventRow, OutboxRow, ReadRow
from consumer.plugin import derived_id
from consumer.wire import SEED
from handlers.access import tables as access
from handlers.fulfilment import tables as fulfilment
from tests.access.history import Service, denials, reconcile, services, webhooks
from tests.support.live import Live
from tests.support.projections import observed, own, said, unreadable
from tests.support.rebuild import Differs, Rebuild

PLUGINS: dict[str, dict[str, Any]] = {"fulfilment": {}, "access": {}}
OURS = [table for module in (fulfilment, access) for table in vars(module).values() if isinstance(table, Table)]
LEFT_ALONE: list[Table] = [model.__table__ for model in (OutboxRow, ReadRow, AuditRow, EventRow)]
ORDERS = fulfilment.ORDERS
READ_DUE = "fulfilment.read_due"


async def contents(live: Live, tables: list[Table]) -> dict[str, list[dict[str, Any]]]:
    found = {}
    async with live.database.reading() as session:
        for table in tables:
            wanted = select(table).where(table.c.application == live.application)
            rows = (await session.execute(wanted.order_by(*table.primary_key.columns))).mappings()
            found[table.name] = [dict(row) for row in rows]
    return found


async def registered(session: AsyncSession, application: str, data: Mapping[str, Any], at: datetime) -> None:
    fields = {name: data.get(name) for name in ("session_id", "order_id", "customer", "expected_amount", "mode")}
    await write_checkout(session, Checkout(application=application, **fields), at)


def rebuild(live: Live, options: Mapping[str, Mapping[str, Any]] | None = None) -> Rebuild:
    return Rebuild(
        live.database,
        live.plain,
        options or live.options,
        OURS,
        honours={"fulfilment.requested": "fulfilment.released"},
        at_once={(REGISTERED, ACTOR): registered},
    )


async def same_after_rebuild(live: Live) -> None:
    before, ledger = await contents(live, OURS), await contents(live, LEFT_ALONE)
    await rebuild(live).run(live.application)
    after = await contents(live, OURS)
    for name, rows in before.items():
        assert after[name] == rows, name
    assert await contents(live, LEFT_ALONE) == ledger, "nothing goes out, and the ledger is as it was"


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as made:
        yield made


@pytest.fixture(scope="module")
def ledger(runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    folder: Path = tmp_path_factory.mktemp("rebuild")
    database = Database(f"sqlite+aiosqlite:///{folder}/ledger.db")
    runner.run(schema.upgrade(database))
    yield database
    runner.run(database.stop())


_names = count()
SKEWS = st.sampled_from([timedelta(0), timedelta(seconds=-2), timedelta(seconds=2)])


def order_facts(application: str) -> list[Event]:
    """What may arrive about two orders; the second one is known by the service's id only, at first."""
    made: list[Event] = []
    for name, service in (("A1", "so1"), ("A2", "so2")):
        key = f"order:{name}"
        named = {"id": service, "order_id": name} if name == "A1" else {"id": service}
        here: dict[str, Any] = {"application": application}
        made += [
            said("order.paid", f"evt_{name}_signed", amount="10", **named, **here),
            said("order.paid", f"evt_{name}_read", trust=Trust.READ, amount="9", **named, **here),
            said("order.expired", f"evt_{name}_expired", **named, **here),
            said("checkout.session.completed", f"evt_{name}_done", id=f"s_{name}", order_id=name, **here),
            unreadable(key, 1, **here),
            observed(key, 2, {"id": service, "status": "PENDING"}, **here),
            unreadable(key, 3, **here),
            observed(key, 4, {"id": service, "status": "PAID", "amount": "10"}, **here),
            observed(f"payment:p_{name}", 5, {"id": f"p_{name}", "status": "SUCCEEDED", "order_id": name}, **here),
            own("fulfilment.released", key, {"by": "op"}, **here),
            own("fulfilment.unfulfillable", key, {"reason": "none left"}, **here),
        ]
    return made


def handlers_of(event: Event) -> list[str]:
    """The handlers of ours that may stumble on it."""
    return {
        "order.paid": ["fulfilment:order_paid"],
        "order.expired": ["fulfilment:order_expired"],
        "order.observed": ["fulfilment:order_observed"],
        "order.unreadable": ["fulfilment:order_unreadable"],
        "payment.observed": ["fulfilment:payment_observed"],
        "fulfilment.released": ["fulfilment:operator"],
        "checkout.session.completed": ["fulfilment:checkout_session"],
    }.get(event.type, ["access:subscription"] if event.type.startswith("subscription.") else [])


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_order_of_handling_orders_rebuilds_to_the_same_rows(
    runner: asyncio.Runner, ledger: Database, data: Any
) -> None:
    # case: G9, G12
    application = f"app{next(_names)}"
    facts = order_facts(application)
    arrivals = data.draw(st.lists(st.lists(st.sampled_from(facts), min_size=1, max_size=4), min_size=1, max_size=5))
    candidates = [(event.id, name) for event in facts for name in handlers_of(event)]
    candidates += [
        (derived_id(application, READ_DUE, f"order:{name}", "read"), "fulfilment:read_due") for name in ("A1", "A2")
    ]
    stumbles = data.draw(st.dictionaries(st.sampled_from(candidates), st.integers(1, 2), max_size=4))

    async def run() -> None:
        matching = data.draw(st.sampled_from(["auto", "off", "on", "read"]))
        plugins = {"fulfilment": {"matching": matching}, "access": {}}
        live = Live(ledger, plugins, application=application, stumbles=stumbles, skew=data.draw(SKEWS))
        try:
            for batch in arrivals:
                if data.draw(st.integers(0, 3)) == 0:
                    name = data.draw(st.sampled_from(["A1", "A2"]))
                    amount = data.draw(st.sampled_from([None, "10", "9"]))
                    await live.register(f"s_{name}", order_id=name, customer="c", expected_amount=amount)
                await live.arrive(*batch, plan=data.draw(st.sampled_from([None, None, None, SEED])))
                match data.draw(st.sampled_from(["nothing", "relay", "make_up", "wait"])):
                    case "relay":
                        await live.relay()
                    case "make_up":
                        await live.make_up()
                    case "wait":
                        await live.pass_time(2, steps=2)
            if data.draw(st.booleans()):
                await live.pass_time(30)
            await same_after_rebuild(live)
        finally:
            await live.close()

    runner.run(run())


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(service=services(), data=st.data())
def test_any_order_of_handling_subscriptions_rebuilds_to_the_same_rows(
    runner: asyncio.Runner, ledger: Database, service: Service, data: Any
) -> None:
    # case: G9, G12
    application = f"app{next(_names)}"
    happened = webhooks(service, application, thin=data.draw(st.booleans()))
    happened += data.draw(st.lists(st.sampled_from(denials(service, application)), max_size=2, unique=True))
    order = data.draw(st.permutations(happened + data.draw(st.lists(st.sampled_from(happened), max_size=3))))
    last = reconcile(service, application)
    candidates = [(event.id, name) for event in [*happened, *last] for name in handlers_of(event)]
    stumbles = data.draw(st.dictionaries(st.sampled_from(candidates), st.integers(1, 2), max_size=3))

    async def run() -> None:
        live = Live(ledger, PLUGINS, application=application, stumbles=stumbles, skew=data.draw(SKEWS))
        live.clock.advance((service.now - live.clock.now()).total_seconds())
        try:
            half = data.draw(st.integers(0, len(order)))
            await live.arrive(*order[:half])
            if data.draw(st.booleans()):
                await live.pass_time(data.draw(st.sampled_from([1, 5])), steps=2)
            await live.arrive(*order[half:])
            await live.relay()
            await live.arrive(*last)
            await live.pass_time(20 * 86_400, steps=40)
            await same_after_rebuild(live)
        finally:
            await live.close()

    runner.run(run())
