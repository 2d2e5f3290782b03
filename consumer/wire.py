"""Wire: how a delivery and an event travel as a message (key, value, headers). Pure.

The value is the raw bytes exactly as received or read; all we add goes into headers (architecture, "The way of the
data"). Our own events (derived ones and observations) have our own envelope, so that a merchant's locators never
have to fit them.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import orjson

from consumer.errors import NotUnderstood
from consumer.events import Delivery, Event, EventFacts, Locators, Source, Trust, build_event, identify, parse_json
from consumer.reason import reason_of

SQUEEZED_FROM_BYTES = 4096
"""A delivery that nobody has proved yet is packed from here on: a stranger's zeros fill no disk."""
RAW_MAX_BYTES = 16 * 1024 * 1024 + 1
OWN_PREFIXES = ("drv_", "obs_")
SEED = "seed"
"""The plan under which history is taken in: it sets state and causes no effect (case B30)."""
REPLAY = "rpl_"
"""What the ids of replay plans begin with."""
_KEY = ":key"
"""No HTTP header is called so."""
_TRUSTS = {one.value.encode(): one for one in Trust}
_SOURCES = {one.value.encode(): one for one in Source}
OWN_FIELDS = {"order": "order_id", "subscription": "subscription_id", "customer": "customer", "object": "object_id"}


@dataclass(frozen=True, kw_only=True)
class Packed:
    """Key, value and headers, ready for a broker's message."""

    key: bytes
    value: bytes
    headers: Mapping[str, bytes]


def pack_event(event: Event, *, plan: str | None = None) -> Packed:
    """An event as a message. `plan` names the replay plan that sends it."""
    headers = {
        "application": event.application,
        "event_id": event.id,
        "type": event.type,
        "trust": event.trust.value,
        "source": event.source.value,
        "received_at": event.received_at.isoformat(),
        "delivery_id": event.delivery_id,
        "traceparent": event.traceparent or "",
        "plan": plan or "",
    }
    return Packed(key=_key(event.application, event.key), value=event.raw, headers=_encoded(headers))


def signed_key(application: str, found: EventFacts) -> bytes:
    """The record key of a webhook: what `pack_event` would give."""
    return f"{application}/{found.key}".encode()


def signed_headers(
    application: str,
    found: EventFacts,
    received_at: datetime,
    delivery_id: str,
    traceparent: str,
    http: Mapping[str, str],
) -> dict[str, bytes]:
    """The record headers of a webhook whose signature was checked: those of `pack_event`, and the kept HTTP headers.

    The receive path takes this way, thousands of times a second, because it needs nothing else of the event.
    """
    return {
        "application": application.encode(),
        "event_id": found.id.encode(),
        "type": found.type.encode(),
        "trust": b"signed",
        "source": b"webhook",
        "received_at": b"%b.%06d+00:00" % (_second(int(received_at.timestamp())), received_at.microsecond),
        "delivery_id": delivery_id.encode(),
        "traceparent": traceparent.encode(),
        "http": orjson.dumps(http),
    }


@lru_cache(maxsize=2)
def _second(epoch_s: int) -> bytes:
    """A second as ISO-8601 in UTC; thousands of webhooks share one."""
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%dT%H:%M:%S").encode()


def unpack_event(key: bytes, value: bytes, headers: Mapping[str, bytes], locators: Locators) -> Event:
    """The event in a record. Raises NotUnderstood when the record is not one of ours or the body is not an event."""
    application, _, aggregate = key.decode("utf-8", "replace").partition("/")
    trust, source, received_at = _provenance(headers)
    if trust is Trust.CLAIMED:
        raise NotUnderstood("a claimed event has no place on topic events")
    own_id = _text(headers, "event_id")
    if own_id.startswith(OWN_PREFIXES):
        return _own_event(own_id, application, aggregate, value, headers, trust, source, received_at)
    return build_event(
        value,
        locators,
        application=application,
        trust=trust,
        source=source,
        received_at=received_at,
        delivery_id=_text(headers, "delivery_id"),
        traceparent=_text(headers, "traceparent") or None,
    )


def kept_record(key: bytes, headers: Mapping[str, bytes]) -> dict[str, str]:
    """What a record of topic events says beside its value, as the headers of a delivery that is kept."""
    said = {_KEY: key, **headers}
    return {name: value.decode("utf-8", "replace") for name, value in said.items()}


def record_again(raw: bytes, kept: Mapping[str, str]) -> Packed | None:
    """The record that was kept so; None for a delivery of somebody's, whose headers are HTTP's."""
    if _KEY not in kept:
        return None
    headers = {name: value for name, value in kept.items() if name != _KEY}
    return Packed(key=kept[_KEY].encode(), value=raw, headers=_encoded(headers))


def plan_of(headers: Mapping[str, bytes]) -> str | None:
    """The replay plan that sent the record, or None."""
    return _text(headers, "plan") or None


def is_replay(plan: str | None) -> bool:
    """Whether this is a replay plan; a seed is none."""
    return plan is not None and plan.startswith(REPLAY)


def pack_delivery(delivery: Delivery, locators: Locators) -> Packed:
    """A delivery as a message for topic `deliveries`, in few bytes."""
    plain = lay_out_delivery(delivery, locators)
    value, more = squeezed(plain.value)
    return Packed(key=plain.key, value=value, headers={**plain.headers, **more})


def squeezed(value: bytes) -> tuple[bytes, dict[str, bytes]]:
    """A delivery's value in fewer bytes, where there are such, and the headers that tell so. It takes 20 ms for a
    megabyte."""
    if len(value) > SQUEEZED_FROM_BYTES and len(packed := zlib.compress(value, 1)) < len(value):
        return packed, {"packed": b"zlib"}
    return value, {}


def lay_out_delivery(delivery: Delivery, locators: Locators, *, found: EventFacts | None = None) -> Packed:
    """A delivery as a message whose value is not packed yet; its key is the aggregate if one was found: by the caller,
    who read the body already, or here."""
    headers = {
        "application": delivery.application,
        "delivery_id": delivery.id,
        "event_id": delivery.event_id or "",
        "problem": delivery.problem or "",
        "received_at": delivery.received_at.isoformat(),
        "trust": Trust.CLAIMED.value,
        "source": Source.WEBHOOK.value,
        "traceparent": delivery.traceparent or "",
        "http": orjson.dumps(dict(delivery.headers)).decode(),
    }
    try:
        aggregate = (found or identify(parse_json(delivery.raw), locators)).key
    except NotUnderstood:
        aggregate = f"delivery:{delivery.id}"
    return Packed(key=_key(delivery.application, aggregate), value=delivery.raw, headers=_encoded(headers))


def unpack_delivery(key: bytes, value: bytes, headers: Mapping[str, bytes]) -> Delivery:
    """The delivery in a record. Raises NotUnderstood when the record is not one of ours."""
    _, _, received_at = _provenance(headers)
    return Delivery(
        application=key.decode("utf-8", "replace").partition("/")[0],
        id=_text(headers, "delivery_id"),
        raw=_unsqueezed(value, _text(headers, "packed")),
        received_at=received_at,
        headers=orjson.loads(headers.get("http") or b"{}"),
        event_id=_text(headers, "event_id") or None,
        problem=reason_of(problem) if (problem := _text(headers, "problem")) else None,
        traceparent=_text(headers, "traceparent") or None,
    )


def _unsqueezed(value: bytes, packed: str) -> bytes:
    if packed != "zlib":
        return value
    decoder = zlib.decompressobj()
    try:
        raw = decoder.decompress(value, RAW_MAX_BYTES)
    except zlib.error as error:
        raise NotUnderstood("the record's body is packed, and damaged") from error
    if not decoder.eof:
        raise NotUnderstood("the record's body is packed, and longer than any body")
    return raw


def own_event(
    *,
    application: str,
    id: str,  # noqa: A002 - the envelope's word
    type: str,  # noqa: A002 - the envelope's word
    key: str,
    source: Source,
    at: datetime,
    data: Mapping[str, Any] | orjson.Fragment,
    traceparent: str | None = None,
) -> Event:
    """A derived event or an observation, with our own envelope around `data`, which may be JSON already."""
    kind, _, object_id = key.partition(":")
    document: dict[str, Any] = {"id": id, "type": type, "created_at": at.isoformat()}
    document["data"] = data if isinstance(data, orjson.Fragment) else dict(data)
    if kind in OWN_FIELDS:
        document[OWN_FIELDS[kind]] = object_id
    raw = orjson.dumps(document)
    return Event(
        application=application,
        id=id,
        type=type,
        key=key,
        trust=Trust.READ,
        source=source,
        raw=raw,
        received_at=at,
        occurred_at=at,
        traceparent=traceparent,
        order_id=document.get("order_id"),
        subscription_id=document.get("subscription_id"),
        customer=document.get("customer"),
        object_id=document.get("object_id"),
    )


def _own_event(
    event_id: str,
    application: str,
    key: str,
    value: bytes,
    headers: Mapping[str, bytes],
    trust: Trust,
    source: Source,
    received_at: datetime,
) -> Event:
    document = parse_json(value, tolerant=True)
    event: Event = Event(
        application=application,
        id=event_id,
        type=_text(headers, "type"),
        key=key,
        trust=trust,
        source=source,
        raw=value,
        received_at=received_at,
        occurred_at=received_at,
        delivery_id=_text(headers, "delivery_id"),
        traceparent=_text(headers, "traceparent") or None,
        order_id=document.get("order_id"),
        subscription_id=document.get("subscription_id"),
        customer=document.get("customer"),
        object_id=document.get("object_id"),
    )
    return event.read_as(document)


def _key(application: str, aggregate: str) -> bytes:
    return f"{application}/{aggregate}".encode()


def _encoded(headers: Mapping[str, str]) -> dict[str, bytes]:
    return {name: value.encode() for name, value in headers.items() if value}


def _text(headers: Mapping[str, bytes], name: str) -> str:
    value = headers.get(name)
    return value.decode("utf-8", "replace") if value else ""


def _provenance(headers: Mapping[str, bytes]) -> tuple[Trust, Source, datetime]:
    try:
        received_at = datetime.fromisoformat(_text(headers, "received_at"))
        return _TRUSTS[headers["trust"]], _SOURCES[headers["source"]], received_at.astimezone(UTC)
    except (ValueError, KeyError) as error:
        raise NotUnderstood("the record lacks trust, source or received_at") from error
