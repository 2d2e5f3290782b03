"""Event, Delivery and the envelope locators. Pure: bytes and headers in, values out.

The service does not document its envelope (spec, Events, last paragraph), so nothing here knows a field name by
heart: `Locators` hold JSON pointers, first hit wins, and they are configuration (cases I9, U1, U2).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache, cached_property
from typing import Any, Final, Generic, NamedTuple, Self, cast

from jsonpointer import JsonPointer, JsonPointerException
from typing_extensions import TypeVar

from consumer.document import parse
from consumer.errors import NotUnderstood
from consumer.payload import Payload, payload_class
from consumer.reason import Reason

P_co = TypeVar("P_co", bound=Payload, covariant=True, default=Payload)

ID_MAX_CHARS = 255
TYPE_MAX_CHARS = 100
KEPT_READ_BYTES: Final = 16 * 1024

UNKNOWN_TYPE: Final = "unknown.type"
_EVENT_ID = re.compile(r"evt_[\x21-\x7e]+\Z")
_DERIVED_ID = re.compile(r"(drv|obs)_[\x21-\x7e]+\Z")
_TYPE = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)+\Z")

TEST_TYPE: Final = "webhook."
_PLACES: Final = ("", "/data", "/data/object", "/object")
_TEST_WORDS: Final = tuple(f"{place}/{word}" for place in _PLACES for word in ("test", "is_test"))
_LIVE_WORDS: Final = tuple(f"{place}/livemode" for place in _PLACES)

Paths = tuple[tuple[str, ...], ...]


class Authenticity(StrEnum):
    """How a webhook of an application is proved: by a later read, by its signature, or (loopback only) not at all."""

    API = "api"
    SIGNATURE = "signature"
    NONE = "none"


class Trust(StrEnum):
    """How we know. Handlers never see `claimed`."""

    SIGNED = "signed"
    READ = "read"
    CLAIMED = "claimed"


class Source(StrEnum):
    """Which stage published the record."""

    WEBHOOK = "webhook"
    BACKFILL = "backfill"
    READ = "read"
    REPLAY = "replay"
    RELAY = "relay"


@dataclass(frozen=True, kw_only=True)
class Locators:
    """JSON pointers per fact, tried in order; the same lists read webhook bodies and listed events."""

    id: tuple[str, ...] = ("/id", "/event_id", "/event/id", "/data/event_id")
    type: tuple[str, ...] = ("/type", "/event", "/event_type", "/name", "/event/type")
    time: tuple[str, ...] = ("/created_at", "/created", "/occurred_at", "/timestamp", "/time", "/event/created_at")
    object: tuple[str, ...] = (
        "/data/object/id",
        "/data/id",
        "/object/id",
        "/data/object_id",
        "/object_id",
        "/resource_id",
        "/object",
    )
    order: tuple[str, ...] = (
        "/data/object/order_id",
        "/data/object/order/order_id",
        "/data/order_id",
        "/data/order/order_id",
        "/object/order_id",
        "/order_id",
        "/order/order_id",
    )
    subscription: tuple[str, ...] = (
        "/data/object/subscription_id",
        "/data/subscription_id",
        "/data/object/subscription/id",
        "/data/object/subscription",
        "/data/subscription/id",
        "/data/subscription",
        "/subscription_id",
        "/data/object/id",
        "/data/id",
        "/object/id",
        "/data/object_id",
        "/object_id",
        "/resource_id",
        "/subscription/id",
        "/subscription",
        "/object",
    )
    customer: tuple[str, ...] = (
        "/data/object/customer_reference",
        "/data/customer_reference",
        "/object/customer_reference",
        "/customer_reference",
    )

    def __post_init__(self) -> None:
        for item in fields(self):
            for pointer in getattr(self, item.name):
                compiled(pointer)

    @cached_property
    def paths(self) -> Mapping[str, Paths]:
        """The parsed pointers of each fact, for reading many bodies."""
        return {item.name: _paths(getattr(self, item.name)) for item in fields(self)}


_compiled: dict[str, JsonPointer] = {}


def compiled(pointer: str) -> JsonPointer:
    """The parsed JSON pointer (RFC 6901); ValueError when it is not one."""
    if pointer not in _compiled:
        if not pointer.startswith("/"):
            raise ValueError(f"{pointer!r} is not a JSON pointer: it must begin with '/'")
        try:
            _compiled[pointer] = JsonPointer(pointer)
        except JsonPointerException as error:
            raise ValueError(f"{pointer!r} is not a JSON pointer: '~' stands only before 0 or 1") from error
    return _compiled[pointer]


def first(document: Any, pointers: tuple[str, ...]) -> Any:
    """The first value that is there and is not null, or None."""
    return next(_values(document, _paths(pointers)), None)


@cache
def _paths(pointers: tuple[str, ...]) -> Paths:
    return tuple(tuple(compiled(one).parts) for one in pointers)


def _values(document: Any, paths: Paths) -> Iterator[Any]:
    """At one path after another what is there and is not null."""
    return (value for parts in paths if (value := _at(document, parts)) is not None)


def _at(document: Any, parts: Sequence[str]) -> Any:
    """What is there, or None."""
    value = document
    for part in parts:
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value


def _first_text(document: Any, paths: Paths, fits: re.Pattern[str] | None, max_chars: int) -> str | None:
    for parts in paths:
        value = _at(document, parts)
        if not isinstance(value, str):
            if not isinstance(value, int) or isinstance(value, bool):
                continue
            value = str(value)
        if 0 < len(value) <= max_chars and (fits is None or fits.match(value)):
            return value
    return None


EARLIEST, LATEST = datetime(1000, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)
"""Between these a time can be added to, shifted to any zone and stored; others are taken for the nearer one."""


def parse_time(value: Any) -> datetime | None:
    """ISO-8601 text, or epoch seconds or milliseconds, as aware UTC; None for anything else (case U22)."""
    try:
        if isinstance(value, str) and not value.replace(".", "", 1).isdigit():
            parsed = datetime.fromisoformat(value)
            aware = parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
            return min(max(aware, EARLIEST), LATEST).astimezone(UTC)
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            number = float(value)
            at = datetime.fromtimestamp(number / 1000 if number > 1e11 else number, UTC)
            return min(max(at, EARLIEST), LATEST)
    except (ValueError, OverflowError, OSError):
        return None
    return None


def parse_json(raw: bytes, *, tolerant: bool = False) -> dict[str, Any]:
    """The body as a JSON object, its texts as every column can hold them (see `document`). Raises NotUnderstood for
    anything else. `tolerant`: the service vouches for it."""
    try:
        document = parse(raw, tolerant=tolerant)
    except ValueError as error:
        raise NotUnderstood(reason=Reason.NOT_JSON, bytes=len(raw)) from error
    if not isinstance(document, dict):
        raise NotUnderstood(reason=Reason.NOT_AN_OBJECT, bytes=len(raw))
    return document


def says_test(document: Mapping[str, Any], event_type: str) -> bool:
    """Whether a body of this type says by itself that it is a test event (cases F24, R9): by a type of its own, or a
    mark. One that looks like any other event says nothing."""
    if event_type.startswith(TEST_TYPE) or any(one is True for one in _values(document, _paths(_TEST_WORDS))):
        return True
    return any(one is False for one in _values(document, _paths(_LIVE_WORDS)))


class EventFacts(NamedTuple):
    """What receiving has to know of a body: its id, its type and the aggregate that orders it."""

    id: str
    type: str
    order_id: str | None
    subscription_id: str | None

    @property
    def key(self) -> str:
        """The aggregate: order, subscription or, failing both, the event id (case I23)."""
        return aggregate_key(self.id, self.order_id, self.subscription_id)


def aggregate_key(event_id: str, order_id: str | None, subscription_id: str | None) -> str:
    """The aggregate: order, subscription or, failing both, the event id (case I23)."""
    if order_id is not None:
        return f"order:{order_id}"
    if subscription_id is not None:
        return f"subscription:{subscription_id}"
    return f"event:{event_id}"


def identify(document: Mapping[str, Any], locators: Locators) -> EventFacts:
    """Find id, type and the aggregate in a body. Raises NotUnderstood when no `evt_` id is there (case I10).

    A missing or malformed type becomes `unknown.type`: archived, handled by nobody (cases I7, U2). `order_id` is
    looked for in `order.*` and `checkout.session.*`, `subscription_id` in `subscription.*`.
    """
    paths = locators.paths
    event_id = _first_text(document, paths["id"], _EVENT_ID, ID_MAX_CHARS)
    if event_id is None:
        raise NotUnderstood(reason=Reason.NO_EVENT_ID)
    event_type = _first_text(document, paths["type"], _TYPE, TYPE_MAX_CHARS) or UNKNOWN_TYPE
    order_id = subscription_id = None
    if event_type.startswith(("order.", "checkout.session.")):
        order_id = _first_text(document, paths["order"], None, ID_MAX_CHARS)
    elif event_type.startswith("subscription."):
        subscription_id = _first_text(document, paths["subscription"], None, ID_MAX_CHARS)
    return EventFacts(event_id, event_type, order_id, subscription_id)


class Envelope(NamedTuple):
    """What the locators found in one body."""

    id: str
    type: str
    order_id: str | None
    subscription_id: str | None
    object_id: str | None
    customer: str | None
    occurred_at: datetime | None

    @property
    def key(self) -> str:
        """The aggregate: order, subscription or, failing both, the event id (case I23)."""
        return aggregate_key(self.id, self.order_id, self.subscription_id)


def locate(document: Mapping[str, Any], locators: Locators) -> Envelope:
    """Find everything the locators know in a body. Raises NotUnderstood as `identify` does."""
    paths = locators.paths
    return Envelope(
        *identify(document, locators),
        object_id=_first_text(document, paths["object"], None, ID_MAX_CHARS),
        customer=_first_text(document, paths["customer"], None, ID_MAX_CHARS),
        occurred_at=parse_time(first(document, locators.time)),
    )


@dataclass(frozen=True, kw_only=True)
class Event(Generic[P_co]):
    """One fact: what the service said (or a projection derived), the raw bytes untouched.

    `type` and `id` come from the envelope; `key` is the aggregate that orders it; `order_id`, `subscription_id`,
    `customer` and `object_id` are what the locators found, None where there is nothing. `payload` is what it says,
    typed: `Event[FulfilmentRequested]`.
    """

    application: str
    id: str
    type: str
    key: str
    trust: Trust
    source: Source
    raw: bytes = field(repr=False)
    received_at: datetime
    delivery_id: str = ""
    object_id: str | None = None
    order_id: str | None = None
    subscription_id: str | None = None
    customer: str | None = field(default=None, repr=False)
    occurred_at: datetime | None = None
    traceparent: str | None = None

    @cached_property
    def data(self) -> dict[str, Any]:
        """The whole body as a JSON object; treat it as read-only. Its texts hold no NUL and no half character."""
        return parse_json(self.raw, tolerant=True)

    def read_as(self, document: dict[str, Any]) -> Self:
        """The same event, whose body was read already: handlers need not read it again. A large one is: what it says
        takes many times its bytes, and most of a batch waits for its turn."""
        if len(self.raw) <= KEPT_READ_BYTES:
            self.__dict__["data"] = document
        return self

    def unread(self) -> Self:
        """The same event, whose body nobody has read yet: what is done to it is seen by nobody else."""
        fresh = object.__new__(type(self))
        fresh.__dict__.update(self.__dict__)
        for read in ("data", "payload"):
            fresh.__dict__.pop(read, None)
        return fresh

    @cached_property
    def payload(self) -> P_co:
        """What the event says, of the class that is bound to its type. Ids that the body does not repeat beside it are
        those the locators found. Raises PayloadUnexpected."""
        located = {"order_id": self.order_id, "subscription_id": self.subscription_id, "customer": self.customer}
        model = payload_class(self.type)
        found = {name: value for name, value in located.items() if value is not None and name in model.model_fields}
        return cast(P_co, model.read(found | self._said(), self.type))

    def _said(self) -> dict[str, Any]:
        """The object the event is about: ours in `data`, the service's where the document leaves room for it."""
        places = ("/data",) if _DERIVED_ID.match(self.id) else ("/data/object", "/object", "/data")
        found = (first(self.data, (place,)) for place in places)
        return next((dict(one) for one in found if isinstance(one, dict)), {})

    def find(self, *pointers: str) -> Any:
        """The first value at one of these JSON pointers, or None."""
        return next(self.find_all(*pointers), None)

    def find_all(self, *pointers: str) -> Iterator[Any]:
        """What is there and is not null, at one of these JSON pointers after another."""
        return _values(self.data, _paths(pointers))


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """One arrival of a webhook request: raw bytes and the headers we keep; `problem` says why it is no hint."""

    application: str
    id: str
    raw: bytes
    received_at: datetime
    headers: Mapping[str, str] = field(default_factory=dict)
    event_id: str | None = None
    problem: Reason | None = None
    traceparent: str | None = None


def build_event(
    raw: bytes,
    locators: Locators,
    *,
    application: str,
    trust: Trust,
    source: Source,
    received_at: datetime,
    delivery_id: str = "",
    traceparent: str | None = None,
) -> Event:
    """A service event from its raw body. Raises NotUnderstood when the body is not an event."""
    document = parse_json(raw, tolerant=trust is not Trust.CLAIMED)
    found = locate(document, locators)
    event: Event = Event(
        application=application,
        id=found.id,
        type=found.type,
        key=found.key,
        trust=trust,
        source=source,
        raw=raw,
        received_at=received_at,
        delivery_id=delivery_id,
        object_id=found.object_id,
        order_id=found.order_id,
        subscription_id=found.subscription_id,
        customer=found.customer,
        occurred_at=found.occurred_at,
        traceparent=traceparent,
    )
    return event if trust is Trust.CLAIMED else event.read_as(document)
