"""Arrival: the delivery of a test event, told from the other deliveries that come meanwhile (cases U8, U18, F24)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncSession

from consumer.errors import NotUnderstood
from consumer.events import Source, first, parse_json, says_test
from consumer.ledger import Database
from consumer.ledger.handling import events as ledger_events
from consumer.ledger.handling.events import EventFilter
from consumer.ledger.reading import heard, hints, quarantine, samples
from consumer.sync.api import ApplicationApi
from consumer.sync.backfill.page import LISTED

NEWEST: Final = 200
HOST_SKEW: Final = timedelta(seconds=5)
"""How far the clocks of our own machines may be from each other."""
QUARANTINED: Final = "in quarantine"
WAITS: Final = "waits to be confirmed"
RECORDED: Final = "recorded as an event"


class AwaitedTestEvent:
    """Looks where the test event is that the service was asked for at `since`; `event_id` when its answer named one.

    Only what was delivered has arrived: an event that a walk or a read found, or that a handler derived, proves nothing
    of webhooks. `other`: where a delivery lies that came meanwhile and may or may not be the test event.
    `is_listed`: a walk found it.
    """

    def __init__(self, api: ApplicationApi, database: Database, event_id: str | None, since: datetime) -> None:
        self._application = api.application
        self._locators = api.locators
        self._database = database
        self._event_id = event_id
        self._since = since
        self._seen: set[tuple[str, str]] = set()
        self.other: str | None = None
        self.is_listed = False

    async def look(self) -> str | None:
        """Where the test event lies; None when it is nowhere, or cannot be told from others. Raises LedgerError."""
        async with self._database.reading() as session:
            place = None if self._event_id is None else await self._named(session, self._event_id)
            if place is not None:
                return place
            for place, raw in await self._deliveries(session):
                says_so = is_test(raw, self._locators.type)
                if says_so and self._event_id is None:
                    return place
                # Where an id was named, a test event of another id may be it: the answer's fields are not documented.
                if says_so or self._event_id is None:
                    self.other = self.other or place
        return None

    async def _named(self, session: AsyncSession, event_id: str) -> str | None:
        kept = await quarantine.newest(session, application=self._application, event_id=event_id)
        if any(not row.delivery_id.startswith(LISTED) for row in kept):
            return QUARANTINED
        if await hints.ids_of(session, self._application, [event_id]):
            return WAITS
        found = await ledger_events.load(session, [(self._application, event_id)])
        if any(event.source is Source.WEBHOOK for event in found.values()):
            return RECORDED
        if found:
            self.is_listed = True
            heard_at = await heard.last(session, self._application)
            if heard_at is not None and heard_at >= self._since:
                self.other = RECORDED
        return None

    async def _deliveries(self, session: AsyncSession) -> Iterator[tuple[str, bytes]]:
        """Those received since then that were not looked at before: their place and their body."""
        kept = await samples.quarantined(session, self._application, NEWEST)
        waiting = await samples.waiting(session, self._application, NEWEST)
        since = self._since - HOST_SKEW
        wanted = EventFilter(application=self._application, since=since, limit=NEWEST)
        recorded = (await ledger_events.search(session, wanted)).rows
        places = [(QUARANTINED, one.delivery_id, one.body, one.received_at) for one in kept]
        places += [(WAITS, one.delivery_id, one.body, one.received_at) for one in waiting]
        places += [(RECORDED, row.id, row.raw, row.received_at) for row in recorded if row.source == Source.WEBHOOK]
        found = []
        for place, name, raw, received_at in places:
            if received_at >= since and not name.startswith(LISTED) and (place, name) not in self._seen:
                self._seen.add((place, name))
                found.append((place, raw))
        return iter(found)


def is_test(raw: bytes, type_pointers: tuple[str, ...]) -> bool:
    """Whether this body says by itself that it is a test event: by a type of its own, or a mark. One that looks like
    any other event says nothing."""
    try:
        body: Any = parse_json(raw)
    except NotUnderstood:
        return False
    kind = first(body, type_pointers)
    return says_test(body, kind if isinstance(kind, str) else "")
