"""That the service has no such object is an answer, told once per request. That it does not answer is none."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import pytest

from consumer.events import Event, Source, Trust
from consumer.ledger.reading import read_requests
from consumer.payments import Attempt, CallKind, PaymentsClient, PaymentsError, Priority
from consumer.plugin import ReadKind, ReadRequest
from consumer.sync.api import ApplicationApi
from consumer.sync.refresh.policy import RefreshPolicy
from consumer.sync.refresh.stage import Refresh
from tests.sync.conftest import World
from tests.sync.refreshing import answers, ask, paged, pending, refresh, subscription

NOBODY = "/v1/subscriptions/sub_1"
APPLICATION = "/v1/application"


async def rounds(world: World, stage: Refresh, count: int, every_s: float = 3600.0 * 7) -> None:
    for _ in range(count):
        with suppress(PaymentsError):
            await stage.once()
        world.clock.advance(every_s)


async def types(world: World) -> list[str]:
    return [event.type for event in await answers(world)]


@pytest.mark.parametrize(("kind", "object_id"), [("subscription", "sub_1"), ("order", "A/1 &é")])
async def test_no_such_object_is_told_with_the_reads_version(world: World, kind: ReadKind, object_id: str) -> None:
    # case: G7, F24, A47
    await ask(world, kind, object_id)
    await refresh(world).once()
    [event] = await answers(world)
    assert (event.type, event.key) == (f"{kind}.unreadable", f"{kind}:{object_id}")
    assert (event.trust, event.source) == (Trust.READ, Source.READ)
    assert event.id.startswith("obs_")
    said = event.data["data"]
    assert (said["kind"], said["id"], said["status"]) == (kind, object_id, 404)
    async with world.database.transaction() as session:
        assert 0 < said["version"] < await read_requests.next_version(session)
    assert set(said) == {"kind", "id", "version", "read_at", "status", "code", "request_id"}


async def test_it_is_told_once_and_tried_on_until_it_can_be_read(world: World) -> None:
    # case: G7, U30
    await ask(world, "subscription", "sub_1")
    stage = refresh(world)
    await rounds(world, stage, 12)
    assert await types(world) == ["subscription.unreadable"]
    assert world.service.calls[NOBODY] >= 10, "the read goes on"
    [row] = await pending(world)
    assert row.code == "unreadable"
    subscription(world, "ACTIVE")
    await rounds(world, stage, 1)
    assert await types(world) == ["subscription.unreadable", "subscription.observed"]
    assert await pending(world) == []


async def test_an_order_that_never_was_is_looked_for_a_week_and_no_longer(world: World) -> None:
    # case: F22, F23, U21, U30
    await ask(world, "order", "plan-1")
    await ask(world, "subscription", "sub_1")
    stage = refresh(world)
    await rounds(world, stage, 30, every_s=6 * 3600)
    assert {row.object_id for row in await pending(world)} == {"plan-1", "sub_1"}
    await rounds(world, stage, 12, every_s=7 * 3600)
    assert [row.object_id for row in await pending(world)] == ["sub_1"], "its own events said that there is one"
    assert sorted(await types(world)) == ["order.unreadable", "subscription.unreadable"]
    await ask(world, "order", "plan-1")
    await stage.once()
    assert (await types(world)).count("order.unreadable") == 2, "who asks again is told again"


@pytest.mark.parametrize("kind", ["order", "service_order", "session", "subscription"])
async def test_what_a_test_event_named_is_no_object_that_cannot_be_read(world: World, kind: ReadKind) -> None:
    # case: F24, U8
    await ask(world, kind, "of_a_test")
    await rounds(world, refresh(world), 12)
    async with world.database.reading() as session:
        assert await read_requests.unreadable(session, ["default"]) == (0, ()), "nothing would ever cure it"
    assert [row.code for row in await pending(world)] == ["unreadable"], "it may only lag"
    await rounds(world, refresh(world), 30)
    assert [row.kind for row in await pending(world)] == ["subscription"] * (kind == "subscription")


async def test_what_lags_is_found_in_seconds(world: World) -> None:
    # case: U30, F19
    await ask(world, "order", "A-1")
    stage = refresh(world)
    await stage.once()
    world.service.records["/v1/orders/lookup?A-1"] = {"id": "o1", "order_id": "A-1", "status": "PAID"}
    world.clock.advance(7)
    await stage.once()
    assert await types(world) == ["order.unreadable", "order.observed"]


async def test_everyone_who_asks_is_answered(world: World) -> None:
    # case: F20
    stage = refresh(world)
    for _ in range(3):
        await ask(world, "subscription", "sub_1")
        await stage.once()
    told = await answers(world)
    assert [event.type for event in told] == ["subscription.unreadable"] * 3
    first, second, third = (event.data["data"]["version"] for event in told)
    assert first < second < third
    assert len({event.id for event in told}) == 3


@pytest.mark.parametrize("status", [400, 401, 403, 409, 429, 500, 503])
async def test_everything_else_is_no_answer(world: World, status: int) -> None:
    # case: G7, A34, S5
    subscription(world, "ACTIVE", "sub_2")
    stage = refresh(world)
    await ask(world, "subscription", "sub_2")
    await stage.once()
    await ask(world, "subscription", "sub_1")
    world.service.failing[NOBODY] = status
    await rounds(world, stage, 10)
    assert await types(world) == ["subscription.observed"]


async def test_a_404_of_an_address_that_answers_nothing_is_none(world: World) -> None:
    # case: G7, U18
    await ask(world, "subscription", "sub_1")
    stage = refresh(world)
    world.service.failing["*"] = 404
    await rounds(world, stage, 5)
    assert await types(world) == []
    world.service.failing.clear()
    await rounds(world, stage, 1)
    assert await types(world) == ["subscription.unreadable"], "told as soon as it means something"


async def test_an_outage_in_between_is_not_another_answer(world: World) -> None:
    # case: G7
    await ask(world, "subscription", "sub_1")
    stage = refresh(world)
    await rounds(world, stage, 1)
    world.service.failing[NOBODY] = 500
    await rounds(world, stage, 3)
    world.service.failing.clear()
    await rounds(world, stage, 2)
    assert await types(world) == ["subscription.unreadable"]


async def test_whether_the_address_answers_is_asked_now_and_then_only(world: World) -> None:
    # case: B23
    for number in range(20):
        await ask(world, "subscription", f"gone_{number}")
    await refresh(world).once()
    assert len(await types(world)) == 20
    assert world.service.calls[APPLICATION] == 1


async def test_what_names_no_order_of_the_merchant_is_not_told_of(world: World) -> None:
    # case: F20
    await ask(world, "service_order", "so1")
    await ask(world, "session", "cs1")
    await refresh(world).once()
    assert await types(world) == []
    assert len(await pending(world)) == 2


def orders(count: int, **more: object) -> list[dict[str, object]]:
    return [{"id": f"o{n}", "order_id": f"A-{n}", "status": "PAID", "amount": "1", **more} for n in range(count)]


async def ask_for_orders(world: World, count: int, *, since: int = 0) -> None:
    requests = [ReadRequest(kind="order", object_id=f"A-{number}") for number in range(since, count)]
    async with world.database.transaction() as session:
        await read_requests.ask(session, "default", requests, world.clock.now())


def refresh_from(world: World, page_from: int, singles: int = 50) -> Refresh:
    policy = RefreshPolicy(page_orders_from=page_from, singles=singles, burst=500, order_burst=500)
    return Refresh(world.app, world.publisher, policy=policy)


def observed_orders(found: Sequence[Event]) -> set[str]:
    return {str(event.order_id) for event in found if event.type == "order.observed"}


async def test_many_new_orders_cost_a_read_per_page(world: World) -> None:
    # case: B22, B23, F24
    for one in orders(3):
        world.service.records[f"/v1/orders/lookup?{one['order_id']}"] = one
    world.service.lists["/v1/orders"] = paged(orders(150))
    await ask_for_orders(world, 150)
    stage = refresh_from(world, 100)
    assert await stage.once() == 150
    assert observed_orders(await answers(world)) == {f"A-{number}" for number in range(150)}
    assert world.service.calls.total() <= 5


async def test_a_list_of_orders_that_shows_less_is_not_used(world: World) -> None:
    # case: B22
    for one in orders(120):
        world.service.records[f"/v1/orders/lookup?{one['order_id']}"] = one | {"status": "PENDING"}
    world.service.lists["/v1/orders"] = paged([{"order_id": one["order_id"], "status": "PAID"} for one in orders(120)])
    await ask_for_orders(world, 120)
    stage = refresh_from(world, 100, singles=200)
    assert await stage.once() == 120
    shown = {event.data["data"]["record"]["status"] for event in await answers(world)}
    assert shown == {"PENDING"}


@pytest.mark.slow
async def test_a_backlog_far_larger_than_a_round_costs_a_read_per_page_too(world: World) -> None:
    # case: B22, B23, O7
    count = 1_500
    for one in orders(3):  # a single read shows how full a record is; the others would be answered 404
        world.service.records[f"/v1/orders/lookup?{one['order_id']}"] = one
    newest_first = orders(count)[::-1]  # those that have waited longest are at the far end of the list
    world.service.lists["/v1/orders"] = paged(newest_first)
    for start in range(0, count, 300):
        await ask_for_orders(world, start + 300, since=start)
        world.clock.advance(1)
    stage = Refresh(world.app, world.publisher, policy=RefreshPolicy(batch=300, page_orders_from=100, pages=4))
    done = 0
    while await stage.once():
        done += 1
        assert done < 20, "every round goes on where the one before was cut"
    assert len(observed_orders(await answers(world))) == count
    assert world.service.calls.total() <= count / 100 + 10


async def test_while_many_are_read_one_by_one_it_is_looked_again_whether_a_list_pays(world: World) -> None:
    # case: B22, B23
    for one in orders(90):
        world.service.records[f"/v1/orders/lookup?{one['order_id']}"] = one
    world.service.lists["/v1/orders"] = paged(orders(290))
    await ask_for_orders(world, 90)
    stage = refresh_from(world, 100)
    assert await stage.once() == 50
    await ask_for_orders(world, 290)
    world.service.calls.clear()
    assert await stage.once() == 290
    assert world.service.calls.total() <= 5


async def test_a_backlog_of_orders_keeps_neither_a_subscription_nor_a_walk_of_the_events_waiting(world: World) -> None:
    # case: B23, I17, A14
    for one in orders(30):
        world.service.records[f"/v1/orders/lookup?{one['order_id']}"] = one
    await ask_for_orders(world, 30)
    world.clock.advance(60)
    subscription(world, "ACTIVE")
    await ask(world, "subscription", "sub_1")
    attempts: list[Attempt] = []
    client = PaymentsClient(
        world.service.address, world.api.client.credentials, clock=world.clock, on_attempt=attempts.append
    )
    async with client:
        while await client.budget.predict_s(CallKind.READ, Priority.BACKFILL) == 0:  # a walk takes what it can get
            await client.budget.acquire(CallKind.READ, Priority.BACKFILL, max_wait_s=0)
        app = replace(world.app, api=ApplicationApi(application="default", client=client))
        policy = RefreshPolicy(page_orders_from=50, order_per_s=1, order_burst=3)
        stage = Refresh(app, world.publisher, policy=policy)
        assert await stage.once() == 4
        assert [one.route.split("/")[2] for one in attempts] == ["subscriptions", "orders", "orders", "orders"]
        assert await stage.once() == 0, "the share is used up, and the walk goes on"
        world.clock.advance(1)
        assert await stage.once() == 1
        world.clock.advance(60)
        for _ in range(26):  # nobody else wants the budget now
            await stage.once()
            world.clock.advance(0.3)
        assert len(observed_orders(await answers(world))) == 30


async def test_those_who_ask_while_a_long_list_is_walked_need_not_wait_for_its_end(world: World) -> None:
    # case: B23
    for one in orders(3):
        world.service.records[f"/v1/orders/lookup?{one['order_id']}"] = one
    newest_first = orders(3_000)[::-1]
    world.service.lists["/v1/orders"] = paged(newest_first[100:])
    await ask_for_orders(world, 2_900)
    stage = Refresh(world.app, world.publisher, policy=RefreshPolicy(pages=2, burst=500, order_burst=500))
    await stage.once()
    world.service.lists["/v1/orders"] = paged(newest_first)
    await ask_for_orders(world, 3_000, since=2_900)
    world.clock.advance(10)
    await stage.once()
    assert {f"A-{number}" for number in range(2_900, 3_000)} <= observed_orders(await answers(world))


@pytest.mark.slow
async def test_what_lies_at_the_far_end_of_the_list_is_paged_when_it_is_much(world: World) -> None:
    # case: B22, B23
    for one in orders(3):
        world.service.records[f"/v1/orders/lookup?{one['order_id']}"] = one
    newest_first = orders(2_600)[::-1]
    world.service.lists["/v1/orders"] = paged(newest_first)
    await ask_for_orders(world, 1_000)  # the workers come to the oldest first
    stage = Refresh(world.app, world.publisher, policy=RefreshPolicy(pages=4, burst=500, order_burst=500))
    for _ in range(8):
        await stage.once()
    assert observed_orders(await answers(world)) == {f"A-{number}" for number in range(1_000)}
    assert world.service.calls.total() <= 30


@pytest.mark.slow
async def test_a_walk_that_is_faster_than_the_workers_waits_for_those_who_ask(world: World) -> None:
    # case: B22, B23
    for one in orders(3):
        world.service.records[f"/v1/orders/lookup?{one['order_id']}"] = one
    world.service.lists["/v1/orders"] = paged(orders(6_000))  # the events come in the order of this list
    stage = Refresh(
        world.app,
        world.publisher,
        policy=RefreshPolicy(per_s=50, burst=500, order_burst=500, order_per_s=50, singles=5, pages=8),
    )
    await ask_for_orders(world, 12_000, since=10_000)  # these are not listed: there is always something to look for
    for known in range(200, 2_401, 200):
        await ask_for_orders(world, known, since=known - 200)
        await stage.once()
        world.clock.advance(3.1)
        if known == 1_200:
            assert len(observed_orders(await answers(world))) >= 1_000, "what it looks for came up behind it"
    assert len(observed_orders(await answers(world))) >= 2_200


@pytest.mark.slow
async def test_what_lies_here_and_there_among_answered_ones_is_found_by_one_pass(world: World) -> None:
    # case: B22, B23
    listed = orders(3_000)
    world.service.lists["/v1/orders"] = paged(listed)
    world.service.records["/v1/orders/lookup?A-0"] = listed[0]
    stage = refresh_from(world, page_from=20)
    await ask_for_orders(world, 3_000)
    while await pending(world):
        await stage.once()
        world.clock.advance(0.2)
    world.service.calls.clear()
    some = random.Random(1).sample(range(3_000), 270)  # nine a page: of some less than pays by itself
    requests = [ReadRequest(kind="order", object_id=f"A-{number}") for number in some]
    async with world.database.transaction() as session:
        await read_requests.ask(session, "default", requests, world.clock.now())
    for number in some:
        world.service.records[f"/v1/orders/lookup?A-{number}"] = listed[number]
    began = world.clock.monotonic()
    while await pending(world):
        await stage.once()
        world.clock.advance(0.2)
    assert world.service.calls.total() <= 60, "thirty pages, and a few by themselves"
    assert world.clock.monotonic() - began <= 20, "it never rests: nobody is behind it"


@pytest.mark.slow
async def test_what_is_asked_for_late_at_the_far_end_is_paged_again(world: World) -> None:
    # case: B22, B23
    listed = orders(9_000)
    world.service.lists["/v1/orders"] = paged(listed)
    for one in (listed[0], *listed[8_700:]):
        world.service.records[f"/v1/orders/lookup?{one['order_id']}"] = one
    stage = refresh_from(world, page_from=20)
    await ask_for_orders(world, 8_700)
    while await pending(world):
        await stage.once()
        world.clock.advance(0.2)
    world.service.calls.clear()
    await ask_for_orders(world, 9_000, since=8_700)  # three pages, and eighty-seven before them that answer nothing
    while await pending(world):
        await stage.once()
        world.clock.advance(0.2)
    assert world.service.calls.total() <= 160, "of three hundred by themselves"


async def test_a_list_that_has_paid_off_is_walked_again_after_one_rest(world: World) -> None:
    # case: B22, B23
    listed = orders(2_000)
    world.service.lists["/v1/orders"] = paged(listed)
    world.service.records["/v1/orders/lookup?A-0"] = listed[0]
    stage = refresh_from(world, page_from=20, singles=0)
    await ask_for_orders(world, 2_000)
    while await pending(world):  # all are known: a walk that meets them again is not ahead of who asks
        await stage.once()
    await stage.once()
    await ask_for_orders(world, 1_000)
    await ask_for_orders(world, 9_030, since=9_000)  # these are not listed: ten pages to the end answer nothing
    for _ in range(3):
        await stage.once()
    await ask_for_orders(world, 1_300, since=1_000)
    world.service.calls.clear()
    await stage.once()
    assert world.service.calls["/v1/orders"] == 0, "it rests first: the workers may be behind"
    world.clock.advance(RefreshPolicy().newest_every_s)
    await stage.once()
    assert len(await pending(world)) == 30, "and no longer"


async def test_a_list_that_answers_to_its_end_does_not_rest(world: World) -> None:
    # case: B22, B23
    world.service.lists["/v1/orders"] = lambda cursor, limit: {"items": orders(60), "next_cursor": None}
    world.service.records["/v1/orders/lookup?A-0"] = orders(1)[0]
    stage = refresh_from(world, page_from=20, singles=0)
    for known in (20, 40, 60):
        await ask_for_orders(world, known, since=known - 20)
        await stage.once()
        assert await pending(world) == []
