"""A single read may be answered with another record than the one asked for, or with none: what it shows is placed by
the ids in it, and who asked is told that the service has no such object."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select

from consumer.console.invariants.check import Check
from consumer.console.invariants.service import LastObservations
from consumer.events import Trust
from consumer.ledger.tables import OutboxRow
from consumer.plugin import ReadKind
from handlers.fulfilment.order import Hold
from handlers.fulfilment.tables import ORDERS
from tests.support.handling.live import Live
from tests.support.handling.projections import observed, said
from tests.sync.conftest import World, counted_by
from tests.sync.refreshing import answers, ask, pending, refresh

LOOKUP = "/v1/orders/lookup?"
ORDER = {"id": "ord_1", "order_id": "A1", "status": "PAID", "amount": "10"}
SUBSCRIPTION = {"id": "sub_1", "status": "ACTIVE"}
SESSION = {"id": "cs_1", "status": "COMPLETED", "order": ORDER}
OTHERS: dict[str, tuple[ReadKind, str, str, dict[str, Any], set[str]]] = {
    "the service's id": ("order", "ord_1", f"{LOOKUP}ord_1", ORDER, {"order:A1"}),
    "folded case": ("order", "a1", f"{LOOKUP}a1", ORDER, {"order:A1"}),
    "another order": ("service_order", "ord_2", "/v1/orders/ord_2", ORDER, {"order:A1"}),
    "a subscription": ("subscription", "SUB_1", "/v1/subscriptions/SUB_1", SUBSCRIPTION, {"subscription:sub_1"}),
    "a session": ("session", "CS_1", "/v1/checkout-sessions/CS_1", SESSION, {"order:A1", "session:cs_1"}),
}
NONE: list[dict[str, Any]] = [
    {"items": [], "next_cursor": None}, {"order": None}, {"status": "maintenance"},
    {"id": "", "order_id": "", "status": "NONE"},
    {"statusCode": 404, "error": "Not Found", "code": "not_found", "message": "none", "request_id": "req_1"},
]  # fmt: skip
PATHS: dict[ReadKind, str] = {
    "order": f"{LOOKUP}X", "service_order": "/v1/orders/X", "subscription": "/v1/subscriptions/X",
    "session": "/v1/checkout-sessions/X",
}  # fmt: skip


async def told(world: World) -> list[tuple[str, str]]:
    return sorted((event.type, event.key) for event in await answers(world))


@pytest.mark.parametrize("which", OTHERS)
async def test_another_record_is_its_own_and_not_what_was_asked_for(world: World, which: str) -> None:
    # case: U10, U18, G7
    kind, asked, path, record, keys = OTHERS[which]
    world.service.records[path] = record
    await ask(world, kind, asked)
    await refresh(world).once()
    seen = [(f"{key.partition(':')[0]}.observed", key) for key in keys]
    denied = [(f"{kind}.unreadable", f"{kind}:{asked}")] if kind in ("order", "subscription") else []
    assert await told(world) == sorted(seen + denied)
    assert {event.key: event.find("/data/status") for event in await answers(world) if "unread" in event.type} == {
        key: 200 for _, key in denied
    }
    assert [(row.object_id, row.code) for row in await pending(world)] == [(asked, "unreadable")], "it may only lag"


async def test_an_order_that_shows_no_id_is_what_was_asked_for_where_its_status_is_an_orders(world: World) -> None:
    """Its fields are not documented: nobody's goods wait for the name of one."""
    # case: U10, F18
    world.service.records[PATHS["order"]] = {"number": "X", "status": "PAID"}
    await ask(world, "order", "X")
    await refresh(world).once()
    assert await told(world) == [("order.observed", "order:X")]
    assert await pending(world) == []


@pytest.mark.parametrize(("kind", "body"), [*((kind, {}) for kind in PATHS), *(("order", body) for body in NONE)])
async def test_a_success_without_a_record_shows_nothing(world: World, kind: ReadKind, body: dict[str, Any]) -> None:
    # case: U18, U30, F24, A47
    world.service.records[PATHS[kind]] = body
    await ask(world, kind, "X")
    stage = refresh(world)
    await stage.once()
    denied = [(f"{kind}.unreadable", f"{kind}:X")] if kind in ("order", "subscription") else []
    assert await told(world) == denied
    world.service.records[PATHS[kind]] = {"id": "X", "order_id": "X", "status": "ACTIVE"}
    world.clock.advance(3600)
    await stage.once()
    key = f"{kind.replace('service_', '')}:X"
    assert await told(world) == sorted([*denied, (f"{key.partition(':')[0]}.observed", key)])
    assert await pending(world) == []


async def test_where_nothing_else_is_answered_either_a_success_without_a_record_is_no_answer(world: World) -> None:
    # case: G7, U18
    world.service.records[f"{LOOKUP}X"] = {}
    world.service.failing["/v1/application"] = 503
    await ask(world, "order", "X")
    await refresh(world).once()
    assert await told(world) == []
    assert [row.code for row in await pending(world)] == ["resource_not_shown"]


@pytest.mark.parametrize(
    "record",
    [
        {"order_id": "A1", "status": "PAID"},
        {"id": "ord_1", "status": "PENDING"},
        {"order_id": "A1"},
        {"id": "ord_1", "order_id": "A1", "status": None},
    ],
    ids=lambda record: "+".join(record),
)
async def test_a_record_that_shows_one_of_its_ids_is_the_order(world: World, record: dict[str, Any]) -> None:
    # case: U10
    world.service.records[f"{LOOKUP}A1"] = record
    await ask(world, "order", "A1")
    await refresh(world).once()
    assert await told(world) == [("order.observed", "order:A1")]
    assert await pending(world) == []


async def test_an_order_looked_up_by_the_services_id_that_shows_no_other_is_nobodys(world: World) -> None:
    # case: U10
    world.service.records[f"{LOOKUP}ord_1"] = {"id": "ord_1", "status": "PAID"}
    await ask(world, "order", "ord_1")
    await refresh(world).once()
    assert await told(world) == [("order.unreadable", "order:ord_1")]
    assert counted_by(world.metrics, "reads_without_order_id", "default") == 1


@pytest.mark.parametrize("order", [{}, {"status": None}, {"id": None, "items": []}])
async def test_an_empty_place_for_an_order_in_a_session_is_none(world: World, order: dict[str, Any]) -> None:
    # case: F22, F23, U21
    world.service.records["/v1/checkout-sessions/cs_1"] = {"id": "cs_1", "order_id": "plan-1", "order": order}
    await ask(world, "session", "cs_1")
    await refresh(world).once()
    assert await told(world) == [("session.observed", "session:cs_1")]


async def until_all_is_said(world: World, live: Live) -> None:
    """What reads show is handled, and what handlers ask for is read."""
    arrived = set[str]()
    world.clock.advance(1)  # what was asked for just now is due
    for _ in range(4):
        await refresh(world).once()
        new = [event for event in await answers(world) if event.id not in arrived]
        arrived |= {event.id for event in new}
        if new:
            await live.arrive(*new)
        world.clock.advance(40)
        live.clock.advance(40)
        await live.relay()


async def requested(world: World) -> list[str]:
    rows = OutboxRow.__table__
    async with world.database.reading() as session:
        return list(await session.scalars(select(rows.c.key).where(rows.c.type == "fulfilment.requested")))


@pytest.mark.parametrize("way", ["a payment names the service's id", "an event names the service's id", "mistyped"])
async def test_one_order_is_shipped_once_by_whatever_name_it_can_be_looked_up(world: World, way: str) -> None:
    # case: F1, F4, U10
    for name in ("A1", "a1", "ord_1"):
        world.service.records[f"{LOOKUP}{name}"] = ORDER
    world.service.records["/v1/orders/ord_1"] = ORDER
    live = Live(world.database, {"fulfilment": {}}, application="default")
    match way:
        case "a payment names the service's id":
            record = {"id": "pay_1", "status": "SUCCEEDED", "order_id": "ord_1", "amount": "10"}
            await live.arrive(observed("payment:pay_1", 1, record))
        case "an event names the service's id":
            await live.arrive(said("order.paid", "evt_1", trust=Trust.READ, id="x", order_id="ord_1"))
        case _:
            await ask(world, "order", "a1")
    await until_all_is_said(world, live)
    await live.arrive(said("order.paid", "evt_2", trust=Trust.READ, id="ord_1", order_id="A1", amount="10"))
    await until_all_is_said(world, live)
    await live.close()
    assert await requested(world) == ["order:A1"]
    report = await Check(world.database, LastObservations(world.database), {}, live.clock.now()).run("default")
    assert {(one.code, one.subject) for one in report.problems} <= {("no_handler", "A1")}


@pytest.mark.parametrize(("matching", "hold"), [("auto", Hold.UNMATCHED), ("read", Hold.UNCONFIRMED)])
@pytest.mark.parametrize("trust", [Trust.SIGNED, Trust.READ])
async def test_a_test_event_is_held_where_there_is_no_such_order_comes_as_a_success(
    world: World, matching: str, hold: Hold, trust: Trust
) -> None:
    # case: F24, U8, U18
    world.service.records[f"{LOOKUP}TEST-1"] = {}
    live = Live(world.database, {"fulfilment": {"matching": matching}}, application="default")
    await live.arrive(said("order.paid", "evt_1", trust=trust, id="ord_t", order_id="TEST-1", amount="10.00"))
    await until_all_is_said(world, live)
    await live.close()
    assert await requested(world) == []
    async with world.database.reading() as session:
        assert list(await session.scalars(select(ORDERS.c.hold))) == [hold]
