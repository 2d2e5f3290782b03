"""Service: what the service shows of orders, payments and subscriptions: as it was observed last, or read now."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final, Protocol

from consumer.events import Event
from consumer.ledger import Database
from consumer.ledger.handling import events
from consumer.ledger.reading import observations
from consumer.ledger.reading.observation import ObjectKind, Observation, observation_id, status_of
from consumer.ledger.reading.observations import Observed

if TYPE_CHECKING:
    from consumer.sync.reconcile.lists import ServiceLists

PAGE: Final = 200


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One object as it was read, `read_at` then. `event` holds its record; None: not kept, or not shown. `observed`:
    what was published of it last; `is_recorded`: the ledger has that observation as an event."""

    object_id: str
    status: str
    read_at: datetime
    event: Event | None
    observed: Observed | None
    is_recorded: bool

    @property
    def is_told(self) -> bool:
        """Whether the ledger has an event of the object in this status: reading it again says nothing new."""
        return self.is_recorded and self.observed is not None and status_of(self.observed.state) == self.status


class Service(Protocol):
    """Both ways of knowing it."""

    def pages(self, application: str, kind: ObjectKind) -> AsyncIterator[Sequence[Seen]]:
        """All objects of a kind, page by page."""


class LastObservations:
    """As it was observed last: whatever the stages have read up to now."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def pages(self, application: str, kind: ObjectKind) -> AsyncIterator[Sequence[Seen]]:
        """All objects of a kind, page by page. Raises LedgerError."""
        after = ""
        while True:
            async with self._database.reading() as session:
                found = await observations.after(session, application, kind, after, PAGE)
                records = await _recorded(self._database, application, kind, found)
            if not found:
                return
            yield [
                Seen(
                    object_id=one.object_id,
                    status=status_of(one.state),
                    read_at=one.read_at,
                    event=records.get(one.object_id),
                    observed=one,
                    is_recorded=one.object_id in records,
                )
                for one in found
            ]
            after = found[-1].object_id


class FreshWalk:
    """As it is now: a walk of the service's own lists, which writes nothing."""

    def __init__(self, database: Database, lists: Mapping[str, ServiceLists]) -> None:
        self._database = database
        self._lists = lists

    async def pages(self, application: str, kind: ObjectKind) -> AsyncIterator[Sequence[Seen]]:
        """All objects of a kind, page by page. Raises PaymentsError, LedgerError."""
        async for page in self._lists[application].pages(kind):
            placed = [one for one in page if isinstance(one, Observation)]
            async with self._database.reading() as session:
                last = await observations.last(session, application, kind, [one.object_id for one in placed])
            records = await _recorded(self._database, application, kind, list(last.values()))
            yield [
                Seen(
                    object_id=one.object_id,
                    status=one.status,
                    read_at=one.read_at,
                    event=one.event(),
                    observed=last.get(one.object_id),
                    is_recorded=one.object_id in records,
                )
                for one in placed
            ]


async def _recorded(
    database: Database, application: str, kind: ObjectKind, found: Sequence[Observed]
) -> Mapping[str, Event]:
    """Object id to the event of its last observation, if the ledger has it."""
    ids = {observation_id(application, kind, one.object_id, one.version): one.object_id for one in found}
    async with database.reading() as session:
        kept = await events.load(session, [(application, one) for one in ids])
    return {ids[event_id]: event for (_, event_id), event in kept.items()}
