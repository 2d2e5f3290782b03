"""A new handler does not run on history; a paused one's work waits; a broken plugin's work waits; names are kept."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from types import ModuleType

import pytest

from consumer.broker import Broker, Message
from consumer.errors import HandlerInvalid
from consumer.ledger import Database, handlers
from consumer.ledger.tables import HandlerRow
from consumer.plugin import Context, Event, declared, handles
from consumer.wire import SEED, pack_event
from consumer.work.registry import BrokenPlugin, Registry, handlers_of, load_registry
from tests.support.ports import eventually
from tests.work.workshop import TOPIC, Workshop, order_paid, service_event


# case: H6
async def test_a_new_handler_does_not_run_on_history(database: Database, broker: Broker) -> None:
    seen: list[str] = []

    @handles("order.paid", name="test:old")
    async def old(event: Event, ctx: Context) -> None:
        return None

    @handles("order.paid", name="test:new")
    async def new(event: Event, ctx: Context) -> None:
        seen.append(event.id)

    shop = Workshop(database, broker, [old])
    await shop.publish(order_paid(1), order_paid(2))
    async with shop.working():
        await eventually(lambda: shop.all_succeeded(2))
    shop.functions = [old, new]
    await shop.publish(order_paid(1), order_paid(3))
    async with shop.working():
        await eventually(lambda: shop.count("test:new", "succeeded", 1))
        await eventually(lambda: shop.count("test:old", "succeeded", 3))
    assert seen == ["evt_3"]


# case: H5, I7
async def test_a_type_nobody_knows_is_welcome(sqlite_ledger: Database, broker: Broker) -> None:
    seen: list[str] = []

    @handles("foo.bar", "refund.*")
    async def curious(event: Event, ctx: Context) -> None:
        seen.append(event.type)

    shop = Workshop(sqlite_ledger, broker, [curious])
    for number, kind in enumerate(["foo.bar", "foo.baz", "refund.created", "refund"]):
        await shop.publish(service_event(f"evt_{number}", kind, f"order-{number}"))
    async with shop.working():
        await eventually(lambda: len(seen) == 2)
    assert sorted(seen) == ["foo.bar", "refund.created"]


# case: H9
@pytest.mark.parametrize("transactional", [True, False])
async def test_a_paused_handlers_work_waits_and_goes_on_in_order(
    database: Database, broker: Broker, transactional: bool
) -> None:
    seen: list[str] = []

    @handles("order.paid", name="test:ship", concurrency=1, transactional=transactional)
    async def ship(event: Event, ctx: Context) -> None:
        seen.append(event.id)

    shop = Workshop(database, broker, [ship])
    async with shop.working() as worker:
        await eventually(lambda: worker.polls)
        await pause(database, "test:ship")
        await eventually(lambda: shop.figure("consumer_work_handler_paused", handler="test:ship") == 1)
        for number in range(8):
            await shop.publish(order_paid(number, "one" if number % 2 else "other"))
        await eventually(lambda: waiting(shop, 8))
        assert not seen
        async with database.transaction() as session:
            await handlers.resume(session, "test:ship")
        await eventually(lambda: shop.all_succeeded(8))
    for key in (0, 1):
        assert [name for name in seen if int(name[4:]) % 2 == key] == [f"evt_{n}" for n in range(8) if n % 2 == key]


# case: H8
async def test_a_broken_plugins_work_waits_for_its_repair(sqlite_ledger: Database, broker: Broker) -> None:
    seen: list[str] = []

    @handles("order.paid", name="test:ship")
    async def ship(event: Event, ctx: Context) -> None:
        seen.append(event.id)

    @handles("order.paid", name="test:other")
    async def other(event: Event, ctx: Context) -> None:
        return None

    shop = Workshop(sqlite_ledger, broker, [ship, other])
    await shop.publish(order_paid(1))
    async with shop.working():
        await eventually(lambda: shop.all_succeeded(2))

    # The next deploy cannot import the plugin of `ship`: its runs are kept, in order, and nobody else is harmed.
    mine, others = declared(ship), declared(other)
    assert mine is not None
    assert others is not None
    broken = Registry([replace(others, plugin="fine")], [BrokenPlugin("test", "ImportError: no")])
    shop.registry = broken.with_absent(
        [HandlerRow(name="test:ship", plugin="test", types="order.paid", transactional=False)]
    )
    await shop.publish(order_paid(2), order_paid(3, "order-2"))
    async with shop.working():
        await eventually(lambda: shop.count("test:other", "succeeded", 3))
        await eventually(lambda: shop.count("test:ship", "retrying", 1))
    assert seen == ["evt_1"]

    shop.registry = None
    async with shop.working():
        await eventually(lambda: shop.all_succeeded(6))
    assert seen == ["evt_1", "evt_2", "evt_3"]


# case: H8, B30
@pytest.mark.parametrize(("transactional", "status"), [(True, "retrying"), (False, "skipped")])
async def test_history_waits_for_a_broken_plugins_projections(
    sqlite_ledger: Database, broker: Broker, transactional: bool, status: str
) -> None:
    """Taken in while the plugin is broken, history must not be missing from its tables afterwards."""

    @handles("order.paid", name="test:keep", transactional=transactional)
    async def keep(event: Event, ctx: Context) -> None:
        return None

    shop = Workshop(sqlite_ledger, broker, [keep])
    async with shop.working() as worker:
        await eventually(lambda: worker.polls)
    async with sqlite_ledger.reading() as session:
        known = await handlers.everyone(session)
    shop.registry = Registry([], [BrokenPlugin("test", "ImportError: no")]).with_absent(known)
    packed = pack_event(order_paid(1), plan=SEED)
    await broker.publish_many(TOPIC, [Message(key=packed.key, value=packed.value, headers=packed.headers)])
    async with shop.working():
        await eventually(lambda: shop.count("test:keep", status, 1))
    shop.registry = None
    async with shop.working():
        final = "succeeded" if transactional else "skipped"
        await eventually(lambda: shop.count("test:keep", final, 1))


def module(name: str, *functions: object) -> ModuleType:
    found = ModuleType(name)
    for number, function in enumerate(functions):
        setattr(found, f"handler_{number}", function)
    return found


def a_handler(name: str) -> object:
    @handles("order.paid", name=name)
    async def function(event: Event, ctx: Context) -> None:
        return None

    return function


# case: H7, H8
def test_names_are_unique_and_renames_are_mapped() -> None:
    first, second = module("first", a_handler("shop:ship")), module("second", a_handler("shop:ship"))
    found = load_registry(["first", "second"], extra={"first": first, "second": second})
    assert [handler.plugin for handler in found.handlers] == ["first"]
    assert [(one.plugin, "same name" in one.reason) for one in found.broken if one.plugin == "second"] == [
        ("second", True)
    ]
    renamed = load_registry(["first"], {"shop:ship": "old:ship"}, extra={"first": first})
    assert [handler.name for handler in renamed.handlers] == ["old:ship"]


def test_a_plugin_that_exits_or_declares_nothing_is_broken_and_nobody_else_is() -> None:
    with pytest.raises(HandlerInvalid):
        handlers_of(module("empty"))
    good = module("good", a_handler("good:one"))
    found = load_registry(["good"], extra={"good": good, "empty": module("empty")})
    assert "empty" in {one.plugin for one in found.broken}
    assert [handler.name for handler in found.handlers] == ["good:one"]


async def pause(database: Database, name: str) -> None:
    async with database.transaction() as session:
        assert await handlers.pause(session, name, by="operator", reason="test", now=datetime.now(UTC))


async def waiting(shop: Workshop, wanted: int) -> bool:
    statuses = await shop.statuses()
    return len(statuses) == wanted and set(statuses) == {"retrying", "parked"}
