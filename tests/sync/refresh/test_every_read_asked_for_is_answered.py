"""Refresh: who asks for a read gets an answer, and an answer that does not come changes nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

from consumer.events import Source, Trust
from consumer.ledger.reading import observations, read_requests
from consumer.ledger.reading.observation import digest, meaning, observation_id, shape
from consumer.payments import PaymentsClient, PaymentsError
from consumer.payments.listings import Listing
from consumer.plugin import ReadRequest
from consumer.sync.api import ApplicationApi
from consumer.sync.refresh.odd_records import OddRecords
from consumer.sync.refresh.policy import RefreshPolicy
from consumer.sync.role import Sync, SyncPolicy
from tests.sync.conftest import DELIVERIES, EVENTS, World, counted_by
from tests.sync.refreshing import answers, ask, paged, pending, refresh, subscription, while_a_walk_goes_on


async def test_a_subscription_is_read_and_answered_with_an_observation(world: World) -> None:
    # case: A40, B27
    subscription(world, "ACTIVE")
    await ask(world, "subscription", "sub_1")
    assert await refresh(world).once() == 1
    [event] = await answers(world)
    assert (event.type, event.key, event.trust, event.source) == (
        "subscription.observed",
        "subscription:sub_1",
        Trust.READ,
        Source.READ,
    )
    assert event.id == observation_id("default", "subscription", "sub_1", event.data["data"]["version"])
    assert event.data["data"]["record"] == {"id": "sub_1", "status": "ACTIVE"}
    assert await pending(world) == []


async def test_what_is_read_is_of_the_trace_of_what_asked_for_it(world: World) -> None:
    subscription(world, "ACTIVE")
    for name, number in (("sub_1", 1), ("sub_2", 2)):  # the second one is unknown there
        await ask(world, "subscription", name, traceparent=f"00-{number:032x}-{number:016x}-00")
    await refresh(world).once()
    told = {event.type: event.traceparent for event in await answers(world)}
    assert told == {
        "subscription.observed": f"00-{1:032x}-{1:016x}-00",
        "subscription.unreadable": f"00-{2:032x}-{2:016x}-00",
    }


async def test_what_a_page_answers_is_of_the_trace_of_what_asked_for_it(world: World) -> None:
    names = [f"A-{number}" for number in range(1, 151)]
    listed: list[dict[str, object]] = [{"id": f"ord_{name}", "order_id": name, "status": "PAID"} for name in names]
    world.service.lists["/v1/orders"] = paged(listed)
    world.service.records[f"/v1/orders/lookup?{names[0]}"] = listed[0]
    for number, name in enumerate(names, 1):
        await ask(world, "order", name, traceparent=f"00-{number:032x}-{number:016x}-00")
    await refresh(world).once()
    told = {event.order_id: event.traceparent for event in await answers(world)}
    assert told == {name: f"00-{number:032x}-{number:016x}-00" for number, name in enumerate(names, 1)}
    assert world.service.calls.total() <= 10, "by pages"


async def test_an_order_is_read_by_the_merchants_id_whatever_is_in_it(world: World) -> None:
    # case: F26
    odd = "A/1 &é?x=1#"
    world.service.records[f"/v1/orders/lookup?{odd}"] = {"id": "ord_1", "order_id": odd, "status": "PAID"}
    await ask(world, "order", odd)
    await refresh(world).once()
    [event] = await answers(world)
    assert (event.type, event.key, event.order_id) == ("order.observed", f"order:{odd}", odd)


async def test_a_session_is_told_with_its_order_and_a_subscription_session_has_none(world: World) -> None:
    # case: F5, F22, F23, U10
    order = {"id": "ord_1", "order_id": "A-1", "status": "PAID"}
    world.service.records["/v1/checkout-sessions/cs_1"] = {"id": "cs_1", "status": "COMPLETED", "order": order}
    world.service.records["/v1/checkout-sessions/cs_2"] = {"id": "cs_2", "customer_reference": "cus_1", "order": None}
    world.service.records["/v1/orders/ord_1"] = order
    await ask(world, "session", "cs_1")
    await ask(world, "session", "cs_2")
    await ask(world, "service_order", "ord_1")
    await refresh(world).once()
    told = await answers(world)
    assert Counter(event.key for event in told) == {"order:A-1": 2, "session:cs_1": 1, "session:cs_2": 1}
    [session] = (event for event in told if event.key == "session:cs_2")
    assert (session.type, session.find("/data/record/customer_reference")) == ("session.observed", "cus_1")
    assert await pending(world) == []
    assert counted_by(world.metrics, "reads_answered", "default") == 3
    async with world.database.reading() as ledger:
        kept = await observations.last(ledger, "default", "session", ["cs_1", "cs_2"])
    assert kept.keys() == {"cs_1", "cs_2"}


async def test_a_session_that_cannot_be_kept_does_not_take_its_order_with_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case: F5, U10
    monkeypatch.setattr(OddRecords, "is_whole", lambda _, found: found.kind != "session")
    order = {"id": "ord_1", "order_id": "A-1", "status": "PAID"}
    world.service.records["/v1/checkout-sessions/cs_1"] = {"id": "cs_1", "order": order}
    world.service.records["/v1/checkout-sessions/cs_2"] = {"id": "cs_2", "order": None}
    await ask(world, "session", "cs_1")
    await ask(world, "session", "cs_2")
    await refresh(world).once()
    assert [event.key for event in await answers(world)] == ["order:A-1"]
    assert [row.object_id for row in await pending(world)] == ["cs_2"]


async def test_an_order_without_the_merchants_id_is_said_and_not_guessed(world: World) -> None:
    # case: U10
    world.service.records["/v1/orders/ord_1"] = {"id": "ord_1", "status": "PAID"}
    await ask(world, "service_order", "ord_1")
    await refresh(world).once()
    assert await answers(world) == []
    assert counted_by(world.metrics, "reads_without_order_id", "default") == 1


async def test_a_status_word_that_nobody_knows_is_counted(world: World) -> None:
    # case: F34, A35, U26
    world.service.records["/v1/orders/lookup?A-1"] = {"id": "ord_1", "order_id": "A-1", "status": "REVERSED"}
    world.service.records["/v1/orders/lookup?A-2"] = {"id": "ord_2", "order_id": "A-2", "status": "PENDING"}
    world.service.records["/v1/orders/lookup?A-3"] = {"id": "ord_3", "order_id": "A-3"}
    for order_id in ("A-1", "A-2", "A-3"):
        await ask(world, "order", order_id)
    await refresh(world).once()
    assert len(await answers(world)) == 3
    assert counted_by(world.metrics, "unknown_enums", "default", "order.status") == 1


async def test_every_request_is_answered_even_when_nothing_changed(world: World) -> None:
    # case: A14, A30
    subscription(world, "ACTIVE")
    stage = refresh(world)
    for _ in range(3):
        await ask(world, "subscription", "sub_1")
        await stage.once()
    events = await answers(world)
    assert len({event.id for event in events}) == 3
    first, second, third = (event.data["data"]["version"] for event in events)
    assert first < second < third


async def test_the_version_is_taken_before_the_request_leaves(world: World) -> None:
    # case: A40
    subscription(world, "ACTIVE")
    await ask(world, "subscription", "sub_1")
    world.service.gate = asyncio.Event()
    under_way = asyncio.create_task(refresh(world).once())
    async with asyncio.timeout(5):
        await world.service.entered.wait()
    async with world.database.transaction() as session:
        later = await read_requests.next_version(session)
    subscription(world, "ENDED")
    world.service.gate.set()
    await under_way
    [event] = await answers(world)
    assert event.data["data"]["version"] < later


async def test_a_page_answers_nothing_that_was_asked_for_after_it_was_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it shows is older than the question: of one that is new, and of one that is asked again."""
    # case: A40, B22
    pending_: list[dict[str, object]] = [{"id": f"o{n}", "order_id": f"A{n}", "status": "PENDING"} for n in range(60)]
    world.service.lists["/v1/orders"] = paged(pending_)
    world.service.records["/v1/orders/lookup?A0"] = pending_[0]
    read, pages = Listing.list, 0

    async def read_and_paid_in_between(self: Any, **words: Any) -> Any:
        nonlocal pages
        page, pages = await read(self, **words), pages + 1
        if pages == 1:
            paid: list[dict[str, object]] = [{**one, "status": "PAID"} for one in pending_]
            world.service.lists["/v1/orders"] = paged(paid)
            for number in (55, 1):
                world.service.records[f"/v1/orders/lookup?A{number}"] = paid[number]
                await ask(world, "order", f"A{number}")
        return page

    monkeypatch.setattr(Listing, "list", read_and_paid_in_between)
    for number in range(50):
        await ask(world, "order", f"A{number}")
    await refresh(world).once()
    await refresh(world).once()
    last = {event.order_id: event.find("/data/record/status") for event in await answers(world)}
    assert len(last) == 51
    assert {order_id for order_id, status in last.items() if status == "PAID"} == {"A55", "A1"}


async def test_requests_coalesce_and_one_that_comes_while_the_read_is_under_way_is_not_lost(world: World) -> None:
    # case: A40
    subscription(world, "ACTIVE")
    for _ in range(5):
        await ask(world, "subscription", "sub_1")
    world.service.gate = asyncio.Event()
    stage = refresh(world)
    under_way = asyncio.create_task(stage.once())
    async with asyncio.timeout(5):
        await world.service.entered.wait()
    await ask(world, "subscription", "sub_1")
    world.service.gate.set()
    assert await under_way == 1
    assert len(await pending(world)) == 1
    assert await stage.once() == 1
    assert world.service.calls["/v1/subscriptions/sub_1"] == 2


async def test_a_read_is_not_done_before_its_time(world: World) -> None:
    # case: A30
    subscription(world, "ACTIVE")
    await ask(world, "subscription", "sub_1", after_s=3600)
    stage = refresh(world)
    assert await stage.once() == 0
    world.clock.advance(3601)
    assert await stage.once() == 1


@pytest.mark.parametrize("status", [401, 404, 409, 429, 500])
async def test_no_answer_never_means_gone(world: World, status: int) -> None:
    # case: G7, A34, A53
    subscription(world, "ACTIVE")
    await ask(world, "subscription", "sub_1")
    world.service.failing["*"] = status
    stage = refresh(world)
    for _ in range(20):
        with suppress(PaymentsError):
            await stage.once()
        world.clock.advance(60)
    assert await answers(world) == []
    [row] = await pending(world)
    assert (row.attempts > 0) == (status not in (401, 429))
    world.service.failing.clear()
    world.clock.advance(7 * 3600)
    assert await stage.once() == 1
    assert [event.data["data"]["record"]["status"] for event in await answers(world)] == ["ACTIVE"]


def test_digest_meaning_and_shape_tell_what_changed() -> None:
    # case: A40
    one = {"id": "sub_1", "status": "ACTIVE", "period_end": 1}
    same = {"period_end": 1, "status": "ACTIVE", "id": "sub_1"}
    later = one | {"period_end": 2}
    assert digest(one) == digest(same) != digest(later)
    assert meaning(one) == meaning(later) != meaning(one | {"status": "PAST_DUE"})
    assert shape(one) == shape(later) != shape({"id": "sub_1", "status": "ACTIVE"})


def numbered(count: int, **more: object) -> list[dict[str, object]]:
    return [{"id": f"sub_{number}", "status": "PAST_DUE", **more} for number in range(count)]


async def observe(world: World, count: int) -> None:
    """Each of them was read singly once."""
    for one in numbered(count):
        world.service.records[f"/v1/subscriptions/{one['id']}"] = one | {"status": "ACTIVE"}
    requests = [ReadRequest(kind="subscription", object_id=f"sub_{number}") for number in range(count)]
    async with world.database.transaction() as session:
        await read_requests.ask(session, "default", requests, world.clock.now())
    stage = refresh(world)
    while await pending(world):
        await stage.once()
    world.service.calls.clear()
    async with world.database.transaction() as session:
        await read_requests.ask(session, "default", requests, world.clock.now())


async def test_many_reads_are_done_by_paging_the_list(world: World) -> None:
    # case: B22, A40
    await observe(world, 60)
    world.service.lists["/v1/subscriptions"] = paged(numbered(60))
    assert await refresh(world).once() == 60
    assert world.service.calls.total() <= 5
    assert await pending(world) == []
    newest = {event.key: event.data["data"]["record"]["status"] for event in await answers(world)}
    assert set(newest.values()) == {"PAST_DUE"}


async def test_a_list_that_shows_less_than_a_single_read_is_not_used(world: World) -> None:
    # case: B22
    await observe(world, 50)
    world.service.lists["/v1/subscriptions"] = paged(
        [{"id": one["id"], "status": "ENDED"} | {"x": 1} for one in numbered(50)]
    )
    assert await refresh(world).once() == 50
    assert world.service.calls["/v1/subscriptions"] <= 3
    assert {event.data["data"]["record"]["status"] for event in await answers(world)} == {"ACTIVE"}


async def test_a_list_without_the_wanted_ones_is_left_early(world: World) -> None:
    # case: B23
    await observe(world, 50)
    world.service.lists["/v1/subscriptions"] = paged(
        [{"id": f"other_{number}", "status": "ACTIVE"} for number in range(5000)]
    )
    assert await refresh(world).once() == 50
    assert world.service.calls["/v1/subscriptions"] <= 3


@pytest.mark.parametrize("shown", ["others", "the same page for ever", "nothing but 500"])
async def test_a_list_that_shows_none_of_them_leaves_most_requests_to_single_reads(world: World, shown: str) -> None:
    # case: B22, B23
    for number in range(60):
        one = {"id": f"o{number}", "order_id": f"A-{number}", "status": "PAID", "amount": "1"}
        world.service.records[f"/v1/orders/lookup?A-{number}"] = one
        await ask(world, "order", f"A-{number}")
    others: list[dict[str, object]] = [{"id": f"x{n}", "order_id": f"X-{n}", "status": "PAID"} for n in range(5000)]
    world.service.lists["/v1/orders"] = {
        "others": paged(others),
        "the same page for ever": lambda _, limit: {"items": others[:limit], "next_cursor": 1},
        "nothing but 500": lambda _, limit: 500,
    }[shown]
    answered = 0
    async with while_a_walk_goes_on(world, RefreshPolicy(order_burst=3)) as once:
        for _ in range(30):
            answered += await once()
            world.clock.advance(1)
    assert answered >= 20


async def test_subscriptions_are_read_before_what_waits_for_its_share(world: World) -> None:
    # case: B23, A14
    for number in range(60):
        subscription(world, "ACTIVE", f"sub_{number}")
        world.service.records[f"/v1/checkout-sessions/cs_{number}"] = {"id": f"cs_{number}", "order": None}
        await ask(world, "session", f"cs_{number}")
    world.clock.advance(60)
    for number in range(60):
        await ask(world, "subscription", f"sub_{number}")
    world.service.lists["/v1/subscriptions"] = paged([{"id": f"x{n}", "status": "ENDED"} for n in range(1000)])
    policy = RefreshPolicy(page_from=40, burst=100, order_per_s=0.01, order_burst=2)
    async with while_a_walk_goes_on(world, policy) as once:
        assert await once() == 40 + 2, "a fifth of the round was for the others, as far as their share went"
        assert await once() == 20


async def test_applications_at_one_address_share_what_their_reads_may_take(world: World) -> None:
    # case: B23, C15
    credentials = world.api.client.credentials
    async with PaymentsClient("http://127.0.0.1:9", credentials, clock=world.clock) as elsewhere:
        clients = dict.fromkeys(("a", "b", "c"), world.api.client) | {"alone": elsewhere}
        sync = Sync(
            [ApplicationApi(application=name, client=client) for name, client in clients.items()],
            world.broker,
            world.database,
            deliveries_topic=DELIVERIES,
            events_topic=EVENTS,
            applications=list(clients),
            clock=world.clock,
            holder="test",
        )
        policies = {name: one.refresh._policy for name, one in sync.applications.items()}
    assert {name: one.order_per_s for name, one in policies.items()} == {"a": 0.5, "b": 0.5, "c": 0.5, "alone": 1.5}
    assert {name: (one.per_s, one.burst) for name, one in policies.items()} == {
        "a": (1.0, 10), "b": (1.0, 10), "c": (1.0, 10), "alone": (3.0, 30),
    }  # fmt: skip
    assert SyncPolicy().among(100).refresh == RefreshPolicy(per_s=0.3, burst=6, order_per_s=0.2, order_burst=2)
    small = SyncPolicy(refresh=RefreshPolicy(per_s=0.2, burst=1, order_per_s=0.1, order_burst=1))
    assert small.among(3) == small, "a share is never made larger"


async def test_a_record_that_no_topic_takes_holds_up_no_other_read(world: World) -> None:
    # case: G3
    subscription(world, "ACTIVE", "sub_1")
    world.service.records["/v1/subscriptions/sub_1"]["note"] = "x" * (3 * 2**20)
    subscription(world, "ACTIVE", "sub_2")
    await ask(world, "subscription", "sub_1")
    await ask(world, "subscription", "sub_2")
    await refresh(world).once()
    found = {event.key: event.find("/data/reduced") for event in await answers(world)}
    assert found == {"subscription:sub_1": True, "subscription:sub_2": None}
    assert await pending(world) == []
