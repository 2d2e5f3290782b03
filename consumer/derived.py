"""What a handler asks for while it runs: derived events, reads, notes for the audit trail; and stable ids. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

ReadKind = Literal["order", "service_order", "session", "subscription"]
READ_KINDS = ("order", "service_order", "session", "subscription")


@dataclass(frozen=True, kw_only=True)
class Emission:
    """A derived event that a transactional handler asked for."""

    id: str
    type: str
    key: str
    data: Mapping[str, Any]
    not_before: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class ReadRequest:
    """A read that a handler asked for; coalesced per object. `kind` as in `Context.request_read`."""

    kind: ReadKind
    object_id: str
    not_before: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class AuditNote:
    """A change of state that a transactional handler made, for the audit trail (case G12)."""

    subject: str
    action: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]


def idempotency_key(application: str, event_id: str, handler: str) -> str:
    """The stable key of a run: the same for every attempt and every replay (case F30)."""
    return "ik_" + hashlib.sha256(f"{application}\0{event_id}\0{handler}".encode()).hexdigest()[:40]


def derived_id(application: str, event_type: str, key: str, once: str) -> str:
    """The id of a derived event: deterministic, so it is as idempotent as an `evt_`."""
    return "drv_" + hashlib.sha256(f"{application}\0{event_type}\0{key}\0{once}".encode()).hexdigest()[:40]
