"""Stories of operations: secrets, deactivation, outages, limits, strange events."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from consumer.sandbox.engine.limits import READS
from consumer.sandbox.errors import Refusal
from consumer.sandbox.scenarios.stage import Stage

OUTAGE_S = 6 * 3600.0
RETENTION_S = 3600
NOWHERE = "http://127.0.0.1:9/"  # the discard port: nothing listens there


@contextmanager
def faults(stage: Stage, **given: Any) -> Iterator[None]:
    """These faults for a while, then what was before."""
    before = stage.engine.faults.values()
    stage.engine.faults.set(given)
    try:
        yield
    finally:
        stage.engine.faults.set({name: before[name] for name in given})


@contextmanager
def assumed(stage: Stage, **given: Any) -> Iterator[None]:
    """These switches for a while, then what was before."""
    before = stage.engine.assumptions.values()
    stage.engine.assumptions.set(given)
    try:
        yield
    finally:
        stage.engine.assumptions.set({name: before[name] for name in given})


async def secret_roll(stage: Stage) -> None:
    """The API secret is rolled with an hour of grace; orders are paid before and after the old one stops."""
    app_id = stage.application.id
    stage.notes["new_secret"] = stage.engine.applications.roll_secret(app_id, "1h")
    stage.pay(stage.order("roll-during"))
    await stage.advance(3601)
    stage.pay(stage.order("roll-after"))


async def merchant_deactivated(stage: Stage) -> None:
    """An admin deactivates the merchant for an hour: every request answers 401. An order is paid meanwhile."""
    session = stage.order("deactivated")
    applications = stage.engine.applications
    applications.change_merchant(stage.application.merchant_id, active=False)
    try:
        stage.pay(session)
        await stage.advance(3600)
    finally:
        applications.change_merchant(stage.application.merchant_id, active=True)


async def app_disabled(stage: Stage) -> None:
    """Another application of the merchant is disabled for ever: its pending deliveries are cancelled."""
    engine = stage.engine
    other, secret = engine.applications.add(stage.application.merchant_id, "To be disabled", webhook_url=NOWHERE)
    playing, stage.application = stage.application, other
    try:
        stage.pay(stage.order("disabled"))
        await stage.advance(1)
        stage.notes["canceled_deliveries"] = engine.disable(other.id)
    finally:
        stage.application = playing
    stage.notes["disabled_application"] = other.id
    try:
        engine.applications.authenticate(_basic(other.id, secret))
    except Refusal as refusal:
        stage.notes["after"] = refusal.problem_code


async def outage_6h(stage: Stage) -> None:
    """No webhook arrives for six hours, in which orders are paid and subscriptions change."""
    with faults(stage, drop=1):
        await _six_hours(stage)


async def outage_beyond_retention(stage: Stage) -> None:
    """The same, and the events are gone from the list when it ends: only the state is left to read."""
    with faults(stage, drop=1), assumed(stage, retention_s=RETENTION_S):
        await _six_hours(stage)
        await stage.advance(RETENTION_S + 1)


async def _six_hours(stage: Stage) -> None:
    ending = stage.subscribe()
    stage.subscribe()
    for number in range(stage.count):
        stage.pay(stage.order(f"outage-{number}"))
        await stage.advance(OUTAGE_S / stage.count)
    stage.engine.subscriptions.cancel(stage.again(ending), "now")


async def rate_limited(stage: Stage) -> None:
    """The application's read limit is used up by others while orders are paid."""
    for number in range(stage.count):
        stage.pay(stage.order(f"limited-{number}"))
        stage.engine.limits.drain(READS, stage.application.id)


async def test_event(stage: Stage) -> None:
    """Test events in every shape: none of them is an order."""
    for shape in ("own_type", "real_type", "real_type_marked"):
        with assumed(stage, test_event=shape):
            stage.engine.events.test(stage.application.id)


async def unknown_type(stage: Stage) -> None:
    """An event of a type nobody knows, and a paid order behind it."""
    engine = stage.engine
    document = {"id": engine.world.new_id("order"), "object": "invoice", "amount_due": "1.00", "lines": [None]}
    engine.events.made_up("invoice.finalized", stage.application.id, document, {"api_version": "2099-01-01"})
    stage.pay(stage.order("unknown"))


def _basic(app_id: str, secret: str) -> str:
    return "Basic " + base64.b64encode(f"{app_id}:{secret}".encode()).decode()


STORIES: dict[str, Callable[[Stage], Awaitable[None]]] = {
    "secret-roll": secret_roll,
    "merchant-deactivated": merchant_deactivated,
    "app-disabled": app_disabled,
    "outage-6h": outage_6h,
    "outage-beyond-retention": outage_beyond_retention,
    "rate-limited": rate_limited,
    "test-event": test_event,
    "unknown-type": unknown_type,
}
