"""A handler that was renamed without a mapping, while old and new version are at work or the plugin is broken, is not
done under both names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from consumer.broker import Broker
from consumer.clock import DrivenClock
from consumer.ledger import Database, processes
from consumer.ledger.handling import handlers
from consumer.ledger.handling.handlers import LIVE_S
from consumer.ledger.plans import candidates
from consumer.ledger.processes import BROKEN, HANDLERS, INSTALLED, Pulse
from consumer.plugin import Context, Event, Handler, handles
from consumer.work.ingest.rolling_deploy import LOOK_EVERY_S, RollingDeploy
from consumer.work.registry import BrokenPlugin, Registry
from tests.support.ports import eventually
from tests.work.workshop import AT, Workshop, order_paid, service_event


async def nothing(event: Event, ctx: Context) -> None:
    """Nothing."""


def a(name: str, *types: str, **options: Any) -> Handler:
    """A handler that fulfils, of the plugin that its name begins with."""
    plugin = name.partition(":")[0]
    made = Handler(name=name, types=types or ("order.paid",), function=nothing, plugin=plugin, fulfils=True)
    return replace(made, **options)


SHIP, SEND, BOOK = a("shop:ship"), a("shop:send"), a("shop:book", "order.*", fulfils=False)


async def at_work(
    database: Database, clock: Any, name: str, *runs: Handler, left_out: Sequence[Handler] = (), broken: str = ""
) -> None:
    """A worker of this name tells that it lives, and what it has, before it takes an event."""
    now = clock.now()
    said = {INSTALLED: " ".join(one.name for one in (*runs, *left_out)), BROKEN: broken}
    pulse = Pulse(process=name, role="work", host="here", pid=1, version="1", started_at=now, ready=True, since=now,
                  said=said)  # fmt: skip
    async with database.transaction() as session:
        await processes.beat(session, [pulse], now)
        await handlers.register(session, runs, now)


async def of(rollout: RollingDeploy, database: Database, type_: str = "order.paid") -> dict[str, str | None]:
    """For whom runs are kept, each to who does it here in its place."""
    async with database.reading() as session:
        registry = await rollout.registry(session)
    return {one.name: registry.done_by(one.name, type_) for one in registry.absent if one.wants(type_)}


# case: H7, O9, F4
async def test_what_the_older_version_takes_is_not_kept_for_the_new_name_too(
    database: Database, broker: Broker
) -> None:
    seen: list[str] = []

    @handles("order.paid", name="test:ship")
    async def ship(event: Event, ctx: Context) -> None:
        seen.append(event.id)

    shop = Workshop(database, broker, [ship])
    async with shop.working() as worker:
        await eventually(lambda: worker.polls)
        await at_work(database, shop.clock, "old", a("test:ship", fulfils=False))
        await at_work(database, shop.clock, "new", a("test:send", fulfils=False))
        await shop.clock.sleep(LOOK_EVERY_S)
        await shop.publish(order_paid(1))
        await eventually(lambda: shop.count("test:ship", "succeeded", 1))
        [other] = await shop.runs("test:send")
    assert (other.status, other.code, other.reason) == (
        "skipped",
        "done_by_other_name",
        "test:ship of another version has it",
    )

    @handles("order.paid", name="test:send")
    async def send(event: Event, ctx: Context) -> None:
        seen.append(event.id)

    shop.functions = [send]
    await shop.publish(order_paid(1), order_paid(2))
    async with shop.working():
        await eventually(lambda: shop.count("test:send", "succeeded", 1))
    assert seen == ["evt_1", "evt_2"]


# case: H7, O9
@pytest.mark.parametrize(
    ("mine", "theirs", "instead"),
    [
        ([SHIP, BOOK], [SEND, BOOK], {"shop:send": "shop:ship"}),
        ([SHIP, BOOK], [SHIP, SEND, BOOK], {"shop:send": None}),  # new beside what stays
        ([SHIP], [a("stall:ship")], {"stall:ship": None}),  # another plugin's does another thing
        ([BOOK], [a("stall:book", fulfils=False)], {"stall:book": None}),
        ([BOOK], [a("shop:keep", fulfils=False)], {"shop:keep": "shop:book"}),
        ([BOOK], [SEND], {"shop:send": None}),  # what ships nothing ships for nobody
        ([BOOK], [a("shop:keep", transactional=True, fulfils=False)], {"shop:keep": None}),  # another kind
        ([SHIP], [a("shop:decide", transactional=True)], {"shop:decide": "shop:ship"}),  # in two steps
        ([a("shop:ship", "order.expired")], [SEND], {"shop:send": None}),
        ([a("shop:ship", "order.*")], [SEND], {"shop:send": "shop:ship"}),
    ],
)
async def test_one_that_the_newer_version_lacks_may_be_the_same(
    sqlite_ledger: Database, mine: list[Handler], theirs: list[Handler], instead: dict[str, str | None]
) -> None:
    clock = DrivenClock()
    await at_work(sqlite_ledger, clock, "old", *mine)
    rollout = RollingDeploy(Registry(mine), clock)
    clock.advance(1)
    await at_work(sqlite_ledger, clock, "new", *theirs)
    assert await of(rollout, sqlite_ledger) == instead
    # Who has the newer code keeps nothing for what is on its way out.
    newer = RollingDeploy(Registry(theirs), clock)
    assert await of(newer, sqlite_ledger) == {}
    # Nor does the older one that starts again meanwhile, or when the newer one was stopped a moment ago.
    clock.advance(LIVE_S / 2)
    assert await of(RollingDeploy(Registry(mine), clock), sqlite_ledger) == instead


# case: H7, O9
async def test_after_a_rollback_neither_keeps_what_it_does_under_its_own_name(sqlite_ledger: Database) -> None:
    clock = DrivenClock()
    await at_work(sqlite_ledger, clock, "first", SHIP)
    clock.advance(3600)
    await at_work(sqlite_ledger, clock, "second", SEND)
    rollout = RollingDeploy(Registry([SEND]), clock)
    assert await of(rollout, sqlite_ledger) == {}
    clock.advance(60)
    await at_work(sqlite_ledger, clock, "back", SHIP)
    clock.advance(LOOK_EVERY_S)
    assert await of(rollout, sqlite_ledger) == {"shop:ship": "shop:send"}
    assert await of(RollingDeploy(Registry([SHIP]), clock), sqlite_ledger) == {"shop:send": "shop:ship"}


# case: H7, H8
async def test_a_plugin_that_the_newer_version_cannot_load_was_not_dropped(sqlite_ledger: Database) -> None:
    clock, other = DrivenClock(), a("stall:give")
    await at_work(sqlite_ledger, clock, "old", SHIP)
    rollout = RollingDeploy(Registry([SHIP]), clock)
    clock.advance(1)
    await at_work(sqlite_ledger, clock, "new", other, broken="shop")
    assert await of(rollout, sqlite_ledger) == {"stall:give": None}


# case: H7, H8
@pytest.mark.parametrize("between_s", [10, 86_400])
async def test_of_a_broken_plugin_what_it_had_last_is_kept(sqlite_ledger: Database, between_s: float) -> None:
    """It was kept for every name that it ever had: mended, and rolled back later, each shipped."""
    clock = DrivenClock()
    await at_work(sqlite_ledger, clock, "first", SHIP, BOOK)
    clock.advance(between_s)
    await at_work(sqlite_ledger, clock, "second", SEND, BOOK)
    clock.advance(between_s)
    await at_work(sqlite_ledger, clock, "third", broken="shop")
    rollout = RollingDeploy(Registry([], [BrokenPlugin("shop", "no")]), clock)
    assert await of(rollout, sqlite_ledger) == {"shop:book": None, "shop:send": None}
    clock.advance(timedelta(days=30).total_seconds())
    assert await of(rollout, sqlite_ledger) == {"shop:book": None, "shop:send": None}


# case: H8
async def test_what_is_left_out_here_is_kept_while_another_worker_runs_it(sqlite_ledger: Database) -> None:
    clock = DrivenClock()
    await at_work(sqlite_ledger, clock, "all", SHIP, BOOK)
    clock.advance(60)
    await at_work(sqlite_ledger, clock, "some", SHIP)
    rollout = RollingDeploy(Registry([SHIP], left_out=[BOOK]), clock)
    assert await of(rollout, sqlite_ledger) == {"shop:book": None}
    clock.advance(LIVE_S)
    assert await of(rollout, sqlite_ledger) == {}, "nobody has it: it is left out on purpose"


# case: H8
async def test_what_is_split_over_workers_by_settings_is_all_done(sqlite_ledger: Database) -> None:
    """Both are installed everywhere, so neither is the other under another name: a parcel, and its mail."""
    clock, mail = DrivenClock(), a("shop:mail")
    await at_work(sqlite_ledger, clock, "parcels", SHIP, left_out=[mail])
    clock.advance(60)
    await at_work(sqlite_ledger, clock, "mails", mail, left_out=[SHIP])
    for mine, theirs in ((SHIP, mail), (mail, SHIP)):
        rollout = RollingDeploy(Registry([mine], left_out=[theirs]), clock)
        assert await of(rollout, sqlite_ledger) == {theirs.name: None}
    await at_work(sqlite_ledger, clock, "newer", broken="shop")
    rollout = RollingDeploy(Registry([], [BrokenPlugin("shop", "no")]), clock)
    assert await of(rollout, sqlite_ledger) == {"shop:ship": None, "shop:mail": None}


# case: H7, O9
async def test_two_that_one_version_had_are_two(sqlite_ledger: Database) -> None:
    clock = DrivenClock()
    await at_work(sqlite_ledger, clock, "both", SHIP, SEND)
    clock.advance(3600)
    await at_work(sqlite_ledger, clock, "back", SHIP)
    rollout = RollingDeploy(Registry([SHIP]), clock)
    clock.advance(3600)
    await at_work(sqlite_ledger, clock, "third", SEND)
    assert set((await of(rollout, sqlite_ledger)).values()) <= {None}


# case: H7, O9
async def test_of_a_worker_that_did_not_say_what_is_installed_nothing_is_known(sqlite_ledger: Database) -> None:
    """One from before 2026-12: what it does not run it may have been told to leave out."""
    clock = DrivenClock()
    await at_work(sqlite_ledger, clock, "old", SHIP)
    rollout = RollingDeploy(Registry([SHIP]), clock)
    clock.advance(1)
    now = clock.now()
    pulse = Pulse(process="new", role="work", host="here", pid=1, version="1", started_at=now, ready=True, since=now,
                  said={HANDLERS: SEND.name})  # fmt: skip
    async with sqlite_ledger.transaction() as session:
        await processes.beat(session, [pulse], now)
        await handlers.register(session, [SEND], now)
    assert await of(rollout, sqlite_ledger) == {"shop:send": None}


# case: H6, H8
async def test_what_came_while_a_handler_was_away_is_counted_as_missed(sqlite_ledger: Database, broker: Broker) -> None:
    @handles("order.paid", name="test:book")
    async def book(event: Event, ctx: Context) -> None:
        """Nothing."""

    @handles("order.paid", name="test:other")
    async def other(event: Event, ctx: Context) -> None:
        """Nothing."""

    async def missed(types: tuple[str, ...], since: datetime, limit: int = 100) -> int:
        async with sqlite_ledger.reading() as session:
            return await candidates.missed(session, "test:book", types, since, limit)

    shop = Workshop(sqlite_ledger, broker, [book])
    await shop.publish(order_paid(1))
    async with shop.working():
        await eventually(lambda: shop.count("test:book", "succeeded", 1))
    shop.functions = [other]
    await shop.publish(order_paid(2), order_paid(3), service_event("evt_4", "order.expired", "order-4"))
    async with shop.working():
        await eventually(lambda: shop.count("test:other", "succeeded", 2))
    shop.functions = [book]
    await shop.publish(order_paid(5))
    async with shop.working():
        await eventually(lambda: shop.count("test:book", "succeeded", 2))
    for since in (AT, AT - timedelta(days=1), AT + timedelta(days=1)):
        assert await missed(("order.paid",), since) == 2
        assert await missed(("order.paid",), since, limit=1) == 1
        assert await missed(("order.*",), since) == 3
