"""What the service returns, read tolerantly: only fields that the spec names are typed, the rest stays in `raw`.

Every named field may be missing, of an unexpected type or of an unknown value without an error (cases C24, I8, U10-U12,
U22): such a field reads as None. Statuses are open: compare them with the constants, never assume they are all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any, Generic, Self, TypeVar

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, PrivateAttr

from consumer.events import ID_MAX_CHARS, parse_time

SESSION_OPEN = "OPEN"
SESSION_CANCELED = "CANCELED"
ORDER_PAID = "PAID"
ORDER_STATUSES = frozenset({"PENDING", ORDER_PAID})
"""Those that the spec names (Order and payment)."""
SUBSCRIPTION_ENDED = "ENDED"
ENDED_MERCHANT_CANCELED = "MERCHANT_CANCELED"


def _text(value: Any) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) else None


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _id(value: Any) -> str | None:
    """An id that the ledger's columns hold whole; a longer one is none: two of them must never become one."""
    text = _text(value)
    return text if text is not None and 0 < len(text) <= ID_MAX_CHARS else None


Id = Annotated[str | None, BeforeValidator(_id)]
Text = Annotated[str | None, BeforeValidator(_text)]
Flag = Annotated[bool | None, BeforeValidator(_flag)]
Time = Annotated[datetime | None, BeforeValidator(parse_time)]


def dumped(document: Any) -> bytes:
    """It as JSON, whatever it holds."""
    try:
        return orjson.dumps(document)
    except TypeError:  # an integer beyond 64 bits, in a record that no answer of the service made
        return json.dumps(document, separators=(",", ":")).encode("ascii")


class Record(BaseModel):
    """One object of the service. `raw` is the whole of it as read, `raw_bytes` the same as JSON.

    `raw_bytes` of a record read by its id are the answer's bytes untouched; those of a list item are its JSON written
    anew, keys in the order they came, so that the same item always gives the same bytes.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)

    id: Id = None

    _raw: dict[str, Any] = PrivateAttr(default_factory=dict)
    _raw_bytes: bytes = PrivateAttr(default=b"")

    @classmethod
    def read(cls, document: Mapping[str, Any], raw_bytes: bytes | None = None) -> Self:
        """The record in a JSON object; with the bytes it came in, when it came alone."""
        found = dict(document)
        record = cls.model_validate({name: found[name] for name in cls.model_fields if name in found})
        record._raw = found
        record._raw_bytes = dumped(found) if raw_bytes is None else raw_bytes
        return record

    @classmethod
    def unread(cls, document: Any) -> Self:
        """The record in a document whose reading breaks, kept as it came: of its fields, its id at most."""
        record = cls.model_validate({})
        record._raw = dict(document) if isinstance(document, Mapping) else {}
        with suppress(Exception):
            record = record.model_copy(update={"id": _id(record._raw.get("id"))})
        with suppress(Exception):
            record._raw_bytes = dumped(document)
        return record

    def is_called(self, asked: str) -> bool:
        """Whether it is what was asked for by this id of the service's. Of most kinds the spec shows no field, nor by
        which names the service finds them: what comes is taken for it."""
        del asked
        return True

    @property
    def raw(self) -> dict[str, Any]:
        """Everything the service said; treat it as read-only."""
        return self._raw

    @property
    def raw_bytes(self) -> bytes:
        """The same as JSON bytes."""
        return self._raw_bytes

    def __repr__(self) -> str:
        # A record may hold the payer's data: only its kind, id and status are safe to print.
        status = getattr(self, "status", None)
        return f"{type(self).__name__}(id={self.id!r}" + (f", status={status!r})" if status else ")")

    __str__ = __repr__


class Application(Record):
    """The calling application. The spec shows none of its fields."""


class Order(Record):
    """An order. `order_id` is the merchant's own id, where the service shows it."""

    status: Text = None
    order_id: Id = None

    @property
    def is_paid(self) -> bool:
        """The one proof of payment that a read gives (spec, What the service does 6)."""
        return self.status == ORDER_PAID

    @property
    def is_blank(self) -> bool:
        """Whether it is no order at all, but an empty place for one."""
        return self.id is None and self.order_id is None and self.status is None

    def is_called(self, asked: str) -> bool:
        """By either id (spec, Order and payment). One that shows the merchant's alone is taken for it."""
        return asked in (self.id, self.order_id) or (self.id is None and self.order_id is not None)

    def is_order(self, merchant_order_id: str) -> bool:
        """Whether it is the one that the merchant calls so. One that shows the service's id alone is taken for it,
        unless that is what was asked for: then nobody knows what the merchant calls it. So is one that shows no id, and
        a status that the spec names of orders."""
        if self.order_id is not None:
            return self.order_id == merchant_order_id
        if self.id is not None:
            return self.id != merchant_order_id
        return self.status in ORDER_STATUSES


def _embedded_order(value: Any) -> Order | None:
    if isinstance(value, Order):
        return value
    return Order.read(value) if isinstance(value, Mapping) else None


class CheckoutSession(Record):
    """A checkout session. `url` is there only right after create and reissue (case C19)."""

    status: Text = None
    url: Text = None
    expires_at: Time = None
    order_id: Id = None
    order: Annotated[Order | None, BeforeValidator(_embedded_order)] = None

    def is_called(self, asked: str) -> bool:
        """By its id, which the spec shows."""
        return self.id == asked

    def without_link(self) -> CheckoutSession:
        """The same, with nothing in it that could be paid."""
        return CheckoutSession.read({**self.raw, "url": None})


class Payment(Record):
    """A payment; only `SUCCEEDED` carries meaning (case F38)."""

    status: Text = None


class Subscription(Record):
    """A subscription (spec, Subscription)."""

    status: Text = None
    end_reason: Text = None
    cancel_at_period_end: Flag = None
    cancel_reason: Text = None
    merchant_cancel_requested: Flag = None

    def is_called(self, asked: str) -> bool:
        """By its id, which the spec shows."""
        return self.id == asked

    @property
    def will_end(self) -> bool:
        """Whether an end is scheduled, by the payer or, standing on its own, by the merchant (case U16)."""
        return bool(self.cancel_at_period_end) or bool(self.merchant_cancel_requested)


class Product(Record):
    """A product of the merchant's catalog."""


class Price(Record):
    """A price of the merchant's catalog."""


class EventRecord(Record):
    """An event as listed or read. Its type and object are found by locators (`consumer.events`), not here."""


class Acknowledgement(Record):
    """An answer whose shape the spec does not show (session cancel, subscription cancel, test event)."""


R = TypeVar("R", bound=Record)

Cursor = str | int
"""Opaque: kept as it came, sent as text (cases B3, U19)."""


class Page(Generic[R]):
    """One page of a list: `items`, and the cursor of the next page (None: there is none)."""

    __slots__ = ("items", "next_cursor")

    def __init__(self, items: tuple[R, ...], next_cursor: Cursor | None) -> None:
        self.items = items
        self.next_cursor = next_cursor


def kept_url(stored: str | None, read: CheckoutSession) -> str | None:
    """The payment link to keep: a read's null never overwrites a stored one, a reissue's replaces it (case C19)."""
    return read.url if read.url is not None else stored
