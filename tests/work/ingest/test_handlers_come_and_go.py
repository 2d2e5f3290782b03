"""A new handler does not run on history; a paused one's work waits; a broken plugin's work waits; names are kept."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType

import pytest
from sqlalchemy import select

from consumer.broker import Broker, Message
from consumer.errors import HandlerInvalid
from consumer.ledger import Database, health
from consumer.ledger.handling import dead, handlers
from consumer.ledger.handling.dead import DeadFilter, DeadRun
from consumer.ledger.health import Figures
from consumer.ledger.tables import AuditRow
from consumer.plugin import Context, Event, declared, handles
from consumer.wire import SEED, pack_event
from consumer.work.inspection import inspect_plugins
from consumer.work.registry import BrokenPlugin, Registry, handlers_of, load_registry
from consumer.work.rounds import housekeeping
from tests.support.ports import eventually
from tests.work.workshop import TOPIC, Workshop, order_paid, service_event

TWIN = """
from consumer.plugin import Context, Event, handles

@handles("order.paid", name="{name}:keep")
async def keep(event: Event, ctx: Context) -> None:
    return None
"""


@pytest.fixture(autouse=True)
def nobody_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no other worker that should hear of a handler before the one that brings it begins."""
    monkeypatch.setattr(housekeeping, "LOOK_EVERY_S", 0.01)


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
    shop.registry = Registry([replace(others, plugin="fine")], [BrokenPlugin("test", "ImportError: no")])
    await shop.publish(order_paid(2), order_paid(3, "order-2"))
    async with shop.working():
        await eventually(lambda: shop.count("test:other", "succeeded", 3))
        await eventually(lambda: shop.count("test:ship", "retrying", 1))
    assert seen == ["evt_1"]

    shop.registry = None
    async with shop.working():
        await eventually(lambda: shop.all_succeeded(6))
    assert seen == ["evt_1", "evt_2", "evt_3"]


# case: H8, G13
@pytest.mark.parametrize("allowed", [["access"], ["access", "fulfilment:order_expired"]])
async def test_the_work_of_built_ins_that_are_left_out_waits_for_them(
    sqlite_ledger: Database, broker: Broker, allowed: list[str]
) -> None:
    """What was paid while `CONSUMER_HANDLERS` left them out is fulfilled when they are named again."""
    shop = Workshop(sqlite_ledger, broker, [])
    shop.registry = load_registry(allowed)
    await shop.publish(order_paid(1))
    async with shop.working():
        await eventually(lambda: shop.count("fulfilment:order_paid", "retrying", 1))
    async with sqlite_ledger.reading() as session:
        assert (await health.figures(session, shop.clock.now())).gone_handlers == {"fulfilment:order_paid": 1}
    shop.registry = load_registry(["fulfilment"])
    async with shop.working():
        await eventually(lambda: shop.count("fulfilment:order_paid", "succeeded", 1))


# case: H7, R12
async def test_what_a_handler_that_is_gone_left_is_told_and_given_up_and_taken_back(
    database: Database, broker: Broker
) -> None:
    seen: list[str] = []
    is_repaired = False

    @handles("order.paid", name="test:ship", first_wait_s=100, max_wait_s=100)
    async def ship(event: Event, ctx: Context) -> None:
        if not is_repaired:
            raise ValueError("no")
        seen.append(event.id)

    @handles("order.paid", name="test:other")
    async def other(event: Event, ctx: Context) -> None:
        return None

    shop = Workshop(database, broker, [ship, other])
    await shop.publish(order_paid(1, "one"), order_paid(2, "one"), order_paid(3, "two"))
    async with shop.working():
        await eventually(lambda: shop.count("test:other", "succeeded", 3))
        await eventually(lambda: two_retry_and_one_is_parked(shop))

    # All workers are away: that is no handler's fault, and what is due is overdue.
    later = datetime.now(UTC) + timedelta(seconds=600)
    found = await figures(database, later)
    assert (found.gone_handlers, found.oldest_due_at is not None) == ({}, True)
    assert await discard(database, later) == 0

    # An operator's pause is told as one, and what it holds up is nobody's delay.
    async with database.transaction() as session:
        await handlers.pause(session, "test:ship", by="operator", reason="the carrier is on strike", now=later)
    found = await figures(database, later)
    assert (found.paused_handlers, found.oldest_due_at) == (("test:ship",), None)
    async with database.transaction() as session:
        await handlers.resume(session, "test:ship")

    # A rollback: the older version works on, without `ship`.
    mine = declared(other)
    assert mine is not None
    async with database.transaction() as session:
        await handlers.register(session, [mine], later)
    found = await figures(database, later)
    assert (found.gone_handlers, found.oldest_due_at) == ({"test:ship": 3}, None)
    assert (found.retrying, found.parked) == (2, 1)
    assert await discard(database, later) == 3
    assert await discard(database, later) == 0
    found = await figures(database, later)
    assert (found.gone_handlers, found.retrying, found.parked) == ({}, 0, 0)
    assert await actions(database) == [("dead.discard", "because")] * 3

    # It was wrong: they wait again, and run in their order when the handler is back.
    async with database.transaction() as session:
        given_up = await dead.search(session, DeadFilter(handler="test:ship", discarded=True))
        assert await dead.restore(session, given_up, by="operator", reason="wrong", now=later) == 3
    assert (await figures(database, later)).gone_handlers == {"test:ship": 3}
    rows = await shop.runs("test:ship")
    assert {(row.status, row.blocking, row.attempts > 0) for row in rows} == {
        ("parked", True, True),
        ("parked", True, False),
    }
    assert {row.code for row in rows if row.attempts} == {"handler_failed"}
    is_repaired = True
    async with shop.working():
        await eventually(lambda: shop.all_succeeded(6))
    assert seen.index("evt_1") < seen.index("evt_2")


# case: H7
async def test_the_waiting_runs_of_a_handler_that_is_there_cannot_be_given_up(
    sqlite_ledger: Database, broker: Broker
) -> None:
    @handles("order.paid", name="test:ship", first_wait_s=100, max_wait_s=100)
    async def ship(event: Event, ctx: Context) -> None:
        raise ValueError("no")

    shop = Workshop(sqlite_ledger, broker, [ship])
    await shop.publish(order_paid(1))
    async with shop.working():
        await eventually(lambda: shop.count("test:ship", "retrying", 1))
        assert await discard(sqlite_ledger, datetime.now(UTC)) == 0
    now = datetime.now(UTC)
    async with sqlite_ledger.transaction() as session:
        (row,) = await shop.runs()
        waits = DeadRun(
            application=row.application, event_id=row.event_id, handler=row.handler, seq=row.seq, key=row.key,
            type="order.paid", status=row.status, blocking=True, attempts=1, code=row.code, reason=row.reason,
            fingerprint=row.fingerprint, code_version=row.code_version, died_at=row.updated_at,
        )  # fmt: skip
        assert await dead.discard(session, [waits], by="operator", reason="it came back meanwhile", now=now) == 0


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
    shop.registry = Registry([], [BrokenPlugin("test", "ImportError: no")])
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
    (refused,) = [one.reason for one in found.broken if one.plugin == "second"]
    assert all(word in refused for word in ("two handlers", "'shop:ship'", "first", "second")), refused
    renamed = load_registry(["first"], {"shop:ship": "old:ship"}, extra={"first": first})
    assert [handler.name for handler in renamed.handlers] == ["old:ship"]


def test_a_plugin_that_exits_or_declares_nothing_is_broken_and_nobody_else_is() -> None:
    with pytest.raises(HandlerInvalid):
        handlers_of(module("empty"))
    good = module("good", a_handler("good:one"))
    found = load_registry(["good"], extra={"good": good, "empty": module("empty")})
    assert "empty" in {one.plugin for one in found.broken}
    assert [handler.name for handler in found.handlers] == ["good:one"]


# case: H7, H8
def test_of_two_packages_with_a_plugin_of_one_name_neither_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever came last used to win, silently; its like in the other package was never heard of again."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for package, version, module_name in (("twin-one", "1.0", "twin_one"), ("twin-two", "2.0", "twin_two")):
        (tmp_path / f"{module_name}.py").write_text(TWIN.format(name=module_name))
        metadata = tmp_path / f"{module_name}-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        (metadata / "entry_points.txt").write_text(f"[consumer.handlers]\ntwin = {module_name}\n")
    found = load_registry()
    (broken,) = [one for one in found.broken if one.plugin == "twin"]
    told = "several packages bring a plugin of this name: twin-one 1.0 (twin_one) and twin-two 2.0 (twin_two)"
    assert told in broken.reason
    assert "\n" not in broken.reason
    assert not [handler.name for handler in found.handlers if handler.name.startswith("twin")]
    assert [handler for handler in found.handlers if handler.plugin == "fulfilment"]
    assert [one.line() for one in inspect_plugins(found) if one.plugin == "twin"] == [
        f"twin: cannot be loaded: {broken.reason}"
    ]
    (tmp_path / "twin_two-2.0.dist-info" / "entry_points.txt").unlink()
    assert "twin_one:keep" in {handler.name for handler in load_registry().handlers}


async def two_retry_and_one_is_parked(shop: Workshop) -> bool:
    return sorted(row.status for row in await shop.runs("test:ship")) == ["parked", "retrying", "retrying"]


async def figures(database: Database, now: datetime) -> Figures:
    async with database.reading() as session:
        return await health.figures(session, now)


async def discard(database: Database, now: datetime) -> int:
    """As `dead discard --handler test:ship` does."""
    async with database.transaction() as session:
        found = await dead.search(session, DeadFilter(handler="test:ship", waiting_at=now))
        return await dead.discard(session, found, by="operator", reason="because", now=now)


async def actions(database: Database) -> list[tuple[str, str | None]]:
    async with database.reading() as session:
        rows = (await session.execute(select(AuditRow))).scalars()
        return [(row.action, row.reason) for row in rows if row.action.startswith("dead.")]


async def pause(database: Database, name: str) -> None:
    async with database.transaction() as session:
        assert await handlers.pause(session, name, by="operator", reason="test", now=datetime.now(UTC))


async def waiting(shop: Workshop, wanted: int) -> bool:
    statuses = await shop.statuses()
    return len(statuses) == wanted and set(statuses) == {"retrying", "parked"}
