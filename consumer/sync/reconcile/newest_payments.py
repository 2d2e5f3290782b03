"""NewestPayments: a payment is told a little after the service lists it, not by the next walk. What it is the second
of, or of what nobody knows, a handler finds (cases F29, F38).

A little after: its `order.paid` is on its way, and until that is here every payment looks like money of no order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from consumer.ledger.reading.observation import Observation
from consumer.ledger.reading.sync_state import KeptState
from consumer.lists.bookmark import ListOrder, Place
from consumer.lists.ends import PAGES_AT_ONCE, look
from consumer.payments import Payment, Priority
from consumer.sync.application import Application
from consumer.sync.reconcile.comparison import Comparison
from consumer.sync.reconcile.lists import PAGE

WALK: Final = "newest_payments"
SETTLED: Final = timedelta(seconds=90)
HELD_MAX: Final = 200


@dataclass(frozen=True, kw_only=True)
class Held(KeptState, walk=WALK):
    """Payments that were seen and not told yet, by id: since when with their status, and as they were shown last. At
    most HELD_MAX: where customers pay faster, the next walk tells the others. `place`: how far the list is known."""

    place: Place = field(default_factory=Place)
    since: Mapping[str, datetime] = field(default_factory=dict)
    records: Mapping[str, dict[str, Any]] = field(default_factory=dict)

    def due(self, now: datetime) -> list[str]:
        """The ids to be told now."""
        return [one for one, since in self.since.items() if now - since >= SETTLED]

    def without(self, told: Sequence[str]) -> Held:
        """What is left."""
        left = {one: since for one, since in self.since.items() if one not in told}
        return Held(place=self.place, since=left, records={one: self.records[one] for one in left})

    def seen(self, place: Place, shown: Mapping[str, dict[str, Any]], news: Sequence[str], now: datetime) -> Held:
        """After a look that showed these, `news` of which were never told so."""
        records = {one: shown.get(one) or self.records[one] for one in dict.fromkeys((*self.since, *news))}
        since = {
            one: self.since[one]
            if one in self.since and record.get("status") == self.records[one].get("status")
            else now
            for one, record in list(records.items())[:HELD_MAX]
        }
        return Held(place=place, since=since, records={one: records[one] for one in since})


class NewestPayments:
    """Looks at the end of the list of payments where new ones appear, one or two reads a look. For after the first
    walk: what was there before is remembered by that one (case B30)."""

    def __init__(self, app: Application, comparison: Comparison) -> None:
        self._app = app
        self._payments = app.client.with_priority(Priority.RECONCILE).payments
        self._comparison = comparison

    async def look(self) -> None:
        """One look. Raises PaymentsError, LedgerError, BrokerError, LeaseLost."""
        versions = await self._app.versions(PAGE * (PAGES_AT_ONCE + 1) + HELD_MAX)
        before = await self._app.kept(Held)
        now = self._app.clock.now()
        found = await look(self._payments, before.place, ListOrder.UNKNOWN, self._app.locators, now)
        shown = _by_id((*found.old, *found.new))
        news = await self._comparison.unobserved(self._observations(shown, versions))
        held = before.seen(found.place, shown, [one.object_id for one in news], now)
        due = held.due(now)
        await self._comparison.tell(self._observations({one: held.records[one] for one in due}, versions))
        async with self._app.database.transaction() as session:
            await self._app.keep(session, held.without(due))

    def _observations(self, records: Mapping[str, dict[str, Any]], versions: int) -> list[Observation]:
        return [
            self._app.observation("payment", payment_id, versions + number, record)
            for number, (payment_id, record) in enumerate(records.items())
        ]


def _by_id(shown: Sequence[Payment]) -> dict[str, dict[str, Any]]:
    return {one.id: one.raw for one in shown if one.id is not None}
