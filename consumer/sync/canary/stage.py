"""Canary: what the service shows as its newest events and its newest paid orders, against the ledger.

Every other alarm concludes from what our own parts say. This one asks the two ends only: money that was taken there and
is not known here is seen, whatever lies between looks fine. It costs two reads a look.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.clock import Clock
from consumer.ledger import Database
from consumer.ledger.handling import events
from consumer.ledger.handling.outcomes import QUARANTINED, delivered_only
from consumer.ledger.reading import observations, sync_state
from consumer.payments import ApiError, Cursor, Page, Priority
from consumer.sync.api import ApplicationApi, held_up_s
from consumer.sync.backfill import starting_point
from consumer.sync.backfill.bookmark import Bookmark, ListOrder
from consumer.sync.backfill.page import understand
from consumer.sync.canary.sightings import Sightings, after
from consumer.sync.chunks import chunks
from consumer.sync.loop import StageFailure, run_repeatedly
from consumer.sync.metrics import StageMetrics
from consumer.sync.observation import PAID, status_of

LOG = structlog.get_logger()

WALK: Final = "canary"
EVERY_S: Final = 120.0
PAGE: Final = 100
PAGES_AT_ONCE: Final = 5
KINDS: Final = ("event", "order")


async def load(session: AsyncSession, application: str) -> Sightings:
    """What the last look left; for `status` too."""
    return Sightings.load(await sync_state.load(session, application, WALK))


class Canary:
    """Looks every `every_s`, once the events have been walked to their end. `token`: see Backfill."""

    def __init__(
        self,
        api: ApplicationApi,
        database: Database,
        *,
        clock: Clock,
        token: Callable[[], int],
        metrics: StageMetrics,
        every_s: float = EVERY_S,
    ) -> None:
        self._application = api.application
        self._locators = api.locators
        self._resources = api.client.with_priority(Priority.RECONCILE)
        self._database = database
        self._clock = clock
        self._token = token
        self._metrics = metrics
        self._every_s = every_s
        self._has_rested = False
        self.failure = StageFailure(f"canary {api.application}")

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`; the first look comes after a rest, so that a start has other things to read."""
        await run_repeatedly(self._step, stop=stop, clock=self._clock, failure=self.failure)

    async def _step(self) -> float:
        if self._has_rested:
            await self.look()
        self._has_rested = True
        return self._every_s

    async def look(self) -> None:
        """One look. Raises PaymentsError, LedgerError, LeaseLost."""
        async with self._database.reading() as session:
            bookmark = Bookmark.load(await sync_state.load(session, self._application, starting_point.WALK))
            before = await load(session, self._application)
        if bookmark.walked_at is None:
            return
        cursors: dict[str, Cursor | None] = {}
        listed: list[str] = []
        is_there = True
        for kind, lists in (("event", self._resources.events.list), ("order", self._resources.orders.list)):
            items, cursors[kind] = await self._newest(lists, bookmark.order, before.cursors.get(kind))
            is_there = is_there and items is not None
            listed += self._names(kind, items or ())
        now = self._clock.now()
        async with self._database.transaction() as session:
            found = replace(before, cursors=cursors)
            if is_there:
                here = await self._here(session, [*before.missing, *listed])
                found = after(before, listed, here, now, cursors)
            await sync_state.keep(session, self._application, WALK, found.dump(), token=self._token(), now=now)
        self._show(found)

    async def _newest(
        self, lists: Callable[..., Any], order: ListOrder, cursor: Cursor | None
    ) -> tuple[Sequence[Any] | None, Cursor | None]:
        """The newest, and where to look for them the next time. A list that begins with its oldest is followed to its
        end, a few pages a look; None until it is there."""
        if order is not ListOrder.OLDEST_FIRST:
            head: Page[Any] = await lists(limit=PAGE)
            return head.items, None
        items: list[Any] = []
        try:
            for _ in range(PAGES_AT_ONCE):
                page: Page[Any] = await lists(limit=PAGE, cursor=cursor)
                items += page.items
                if page.next_cursor is None:
                    return items, cursor
                cursor = page.next_cursor
        except ApiError as error:
            if cursor is None or error.retryable or held_up_s(error) is not None:
                raise
            return None, None  # the cursor is not taken any more: from the beginning
        return None, cursor

    async def _here(self, session: AsyncSession, names: Sequence[str]) -> frozenset[str]:
        """Which of these the ledger has: an event handled or put aside with its reason, an order known to be paid."""
        ids = {kind: [_id(name) for name in names if name.startswith(f"{kind}:")] for kind in KINDS}
        here: set[str] = set()
        for some in chunks(ids["event"], PAGE):
            known = await events.known(session, [(self._application, one) for one in some])
            aside = await delivered_only(session, self._application, some)
            here |= {f"event:{event_id}" for _, event_id in known}
            here |= {f"event:{one}" for one, outcome in aside.items() if outcome.word == QUARANTINED}
        for some in chunks(ids["order"], PAGE):
            told = await events.told(session, self._application, [f"order:{one}" for one in some])
            states = await observations.last(session, self._application, "order", some)
            observed = {one for one, last in states.items() if status_of(last.state) == PAID}
            here |= {name for name, types in told.items() if "order.paid" in types}
            here |= {name for name, types in told.items() if "order.observed" in types and _id(name) in observed}
        return frozenset(here)

    def _show(self, found: Sightings) -> None:
        late = found.late(self._clock.now())
        orders = sum(name.startswith("order:") for name in found.missing)
        self._metrics.gauge("missing_order", self._application, orders)
        self._metrics.gauge("missing_event", self._application, len(found.missing) - orders)
        age_s = 0.0 if late is None else (self._clock.now() - late.since).total_seconds()
        self._metrics.gauge("missing_s", self._application, age_s)
        if late is not None:
            LOG.error(
                "the service shows what the ledger lacks",
                code="paid_there_but_not_here",
                application=self._application,
                orders=late.orders,
                events=late.events,
                ids=late.ids,
            )

    def _names(self, kind: str, items: Sequence[Any]) -> list[str]:
        if kind == "order":
            return [f"order:{one.order_id}" for one in items if one.is_paid and one.order_id is not None]
        listed = understand(items, self._locators, application=self._application, now=self._clock.now())
        return [f"event:{one.id}" for one in listed.events]


def _id(name: str) -> str:
    return name.partition(":")[2]
