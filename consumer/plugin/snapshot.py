"""Snapshot: the newest authenticated read of an order or a subscription that the ledger knows (case H2). Pure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from consumer.errors import NotUnderstood
from consumer.events import Event, first, parse_json, parse_time

SnapshotKind = Literal["order", "subscription"]
SNAPSHOT_KINDS: tuple[SnapshotKind, ...] = ("order", "subscription")


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What the service showed at `read_at`. It says nothing about before or after.

    `id`: the merchant's order id, or the subscription's id. `status`: the record's own word, None if it has none.
    `record`: the service's record, whole; treat it as read-only. `version`: of two reads the one with the higher
    version was asked for later (case A40). `read_at`: when it was read; a later read that showed the same does not
    change it.
    """

    application: str
    kind: SnapshotKind
    id: str
    status: str | None
    record: Mapping[str, Any]
    version: int
    read_at: datetime

    def find(self, *pointers: str) -> Any:
        """The first value at one of these JSON pointers into the record, or None."""
        return first(self.record, pointers)


SnapshotSource = Callable[[SnapshotKind, str], Awaitable[Snapshot | None]]
"""Looks one up: kind and id in, the newest read of it out."""


def subject_of(event: Event) -> tuple[SnapshotKind, str] | None:
    """The order or subscription that an event is about: its key's, else what the locators found; None for others."""
    kind, _, object_id = event.key.partition(":")
    for known in SNAPSHOT_KINDS:
        if kind == known and object_id:
            return known, object_id
    if event.order_id:
        return "order", event.order_id
    return ("subscription", event.subscription_id) if event.subscription_id else None


def observation_type(kind: SnapshotKind) -> str:
    """The type of the events that carry reads of this kind."""
    return f"{kind}.observed"


def snapshot_in(raw: bytes, *, application: str, kind: SnapshotKind, object_id: str, at: datetime) -> Snapshot | None:
    """What an observation's raw bytes hold, or None for what is not an observation; `at` stands in for its time."""
    try:
        data = parse_json(raw, tolerant=True).get("data")
    except NotUnderstood:
        return None
    if not isinstance(data, dict):
        return None
    version, record = data.get("version"), data.get("record")
    if not isinstance(version, int) or isinstance(version, bool) or not isinstance(record, dict):
        return None
    status = record.get("status")
    return Snapshot(
        application=application,
        kind=kind,
        id=object_id,
        status=status if isinstance(status, str) else None,
        record=record,
        version=version,
        read_at=parse_time(data.get("read_at")) or at,
    )
