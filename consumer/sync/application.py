"""Application: what all that reads one application works with: its API, the ledger, a clock, the lead, and what is
counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy.ext.asyncio import AsyncSession

from consumer.clock import Clock, SharedClock
from consumer.errors import LeaseLost
from consumer.events import Locators
from consumer.ledger import Database
from consumer.ledger.reading import read_requests
from consumer.ledger.reading.observation import ObjectKind, Observation
from consumer.ledger.reading.sync_state import KeptState
from consumer.lists.bookmark import SERVICE_SKEW
from consumer.payments import PaymentsClient
from consumer.sync.api import ApplicationApi
from consumer.telemetry.metrics import Metrics

S = TypeVar("S", bound=KeptState)


def _no_lead() -> int:
    raise LeaseLost("who only looks needs no lead")


@dataclass(frozen=True, kw_only=True)
class Application:
    """One application. `token` gives the leader's fencing token, and raises LeaseLost where this process does not
    lead: always, unless it is given."""

    api: ApplicationApi
    database: Database
    clock: Clock
    token: Callable[[], int] = _no_lead
    metrics: Metrics = field(default_factory=Metrics)

    @property
    def name(self) -> str:
        """As the settings call it."""
        return self.api.application

    @property
    def client(self) -> PaymentsClient:
        """Its API."""
        return self.api.client

    @property
    def locators(self) -> Locators:
        """Where facts lie in its bodies."""
        return self.api.locators

    def observation(
        self,
        kind: ObjectKind,
        object_id: str,
        version: int,
        record: Mapping[str, Any],
        traceparent: str | None = None,
    ) -> Observation:
        """A record of its that was read just now, maybe because what is of this trace asked for it."""
        return Observation(
            application=self.name,
            kind=kind,
            object_id=object_id,
            version=version,
            read_at=self.clock.now(),
            record=record,
            traceparent=traceparent,
        )

    def service_time(self) -> datetime:
        """What time it is, by our clock or by the service's, as its last answer told it: the later of the two. Events
        bear the service's time, so what is history must not be reckoned by a clock of ours that is behind. Where time
        is driven, that alone counts."""
        now, told = self.clock.now(), self.client.service_clock
        if told is None or not isinstance(self.clock, SharedClock):
            return now
        theirs, ours = told
        return now + (theirs - ours) if theirs - ours > SERVICE_SKEW else now

    async def versions(self, count: int = 1) -> int:
        """The first of so many versions for what is read next: taken before the request leaves (case A40)."""
        async with self.database.transaction() as session:
            return await read_requests.next_version(session, count)

    def walked(self, at: datetime) -> None:
        """Its events were walked to the end at that time: how long ago that is, is shown from now on."""
        age = self.metrics.bookmark_seconds.labels(self.name)
        age.set_function(lambda: max(0.0, (self.clock.now() - at).total_seconds()))

    async def kept(self, kind: type[S]) -> S:
        """What the ledger keeps of it; a fresh one where it keeps nothing. Raises LedgerError."""
        async with self.database.reading() as session:
            return await kind.of(session, self.name)

    async def keep(self, session: AsyncSession, state: KeptState) -> None:
        """Keep that, as the leader. Raises LedgerError, LeaseLost."""
        await state.keep(session, self.name, token=self.token(), now=self.clock.now())
