"""Fields: the request tables. Validation and the OpenAPI document are both made from them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from consumer.sandbox.engine.money import parse_amount
from consumer.sandbox.errors import Refusal

Kind = Literal["text", "choice", "amount", "time", "line_items", "metadata", "url"]


@dataclass(frozen=True, kw_only=True)
class Field:
    """One request field: its kind, whether it must be there, its bounds."""

    name: str
    kind: Kind
    required: bool = False
    choices: tuple[str, ...] = ()
    min_chars: int = 1
    max_chars: int = 0
    max_items: int = 0
    max_key_chars: int = 0
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class Assumed:
    """What the document does not show: the bounds of some fields, by name; whether any text, any form of a time is
    taken."""

    bounds: Mapping[str, float]
    any_text: bool
    any_time: bool


SESSION_FIELDS: tuple[Field, ...] = (
    Field(name="mode", kind="choice", required=True, choices=("payment", "subscription")),
    Field(name="order_id", kind="text", required=True, max_chars=128, text="the merchant's own id"),
    Field(name="success_url", kind="url", required=True, max_chars=2048),
    Field(name="cancel_url", kind="url", required=True, max_chars=2048),
    Field(name="price_id", kind="text", max_chars=255),
    Field(name="amount", kind="amount", text="decimal USDC string, 0.01 to 1000000, at most 6 decimals"),
    Field(name="description", kind="text", max_chars=1000),
    Field(name="line_items", kind="line_items", max_items=50, text="shown to the payer only"),
    Field(name="customer_email", kind="text", max_chars=320),
    Field(name="customer_reference", kind="text", max_chars=1000),
    Field(name="ui_mode", kind="choice", choices=("redirect", "popup")),
    Field(name="expires_at", kind="time", text="5 minutes to 24 hours from now"),
    Field(name="metadata", kind="metadata", max_items=20, max_key_chars=40, max_chars=500),
)
CANCEL_FIELDS: tuple[Field, ...] = (Field(name="at", kind="choice", required=True, choices=("now", "period_end")),)
NO_FIELDS: tuple[Field, ...] = ()

_DATE_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})")
_LINE_ITEM_KEYS = ("name", "quantity", "amount")


def parse_object(raw: bytes, *, last_counts: bool = False) -> dict[str, Any]:
    """A JSON object, in UTF-8; an empty body is an empty object. `last_counts`: of a name that is there twice. Raises
    validation_failed."""
    if not raw.strip():
        return {}
    hook = dict if last_counts else _without_repeats
    try:  # decoded here: of bytes, Python's reader takes UTF-16 and a mark, too
        document = json.loads(raw.decode(), parse_constant=_refuse_constant, object_pairs_hook=hook)
    except (ValueError, RecursionError) as error:
        raise Refusal("validation_failed", "The body is not valid JSON.") from error
    if not isinstance(document, dict):
        raise Refusal("validation_failed", "The body must be a JSON object.")
    return document


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise Refusal("validation_failed", f"A field is given twice: {name[:100]}", field=name[:100])
        found[name] = value
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def read_fields(document: Mapping[str, Any], fields: tuple[Field, ...], assumed: Assumed) -> dict[str, Any]:
    """The values by name, each parsed for its kind; null counts as absent. Raises validation_failed with the field.

    Unknown fields are refused first (case X20), then each field in the order of the table.
    """
    known = {field.name for field in fields}
    for name in document:
        if name not in known:
            raise Refusal("validation_failed", f"Unknown field: {name[:100]}", field=name[:100])
    values: dict[str, Any] = {}
    for field in fields:
        value = document.get(field.name)
        if value is None:
            if field.required:
                raise _invalid(field, "is required")
            continue
        values[field.name] = read_field(field, value, assumed)
    return values


def read_field(field: Field, value: Any, assumed: Assumed) -> Any:
    """One value, parsed for its kind. Raises validation_failed."""
    if field.kind == "metadata":
        return _metadata(field, value, assumed)
    if field.kind == "line_items":
        return _line_items(field, value, assumed)
    if field.kind == "time":
        return _time(field, value, assumed)
    if not isinstance(value, str):
        raise _invalid(field, "must be a string")
    if not _is_text(value, assumed):
        raise _invalid(field, "must be valid Unicode without NUL")
    if field.kind == "amount":
        micro = parse_amount(value)
        if micro is None:
            raise _invalid(field, "must be a decimal string with at most 6 decimals")
        return micro
    if field.kind == "choice":
        if value not in field.choices:
            raise _invalid(field, f"must be one of {', '.join(field.choices)}")
        return value
    if field.name == "order_id" and value.isspace() and not assumed.any_text:
        raise _invalid(field, "must not be blank")
    most = assumed.bounds.get(field.name, field.max_chars)
    if not field.min_chars <= len(value) <= most:
        raise _invalid(field, f"must have from {field.min_chars} to {most:g} characters")
    return value


def _time(field: Field, value: Any, assumed: Assumed) -> datetime:
    if not assumed.any_time and not (isinstance(value, str) and _DATE_TIME.fullmatch(value)):
        raise _invalid(field, "must be a date-time with its time zone, like 2026-01-01T12:00:00Z")
    try:
        if isinstance(value, str):
            parsed = datetime.fromisoformat(value)
            if parsed.tzinfo is None:
                raise _invalid(field, "must name its time zone")
            return parsed.astimezone(UTC)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value / 1000 if value > 1e11 else value, UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise _invalid(field, "must be a timestamp") from error
    raise _invalid(field, "must be a timestamp")


def _metadata(field: Field, value: Any, assumed: Assumed) -> dict[str, str]:
    if not isinstance(value, dict):
        raise _invalid(field, "must be an object of strings")
    if len(value) > field.max_items:
        raise _invalid(field, f"must have at most {field.max_items} keys")
    for key, text in value.items():
        if not isinstance(text, str) or not _is_text(key, assumed) or not _is_text(text, assumed):
            raise _invalid(field, "must be an object of strings")
        if not 1 <= len(key) <= field.max_key_chars:
            raise _invalid(field, f"keys must have from 1 to {field.max_key_chars} characters")
        if len(text) > field.max_chars:
            raise _invalid(field, f"values must have at most {field.max_chars} characters")
    return dict(value)


def _line_items(field: Field, value: Any, assumed: Assumed) -> tuple[dict[str, Any], ...]:
    if not isinstance(value, list):
        raise _invalid(field, "must be an array")
    if len(value) > field.max_items:
        raise _invalid(field, f"must have at most {field.max_items} entries")
    longest, largest = assumed.bounds["line_items.name"], assumed.bounds["line_items.quantity"]
    for item in value:
        if not isinstance(item, dict) or set(item) != set(_LINE_ITEM_KEYS):
            raise _invalid(field, "each entry has name, quantity and amount")
        name, quantity, amount = item["name"], item["quantity"], item["amount"]
        if not isinstance(name, str) or not 1 <= len(name) <= longest or not _is_text(name, assumed):
            raise _invalid(field, f"name must be a string of 1 to {longest:g} characters")
        if not isinstance(quantity, int) or isinstance(quantity, bool) or not 1 <= quantity <= largest:
            raise _invalid(field, f"quantity must be an integer from 1 to {largest:.0f}")
        if not isinstance(amount, str) or parse_amount(amount) is None:
            raise _invalid(field, "amount must be a decimal string with at most 6 decimals")
    return tuple(dict(item) for item in value)


def _is_text(text: str, assumed: Assumed) -> bool:
    if "\0" in text and not assumed.any_text:
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _invalid(field: Field, what: str) -> Refusal:
    return Refusal("validation_failed", f"{field.name} {what}.", field=field.name)
