"""Refresh takes turns: no kind of read waits for another kind, nor a walk of the events for all of them."""

from __future__ import annotations

from consumer.ledger import reads
from consumer.ledger.tables import ReadRow
from consumer.payments import Kind as BudgetKind
from consumer.payments import Priority
from consumer.plugin import ReadKind, ReadRequest
from consumer.sync.application import SyncPolicy
from consumer.sync.refresh_policy import RefreshPolicy, in_turn
from tests.sync.conftest import World
from tests.sync.refreshing import ask, paged, refresh, subscription, while_a_walk_goes_on


async def test_reads_without_end_leave_a_walk_of_the_events_its_part(world: World) -> None:
    # case: B23, G3
    names = [f"sub_{number}" for number in range(30)]
    for name in names:
        subscription(world, "ACTIVE", name)
    requests = [ReadRequest(kind="subscription", object_id=name) for name in names]
    stage, budget = refresh(world), world.reader.client.budget
    pages, wait_until = 0, 0.0
    while world.clock.monotonic() < 60:
        while await budget.predict_s(BudgetKind.READ, Priority.BACKFILL) == 0:  # a walk never rests
            await budget.acquire(BudgetKind.READ, Priority.BACKFILL, max_wait_s=0)
            pages += 1
        if world.clock.monotonic() >= wait_until:
            async with world.database.transaction() as session:  # a handler that asks again with every answer
                await reads.ask(session, "default", requests, world.clock.now())
            wait_until = await stage._step() + world.clock.monotonic()
        world.clock.advance(0.1)
    assert pages >= 60, "a walk of sixty pages takes a minute at most"
    answered = world.figures.value("reads_answered", "default")
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
            await reads.ask(session, "default", requests, world.clock.now())
        world.clock.advance(await stage._step())
    assert world.figures.value("reads_answered", "default") >= 0.95 * 4.79 * 60


async def test_older_subscriptions_keep_neither_orders_nor_sessions_waiting(world: World) -> None:
    # case: B22, B23, F5
    requests = [ReadRequest(kind="subscription", object_id=f"sub_{number}") for number in range(1_500)]
    async with world.database.transaction() as session:
        await reads.ask(session, "default", requests, world.clock.now())
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
        await reads.ask(session, "default", subscriptions, world.clock.now())
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
