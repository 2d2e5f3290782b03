"""Arrivals: what a batch of records says: events, each once; what is none; and where in the log they lay. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

import structlog

from consumer.broker.base import Partition, Record
from consumer.clock import AGREES
from consumer.document import storable
from consumer.errors import NotUnderstood
from consumer.events import Delivery, Event, Locators, Source
from consumer.ledger.handling.events import EventKey
from consumer.ledger.log_positions import Place
from consumer.reason import Reason
from consumer.wire import is_replay, kept_record, plan_of, unpack_event
from consumer.work.unit_of_work import Incoming

NAME_CHARS = 100
Refused = tuple[Delivery, Reason]
Stretch = Mapping[Place, tuple[int | None, int]]
"""From which offset (None: wherever) up to before which one records lead in each partition."""

_log = structlog.get_logger(__name__)


def understood(record: Record, locators_of: Mapping[str, Locators]) -> Incoming | Refused:
    """The event in a record, or why there is none. Pure."""
    application = record.key.decode("utf-8", "replace").partition("/")[0]
    locators = locators_of.get(application)
    if locators is None:
        return (as_delivery(record, application), Reason.UNKNOWN_APPLICATION)
    try:
        event = unpack_event(record.key, record.value, record.headers, locators)
    except Exception as error:  # noqa: BLE001 - anybody may have written the record; it keeps none waiting
        if not isinstance(error, NotUnderstood):
            _log.error("record_broke_its_reading", application=application, error=type(error).__name__)
        return (as_delivery(record, application), Reason.NOT_UNDERSTOOD)
    heard_at = event.received_at if event.source is Source.WEBHOOK else None
    return Incoming(event, plan_of(record.headers), heard_at)


def each_once(said: Sequence[Incoming | Refused]) -> tuple[list[Incoming], list[Refused]]:
    """The events of a batch, one for each id, and what is none. Pure."""
    arrived: dict[EventKey, Incoming] = {}
    refused: list[Refused] = []
    for one in said:
        if not isinstance(one, Incoming):
            refused.append(one)
            continue
        first = arrived.setdefault(one.id, one)
        if first is not one:
            others = () if one.event.raw == first.event.raw else (one.event,)
            arrived[one.id] = replace(
                first,
                plan=one.plan if is_replay(one.plan) else first.plan,
                heard_at=first.heard_at or one.heard_at,
                others=(*first.others, *others),
            )
    return list(arrived.values()), refused


def not_ahead(arrived: Sequence[Incoming], now: datetime) -> list[Incoming]:
    """The same, none received later than `now`: whoever received it may have a clock that is ahead, and no ledger to
    tell it so. What handlers reckon from then on would be late, or decided as of a time that has not come. Pure."""
    latest = now + AGREES
    return [
        one if one.event.received_at <= latest else replace(one, event=replace(one.event, received_at=now))
        for one in arrived
    ]


def stretch_of(records: Sequence[Record], loose: frozenset[Partition]) -> Stretch:
    """From where to where the records lead in each partition; they come in order. Pure."""
    found: dict[Place, tuple[int | None, int]] = {}
    for record in records:
        place = (record.partition.topic, record.partition.number)
        start, _ = found.get(place, (None if record.partition in loose else record.offset, 0))
        found[place] = (start, record.offset + 1)
    return found


def heard_late(arrived: Sequence[Incoming], new: Mapping[EventKey, int], now: datetime) -> dict[str, datetime]:
    """When the newest webhook of each application came whose event is not recorded as a webhook's: a walk was
    quicker, and nothing else would tell that it was heard (O1). No later than `now`: whoever received it may have a
    clock that is ahead. Pure."""
    found: dict[str, datetime] = {}
    for one in arrived:
        is_first = one.id in new and one.event.source is Source.WEBHOOK
        if one.heard_at is not None and not is_first:
            at = min(one.heard_at, now)
            found[one.event.application] = max(at, found.get(one.event.application, at))
    return found


def as_delivery(record: Record, application: str) -> Delivery:
    """A record that is not taken in, to be kept by its place in the log, with all that it takes to be sent again."""
    place = f"{record.partition.topic}/{record.partition.number}/{record.offset}"
    return Delivery(
        application=application[:64],
        id=place[-100:],
        raw=record.value,
        received_at=record.published_at,
        headers=kept_record(record.key, record.headers),
    )


def event_delivery(event: Event) -> Delivery:
    """The event as a delivery to be kept raw, by its delivery's id, or else by its own: another event never has it."""
    return Delivery(
        application=event.application,
        id=event.delivery_id or _named_by(event.id),
        raw=event.raw,
        received_at=event.received_at,
        event_id=event.id,
    )


def _named_by(event_id: str) -> str:
    """At most 100 characters, as the quarantine keeps names; what cannot be stored as it is ends in a digest."""
    name = f"event/{event_id}"
    if storable(name, NAME_CHARS) == name:
        return name
    digest = hashlib.sha256(event_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{storable(name, NAME_CHARS - 33)}/{digest}"
