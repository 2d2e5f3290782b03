"""Envelopes: the body of an event, in the shape the assumptions say (cases X59, U1, U2, U28, U29)."""

from __future__ import annotations

import json
from typing import Any

from consumer.sandbox.clock import iso
from consumer.sandbox.engine import records as r
from consumer.sandbox.engine.engine import Engine
from consumer.sandbox.engine.events import public_id
from consumer.sandbox.engine.views import order_view, present, subscription_view


def envelope(engine: Engine, event: r.Event, *, listed: bool = False, sent_id: str | None = None) -> dict[str, Any]:
    """The event as JSON object: delivered, or `listed` in GET /v1/events. `sent_id` is a redelivery's own id."""
    assumptions = engine.assumptions
    canonical = listed and assumptions.text("listed_event_shape") == "canonical"
    thin = assumptions.text("event_payload") == "thin" and not canonical
    document = _thin(event) if thin else _snapshot(engine, event)
    body: dict[str, Any] = {
        "id": sent_id or public_id(event),
        "type" if canonical else assumptions.text("event_type_field"): event.type,
        "created_at": iso(event.created_at),
    }
    container = "data.object" if canonical else assumptions.text("event_container")
    if container == "data.object":
        body["data"] = {"object": document}
    elif container == "data":
        body["data"] = document
    else:
        body |= _flat(document, taken=set(body))
    shown: dict[str, Any] = present(body | event.extra, assumptions)
    return shown


def list_item(engine: Engine, event: r.Event) -> dict[str, Any]:
    """The event as an item of GET /v1/events, which may show less of it than GET /v1/events/{id} does (case B22)."""
    whole, assumptions = envelope(engine, event, listed=True), engine.assumptions
    shown = {"summary": {"id", assumptions.text("event_type_field"), "created_at"}, "id": {"id"}}
    kept = shown.get(assumptions.text("listed_event_shape"))
    return whole if kept is None else {name: value for name, value in whole.items() if name in kept}


def body_bytes(document: dict[str, Any]) -> bytes:
    """The bytes that are sent and signed."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def _thin(event: r.Event) -> dict[str, Any]:
    return {"id": event.object_id, "object": event.object_kind}


def _flat(document: dict[str, Any], taken: set[str]) -> dict[str, Any]:
    """Fields beside the envelope's own; those whose name is taken get the prefix `object_`."""
    return {(f"object_{name}" if name in taken else name): value for name, value in document.items()}


def _snapshot(engine: Engine, event: r.Event) -> dict[str, Any]:
    if engine.assumptions.text("event_payload_time") == "event":
        return event.snapshot
    world = engine.world
    if (order := world.orders.get(event.object_id)) is not None:
        return order_view(order)
    if (session := world.sessions.get(event.object_id)) is not None:
        return engine.events.session_snapshot(session)
    if (subscription := world.subscriptions.get(event.object_id)) is not None:
        return subscription_view(subscription, engine.assumptions.text("status_after_second_failure"))
    return event.snapshot
