"""Masking: an event's body as it may be shown and kept as a fixture: all its shape, not who the payer is. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from consumer.telemetry.redaction import REDACTED, is_private, scrub

_CONTAINERS = frozenset({"body", "raw", "payload", "content", "data", "document"})
"""Names that a log line hides whole; here they are the way to what is shown."""


def masked(value: Any, *, hide: bool = False) -> Any:
    """The same JSON with personal values and secrets masked; ids, amounts, times, statuses stay. `hide`: all of it."""
    if isinstance(value, Mapping):
        return {name: masked(item, hide=hide or _is_personal(name)) for name, item in value.items()}
    if isinstance(value, list):
        return [masked(item, hide=hide) for item in value]
    if isinstance(value, str):
        return REDACTED if hide else scrub(value)
    return value


def _is_personal(name: str) -> bool:
    return name.lower() not in _CONTAINERS and is_private(name)
