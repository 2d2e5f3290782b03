"""Scenarios: what goes wrong on the way of a webhook, and what must come out all the same."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from consumer.cli.developing.demo.world import Check, World
from consumer.sandbox.engine.records import Session
from consumer.sandbox.scenarios.stage import Stage

Play = Callable[[World], Awaitable[list[Check]]]
NEVER_SENT = {"drop": 1}
AS_SENT = {"drop": 0}


@dataclass(frozen=True)
class Scenario:
    """A named story with its outcomes."""

    name: str
    text: str
    play: Play


def _stage(world: World) -> Stage:
    return Stage(world.sandbox, world.sandbox.config.app_id, 1)


async def _once(world: World, order_id: str) -> list[Check]:
    """The order is fulfilled, by exactly one parcel."""

    async def parcels() -> int:
        return world.book.shipments(order_id)

    return [
        await world.expect("the order is fulfilled", "fulfilled", lambda: world.order(order_id)),
        await world.expect("parcels shipped", 1, parcels),
    ]


async def paid_order(world: World) -> list[Check]:
    """An order is paid: one parcel."""
    stage = _stage(world)
    session = stage.order("paid")
    stage.pay(session)
    return await _once(world, session.order_id)


async def five_times(world: World) -> list[Check]:
    """The same webhook arrives five times: five times 200, one parcel."""
    stage = _stage(world)
    session = stage.order("five")
    world.sandbox.engine.faults.set(NEVER_SENT)
    stage.pay(session)
    world.sandbox.engine.faults.set(AS_SENT)
    paid = world.events(_order_of(world, session))["order.paid"]
    answers = await world.deliver(paid, times=5)
    return [Check("answers to the five deliveries", [200] * 5, answers), *await _once(world, session.order_id)]


async def paid_after_expired(world: World) -> list[Check]:
    """An order expires and is paid all the same: one parcel."""
    return await _late_payment(world, "late", ("order.expired", "order.paid"))


async def paid_before_expired(world: World) -> list[Check]:
    """The two webhooks arrive the other way round: one parcel."""
    return await _late_payment(world, "overtaken", ("order.paid", "order.expired"))


async def _late_payment(world: World, word: str, order: tuple[str, str]) -> list[Check]:
    """The session expires and is paid all the same; the two webhooks arrive in the given order."""
    stage = _stage(world)
    session = stage.order(word)
    world.sandbox.engine.faults.set(NEVER_SENT)
    await stage.expire(session)
    stage.pay(session)
    world.sandbox.engine.faults.set(AS_SENT)
    events = world.events(_order_of(world, session))
    for event_type in order:
        await world.deliver(events[event_type])
        await world.quiet()
    return await _once(world, session.order_id)


async def forged(world: World) -> list[Check]:
    """A webhook with no signature or a wrong one: 401, no parcel."""
    stage = _stage(world)
    session = stage.order("forged")
    body = b'{"id":"evt_forged","type":"order.paid","data":{"object":{"order_id":"%s"}}}' % session.order_id.encode()
    wrong = {
        "webhook-id": "evt_forged",
        "webhook-timestamp": str(int(world.sandbox.engine.clock.now().timestamp())),
        "webhook-signature": "v1,AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
    }
    answers = [await world.send(body, {}), await world.send(body, wrong)]

    async def parcels() -> int:
        return world.book.shipments(session.order_id)

    return [
        Check("answers without and with a wrong signature", [401, 401], answers),
        await world.expect("the order is not fulfilled", "none", lambda: world.order(session.order_id)),
        await world.expect("parcels shipped", 0, parcels),
    ]


async def ended_before_created(world: World) -> list[Check]:
    """A subscription's end arrives before its beginning: no access, not even for a moment."""
    stage = _stage(world)
    world.sandbox.engine.faults.set(NEVER_SENT)
    subscription = stage.subscribe()
    world.sandbox.engine.subscriptions.cancel(subscription, "now")
    world.sandbox.engine.faults.set(AS_SENT)
    events = world.events(subscription.id)
    customer = subscription.customer_reference or ""
    for event_type in ("subscription.ended", "subscription.created"):
        await world.deliver(events[event_type])
        await world.quiet()

    async def grants() -> int:
        return world.book.granted.count(customer)

    return [
        await world.expect("the subscription", "ENDED", lambda: world.subscription(subscription.id)),
        await world.expect("the customer has access", False, lambda: world.access(customer)),
        await world.expect("grants told to the login system", 0, grants),
    ]


async def flaky_plugin(world: World) -> list[Check]:
    """A handler fails twice: tried again, one parcel."""
    stage = _stage(world)
    session = stage.order("flaky")
    stage.pay(session)

    async def refusals() -> int:
        return world.book.refusals[session.order_id]

    return [
        await world.expect("failures before it worked", 2, refusals),
        *await _once(world, session.order_id),
    ]


def _order_of(world: World, session: Session) -> str:
    order = world.sandbox.engine.orders.find(world.sandbox.config.app_id, session.order_id)
    return order.id if order is not None else ""


SCENARIOS = (
    Scenario("paid-order", "a paid order is fulfilled", paid_order),
    Scenario("same-webhook-five-times", "the same webhook arrives five times", five_times),
    Scenario("paid-after-expired", "order.expired, then order.paid", paid_after_expired),
    Scenario("paid-before-expired", "order.paid, then a late order.expired", paid_before_expired),
    Scenario("forged-webhook", "a stranger says that an order is paid", forged),
    Scenario("ended-before-created", "subscription.ended overtakes subscription.created", ended_before_created),
    Scenario("flaky-plugin", "the merchant's plugin fails twice, then works", flaky_plugin),
)
