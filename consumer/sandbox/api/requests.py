"""Requests: a create's fields together - the rules across fields and by mode (cases X20-X26)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from consumer.sandbox.api.fields import CANCEL_FIELDS, NO_FIELDS, SESSION_FIELDS, Assumed, read_fields
from consumer.sandbox.assumptions import Assumptions
from consumer.sandbox.engine.money import MAX_AMOUNT, MIN_AMOUNT
from consumer.sandbox.engine.sessions import SessionRequest
from consumer.sandbox.errors import Refusal


def session_request(document: Mapping[str, Any], assumptions: Assumptions) -> SessionRequest:
    """A valid create request. Raises the documented refusal of the first rule that is broken."""
    values = read_fields(document, SESSION_FIELDS, _assumed(assumptions))
    if values["mode"] == "subscription":
        if values.get("amount") is not None or values.get("description") is not None:
            name = "amount" if values.get("amount") is not None else "description"
            raise Refusal("amount_not_allowed", field=name)
        if values.get("price_id") is None:
            raise Refusal("price_id_required", field="price_id")
    else:
        _payment_rules(values, assumptions)
    for name in ("success_url", "cancel_url"):
        _check_url(name, values[name])
    return SessionRequest(**values)


def _assumed(assumptions: Assumptions) -> Assumed:
    bounds = {
        "price_id": assumptions.number("price_id_chars"),
        "customer_email": assumptions.number("customer_email_chars"),
        "customer_reference": assumptions.number("customer_reference_chars"),
        "line_items.name": assumptions.number("line_item_name_chars"),
        "line_items.quantity": assumptions.number("line_item_quantity_max"),
    }
    return Assumed(
        bounds=bounds,
        any_text=assumptions.text("odd_text") == "accept",
        any_time=assumptions.text("expires_at_format") == "any",
    )


def _payment_rules(values: Mapping[str, Any], assumptions: Assumptions) -> None:
    amount, price_id, description = values.get("amount"), values.get("price_id"), values.get("description")
    if (amount is None) == (price_id is None) or (amount is not None and description is None):
        raise Refusal("amount_or_price_required", field="amount")
    if amount is not None and not MIN_AMOUNT <= amount <= MAX_AMOUNT:
        raise Refusal("amount_out_of_range", field="amount")
    if price_id is not None and description is not None and assumptions.text("description_with_price") == "refuse":
        raise Refusal("validation_failed", "description goes with amount only.", field="description")


def _check_url(name: str, text: str) -> None:
    if not text.lower().startswith("https://"):
        raise Refusal("url_insecure", field=name)
    try:
        parts = urlsplit(text)
        fits = bool(parts.hostname) and not any(c.isspace() or ord(c) < 32 for c in text)
        _ = parts.port
    except ValueError:
        fits = False
    if not fits:
        raise Refusal("validation_failed", f"{name} must be a URL.", field=name)


def cancel_request(document: Mapping[str, Any], assumptions: Assumptions) -> str:
    """`now` or `period_end` (case X44)."""
    at: str = read_fields(document, CANCEL_FIELDS, _assumed(assumptions))["at"]
    return at


def lookup_request(order_id: str | None, assumptions: Assumptions) -> str:
    """The merchant's own id, as a create takes it."""
    one = tuple(field for field in SESSION_FIELDS if field.name == "order_id")
    found: str = read_fields({"order_id": order_id}, one, _assumed(assumptions))["order_id"]
    return found


def empty_request(document: Mapping[str, Any], assumptions: Assumptions) -> None:
    """No field is taken."""
    read_fields(document, NO_FIELDS, _assumed(assumptions))
