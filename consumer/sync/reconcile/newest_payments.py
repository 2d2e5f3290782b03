"""NewestPayments: a payment is told as soon as the service lists it, not by the next walk. What it is the second of, or
of what nobody knows, a handler finds (cases F29, F38)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from consumer.clock import Clock
from consumer.ledger import Database
from consumer.ledger.reading import read_requests, sync_state
from consumer.payments import Priority
from consumer.sync.api import ApplicationApi
from consumer.sync.backfill.bookmark import ListOrder
from consumer.sync.backfill.ends import PAGES_AT_ONCE, Place, look
from consumer.sync.observation import Observation
from consumer.sync.reconcile.comparison import Comparison
from consumer.sync.reconcile.lists import PAGE

WALK: Final = "newest_payments"


class NewestPayments:
    """Looks at the end of the list of payments where new ones appear, one or two reads a look. `token`: see Reconcile.
    For after the first walk: what was there before is remembered by that one (case B30)."""

    def __init__(
        self,
        api: ApplicationApi,
        database: Database,
        comparison: Comparison,
        *,
        clock: Clock,
        token: Callable[[], int],
    ) -> None:
        self._application = api.application
        self._locators = api.locators
        self._payments = api.client.with_priority(Priority.RECONCILE).payments
        self._database = database
        self._comparison = comparison
        self._clock = clock
        self._token = token

    async def look(self) -> None:
        """One look. Raises PaymentsError, LedgerError, BrokerError, LeaseLost."""
        async with self._database.transaction() as session:  # the versions before the read (case A40)
            versions = await read_requests.next_version(session, PAGE * (PAGES_AT_ONCE + 1))
            before = Place.load(await sync_state.load(session, self._application, WALK) or {})
        now = self._clock.now()
        found = await look(self._payments, before, ListOrder.UNKNOWN, self._locators, now)
        shown = [one for one in (*found.old, *found.new) if one.id is not None]
        await self._comparison.tell_new(
            [
                Observation(
                    application=self._application,
                    kind="payment",
                    object_id=one.id,
                    version=versions + number,
                    read_at=now,
                    record=one.raw,
                )
                for number, one in enumerate(shown)
            ]
        )
        async with self._database.transaction() as session:
            await sync_state.keep(session, self._application, WALK, found.place.dump(), token=self._token(), now=now)
