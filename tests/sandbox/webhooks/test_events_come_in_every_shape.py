"""Envelopes: the shapes of events, listed and delivered, and of test events."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from consumer.sandbox import DEFAULT_APP_ID, Engine, Sandbox
from consumer.sandbox.webhooks.envelopes import envelope
from tests.sandbox.support import Api, again, create, event_ids, make_engine, subscribe


def last(engine: Engine, **more: Any) -> dict[str, Any]:
    return envelope(engine, sorted(engine.world.events, key=lambda event: event.seq)[-1], **more)


@pytest.mark.parametrize("field", ["type", "event", "event_type"])
@pytest.mark.parametrize("container", ["data.object", "data", "flat"])
@pytest.mark.parametrize("payload", ["snapshot", "thin"])
def test_eighteen_shapes(field: str, container: str, payload: str) -> None:
    # case: X59
    engine = make_engine(event_type_field=field, event_container=container, event_payload=payload)
    session = create(engine, order_id="A-1")
    engine.sessions.cancel(session)
    shown = last(engine)
    assert shown["id"] == event_ids(engine)[-1]
    assert shown[field] == "checkout.session.canceled"
    assert shown["created_at"] == "2026-01-01T00:00:00.000Z"
    inner = {"data.object": shown.get("data", {}).get("object"), "data": shown.get("data"), "flat": shown}[container]
    assert inner["object_id" if container == "flat" else "id"] == session.id
    assert inner.get("order_id") == ("A-1" if payload == "snapshot" else None)


def test_every_shape_is_different() -> None:
    # case: X59
    shapes = set()
    for field, container, payload in itertools.product(
        ("type", "event", "event_type"), ("data.object", "data", "flat"), ("snapshot", "thin")
    ):
        engine = make_engine(event_type_field=field, event_container=container, event_payload=payload)
        engine.sessions.cancel(create(engine))
        shapes.add(str(_keys(last(engine))))
    assert len(shapes) == 18


def _keys(document: Any) -> Any:
    return {k: _keys(v) for k, v in document.items()} if isinstance(document, dict) else ""


@pytest.mark.parametrize(("switch", "status"), [("event", "ACTIVE"), ("current", "ENDED")])
def test_a_payload_shows_the_object_then_or_now(switch: str, status: str) -> None:
    # case: X59
    engine = make_engine(event_payload_time=switch)
    subscription = subscribe(engine)
    engine.subscriptions.cancel(again(engine, subscription), "now")
    created = next(event for event in engine.world.events if event.type == "subscription.created")
    assert envelope(engine, created)["data"]["object"]["status"] == status


def test_the_list_may_be_canonical_while_deliveries_are_not() -> None:
    # case: X59
    engine = make_engine(listed_event_shape="canonical", event_container="flat", event_payload="thin",
                         event_type_field="event")  # fmt: skip
    engine.sessions.cancel(create(engine))
    assert "data" not in last(engine)
    listed = last(engine, listed=True)
    assert (listed["type"], listed["data"]["object"]["object"]) == ("checkout.session.canceled", "checkout.session")


@pytest.mark.parametrize(("shape", "shown"), [("summary", {"id", "type", "created_at"}), ("id", {"id"})])
async def test_the_list_may_show_less_than_a_read(api: Api, sandbox: Sandbox, shape: str, shown: set[str]) -> None:
    # case: X59
    sandbox.assumptions.set({"listed_event_shape": shape})
    session = await api.create()
    await api.control(f"/sessions/{session['id']}/cancel")
    listed = (await api.items("/v1/events"))[0]
    assert set(listed) == shown
    assert (await api.get(f"/v1/events/{listed['id']}")).json["data"]["object"]["id"] == session["id"]


@pytest.mark.parametrize(("style", "expected"), [("epoch_s", 1767225600), ("epoch_ms", 1767225600000)])
async def test_timestamps_may_be_numbers(api: Api, sandbox: Sandbox, style: str, expected: int) -> None:
    # case: X59
    sandbox.assumptions.set({"timestamps": style})
    session = await api.create()
    assert session["created_at"] == expected
    assert session["order"]["created_at"] == expected
    await api.control(f"/sessions/{session['id']}/cancel")
    event = (await api.items("/v1/events"))[0]
    assert event["created_at"] == event["data"]["object"]["created_at"] == expected


async def test_the_customer_may_be_hidden(api: Api, sandbox: Sandbox) -> None:
    # case: X59
    sandbox.assumptions.set({"expose_customer": False})
    session = await api.create(customer_reference="c", customer_email="c@example.com", metadata={"a": "b"})
    for document in (session, session["order"]):
        assert not {"customer_reference", "customer_email", "metadata"} & set(document)


@pytest.mark.parametrize("style", ["prefixed", "uuid", "numeric"])
def test_ids_have_no_format_to_rely_on(style: str) -> None:
    # case: X59
    engine = make_engine(ids=style)
    session = create(engine)
    assert session.id.isdigit() is (style == "numeric")
    assert (len(session.id) == 36) is (style == "uuid")


@pytest.mark.parametrize(
    ("shape", "event_type", "marked"),
    [("own_type", "webhook.test", False), ("real_type", "order.paid", False), ("real_type_marked", "order.paid", True)],
)
@pytest.mark.parametrize("listed", [True, False])
async def test_three_test_events(
    api: Api, sandbox: Sandbox, shape: str, event_type: str, marked: bool, listed: bool
) -> None:
    # case: X61
    sandbox.assumptions.set({"test_event": shape, "test_event_listed": listed})
    reply = await api.post("/v1/webhook/test-event")
    assert reply.status == 200
    event_id = reply.json["event_id"]
    shown = last(sandbox.engine)
    assert (shown["id"], shown["type"], shown.get("test", False)) == (event_id, event_type, marked)
    assert [event["id"] for event in await api.items("/v1/events")] == ([event_id] if listed else [])
    assert (await api.get(f"/v1/events/{event_id}")).status == (200 if listed else 404)
    inner = shown["data"]["object"]
    assert (await api.get(f"/v1/orders/{inner['id']}")).status == 404, "no order stands behind a test event"


async def test_the_answer_to_a_test_event_and_to_a_cancel_may_be_empty(api: Api, sandbox: Sandbox) -> None:
    # case: X61
    sandbox.assumptions.set({"test_event_answer": "empty", "cancel_answer": "empty"})
    assert (await api.post("/v1/webhook/test-event")).json == {}
    session = await api.create()
    assert (await api.post(f"/v1/checkout-sessions/{session['id']}/cancel")).json == {}
    one = subscribe(sandbox.engine)
    assert (await api.post(f"/v1/subscriptions/{one.id}/cancel", {"at": "now"})).json == {}
    assert (await api.get(f"/v1/subscriptions/{one.id}")).json["status"] == "ENDED"


async def test_the_dashboards_test_button(api: Api) -> None:
    # case: X61
    assert (await api.control(f"/applications/{DEFAULT_APP_ID}/test-event"))["event_id"].startswith("evt_")


async def test_a_field_that_nobody_announced(api: Api, sandbox: Sandbox) -> None:
    # case: X59
    sandbox.assumptions.set({"surprise_fields": True})
    session = await api.create()
    assert "added_later" in session
    await api.control(f"/sessions/{session['id']}/cancel")
    assert "added_later" in (await api.items("/v1/events"))[0]
