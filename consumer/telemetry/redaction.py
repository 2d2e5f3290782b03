"""Redaction: what never reaches a log line, a span or an error page (cases I25, S9). Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

REDACTED = "[redacted]"
TEXT_MAX_CHARS = 16_384
ITEMS_MAX = 100
DEPTH_MAX = 6
WALLET_MIN_CHARS = 32
_CONTAINERS = frozenset({"body", "raw", "payload", "content", "data", "document"})
"""Names that a log line hides whole; where a body is shown they are the way to it."""

_SECRET_PARTS = ("secret", "password", "passwd", "token", "authorization", "cookie", "api_key", "apikey", "credential")
# Bodies and who the payer is: by name, because their values look like anything.
_PRIVATE_NAMES = frozenset(
    {
        "body",
        "raw",
        "payload",
        "content",
        "data",
        "document",
        "metadata",
        "email",
        "customer",
        "customer_email",
        "customer_reference",
        "line_items",
        "description",
        "webhook-signature",
        "signature",
    }
)
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"whsec_[A-Za-z0-9+/=_-]{1,512}"), f"whsec_{REDACTED}"),
    (re.compile(r"svc_sk_live_[\x21-\x2b\x2d-\x39\x3b-\x7e]{1,512}"), f"svc_sk_live_{REDACTED}"),
    (re.compile(r"\b(Basic|Bearer)\s+[A-Za-z0-9+/=._~-]{4,4096}", re.IGNORECASE), rf"\1 {REDACTED}"),
    (re.compile(r"://[^\s/@\"']{1,256}@"), f"://{REDACTED}@"),
    (re.compile(r"\$argon2[a-z]{1,2}\$[^\s\"']{1,512}"), REDACTED),
    (re.compile(r"\bcustomer:[^\s,;\"')\]}]{1,512}"), f"customer:{REDACTED}"),
    (
        re.compile(
            r"(\b(?:customer_reference|customer_email|customer|wallet|payer)['\"]?\s{0,3}[=:]\s{0,3}['\"]?)"
            r"(?!\[redacted\])[^\s,;'\")\]}=]{1,512}+(?!=)"
        ),
        rf"\1{REDACTED}",
    ),
    (re.compile(r"[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63}){1,8}"), REDACTED),
)
# A wallet's address (base58, both cases and a digit): who paid. An id of ours has an underscore before it.
_WALLET = re.compile(
    r"(?<![A-Za-z0-9_-])(?=[1-9A-HJ-NP-Za-km-z]{0,43}[a-z])(?=[1-9A-HJ-NP-Za-km-z]{0,43}[A-Z])"
    r"(?=[1-9A-HJ-NP-Za-km-z]{0,43}[1-9])[1-9A-HJ-NP-Za-km-z]{32,44}(?![A-Za-z0-9_-])"
)
_TRIGGERS = ("whsec_", "svc_sk_", "asic", "earer", "@", "argon2", "customer", "wallet", "payer", "ASIC", "EARER")


def scrub(text: str) -> str:
    """The text with every secret, e-mail address and customer reference in it masked, cut at TEXT_MAX_CHARS."""
    if len(text) > TEXT_MAX_CHARS:
        text = text[:TEXT_MAX_CHARS] + " [cut]"
    if len(text) >= WALLET_MIN_CHARS:
        text = _WALLET.sub(REDACTED, text)
    if not any(trigger in text for trigger in _TRIGGERS):
        return text
    for pattern, mask in _PATTERNS:
        text = pattern.sub(mask, text)
    return text


def is_private(name: str) -> bool:
    """Whether a field of this name is masked whatever it holds."""
    lowered = name.lower()
    return lowered in _PRIVATE_NAMES or any(part in lowered for part in _SECRET_PARTS)


def redacted(value: Any, depth: int = 0) -> Any:
    """A value fit for a log line: secrets masked, bytes as their length, nothing endless."""
    if isinstance(value, str):
        return scrub(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    if depth >= DEPTH_MAX:
        return "…"
    if isinstance(value, Mapping):
        return redacted_fields(value, depth + 1)
    if isinstance(value, list | tuple | set | frozenset):
        return [redacted(item, depth + 1) for item in list(value)[:ITEMS_MAX]]
    try:
        return scrub(str(value))
    except Exception as error:  # noqa: BLE001 - a foreign __str__ must not break the line that speaks of it
        return f"<{type(value).__name__}: {type(error).__name__}>"


def redacted_fields(fields: Mapping[Any, Any], depth: int = 0) -> dict[str, Any]:
    """The same for named fields; private names lose their value."""
    shown = {}
    for name, value in list(fields.items())[:ITEMS_MAX]:
        text = str(name)
        shown[text] = REDACTED if is_private(text) and value is not None else redacted(value, depth)
    return shown


def masked(value: Any, *, hide: bool = False) -> Any:
    """An event's body as it may be shown and kept as a fixture: the same JSON with personal values and secrets masked;
    ids, amounts, times, statuses stay. `hide`: all of it."""
    if isinstance(value, Mapping):
        return {name: masked(item, hide=hide or _is_personal(name)) for name, item in value.items()}
    if isinstance(value, list):
        return [masked(item, hide=hide) for item in value]
    if isinstance(value, str):
        return REDACTED if hide else scrub(value)
    return value


def _is_personal(name: str) -> bool:
    return name.lower() not in _CONTAINERS and is_private(name)
