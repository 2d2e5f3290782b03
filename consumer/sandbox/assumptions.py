"""Assumptions: everything the specification does not show, each a named switch (cases X63 and group U).

`SWITCHES` is the one table; the start-up print, `GET /_sandbox/assumptions` and the README are made from it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from consumer.sandbox.errors import SandboxMisconfigured

Value = str | bool | int | float


@dataclass(frozen=True)
class Switch:
    """One assumption: its default first among `values`, or a number from `low` to `high`."""

    name: str
    default: Value
    text: str
    source: str
    values: tuple[Value, ...] = ()
    low: float = 0.0
    high: float = 0.0

    @property
    def kind(self) -> Literal["choice", "flag", "number"]:
        """What values it takes."""
        if self.values:
            return "choice"
        return "flag" if isinstance(self.default, bool) else "number"

    def accept(self, value: Any) -> Value:
        """`value` as this switch keeps it; SandboxMisconfigured when it does not fit."""
        if self.kind == "choice":
            for allowed in self.values:
                if type(allowed) is type(value) and allowed == value:
                    return allowed
                if isinstance(value, str) and str(allowed) == value:
                    return allowed
            raise SandboxMisconfigured(f"{self.name} must be one of {', '.join(map(str, self.values))}")
        if self.kind == "flag":
            if isinstance(value, bool):
                return value
            if value in ("true", "false"):
                return bool(value == "true")
            raise SandboxMisconfigured(f"{self.name} must be true or false")
        try:
            number = float(value) if not isinstance(value, bool) else math.nan
        except (TypeError, ValueError):
            number = math.nan
        if not self.low <= number <= self.high:
            raise SandboxMisconfigured(f"{self.name} must be a number from {self.low:g} to {self.high:g}")
        return int(number) if number == int(number) else number


def _choice(name: str, values: tuple[Value, ...], text: str, source: str) -> Switch:
    return Switch(name, values[0], text, source, values=values)


def _flag(name: str, default: bool, text: str, source: str) -> Switch:
    return Switch(name, default, text, source)


def _number(name: str, default: float, low: float, high: float, text: str, source: str) -> Switch:
    return Switch(name, default, text, source, low=low, high=high)


_YEAR_S = 366 * 86400

SWITCHES: tuple[Switch, ...] = (
    # Events and webhooks
    _choice(
        "event_type_field", ("type", "event", "event_type"), "name of the field that carries the event's type", "U2"
    ),
    _choice("event_container", ("data.object", "data", "flat"), "where an event carries its object", "U1"),
    _choice("event_payload", ("snapshot", "thin"), "the whole object, or only its id", "U1"),
    _choice(
        "event_payload_time",
        ("event", "current"),
        "a snapshot shows the object at event time, or as it is when sent",
        "U29",
    ),
    _choice(
        "listed_event_shape",
        ("as_delivered", "canonical", "summary", "id"),
        "GET /v1/events shows the delivered body; always type and data.object; id, type and time; or the id alone",
        "U28",
    ),
    _choice(
        "signature",
        ("standard", "hmac", "none"),
        "Standard Webhooks, HMAC-SHA256 hex with a timestamp in X-Signature, or no signature",
        "U3",
    ),
    _choice(
        "signature_time",
        ("wall", "sandbox"),
        "the signed timestamp is the machine's time (which receivers check), or the sandbox's",
        "U3",
    ),
    _choice(
        "delivery_schedule",
        ("standard", "short", "none"),
        "retries after 5 s, 5 min, 30 min, 2 h, 5 h, 10 h, 10 h; or after 1, 2, 4, 8 s; or none",
        "U4",
    ),
    _number(
        "delivery_timeout_s",
        15,
        0.1,
        120,
        "seconds a receiver has to answer; only 2xx counts, redirects are not followed",
        "U4",
    ),
    _choice(
        "endpoint_filter",
        ("all", "orders", "subscriptions"),
        "which event types the webhook endpoint is set to receive (orders: everything but subscription.*)",
        "U5",
    ),
    _choice("redelivered_event_id", ("same", "new"), "a retry carries the same evt_ id, or a new one", "U27"),
    _choice(
        "test_event",
        ("own_type", "real_type", "real_type_marked"),
        "a test event has the type webhook.test, or is an order.paid with invented ids, or that with test: true",
        "U8",
    ),
    _flag("test_event_listed", False, "test events appear in GET /v1/events", "U8"),
    _choice("test_event_answer", ("event", "empty"), "the answer names the event id, or is an empty object", "U18"),
    _choice(
        "event_ids",
        ("unique", "per_application"),
        "evt_ ids are unique everywhere, or only inside their application",
        "U20",
    ),
    # Lists
    _choice("events_order", ("newest_first", "oldest_first"), "order of GET /v1/events", "U6"),
    _choice("lists_order", ("newest_first", "oldest_first"), "order of the other lists", "U6"),
    _choice(
        "events_cursor", ("exclusive", "inclusive"), "an event cursor names the last event read, or the next one", "U6"
    ),
    _choice(
        "numeric_cursor",
        ("seek", "offset"),
        "a numeric cursor names a place in the list, or counts items skipped",
        "U19",
    ),
    _choice("cursor_type", ("number", "string"), "JSON type of a numeric next_cursor", "U19"),
    _choice(
        "invalid_cursor",
        ("refuse", "first_page", "empty"),
        "a cursor that names nothing: 400, the first page, or an empty page",
        "U19",
    ),
    _number("retention_s", 0, 0, _YEAR_S * 10, "events older than this are gone for good; 0 keeps them", "U7"),
    _number("read_lag_s", 0, 0, 3600, "reads and lists show the state of this many seconds ago", "U30"),
    # Records
    _choice(
        "ids", ("prefixed", "uuid", "numeric"), "format of session, subscription, order, payment and product ids", "U11"
    ),
    _choice("timestamps", ("iso", "epoch_s", "epoch_ms"), "format of timestamps in answers and events", "U22"),
    _choice("order_status_after_expiry", ("EXPIRED", "PENDING"), "order status after order.expired", "U12"),
    _choice(
        "payment_status_in_flight",
        ("PENDING", "PROCESSING"),
        "payment status before it succeeds; one that fails is FAILED",
        "U12",
    ),
    _choice("payments_listed", ("all", "succeeded"), "payments that did not succeed are readable, or not", "U12"),
    _choice("subscription_session_order", ("null", "absent"), "the embedded order of a subscription session", "U21"),
    _choice(
        "subscription_session_events",
        ("session", "none", "session_and_order"),
        "a subscription session sends checkout.session.* events; none; or order.expired as well",
        "U21",
    ),
    _flag("surprise_fields", False, "answers and events carry a field that nobody announced", "U26"),
    _flag("expose_customer", True, "records and events carry customer_reference, customer_email and metadata", "U10"),
    _choice(
        "subscription_customer",
        ("shown", "session_only"),
        "subscriptions and their events say whose they are, too; or only the record of their session does",
        "U10",
    ),
    _flag(
        "expose_terms", True, "sessions and their orders show amount, price_id, line_items and whose they are", "U24"
    ),
    # Requests
    _choice("create_status", (201, 200), "HTTP status of a create", "U24"),
    _choice("create_again_status", (200, 201), "HTTP status of a create that returns the open session", "U24"),
    _choice(
        "create_again_different",
        ("same_session", "refuse"),
        "a create again with other parameters returns the open session, or is refused with 409 payment_in_progress",
        "U24",
    ),
    _choice(
        "repeated_names",
        ("refuse", "last"),
        "a JSON object that names a field twice: 400, or the last one counts",
        "EP0",
    ),
    _choice(
        "unknown_parameters",
        ("refuse", "ignore"),
        "a query parameter that the endpoint lacks, or one that is given twice: 400, or it counts for nothing",
        "EP0",
    ),
    _choice(
        "odd_text",
        ("refuse", "accept"),
        "a text with a NUL, and an order_id of blanks alone: 400, or taken as it is",
        "REQ",
    ),
    _choice(
        "expires_at_format",
        ("date_time", "any"),
        "expires_at is an RFC 3339 date-time; or any ISO 8601 with a zone, and epoch seconds or milliseconds, too",
        "U22",
    ),
    _choice("description_with_price", ("accept", "refuse"), "a description next to price_id in mode payment", "U24"),
    _choice(
        "price_error_status",
        (422, 400, 404, 409),
        "HTTP status of price_not_found, price_archived, product_archived, price_type_mismatch",
        "U23",
    ),
    _choice(
        "missing_idempotency_key",
        ("validation_failed", "idempotency_key_required"),
        "code of a POST without Idempotency-Key",
        "U17",
    ),
    _choice(
        "idempotency_key_text",
        ("visible_ascii", "any"),
        "an Idempotency-Key is of visible ASCII letters, without blanks; or any text that a header can carry",
        "U17",
    ),
    _choice(
        "idempotency_reuse",
        ("replay", "rerun"),
        "the same key and body repeat the stored answer (a create without its url), or run again",
        "U17",
    ),
    _choice(
        "idempotency_conflict",
        ("refuse", "run"),
        "the same key with another body: 409 idempotency_key_reused, or a new request",
        "U17",
    ),
    _number("idempotency_retention_s", 86400, 1, _YEAR_S, "seconds a key is remembered", "U17"),
    _choice(
        "not_found_answer",
        ("json", "plain", "html"),
        "404 in the error shape with code not_found, as {statusCode, message}, or as a page",
        "U18",
    ),
    _choice("cancel_answer", ("record", "empty"), "body of the two cancels: the record, or an empty object", "U18"),
    _choice(
        "limit_window",
        ("sliding", "bucket", "fixed"),
        "a limit holds for any minute; or refills continuously; or at each full minute",
        "LIM",
    ),
    _choice(
        "order_lookup",
        ("merchant_id", "either_id"),
        "GET /v1/orders/lookup takes the merchant's id only (the service's is 404), or either",
        "U18",
    ),
    _choice(
        "order_read",
        ("service_id", "either_id"),
        "GET /v1/orders/{id} takes the service's id only (the merchant's is 404), or either",
        "U18",
    ),
    _number("price_id_chars", 255, 1, 100_000, "longest price_id; the document shows no bound", "LIM"),
    _number("customer_email_chars", 320, 1, 100_000, "longest customer_email; the document shows no bound", "LIM"),
    _number("customer_reference_chars", 1000, 1, 100_000, "longest customer_reference; likewise", "LIM"),
    _number("line_item_name_chars", 1000, 1, 100_000, "longest name of a line item; likewise", "LIM"),
    _number("line_item_quantity_max", 1_000_000, 1, 10**12, "largest quantity of a line item; likewise", "LIM"),
    _number("idempotency_key_chars", 255, 1, 8_000, "longest Idempotency-Key; likewise", "LIM"),
    # Payments and sessions
    _choice("late_payment_session", ("unchanged", "completed"), "session status after a late payment", "U13"),
    _choice(
        "late_payment_newer_session",
        ("orphan", "pays_order"),
        "a late payment although a newer session exists: succeeded without order.paid, or it pays the order",
        "U13",
    ),
    _number(
        "finalize_after_s", 5, 0, 3600, "seconds from confirmed to finalized for a payer on the checkout page", "WS6"
    ),
    _number("prepared_landable_s", 90, 0, 3600, "seconds a prepared transaction could still land", "OPS4"),
    _choice("roll_with_two_valid", ("revoke_oldest", "refuse"), "rolling while two secrets are valid", "AU6"),
    # Subscriptions
    _flag(
        "auto_renew", True, "due renewals are charged by themselves; off leaves them to the control addresses", "SU-T2"
    ),
    _number("renewal_retry_s", 86400, 1, _YEAR_S, "seconds from a failed automatic renewal to its retry", "U14"),
    _choice(
        "status_after_second_failure",
        ("PAST_DUE", "UNPAID"),
        "status after the 2nd and 3rd counted failure (UNPAID is invented, to test readers)",
        "U14",
    ),
    _flag("failure_count_resets", True, "a successful retry starts the count of failures again", "U14"),
    _flag("fourth_payment_failed", True, "the 4th counted failure sends subscription.payment_failed as well", "U14"),
    _flag("ended_on_resubscribe", True, "re-subscribing sends subscription.ended for the old subscription", "U15"),
    _flag(
        "withdraw_event_when_merchant_stands",
        True,
        "subscription.cancel_withdrawn is sent although a merchant cancel stands",
        "U16",
    ),
    _choice(
        "end_reason_when_merchant_stands",
        ("MERCHANT_CANCELED", "PAYER_CANCELED"),
        "end_reason after the payer withdrew and the merchant cancel stood",
        "U16",
    ),
    _number("plan_creation_s", 0, 0, 86400, "seconds until a plan is on chain; a failing attempt takes as long", "PLC"),
)

BY_NAME: dict[str, Switch] = {switch.name: switch for switch in SWITCHES}


class Assumptions:
    """The switches with their present values."""

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        """Defaults, overridden by `values`; SandboxMisconfigured for an unknown name or a value that does not fit."""
        self._values: dict[str, Value] = {switch.name: switch.default for switch in SWITCHES}
        self.set(values or {})

    def set(self, values: Mapping[str, Any]) -> None:
        """Change some switches; all or none."""
        unknown = sorted(set(values) - set(BY_NAME))
        if unknown:
            raise SandboxMisconfigured(f"unknown assumption: {', '.join(unknown)}")
        self._values |= {name: BY_NAME[name].accept(value) for name, value in values.items()}

    def text(self, name: str) -> str:
        """The value of a choice."""
        return str(self._values[name])

    def flag(self, name: str) -> bool:
        """The value of a flag."""
        return self._values[name] is True

    def number(self, name: str) -> float:
        """The value of a number, or of a choice between numbers."""
        return float(self._values[name])

    def status(self, name: str) -> int:
        """The value of a choice between HTTP statuses."""
        return int(self._values[name])

    def values(self) -> dict[str, Value]:
        """All of them, by name."""
        return dict(self._values)

    def table(self) -> list[dict[str, Any]]:
        """What `GET /_sandbox/assumptions` answers."""
        return [
            {
                "name": switch.name,
                "value": self._values[switch.name],
                "default": switch.default,
                "values": list(switch.values) or None,
                "range": [switch.low, switch.high] if switch.kind == "number" else None,
                "text": switch.text,
                "source": switch.source,
                "status": "assumed, not documented",
            }
            for switch in SWITCHES
        ]

    def lines(self) -> list[str]:
        """One line per switch, for the start-up print."""
        return [
            f"assumed, not documented: {switch.name}={self._values[switch.name]} ({switch.text})" for switch in SWITCHES
        ]


def readme_table() -> str:
    """The table of switches as the README shows it."""
    rows = ["| switch | default | other values | assumed, not documented | source |", "|---|---|---|---|---|"]
    for switch in SWITCHES:
        others = ", ".join(f"`{value}`" for value in switch.values if value != switch.default)
        if switch.kind == "flag":
            others = f"`{str(not switch.default).lower()}`"
        elif switch.kind == "number":
            others = f"{switch.low:g} to {switch.high:g}"
        default = str(switch.default).lower() if switch.kind == "flag" else switch.default
        rows.append(f"| `{switch.name}` | `{default}` | {others} | {switch.text} | {switch.source} |")
    return "\n".join(rows)
