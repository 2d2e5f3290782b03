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
from consumer.plugin.payloads import CATALOGUE
from consumer.testing.made_up import made_up
from consumer.wire import own_event

SERVICE = (*OrderEvent.event_types, *SessionEvent.event_types, *SubscriptionEvent.event_types)
KEYS = ("order_id", "subscription_id", "customer")
_OURS = ("fulfilment.", "access.")
_ABOUT: Mapping[str, str] = {
    "access.unresolved": "subscription_id",
    "access.customer_attached": "subscription_id",
    "access.subscription_due": "subscription_id",
    "access.": "customer",
    "fulfilment.": "order_id",
    "order.": "order_id",
    "checkout.": "order_id",
    "subscription.": "subscription_id",
}
"""Whose key an event has, by how its type begins; the first that fits."""
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


def about(event_type: str) -> str | None:
    """Which of `KEYS` a type of the service or of the projections is about: its key. None: its author decides."""
    if is_known(event_type) and event_type not in CATALOGUE:
        return None
    return next((name for begin, name in _ABOUT.items() if event_type.startswith(begin)), None)


def own(
    event_type: str, ids: Mapping[str, str], data: Mapping[str, Any], *, number: int, event_id: str | None,
    application: str, at: datetime,
) -> Event:  # fmt: skip
    """An event as a projection emits it. `ids`: order_id, subscription_id, customer. Its key is what the type is about,
    given or made up; of a plugin's own type the first of them."""
    model = payload_class(event_type)
    needed = {name: _made_up(name, number) for name in KEYS if name in model.model_fields}
    said = _completed(needed | model.example(), _with_key(event_type, ids, number), number, is_own=not ids)
    moving = {"version": number, "read_at": at.isoformat()}
    said |= {name: value for name, value in moving.items() if name in model.model_fields}
    said |= made_up(model, said | dict(data))
    given = {name: value for name, value in data.items() if name not in KEYS or isinstance(value, str)}
    name, value = _subject(event_type, ids, said | given) or ("event", str(number))
    if event_type.endswith(".unreadable"):
        said |= {"kind": event_type.partition(".")[0], "id": value}
    said = {name: one for name, one in said.items() if name in ids or name in model.model_fields}
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
    """An event as a signed webhook brings it, its `data.object` a record in the state that goes with the type, about an
    object of its own where nothing says about which."""

    def made(ids: Mapping[str, str]) -> Event:
        record = {**_STATES.get(event_type, {}), **_as_recorded(event_type, ids), **data}
        body = {"id": event_id or f"evt_test{number:06d}", "type": event_type, "created_at": at.isoformat()}
        return build_event(
            orjson.dumps({**body, "data": {"object": record}}),
            Locators(),
            application=application,
            trust=Trust.SIGNED,
            source=Source.WEBHOOK,
            received_at=at,
        )

    event, key = made(ids), about(event_type)
    is_about = event.order_id is not None or event.subscription_id is not None or key in data
    return event if is_about else made(_with_key(event_type, ids, number))


def _as_recorded(event_type: str, ids: Mapping[str, str]) -> dict[str, str]:
    """The ids as a record of the service has them."""
    found = {("customer_reference" if name == "customer" else name): value for name, value in ids.items()}
    if event_type.startswith("subscription.") and "subscription_id" in found:
        found["id"] = found["subscription_id"]
    return found


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


def _subject(event_type: str, ids: Mapping[str, str], said: Mapping[str, Any]) -> tuple[str, str] | None:
    """What the event's key names: what its type is about, the record that it shows, else the first of the ids."""
    if (key := about(event_type)) is not None:
        return key, str(said[key])
    if event_type in CATALOGUE and "id" in (said.get("record") or ()):
        return event_type.partition(".")[0], str(said["record"]["id"])
    named = ((name, said[name]) for name in KEYS if isinstance(said.get(name), str))
    return next(iter(ids.items()), None) or next(named, None)


def _made_up(name: str, number: int) -> str:
    return f"{name.removesuffix('_id')}-{number}"


def _with_key(event_type: str, ids: Mapping[str, str], number: int) -> Mapping[str, str]:
    """These ids, and one for what the type is about, where none of them says it: it is never about nothing."""
    key = about(event_type)
    return ids if key is None or key in ids else {**ids, key: _made_up(key, number)}


def _completed(example: dict[str, Any], ids: Mapping[str, str], number: int, *, is_own: bool) -> dict[str, Any]:
    """The example about these ids, or about an object of its own (`is_own`); what it holds inside agrees with it."""
    named = {name: f"{value.rpartition('-')[0] or 'A'}-{number}" for name, value in example.items()
             if name in ("order_id", "customer")}  # fmt: skip
    said = {**example, **ids, **(named if is_own else {})}
    record = said.get("record")
    if isinstance(record, dict):
        said["record"] = record | {name: said[name] for name in ("order_id",) if name in ids and name in record}
        if "subscription_id" in ids and "id" in record:
            said["record"] |= {"id": ids["subscription_id"]}
    return said
