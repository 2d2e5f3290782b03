"""Money that was taken at the service and is unknown here is told within minutes, whatever lies between looks fine."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from structlog.testing import capture_logs

from consumer.events import Event, Source, Trust
from consumer.ledger.handling import events
from consumer.ledger.reading import observations, quarantine, sync_state
from consumer.lists import bookmark as events_bookmark
from consumer.lists.bookmark import Bookmark, ListOrder
from consumer.lists.ends import PAGES_AT_ONCE
from consumer.payments import PaymentsError, UnexpectedAnswer
from consumer.reason import Reason
from consumer.sync.backfill.cutover import FirstWalk
from consumer.sync.backfill.policy import BackfillPolicy
from consumer.sync.canary.sightings import EVENTS_FORGOTTEN_AFTER, LATE, MISSED, WALK, Missed, Shown, Sightings
from consumer.sync.canary.stage import BLIND_AFTER, EVERY_S, Canary
from consumer.sync.health.status import application_status
from tests.sync.conftest import World, counted_by, delivery
from tests.sync.reconciling import listing, lists, order, reconcile
from tests.sync.service import EventsList, Json

LATE_S = LATE.total_seconds()
HISTORY = BackfillPolicy().history


async def walked(world: World, order: ListOrder = ListOrder.NEWEST_FIRST) -> None:
    """The events were walked to their end once."""
    mark = Bookmark(order=order, walked_at=world.clock.now()).dump()
    async with world.database.transaction() as session:
        await sync_state.keep(session, "default", events_bookmark.WALK, mark, token=1, now=world.clock.now())
    await FirstWalk(world.app).begin(world.clock.now())


def shows(world: World, *, orders: list[Json] | None = None, listed: list[Json] | None = None) -> None:
    """What the service lists, in the order given."""
    world.service.lists["/v1/orders"] = listing(orders or [])
    world.service.lists["/v1/events"] = listing(listed or [])


def event(number: int, at: datetime | None = None) -> Json:
    shown = {"id": f"evt_{number}", "type": "order.paid", "data": {"object": {"order_id": f"A-{number}"}}}
    return shown if at is None else shown | {"created_at": at.isoformat()}


async def recorded(world: World, number: int, event_type: str = "order.paid") -> None:
    found = Event(
        application="default",
        id=f"evt_{number}",
        type=event_type,
        key=f"order:A-{number}",
        trust=Trust.READ,
        source=Source.BACKFILL,
        raw=b"{}",
        received_at=world.clock.now(),
        order_id=f"A-{number}",
    )
    async with world.database.transaction() as session:
        await events.record(session, [found], world.clock.now())


def canary(world: World, *, every_s: float = 120.0) -> Canary:
    return Canary(world.app, world.settlement(), first_walk=FirstWalk(world.app, HISTORY), every_s=every_s)


async def looking(world: World) -> Canary:
    """One that has walked, and has seen two empty lists."""
    await walked(world)
    shows(world)
    stage = canary(world)
    await stage.look()
    return stage


async def told(world: World) -> Missed | None:
    """As `status` tells it."""
    async with world.database.reading() as session:
        app_id = world.api.client.credentials.app_id
        return (await application_status(session, "default", app_id, world.clock.now())).missing


async def until_late(world: World, stage: Canary) -> None:
    """So long passes, and it goes on looking."""
    for _ in range(2):
        world.clock.advance(LATE_S / 2)
        await stage.look()


async def kept(world: World) -> Sightings:
    return Sightings.load(await world.kept(WALK))


# case: B27, O5
async def test_a_paid_order_and_its_event_that_never_came_are_told_when_they_are_late(world: World) -> None:
    stage = await looking(world)
    shows(world, orders=[order(1, "PAID"), order(2, "PENDING")], listed=[event(1)])
    await stage.look()
    assert await told(world) is None, "a healthy path takes a while, too"
    await until_late(world, stage)
    found = await told(world)
    assert found is not None
    assert (found.orders, found.events, found.ids) == (1, 1, ("A-1", "evt_1"))
    assert LATE_S <= counted_by(world.metrics, "missing_here_seconds", "default") < LATE_S + 10
    assert counted_by(world.metrics, "missing_here", "default", "order") == 1
    assert counted_by(world.metrics, "missing_here", "default", "event") == 1
    await recorded(world, 1)
    await stage.look()
    assert await told(world) is None
    assert counted_by(world.metrics, "missing_here_seconds", "default") == 0


# case: B30
async def test_what_shows_no_time_and_was_there_before_us_is_history(world: World) -> None:
    shows(world, orders=[order(1, "PAID")], listed=[event(1)])
    stage = canary(world)
    await stage.look()
    await walked(world)
    shows(world, orders=[order(2, "PAID"), order(1, "PAID")], listed=[event(1)])
    await stage.look()
    await until_late(world, stage)
    found = await told(world)
    assert found is not None
    assert found.ids == ("A-2",)


# case: B30
async def test_what_reconcile_found_before_us_is_history_also_when_a_change_brings_it_to_the_head(world: World) -> None:
    await walked(world)
    there = [order(number, "PAID") for number in range(350)]
    lists(world, orders=there)
    await reconcile(world).once()
    shows(world, orders=there)
    stage = canary(world)
    await stage.look()
    world.clock.advance(2 * LATE_S)
    await stage.look()
    shows(world, orders=[there[150], *there[:150], *there[151:]])
    await until_late(world, stage)
    assert await told(world) is None
    assert (await kept(world)).missing == {}


# case: B27, B30
async def test_what_was_paid_since_we_came_is_missed_also_where_reconcile_took_it_for_history(world: World) -> None:
    stage = await looking(world)
    lists(world, orders=[order(1, "PAID")])
    await reconcile(world).once()
    await stage.look()
    await until_late(world, stage)
    found = await told(world)
    assert found is not None
    assert found.ids == ("A-1",)


# case: B27
async def test_how_long_it_is_missing_is_told_as_of_the_last_look(world: World) -> None:
    stage = await looking(world)
    shows(world, orders=[order(1, "PAID")])
    await stage.look()
    world.clock.advance(MISSED.total_seconds())
    await stage.look()
    world.clock.advance(10 * LATE_S)
    found = await told(world)
    assert found is not None
    assert not found.is_late, "nobody has looked since"


# case: B30
async def test_what_shows_its_time_is_history_by_that_alone_at_the_first_look_too(world: World) -> None:
    await walked(world)
    now = world.clock.now()
    shows(world, listed=[event(2, now), event(1, now - HISTORY - timedelta(seconds=1))])
    await canary(world).look()
    assert set((await kept(world)).missing) == {"event:evt_2"}, "no worker, from the first minute on"


def _refusing(pages: EventsList) -> EventsList:
    return lambda cursor, limit: 400 if cursor == "200" else pages(cursor, limit)


# case: B11, B30
async def test_a_list_that_is_read_again_from_its_beginning_shows_history_and_no_loss(world: World) -> None:
    now = world.clock.now()
    old = [event(number, now - timedelta(days=9, seconds=-number)) for number in range(250)]
    paid = [order(number, "PAID") for number in range(250)]
    shows(world, orders=paid, listed=old)
    stage = canary(world)
    await stage.look()
    await walked(world, ListOrder.OLDEST_FIRST)
    for name in ("/v1/orders", "/v1/events"):
        world.service.lists[name] = _refusing(world.service.lists[name])
    await stage.look()
    shows(world, orders=[*paid[30:], order(999, "PAID")], listed=[*old, event(999, now)])
    await stage.look()
    assert set((await kept(world)).missing) == {"order:A-999", "event:evt_999"}


async def test_before_the_first_walk_is_over_nothing_is_missing(world: World) -> None:
    shows(world)
    stage = canary(world)
    await stage.look()
    shows(world, orders=[order(1, "PAID")], listed=[event(1, world.clock.now())])
    await stage.look()
    assert not (await kept(world)).missing
    await walked(world)
    await stage.look()
    assert set((await kept(world)).missing) == {"order:A-1", "event:evt_1"}


# case: B27
async def test_one_sighting_is_not_late_because_nobody_looks_any_more(world: World) -> None:
    stage = await looking(world)
    shows(world, orders=[order(1, "PAID")])
    await stage.look()
    world.clock.advance(10 * LATE_S)
    assert await told(world) is None, "it may have come since"
    world.service.failing["/v1/orders"] = world.service.failing["/v1/events"] = 404
    with pytest.raises(PaymentsError):
        await stage.look()
    assert await told(world) is None, "nobody could walk either"
    world.service.failing.clear()
    await canary(world).look()
    assert await told(world) is None, "the walk that brings it takes a while"
    await until_late(world, stage)
    assert await told(world) is not None
    world.clock.advance(10 * LATE_S)
    await stage.look()
    assert await told(world) is not None, "what was late is"


async def test_a_new_leader_asks_at_once_for_what_was_missing_and_for_nothing_else(world: World) -> None:
    await walked(world)
    shows(world)
    await canary(world).look()
    calls = world.service.calls["/v1/orders"]
    world.metrics.last_seen.clear()
    await canary(world)._step()
    assert world.service.calls["/v1/orders"] == calls
    assert counted_by(world.metrics, "last_seen", "default", "order") > 0, "who led before had compared them"
    shows(world, orders=[order(1, "PAID")])
    await canary(world).look()
    await recorded(world, 1)
    await canary(world)._step()
    assert not (await kept(world)).missing


async def test_a_look_costs_two_reads_where_the_order_is_known(world: World) -> None:
    await walked(world)
    orders = [order(number, "PAID") for number in range(300, 0, -1)]
    shows(world, orders=orders, listed=[event(n) for n in range(300)])
    stage = canary(world)
    await stage.look()
    shows(world, orders=[order(301, "PAID"), *orders], listed=[event(n) for n in range(300)])
    before = world.service.calls.total()
    await stage.look()
    assert world.service.calls.total() == before + 2
    assert set((await kept(world)).missing) == {"order:A-301"}


async def test_what_newer_ones_push_off_the_page_is_still_missing(world: World) -> None:
    stage = await looking(world)
    shows(world, orders=[order(1, "PAID")])
    await stage.look()
    for number in range(2, 140):
        await recorded(world, number)
    shows(world, orders=[order(number, "PAID") for number in range(139, 0, -1)])
    await stage.look()
    assert set((await kept(world)).missing) == {"order:A-1"}
    await recorded(world, 1)
    await stage.look()
    assert not (await kept(world)).missing


# case: U6
@pytest.mark.parametrize("events_order", [ListOrder.OLDEST_FIRST, ListOrder.NEWEST_FIRST])
async def test_each_list_is_followed_to_its_own_newest_end(world: World, events_order: ListOrder) -> None:
    await walked(world, events_order)
    before = [order(number, "PAID") for number in range(650)]
    shows(world, orders=before)
    stage = canary(world)
    await stage.look()
    assert world.service.calls["/v1/orders"] == 1 + PAGES_AT_ONCE
    await stage.look()
    shows(world, orders=[*before, order(999, "PAID")])
    await stage.look()
    assert set((await kept(world)).missing) == {"order:A-999"}
    calls = world.service.calls["/v1/orders"]
    await stage.look()
    assert world.service.calls["/v1/orders"] == calls + 2, "its head, and from where it was"


# case: B15
async def test_an_empty_page_ends_a_list_and_what_comes_after_it_is_seen(world: World) -> None:
    await walked(world)
    before = [order(number, "PAID") for number in range(200)]

    def endless(orders: list[Json]) -> None:
        pages = listing(orders)

        def page(cursor: str | None, limit: int) -> Json:
            shown = pages(cursor, limit)
            assert isinstance(shown, dict)
            return shown | {"next_cursor": int(cursor or 0) + limit}

        world.service.lists["/v1/orders"] = page

    shows(world)
    stage = canary(world)
    endless(before)
    for _ in range(3):
        await stage.look()
    endless([*before, order(999, "PAID")])
    await stage.look()
    assert set((await kept(world)).missing) == {"order:A-999"}


async def test_one_list_that_cannot_be_read_hides_nothing_of_the_other(world: World) -> None:
    stage = await looking(world)
    shows(world, listed=[event(1, world.clock.now())])
    world.clock.advance(60)
    world.service.failing["/v1/orders"] = 404
    with pytest.raises(PaymentsError):
        await stage.look()
    assert set((await kept(world)).missing) == {"event:evt_1"}
    seen = [counted_by(world.metrics, "last_seen", "default", kind) for kind in ("event", "order")]
    assert seen[0] > seen[1] > 0


async def test_a_list_whose_newest_are_not_reached_for_an_hour_is_told(world: World) -> None:
    await walked(world)
    shows(world)
    numbers = iter(range(1, 10_000))
    world.service.lists["/v1/orders"] = lambda _cursor, _limit: {
        "items": [order(number) for number in (next(numbers), next(numbers))],
        "next_cursor": next(numbers),
    }
    stage = canary(world)
    await stage.look()
    world.clock.advance(BLIND_AFTER.total_seconds())
    with pytest.raises(UnexpectedAnswer):
        await stage.look()


# case: B18, B27
@pytest.mark.parametrize(("status", "is_here"), [("PAID", True), ("PENDING", False), (None, False)])
async def test_an_order_that_a_read_showed_paid_is_here(world: World, status: str | None, is_here: bool) -> None:
    stage = await looking(world)
    await recorded(world, 1, "order.observed")
    if status is not None:
        shown = world.app.observation("order", "A-1", 1, order(1, status))
        async with world.database.transaction() as session:
            await observations.keep(session, [shown.observed])
    shows(world, orders=[order(1, "PAID")])
    await stage.look()
    assert set((await kept(world)).missing) == (set() if is_here else {"order:A-1"})


# case: B27, I10
async def test_an_event_that_was_put_aside_with_its_reason_is_here(world: World) -> None:
    stage = await looking(world)
    async with world.database.transaction() as session:
        aside = delivery(b"{}", 1, event_id="evt_1")
        await quarantine.put(session, [(aside, Reason.NOT_UNDERSTOOD)], world.clock.now())
    shows(world, listed=[event(1), event(2)])
    await stage.look()
    assert set((await kept(world)).missing) == {"event:evt_2"}


async def test_a_missing_order_is_never_forgotten_and_an_event_not_silently(world: World) -> None:
    stage = await looking(world)
    shows(world, orders=[order(1, "PAID")], listed=[event(1)])
    await stage.look()
    shows(world)
    await until_late(world, stage)
    world.clock.advance(EVENTS_FORGOTTEN_AFTER.total_seconds())
    with capture_logs() as logs:
        await stage.look()
    assert set((await kept(world)).missing) == {"order:A-1"}
    assert [line["ids"] for line in logs if line["event"] == "missing_here_given_up"] == [["evt_1"]]


async def test_it_is_said_now_and_then_and_once_that_it_is_over(world: World) -> None:
    stage = await looking(world)
    shows(world, orders=[order(1, "PAID")])
    with capture_logs() as logs:
        for _ in range(60):
            await stage.look()
            world.clock.advance(120)
        await recorded(world, 1)
        await stage.look()
        await stage.look()
    said = [line for line in logs if line.get("code") == "paid_there_but_not_here"]
    assert 1 < len(said) < 10
    assert [line["event"] for line in logs if line["log_level"] == "info"] == ["missing_here_over"]


# case: B27
async def test_what_is_missing_is_told_within_a_minute_of_its_payment(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await walked(world)
    stop, told_at, sleep = asyncio.Event(), list[datetime](), world.clock.sleep
    shows(world)

    async def sleeps(seconds: float) -> None:
        if await told(world):
            told_at.append(world.clock.now())
            stop.set()
        await sleep(seconds)

    stage = canary(world, every_s=EVERY_S)
    await stage.look()
    paid_at = world.clock.now()
    shows(world, orders=[order(1, "PAID")])
    monkeypatch.setattr(world.clock, "sleep", sleeps)
    await stage.run(stop)
    assert MISSED <= told_at[0] - paid_at <= timedelta(seconds=2 * EVERY_S + 5) <= timedelta(minutes=1)


@pytest.mark.parametrize(("before_s", "is_news"), [(0, True), (1, False), (-1, True)])
def test_what_happened_when_history_ends_is_news(before_s: int, is_news: bool) -> None:
    # case: B30
    floor, shown = datetime(2026, 1, 1, tzinfo=UTC), Shown()
    shown.add("event:evt_1", floor - timedelta(seconds=before_s), floor=floor, is_first=True)
    assert (shown.news == ["event:evt_1"]) is is_news
    assert shown.undated == []
