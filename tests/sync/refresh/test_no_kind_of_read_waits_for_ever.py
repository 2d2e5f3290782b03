"""Refresh takes turns: no kind of read waits for another kind, nor a walk of the events for all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from consumer.ledger.reading import read_requests
from consumer.ledger.tables import ReadRow
from consumer.payments import CallKind, Priority
from consumer.plugin import ReadKind, ReadRequest
from consumer.sync.refresh.policy import RefreshPolicy
from consumer.sync.refresh.schedule import in_turn
from consumer.sync.refresh.stage import Refresh
from consumer.sync.role import SyncPolicy
from tests.sync.conftest import World, counted_by
from tests.sync.refreshing import ask, paged, refresh, subscription, while_a_walk_goes_on
from tests.sync.service import EventsList, Json

pytestmark = pytest.mark.slow


async def test_reads_without_end_leave_a_walk_of_the_events_its_part(world: World) -> None:
    # case: B23, G3
    names = [f"sub_{number}" for number in range(30)]
    for name in names:
        subscription(world, "ACTIVE", name)
    requests = [ReadRequest(kind="subscription", object_id=name) for name in names]
    stage, budget = refresh(world), world.api.client.budget
    pages, wait_until = 0, 0.0
    while world.clock.monotonic() < 60:
        while await budget.predict_s(CallKind.READ, Priority.BACKFILL) == 0:  # a walk never rests
            await budget.acquire(CallKind.READ, Priority.BACKFILL, max_wait_s=0)
            pages += 1
        if world.clock.monotonic() >= wait_until:
            async with world.database.transaction() as session:  # a handler that asks again with every answer
                await read_requests.ask(session, "default", requests, world.clock.now())
            wait_until = await stage._step() + world.clock.monotonic()
        world.clock.advance(0.1)
    assert pages >= 60, "a walk of sixty pages takes a minute at most"
    answered = counted_by(world.metrics, "reads_answered", "default")
    assert answered >= 180, "subscriptions keep their share"
    assert answered + pages >= 0.9 * 4.79 * 60, "nothing of the limit is left unused"


async def test_reads_of_subscriptions_alone_take_all_there_is(world: World) -> None:
    # case: B23, A14
    names = [f"sub_{number}" for number in range(30)]
    for name in names:
        subscription(world, "ACTIVE", name)
    requests = [ReadRequest(kind="subscription", object_id=name) for name in names]
    stage = refresh(world)
    while world.clock.monotonic() < 60:
        async with world.database.transaction() as session:
            await read_requests.ask(session, "default", requests, world.clock.now())
        world.clock.advance(await stage._step())
    assert counted_by(world.metrics, "reads_answered", "default") >= 0.95 * 4.79 * 60


async def test_older_subscriptions_keep_neither_orders_nor_sessions_waiting(world: World) -> None:
    # case: B22, B23, F5
    requests = [ReadRequest(kind="subscription", object_id=f"sub_{number}") for number in range(1_500)]
    async with world.database.transaction() as session:
        await read_requests.ask(session, "default", requests, world.clock.now())
    world.clock.advance(60)
    for number in range(1_500):
        subscription(world, "ACTIVE", f"sub_{number}")
    for number in range(6):
        order = {"id": f"ord_{number}", "order_id": f"A-{number}", "status": "PAID"}
        world.service.records[f"/v1/orders/lookup?A-{number}"] = order
        world.service.records[f"/v1/checkout-sessions/cs_{number}"] = {"id": f"cs_{number}", "order": order}
        await ask(world, "order", f"A-{number}")
        await ask(world, "session", f"cs_{number}")
    world.service.lists["/v1/subscriptions"] = paged([{"id": f"sub_{number}"} for number in range(1_500)])  # thin
    async with while_a_walk_goes_on(world, RefreshPolicy()) as once:
        for _ in range(11):
            await once()
            world.clock.advance(1)
    asked = [path for path in world.service.calls if "/lookup" in path or "checkout-sessions" in path]
    assert len(asked) == 12


async def test_the_smallest_share_is_not_all_for_subscriptions(world: World) -> None:
    # case: B23, C15
    for number in range(30):
        subscription(world, "ACTIVE", f"sub_{number}")
    subscriptions = [ReadRequest(kind="subscription", object_id=f"sub_{number}") for number in range(30)]
    async with world.database.transaction() as session:
        await read_requests.ask(session, "default", subscriptions, world.clock.now())
    world.clock.advance(60)
    for number in range(3):
        world.service.records[f"/v1/checkout-sessions/cs_{number}"] = {"id": f"cs_{number}", "order": None}
        await ask(world, "session", f"cs_{number}")
    async with while_a_walk_goes_on(world, SyncPolicy().among(100).refresh) as once:
        for _ in range(100):
            await once()
            world.clock.advance(0.5)
    assert sum("sub_" in path for path in world.service.calls) >= 12
    assert sum("checkout-sessions" in path for path in world.service.calls) == 3


def orders_and_sessions(world: World, count: int) -> dict[str, ReadRequest]:
    """Requests by the path they are read at; `A-0` and so on, `cs_0` and so on."""
    found = dict[str, ReadRequest]()
    for number in range(count):
        order = {"id": f"o{number}", "order_id": f"A-{number}", "status": "PAID"}
        found[f"/v1/orders/lookup?A-{number}"] = ReadRequest(kind="order", object_id=f"A-{number}")
        found[f"/v1/checkout-sessions/cs_{number}"] = ReadRequest(kind="session", object_id=f"cs_{number}")
        world.service.records[f"/v1/orders/lookup?A-{number}"] = order
        world.service.records[f"/v1/checkout-sessions/cs_{number}"] = {"id": f"cs_{number}", "order": order}
    return found


async def ask_all(world: World, requests: Iterable[ReadRequest]) -> None:
    async with world.database.transaction() as session:
        await read_requests.ask(session, "default", list(requests), world.clock.now())


def endless(items: Sequence[Json]) -> EventsList:
    """Ten a page, and after the last page comes the first."""

    def page(cursor: str | None, limit: int) -> Json:
        start = int(cursor or 0) * 10 % len(items)
        return {"items": items[start : start + 10], "next_cursor": int(cursor or 0) + 1}

    return page


async def listed_without_end(world: World, kind: ReadKind) -> list[ReadRequest]:
    """Thirty of this kind, which the list answers on every page for as long as they are asked for again."""
    names = [f"L-{number}" for number in range(30)]
    records: list[Json] = [{"id": name, "status": "ACTIVE"} for name in names]
    if kind == "order":
        records = [{"id": f"o{name}", "order_id": name, "status": "PAID"} for name in names]
    base = "/v1/orders/lookup?" if kind == "order" else "/v1/subscriptions/"
    world.service.records |= {base + name: record for name, record in zip(names, records, strict=True)}
    world.service.lists[f"/v1/{kind}s"] = endless(records)
    requests = [ReadRequest(kind=kind, object_id=name) for name in names]
    await ask_all(world, requests)
    policy = RefreshPolicy(page_orders_from=1000, burst=100, order_burst=100)
    await Refresh(world.app, world.publisher, policy=policy).once()
    world.service.calls.clear()
    return requests


async def seconds_until_read(world: World, paths: Iterable[str], again: Sequence[ReadRequest], most_s: float) -> float:
    """How long it takes, half a second a round, while nothing of the budget is idle and `again` is asked each time."""
    policy = RefreshPolicy(page_from=20, page_yield=5, burst=2, order_burst=2, pages=50)
    wanted, began = set(paths), world.clock.monotonic()
    async with while_a_walk_goes_on(world, policy) as once:
        while not wanted <= set(world.service.calls) and world.clock.monotonic() - began < most_s:
            await ask_all(world, again)
            await once()
            world.clock.advance(0.5)
    return world.clock.monotonic() - began if wanted <= set(world.service.calls) else most_s


async def test_orders_and_sessions_take_turns_where_a_round_has_room_for_one(world: World) -> None:
    # case: B23, F5
    few, many = orders_and_sessions(world, 5), orders_and_sessions(world, 100)
    await ask_all(world, (one for one in many.values() if one.kind == "session"))
    world.clock.advance(60)
    await ask_all(world, (one for one in few.values() if one.kind == "order"))
    orders = [path for path, one in few.items() if one.kind == "order"]
    assert await seconds_until_read(world, orders, [], 30) <= 10 / 1.5 + 2, "ten reads, of which every other"


@pytest.mark.parametrize("kind", ["subscription", "order"])
async def test_a_list_that_answers_without_end_keeps_no_single_read_waiting(world: World, kind: ReadKind) -> None:
    # case: B22, B23, F5
    again = await listed_without_end(world, kind)
    asked = orders_and_sessions(world, 3)
    singly = {path: one for path, one in asked.items() if kind == "subscription" or one.kind == "session"}
    subscription(world, "ACTIVE", "sub_1")
    if kind == "order":
        singly["/v1/subscriptions/sub_1"] = ReadRequest(kind="subscription", object_id="sub_1")
    await ask_all(world, singly.values())
    pace = 3 if kind == "subscription" else 1.5
    assert await seconds_until_read(world, singly, again, 100) <= 3 * 18 / pace
    pages = world.service.calls[f"/v1/{kind}s"]
    assert pages >= 0.75 * (world.service.calls.total() - 4), "what comes in between is a sixth, the list the rest"


@pytest.mark.parametrize("kind", ["subscription", "order"])
async def test_what_the_list_does_not_show_is_read_beside_its_walk(world: World, kind: ReadKind) -> None:
    # case: B22, B23
    again = await listed_without_end(world, kind)
    path = "/v1/orders/lookup?X" if kind == "order" else "/v1/subscriptions/X"
    await ask_all(world, [ReadRequest(kind=kind, object_id="X")])
    assert await seconds_until_read(world, [path], again, 20) == 20, "the walk may come to it"
    world.clock.advance(600)
    assert await seconds_until_read(world, [path], again, 30) <= 18 / 1.5


@pytest.mark.parametrize("kind", ["subscription", "order"])
async def test_what_a_whole_walk_did_not_show_waits_for_no_other(world: World, kind: ReadKind) -> None:
    # case: B22, B23
    again = await listed_without_end(world, kind)
    shown = world.service.lists[f"/v1/{kind}s"]

    def ends(cursor: str | None, limit: int) -> Json:
        page = shown(cursor, limit)
        assert isinstance(page, dict)
        return page if cursor != "14" else page | {"next_cursor": None}

    world.service.lists[f"/v1/{kind}s"] = ends
    path = "/v1/orders/lookup?X" if kind == "order" else "/v1/subscriptions/X"
    await ask_all(world, [ReadRequest(kind=kind, object_id="X")])
    assert await seconds_until_read(world, [path], again, 60) <= 2 * 15 * 1.2 / 1.5 + 18 / 1.5


async def test_orders_are_paged_beside_subscriptions_that_are_paged_without_end(world: World) -> None:
    # case: B22, B23
    again = await listed_without_end(world, "subscription")
    names = [f"A-{number}" for number in range(100)]
    records = [{"id": f"o{name}", "order_id": name, "status": "PAID"} for name in names]
    world.service.records["/v1/orders/lookup?A-0"] = records[0]
    world.service.lists["/v1/orders"] = endless(records)
    await ask_all(world, (ReadRequest(kind="order", object_id=name) for name in names))
    session = orders_and_sessions(world, 1)["/v1/checkout-sessions/cs_0"]
    await ask_all(world, [session])
    await seconds_until_read(world, ["/v1/orders/none"], again, 30)
    assert world.service.calls["/v1/orders"] >= 10
    assert world.service.calls["/v1/subscriptions"] >= 40
    assert world.service.calls["/v1/checkout-sessions/cs_0"] == 1


def test_subscriptions_come_first_and_every_fifth_is_another() -> None:
    # case: B23

    def rows(kind: ReadKind, count: int) -> list[ReadRow]:
        return [ReadRow(application="default", kind=kind, object_id=f"{kind}_{n}") for n in range(count)]

    subscriptions, orders, sessions = rows("subscription", 60), rows("order", 60), rows("session", 2)
    found = [row.object_id for row in in_turn([*orders, *subscriptions, *sessions], 50)]
    assert found[:8] == [
        "subscription_0", "session_0", *(f"subscription_{n}" for n in range(1, 5)), "order_0", "subscription_5",
    ]  # fmt: skip
    assert len(found) == len(set(found)) == 50
    assert sum(name.startswith("subscription") for name in found) == 40
    assert [row.object_id for row in in_turn(subscriptions, 50)] == [f"subscription_{n}" for n in range(50)]
    assert len(in_turn([*subscriptions[:3], *orders], 50)) == 50
    assert in_turn([], 50) == []
    kinds = [row.kind for row in in_turn([*subscriptions, *orders], 50, since_other=4)]
    assert kinds[:7] == ["order", *["subscription"] * 4, "order", "subscription"], "it was refused in the last round"
    turns = [row.kind for row in in_turn([*sessions, *orders], 50, last_other="session")]
    assert turns[:4] == ["order", "session", "order", "session"], "a round may have room for one only"
