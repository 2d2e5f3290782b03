"""Request bodies, checked here as the service would check them (spec, request fields; cases C21-C23).

Pure: fields in, bytes out. The same fields always give the same bytes, so that a retry sends what was sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import quote, urlsplit

import orjson

from consumer.events import parse_time
from consumer.payments.errors import (
    AmountNotAllowed,
    AmountOrPriceRequired,
    AmountOutOfRange,
    ExpiresAtOutOfRange,
    PriceIdRequired,
    UrlInsecure,
    ValidationError,
)

ORDER_ID_MAX_CHARS = 128
URL_MAX_CHARS = 2048
DESCRIPTION_MAX_CHARS = 1000
LINE_ITEMS_MAX = 50
METADATA_MAX_KEYS = 20
METADATA_KEY_MAX_CHARS = 40
METADATA_VALUE_MAX_CHARS = 500
AMOUNT_MIN = Decimal("0.01")
AMOUNT_MAX = Decimal(1_000_000)
EXPIRES_MIN = timedelta(minutes=5)
EXPIRES_MAX = timedelta(hours=24)
ID_MAX_CHARS = 255
IDEMPOTENCY_KEY_MAX_CHARS = 255

SESSION_FIELDS = (
    "mode",
    "order_id",
    "success_url",
    "cancel_url",
    "price_id",
    "amount",
    "description",
    "line_items",
    "customer_email",
    "customer_reference",
    "ui_mode",
    "expires_at",
    "metadata",
)

_AMOUNT = re.compile(r"[0-9]{1,32}(\.[0-9]{1,6})?\Z")
_SIX_PLACES = Decimal("0.000001")


def amount_text(value: Any, field: str = "amount") -> str:
    """A USDC amount as the decimal string that is sent; takes `str` or `Decimal` only (case C21).

    Raises ValidationError for floats and other types, for exponents, blanks, and more than 6 decimals.
    """
    if isinstance(value, Decimal):
        value = _plain(value, field)
    elif not isinstance(value, str):
        raise ValidationError(f"{field} must be a decimal string or a Decimal, not {type(value).__name__}", field=field)
    if not _AMOUNT.match(value):
        raise ValidationError(f"{field} must be a plain decimal with at most 6 decimals", field=field)
    return str(value)


def _plain(value: Decimal, field: str) -> str:
    if not value.is_finite() or abs(value) > 10**18:
        raise ValidationError(f"{field} must be a finite decimal", field=field)
    if value != value.quantize(_SIX_PLACES):
        raise ValidationError(f"{field} must have at most 6 decimals", field=field)
    exponent = value.as_tuple().exponent
    return format(value.quantize(_SIX_PLACES) if isinstance(exponent, int) and exponent < -6 else value, "f")


def session_amount(value: Any) -> str:
    """The amount of a session: a plain decimal from 0.01 to 1000000."""
    text = amount_text(value)
    if not AMOUNT_MIN <= Decimal(text) <= AMOUNT_MAX:
        raise AmountOutOfRange(field="amount")
    return text


def session_body(fields: Mapping[str, Any], now: datetime) -> bytes:
    """The body of a session create from its fields (None: not given), as canonical JSON.

    `now` is aware; expiry is checked against it. Raises ValidationError or the subclass with the documented code;
    `error.field` names the field.
    """
    for name in fields:
        if name not in SESSION_FIELDS:
            raise ValidationError(f"unknown field {name[:40]!r}", field=name[:40])
    given = {name: value for name, value in fields.items() if value is not None}
    for name in ("mode", "order_id", "success_url", "cancel_url"):
        if name not in given:
            raise ValidationError(f"{name} is required", field=name)
    if given["mode"] not in ("payment", "subscription"):
        raise ValidationError("mode must be payment or subscription", field="mode")
    _check_mode_rules(given)
    body = {name: _CHECKS[name](value) for name, value in given.items() if name in _CHECKS}
    if "expires_at" in given:
        body["expires_at"] = _expires_at(given["expires_at"], now)
    return orjson.dumps({**body, "mode": given["mode"]}, option=orjson.OPT_SORT_KEYS)


def _check_mode_rules(given: Mapping[str, Any]) -> None:
    if given["mode"] == "subscription":
        for name in ("amount", "description"):
            if name in given:
                raise AmountNotAllowed(field=name)
        if "price_id" not in given:
            raise PriceIdRequired(field="price_id")
        return
    if ("price_id" in given) == ("amount" in given):
        raise AmountOrPriceRequired(field="amount")
    if "amount" in given and not given.get("description"):
        raise AmountOrPriceRequired("an amount needs a description", field="description")


def cancel_body(at: Any) -> bytes:
    """The body of a subscription cancel; `at` is `now` or `period_end`."""
    if at not in ("now", "period_end"):
        raise ValidationError("at must be now or period_end", field="at")
    return orjson.dumps({"at": at})


def checked_limit(limit: Any) -> int:
    """A page size from 1 to 100; anything else is never sent (case B17)."""
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= 100:
        raise ValidationError("limit must be an integer from 1 to 100", field="limit")
    return limit


def path_id(value: Any) -> str:
    """An opaque id as one segment of a path (case U11)."""
    if not isinstance(value, str) or not 1 <= len(value) <= ID_MAX_CHARS or value in (".", ".."):
        raise ValidationError(f"id must be a text of 1 to {ID_MAX_CHARS} characters", field="id")
    try:
        return quote(value, safe="")
    except UnicodeEncodeError as error:
        raise ValidationError("id is not valid text", field="id") from error


def idempotency_key(value: Any) -> str:
    """A key that fits a header: 1 to 255 visible ASCII characters (the format is not documented, case U17)."""
    if not isinstance(value, str) or not re.match(r"[\x21-\x7e]{1,255}\Z", value):
        raise ValidationError(
            f"an idempotency key is 1 to {IDEMPOTENCY_KEY_MAX_CHARS} visible ASCII characters", field="idempotency_key"
        )
    return value


def order_id(value: Any) -> str:
    """The merchant's own order id (case F26)."""
    return _text("order_id", ORDER_ID_MAX_CHARS)(value)


def _text(field: str, max_chars: int | None, *, empty: bool = False) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if not isinstance(value, str) or not (value or empty):
            raise ValidationError(f"{field} must be a text", field=field)
        if max_chars is not None and len(value) > max_chars:
            raise ValidationError(f"{field} must have at most {max_chars} characters", field=field)
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValidationError(f"{field} is not valid text", field=field) from error
        return value

    return check


def _url(field: str) -> Callable[[Any], str]:
    text = _text(field, URL_MAX_CHARS)

    def check(value: Any) -> str:
        url = text(value)
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise ValidationError(f"{field} is not a URL", field=field) from error
        if parts.scheme.lower() != "https":
            raise UrlInsecure(f"{field} must be https", field=field)
        if not parts.hostname:
            raise ValidationError(f"{field} names no host", field=field)
        return url

    return check


def _ui_mode(value: Any) -> str:
    if value not in ("redirect", "popup"):
        raise ValidationError("ui_mode must be redirect or popup", field="ui_mode")
    return str(value)


def _line_items(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list | tuple) or len(value) > LINE_ITEMS_MAX:
        raise ValidationError(f"line_items must be a list of at most {LINE_ITEMS_MAX}", field="line_items")
    items = []
    for item in value:
        if not isinstance(item, Mapping) or set(item) != {"name", "quantity", "amount"}:
            raise ValidationError("a line item has a name, a quantity and an amount", field="line_items")
        quantity = item["quantity"]
        if not isinstance(quantity, int) or isinstance(quantity, bool) or not 1 <= quantity < 2**53:
            raise ValidationError("a line item's quantity must be a whole number from 1", field="line_items")
        items.append(
            {
                "name": _text("line_items", None)(item["name"]),
                "quantity": quantity,
                "amount": amount_text(item["amount"], "line_items"),
            }
        )
    return items


def _metadata(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping) or len(value) > METADATA_MAX_KEYS:
        raise ValidationError(f"metadata must be an object of at most {METADATA_MAX_KEYS} keys", field="metadata")
    key_text = _text("metadata", METADATA_KEY_MAX_CHARS)
    value_text = _text("metadata", METADATA_VALUE_MAX_CHARS, empty=True)
    return {key_text(key): value_text(text) for key, text in value.items()}


def _expires_at(value: Any, now: datetime) -> str:
    if isinstance(value, datetime) and value.tzinfo is None:
        raise ValidationError("expires_at must carry its time zone", field="expires_at")
    at = value if isinstance(value, datetime) else parse_time(value)
    if at is None:
        raise ValidationError("expires_at must be a time", field="expires_at")
    if not EXPIRES_MIN <= at - now <= EXPIRES_MAX:
        raise ExpiresAtOutOfRange(field="expires_at")
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "order_id": order_id,
    "success_url": _url("success_url"),
    "cancel_url": _url("cancel_url"),
    "price_id": _text("price_id", ID_MAX_CHARS),
    "amount": session_amount,
    "description": _text("description", DESCRIPTION_MAX_CHARS),
    "line_items": _line_items,
    "customer_email": _text("customer_email", None),
    "customer_reference": _text("customer_reference", None),
    "ui_mode": _ui_mode,
    "metadata": _metadata,
}
