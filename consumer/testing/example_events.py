"""Example events: complete and realistic, from the catalogue of payloads, as a handler gets them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson

from consumer.errors import UsageError
from consumer.events import Event, Locators, Source, Trust, build_event, parse_time
from consumer.payload import is_known, payload_class
from consumer.plugin import OrderEvent, SessionEvent, SubscriptionEvent
from consumer.testing.made_up import made_up
from consumer.wire import own_event

SERVICE = (*OrderEvent.event_types, *SessionEvent.event_types, *SubscriptionEvent.event_types)
KEYS = ("order_id", "subscription_id", "customer")
_OURS = ("fulfilment.", "access.")
_STATES: Mapping[str, Mapping[str, Any]] = {
    "order.paid": {"status": "PAID"},
    "order.expired": {"status": "PENDING"},
    "checkout.session.completed": {"status": "COMPLETED"},
    "checkout.session.canceled": {"status": "CANCELED"},
    "checkout.session.expired": {"status": "EXPIRED"},
    "subscription.created": {"status": "ACTIVE"},
    "subscription.renewed": {"status": "ACTIVE"},
    "subscription.payment_failed": {"status": "PAST_DUE"},
    "subscription.past_due": {"status": "PAST_DUE"},
    "subscription.cancel_scheduled": {"status": "ACTIVE", "cancel_at_period_end": True},
    "subscription.cancel_withdrawn": {"status": "ACTIVE", "cancel_at_period_end": False},
    "subscription.ended": {"status": "ENDED", "end_reason": "PAYMENT_FAILED"},
}
"""What the service's record shows when it sends the type (spec, Events; States and transitions)."""


def is_own(event_type: str) -> bool:
    """Whether a projection or a plugin emits it, in our own envelope; any other comes from the service."""
    if event_type.startswith(_OURS) or event_type.endswith((".observed", ".unreadable")):
        return True
    return is_known(event_type) and event_type not in SERVICE


def own(
    event_type: str, ids: Mapping[str, str], data: Mapping[str, Any], *, number: int, event_id: str | None,
    application: str, at: datetime,
) -> Event:  # fmt: skip
    """An event as a projection emits it. `ids`: order_id, subscription_id, customer; the first one is its key."""
    model = payload_class(event_type)
    needed = {name: f"{name.removesuffix('_id')}-{number}" for name in KEYS if name in model.model_fields}
    said = _completed(needed | model.example(), ids, number)
    moving = {"version": number, "read_at": at.isoformat()}
    said |= {name: value for name, value in moving.items() if name in model.model_fields}
    said |= made_up(model, said | dict(data))
    named = [(name, said[name]) for name in KEYS if isinstance(said.get(name), str)]
    name, value = next(iter(ids.items()), None) or next(iter(named), ("event", str(number)))
    return own_event(
        application=application,
        id=event_id or f"drv_test{number:06d}",
        type=event_type,
        key=f"{name.removesuffix('_id')}:{value}",
        source=Source.RELAY,
        at=at,
        data=said | dict(data),
    )


def of_service(
    event_type: str, ids: Mapping[str, str], data: Mapping[str, Any], *, number: int, event_id: str | None,
    application: str, at: datetime,
) -> Event:  # fmt: skip
    """An event as a signed webhook brings it, its `data.object` a record in the state that goes with the type."""
    found = {("customer_reference" if name == "customer" else name): value for name, value in ids.items()}
    if event_type.startswith("subscription.") and "subscription_id" in found:
        found["id"] = found["subscription_id"]
    record = {**_STATES.get(event_type, {}), **found, **data}
    body = {"id": event_id or f"evt_test{number:06d}", "type": event_type, "created_at": at.isoformat()}
    return build_event(
        orjson.dumps({**body, "data": {"object": record}}),
        Locators(),
        application=application,
        trust=Trust.SIGNED,
        source=Source.WEBHOOK,
        received_at=at,
    )


def event_in(path: str | Path) -> Event:
    """The event in a file that `consumer events show ID --json` wrote. Raises UsageError."""
    try:
        document = orjson.loads(Path(path).read_bytes())
        received = parse_time(document["received_at"])
        named = {name: document.get(name) for name in ("object_id", "order_id", "subscription_id", "customer")}
        return Event(
            application=document["application"],
            id=document["id"],
            type=document["type"],
            key=document["key"],
            trust=Trust(document["trust"]),
            source=Source(document["source"]),
            raw=orjson.dumps(document["payload"]),
            received_at=received if received is not None else _untimed(path),
            occurred_at=parse_time(document.get("occurred_at")),
            **named,
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        wanted = "a file that `consumer events show ID --json` wrote"
        raise UsageError(f"{path} is not {wanted}: {type(error).__name__}: {error}") from error


def _untimed(path: str | Path) -> datetime:
    raise ValueError(f"{path} has no received_at")


def _completed(example: dict[str, Any], ids: Mapping[str, str], number: int) -> dict[str, Any]:
    """The example about these ids, or about an object of its own; what it holds inside agrees with it."""
    named = {name: f"{value.rpartition('-')[0] or 'A'}-{number}" for name, value in example.items()
             if name in ("order_id", "customer")}  # fmt: skip
    said = {**example, **(named if not ids else {}), **ids}
    record = said.get("record")
    if isinstance(record, dict):
        said["record"] = record | {name: ids[name] for name in ("order_id",) if name in ids and name in record}
        if "subscription_id" in ids and "id" in record:
            said["record"] |= {"id": ids["subscription_id"]}
    return said
