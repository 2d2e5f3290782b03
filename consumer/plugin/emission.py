"""What a handler asks for while it runs: derived events, reads, notes for the audit trail; and stable ids. Pure."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import orjson

from consumer.document import storable

ReadKind = Literal["order", "service_order", "session", "subscription"]
READ_KINDS = ("order", "service_order", "session", "subscription")
DATA_MAX_BYTES = 256 * 1024
# What the ledger's columns hold; PostgreSQL refuses more, and a NUL, and SQLite's driver refuses half a character.
TYPE_MAX_CHARS, KEY_MAX_CHARS, OBJECT_MAX_CHARS, ACTION_MAX_CHARS = 100, 600, 255, 60

_FLAT = (str, int, float, type(None), datetime)
_EMITTED = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)+\Z")


@dataclass(frozen=True, kw_only=True)
class Emission:
    """A derived event that a transactional handler asked for; `is_history` as in `Context.emit`."""

    id: str
    type: str
    key: str
    data: Mapping[str, Any]
    not_before: datetime | None = None
    is_history: bool | None = None

    def is_later(self, now: datetime) -> bool:
        """Whether it is held back."""
        return self.not_before is not None and self.not_before > now


@dataclass(frozen=True, kw_only=True)
class ReadRequest:
    """A read that a handler asked for; coalesced per object. `kind` as in `Context.request_read`. `traceparent`: that
    of the event it was asked for, which the worker adds."""

    kind: ReadKind
    object_id: str
    not_before: datetime | None = None
    traceparent: str | None = None


@dataclass(frozen=True, kw_only=True)
class AuditNote:
    """A change of state that a transactional handler made, for the audit trail (case G12)."""

    subject: str
    action: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]


def idempotency_key(application: str, event_id: str, handler: str, renewed_by: str | None = None) -> str:
    """The stable key of a run: the same for every attempt and every replay (case F30). Only a replay plan that says so
    renews it, once and for all: `renewed_by` is that plan (case R5)."""
    named = f"{application}\0{event_id}\0{handler}" + (f"\0{renewed_by}" if renewed_by else "")
    return "ik_" + hashlib.sha256(named.encode()).hexdigest()[:40]


def derived_id(application: str, event_type: str, key: str, once: str) -> str:
    """The id of a derived event: deterministic, so it is as idempotent as an `evt_`."""
    return "drv_" + hashlib.sha256(f"{application}\0{event_type}\0{key}\0{once}".encode()).hexdigest()[:40]


def kept(data: Mapping[str, Any]) -> dict[str, Any]:
    """What was found to be JSON, as it is now: lists and objects in it are copies. A handler that goes on to fill them
    changes nothing that it asked for. Raises TypeError, ValueError for what JSON cannot hold."""
    return {
        name: value if isinstance(value, _FLAT) else orjson.loads(orjson.dumps(value)) for name, value in data.items()
    }


# What a handler asks for is stored together with what others did, so what cannot be stored has to be its own failure:
# each of these says what is wrong, or None.


def wrong_emission(event_type: object, key: object, data: Mapping[str, Any], not_before: object) -> str | None:
    """What is wrong with a derived event."""
    if not isinstance(event_type, str) or len(event_type) > TYPE_MAX_CHARS or not _EMITTED.match(event_type):
        return f"emit needs a dotted type of at most {TYPE_MAX_CHARS} characters, and a key"
    if not _is_storable(key, KEY_MAX_CHARS):
        return f"emit needs a dotted type, and a key of at most {KEY_MAX_CHARS} characters, without NUL"
    return _wrong_json("emitted data", data) or _wrong_time(not_before)


def wrong_read(kind: object, object_id: object, not_before: object) -> str | None:
    """What is wrong with a request for a read."""
    if kind not in READ_KINDS or not _is_storable(object_id, OBJECT_MAX_CHARS):
        return f"request_read takes one of {READ_KINDS} and an id of at most {OBJECT_MAX_CHARS} characters"
    return _wrong_time(not_before)


def wrong_note(subject: object, action: object, *states: Mapping[str, Any]) -> str | None:
    """What is wrong with a note for the audit trail."""
    if not _is_storable(subject, KEY_MAX_CHARS) or not _is_storable(action, ACTION_MAX_CHARS):
        return f"note takes a subject of at most {KEY_MAX_CHARS} characters, an action of at most {ACTION_MAX_CHARS}"
    return next((wrong for state in states if (wrong := _wrong_json("a note's state", state))), None)


def _is_storable(text: object, most: int) -> bool:
    return isinstance(text, str) and text != "" and storable(text, most) == text


def _wrong_json(what: str, data: Mapping[str, Any]) -> str | None:
    try:
        packed = orjson.dumps(dict(data))
    except (TypeError, ValueError) as error:
        return f"{what} must be what JSON can hold: {error}"
    if len(packed) > DATA_MAX_BYTES:
        return f"{what} is over {DATA_MAX_BYTES} bytes"
    if b"null" in packed and not _is_finite(dict(data)):
        return f"{what} must be what JSON can hold: nan and infinity are no numbers there"
    return None


def _is_finite(value: Any) -> bool:
    """Whether all numbers are some: orjson makes null of the others."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    return all(map(_is_finite, value)) if isinstance(value, list | tuple) else True


def _wrong_time(at: object) -> str | None:
    if at is None:
        return None
    if not isinstance(at, datetime) or at.tzinfo is None:
        return "not_before must be a time with a zone"
    try:
        at.astimezone(UTC)
    except OverflowError:
        return "not_before is at no time in UTC"
    return None
