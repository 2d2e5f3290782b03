"""Derived: a row of the outbox as the event that it is: for the log, and for who takes it where it was emitted."""

from __future__ import annotations

from typing import Any

import orjson
from sqlalchemy import Row

from consumer.events import Event, Source
from consumer.wire import own_event


def derived_event(row: Row[Any]) -> Event:
    """The event, the same wherever it is made: its body byte for byte."""
    return own_event(
        application=row.application,
        id=row.event_id,
        type=row.type,
        key=row.key,
        source=Source.RELAY,
        at=row.created_at,
        data=orjson.Fragment(row.data),
        traceparent=row.traceparent,
    )
