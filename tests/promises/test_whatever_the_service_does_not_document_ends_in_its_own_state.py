"""The matrix: order of the list x cursor x envelope x lost webhooks; what the endpoint is sent; each ends in the
service's own final state. The suite plays each two of these together, `make chaos` plays all.

The simulator's limits are on: a call beyond the budget would be answered with a 429, and none is.
"""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from consumer.cli.developing.demo.world import World, open_world
from consumer.console.invariants.report import Class
from consumer.sandbox.scenarios import play
from consumer.telemetry.metrics import Metrics
from tests.support.ports import eventually

ORDERS = ("newest_first", "oldest_first")
CURSORS = ("exclusive", "inclusive")
ENVELOPES = {
    "object": {"event_type_field": "type", "event_container": "data.object", "event_payload": "snapshot"},
    "data": {
        "event_type_field": "event",
        "event_container": "data",
        "event_payload": "snapshot",
        "listed_event_shape": "id",
    },
    "flat-thin": {
        "event_type_field": "event_type",
        "event_container": "flat",
        "event_payload": "thin",
        "order_lookup": "either_id",
        "order_read": "either_id",
    },
}
LOST = {"all": 1.0, "some": 0.5, "none": 0.0}
STORIES = ("happy", "late-payment-after-expiry", "replaced-session", "double-pay", "past-due-recovered", "payer-cancel")
ALL = list(itertools.product(ORDERS, CURSORS, ENVELOPES, LOST))
# Each two values of two of the four together: an orthogonal array. What only three together would show, the whole
# matrix shows.
PAIRS = [
    (ORDERS[(one + other) % 3 > 0], CURSORS[(one + 2 * other) % 3 > 0], shape, lost)
    for one, shape in enumerate(ENVELOPES)
    for other, lost in enumerate(LOST)
]
# Every order, cursor, shape and loss, though not each with each.
ON_KAFKA = [
    ("newest_first", "exclusive", "object", "all"),
    ("oldest_first", "inclusive", "data", "some"),
    ("newest_first", "inclusive", "flat-thin", "all"),
    ("oldest_first", "exclusive", "flat-thin", "none"),
]
PLAYS_ALL = os.environ.get("CONSUMER_TEST_MATRIX") == "all"
DELIVERED: dict[str, tuple[dict[str, Any], str]] = {
    "half, and nothing is repeated": ({"delivery_schedule": "none"}, "some"),
    "nothing of subscriptions": ({"endpoint_filter": "orders"}, "none"),
    "nothing of orders": ({"endpoint_filter": "subscriptions"}, "none"),
}
BY_ITS_SESSION = {"subscription_customer": "session_only"}
"""Neither a subscription's record nor its events say whose it is: the record of its session alone does."""
PATIENCE_S = 120.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_each_two_are_played_together() -> None:
    for axes in itertools.combinations(range(4), 2):
        assert {tuple(one[axis] for axis in axes) for one in PAIRS} == {
            tuple(one[axis] for axis in axes) for one in ALL
        }


# case: B3, B5, B12, B22, B23, G3, U1, U2, U6
@pytest.mark.parametrize(("order", "cursor", "shape", "lost"), ALL if PLAYS_ALL else PAIRS)
async def test_on_the_embedded_default(
    tmp_path: Path, sqlite_template: Path, order: str, cursor: str, shape: str, lost: str
) -> None:
    shutil.copy(sqlite_template, tmp_path / "consumer.db")
    await _story(tmp_path, _listed(order, cursor, shape), lost, {})


# case: B3, B5, B12, B22, B23, G3, U1, U2, U6
@pytest.mark.kafka
@pytest.mark.postgres
@pytest.mark.parametrize(("order", "cursor", "shape", "lost"), ALL if PLAYS_ALL else ON_KAFKA)
async def test_on_kafka_and_postgresql(
    tmp_path: Path, kafka_url: str, postgres_url: str, order: str, cursor: str, shape: str, lost: str
) -> None:
    places = {
        "CONSUMER_BROKER_URL": kafka_url,
        "CONSUMER_DATABASE_URL": postgres_url,
        "CONSUMER_TOPIC_PREFIX": f"matrix-{tmp_path.name}"[-60:],
    }
    await _story(tmp_path, _listed(order, cursor, shape), lost, places)


# case: U4, U5, G3
@pytest.mark.parametrize("delivered", DELIVERED)
async def test_whatever_the_endpoint_is_sent(tmp_path: Path, sqlite_template: Path, delivered: str) -> None:
    shutil.copy(sqlite_template, tmp_path / "consumer.db")
    await _story(tmp_path, *DELIVERED[delivered], {})


# case: A36, U10
async def test_whose_a_subscription_is_may_be_said_by_the_record_of_its_session_alone(
    tmp_path: Path, sqlite_template: Path
) -> None:
    shutil.copy(sqlite_template, tmp_path / "consumer.db")
    async with AsyncExitStack() as stack:
        world = await open_world(stack, tmp_path, assumptions=BY_ITS_SESSION)
        await eventually(world.has_walked, within_s=PATIENCE_S, what="the first walk")
        access: dict[str, bool] = {}
        for name in ("past-due-recovered", "payer-cancel"):
            access |= (await play(world.sandbox, name, count=1))["expected"]["access"]
        assert set(access.values()) == {True, False}

        async def is_the_services() -> bool:
            found = {customer: await world.access(customer) for customer in access}
            assert found == access
            return True

        await eventually(is_the_services, within_s=PATIENCE_S, every_s=0.1, what="the service's own access")
        await world.quiet()
        assert await is_the_services(), "what was right stays right"
        waiting = (await world.get("/api/findings?kind=unresolved_subscriber"))["findings"]
        assert waiting == [], "nobody waits"
        assert set(world.book.granted) >= {customer for customer, allowed in access.items() if allowed}


def _listed(order: str, cursor: str, shape: str) -> dict[str, Any]:
    return {"events_order": order, "lists_order": order, "events_cursor": cursor, **ENVELOPES[shape]}


async def _story(folder: Path, assumptions: dict[str, Any], lost: str, places: dict[str, str]) -> None:
    async with AsyncExitStack() as stack:
        world = await open_world(stack, folder, assumptions=assumptions, settings_more=places)
        world.book.shipped.clear()
        # What is older than the first walk would be history, which somebody else has acted on (case B30).
        await eventually(world.has_walked, within_s=PATIENCE_S, what="the first walk")
        world.sandbox.engine.faults.set({"drop": LOST[lost]})
        expected: dict[str, dict[str, Any]] = {"orders": {}, "subscriptions": {}}
        for name in STORIES:
            made = (await play(world.sandbox, name, count=1))["expected"]
            expected["orders"] |= made["orders"]
            expected["subscriptions"] |= made["subscriptions"]
        began = time.monotonic()

        async def is_the_services() -> bool:
            found = await _found(world, expected)
            wanted = _wanted(expected)
            assert found == wanted, {key: (found[key], wanted[key]) for key in wanted if found[key] != wanted[key]}
            return True

        await eventually(is_the_services, within_s=PATIENCE_S, every_s=0.1, what="the service's own final state")
        await world.quiet()
        assert await _found(world, expected) == _wanted(expected), "what was right stays right"
        account = await world.account()
        assert account.residual == 0, account.problems
        assert account.holds, account.problems
        assert account.sums[Class.FULFILLED].payments > 0
        answers = _answers(world.metrics)
        print(f"\n{assumptions}, {lost} lost: {time.monotonic() - began:.1f} s, {answers.total()} calls")
        assert not [code for code in answers if "429" in code or "rate" in code], answers
        assert answers, "the service was asked"


def _wanted(expected: dict[str, dict[str, Any]]) -> dict[str, Any]:
    orders = {
        order_id: ("fulfilled", 1) if status == "PAID" else ("none", 0)
        for order_id, status in expected["orders"].items()
    }
    return orders | expected["subscriptions"]


async def _found(world: World, expected: dict[str, dict[str, Any]]) -> dict[str, Any]:
    orders = {order_id: await world.fulfilment_of(order_id) for order_id in expected["orders"]}
    return orders | {one: await world.subscription(one) for one in expected["subscriptions"]}


def _answers(metrics: Metrics) -> Counter[str]:
    """Calls of the service by how they were answered."""
    found: Counter[str] = Counter()
    for family in metrics.api_calls.collect():
        for sample in family.samples:
            if sample.name.endswith("_total"):
                found[sample.labels["code"]] += int(sample.value)
    return found
