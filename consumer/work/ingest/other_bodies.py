"""Other bodies: signed webhooks whose event is recorded with another body (case I16)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.events import Delivery, Event, Trust
from consumer.ledger.archiving import bodies
from consumer.ledger.handling import events
from consumer.ledger.handling.events import EventKey
from consumer.reason import Reason
from consumer.telemetry.way import on_the_way_of
from consumer.work.ingest.arrivals import event_delivery
from consumer.work.unit_of_work import Incoming

_log = structlog.get_logger(__name__)


async def other_bodies(
    session: AsyncSession, arrived: Sequence[Incoming], new: Mapping[EventKey, int]
) -> list[tuple[Delivery, Reason]]:
    """Signed webhooks whose event is recorded with another body: kept beside it, once each (case I16). A body that
    was read tells more or less than a webhook's: there, only what both state is compared."""
    again = [event for one in arrived for event in (*one.others, *(() if one.id in new else (one.event,)))]
    again = [event for event in again if event.trust is Trust.SIGNED]
    if not again:
        return []
    names = [(one.application, one.id) for one in again]
    known = await events.load(session, names)
    hashes = await bodies.digests(session, names)
    others = []
    for event in again:
        first = known.get((event.application, event.id))
        if first is not None and contradicts(event, first, hashes.get((event.application, event.id))):
            others.append((_other_body(event), Reason.OTHER_BODY))
    return others


def contradicts(event: Event, first: Event, sha256: str | None) -> bool:
    """`sha256`: of the first's body, which may lie in an archive. Pure."""
    if first.trust is Trust.SIGNED:
        return bodies.digest(event.raw) != sha256
    if event.type not in (first.type, "unknown.type"):
        return True
    names = ("order_id", "subscription_id", "object_id")
    stated = [(getattr(event, name), getattr(first, name)) for name in names]
    return any(None not in pair and pair[0] != pair[1] for pair in stated)


def _other_body(event: Event) -> Delivery:
    """The same body is kept once, however often it comes."""
    with on_the_way_of(event):
        _log.warning("other_body_of_a_known_event", application=event.application)
    return replace(event_delivery(event), id="other:" + hashlib.sha256(event.raw).hexdigest()[:40])
