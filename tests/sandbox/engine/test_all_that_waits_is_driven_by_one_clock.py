"""Time: everything that waits is driven by one clock."""

from __future__ import annotations

import asyncio

import pytest

from consumer.sandbox import Engine, Sandbox, SandboxConfig
from tests.sandbox.support import DAY_S, Receiver, create, subscribe, types


def test_thirty_days_fire_every_timer_in_order(engine: Engine) -> None:
    # case: X62
    create(engine)
    subscribe(engine)
    engine.faults.set({"plan_failures": 1})
    create(engine, mode="subscription", price_id="svc_price_yearly", expires_at=engine.world.in_seconds(DAY_S))
    engine.advance(30 * DAY_S)
    events = sorted(engine.world.events, key=lambda event: event.seq)
    assert [event.created_at for event in events] == sorted(event.created_at for event in events)
    assert types(engine) == [
        "subscription.created", "checkout.session.completed", "checkout.session.expired", "order.expired",
        "checkout.session.expired", "subscription.renewed",
    ]  # fmt: skip
    seconds = [(event.created_at - engine.world.started_at).total_seconds() for event in events]
    assert seconds == [0, 0, 1830, 1830, DAY_S + 30, 30 * DAY_S]


def test_one_long_step_equals_many_short_ones() -> None:
    # case: X62
    from tests.sandbox.support import make_engine

    def story(step_s: float) -> list[tuple[str, str]]:
        engine = make_engine()
        create(engine)
        engine.subscriptions.set_charge(subscribe(engine), "fail")
        for _ in range(int(40 * DAY_S / step_s)):
            engine.advance(step_s)
        return [(e.type, str(e.created_at)) for e in sorted(engine.world.events, key=lambda e: e.seq)]

    assert story(40 * DAY_S) == story(1800)


async def test_a_clock_that_ticks_expires_sessions_by_itself() -> None:
    # case: X62
    async with Sandbox(SandboxConfig()) as sandbox:
        session = create(sandbox.engine)
        started = sandbox.clock.now()
        await sandbox.advance(1799)
        assert 1799 <= (sandbox.clock.now() - started).total_seconds() < 1805
        assert sandbox.engine.session(session.id).status == "OPEN"
        await sandbox.advance(40)
        assert sandbox.engine.session(session.id).status == "EXPIRED"


async def test_timers_ring_without_anyone_asking(receiver: Receiver) -> None:
    # case: X62
    async with Sandbox(SandboxConfig(webhook_url=receiver.url)) as sandbox:
        engine = sandbox.engine
        both = asyncio.Event()

        async def count() -> None:
            if len(receiver.received) == 2:
                both.set()

        receiver.before_answer = count
        payment = engine.payments.broadcast(create(engine))
        engine.payments.confirm(payment, finalize_after_s=0.05)
        await asyncio.wait_for(both.wait(), 10)
        assert receiver.types() == ["order.paid", "checkout.session.completed"]


async def test_advance_sends_what_falls_due_on_the_way(receiver: Receiver) -> None:
    # case: X62
    async with Sandbox(SandboxConfig(driven=True, webhook_url=receiver.url)) as sandbox:
        create(sandbox.engine)
        subscribe(sandbox.engine)
        await sandbox.settled()
        await sandbox.advance(61 * DAY_S)
        assert receiver.types()[2:] == [
            "checkout.session.expired", "order.expired", "subscription.renewed", "subscription.renewed",
        ]  # fmt: skip


@pytest.mark.parametrize("seconds", [-1, "x", None, 10**12, True])
async def test_time_goes_forward_only(sandbox: Sandbox, api: object, seconds: object) -> None:
    # case: X62
    reply = await api.post("/_sandbox/clock/advance", {"seconds": seconds})  # type: ignore[attr-defined]  # the Api
    assert (reply.status, reply.json["field"]) == (400, "seconds")
