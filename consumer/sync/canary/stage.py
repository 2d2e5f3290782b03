"""Canary: what the service shows as its newest events and its newest paid orders, against the ledger.

Every other alarm concludes from what our own parts say. This one asks the two ends only: money that was taken there and
is not known here is seen, whatever lies between looks fine. So it pages by `ends` and not by a walk of the events: what
a walk overlooks is to be seen here, and is brought. It costs two reads a look, one more for a list whose order cannot
be told, and one for each event that is late. The looks come first: an alarm that waits for a budget which
others exhaust is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.ledger.handling import events
from consumer.ledger.handling.outcomes import QUARANTINED, delivered_only
from consumer.ledger.reading import observations
from consumer.ledger.reading.observation import PAID, status_of
from consumer.lists.bookmark import Bookmark, ListOrder, Place
from consumer.lists.ends import look
from consumer.payments import PaymentsError, Priority, UnexpectedAnswer
from consumer.runtime.loop import Stage
from consumer.sync.application import Application
from consumer.sync.backfill.cutover import FirstWalk
from consumer.sync.backfill.page import understand
from consumer.sync.canary.late_events import LateEvents
from consumer.sync.canary.sightings import LATE, MISSING, ORDER, SHOWN, Shown, Sightings, after, id_of
from consumer.sync.settlement import Settlement
from consumer.telemetry.logs import Condition

LOG = structlog.get_logger()

EVERY_S: Final = 25.0
"""What is missing at two looks in a row is told, so within a minute of its payment."""
BLIND_AFTER: Final = timedelta(hours=1)
KINDS: Final = ("event", "order")


class Canary(Stage):
    """Looks every `every_s`. A start that knows of something missing looks at once. So does one that never looked at a
    list: what stands there without a time is history. Otherwise the first look waits: a start has other things to read.
    What was history when the `first_walk` began stays history. Events that are late are brought by `settlement`.
    """

    def __init__(
        self, app: Application, settlement: Settlement, *, first_walk: FirstWalk, every_s: float = EVERY_S
    ) -> None:
        super().__init__(f"canary {app.name}", app.clock)
        self._app = app
        self._resources = app.client.with_priority(Priority.CONFIRM)
        self._every_s = every_s
        self._first_walk = first_walk
        self._late_events = LateEvents(app, settlement)
        self._began_at: datetime | None = None
        self._late = Condition("missing_here", level="error", monotonic=app.clock.monotonic, application=app.name)
        self._has_run = False

    async def _step(self) -> float:
        if self._has_run or await self._is_urgent():
            await self.look()
        self._has_run = True
        return self._every_s

    async def _is_urgent(self) -> bool:
        before = await self._app.kept(Sightings)
        self._show_places(before)
        return bool(before.missing) or before.looked_at is None

    async def look(self) -> None:
        """One look. One list that cannot be read does not keep the other from being compared. Raises PaymentsError,
        also where the newest of a list were not reached for an hour, LedgerError, LeaseLost."""
        bookmark = await self._app.kept(Bookmark)
        before = await self._app.kept(Sightings)
        now = self._app.clock.now()
        floor = await self._first_walk.floor() or self._app.service_time() - self._first_walk.history
        shown, places = Shown(), dict(before.places)
        failures: list[PaymentsError] = []
        orders = {"event": bookmark.order, "order": ListOrder.UNKNOWN}
        for kind, lister in (("event", self._resources.events), ("order", self._resources.orders)):
            try:
                found = await look(lister, places.get(kind, Place()), orders[kind], self._app.locators, now)
            except PaymentsError as error:
                failures.append(error)
                continue
            places[kind] = found.place
            for items, is_first in ((found.old, True), (found.new, False)):
                for name, at in self._named(kind, items):
                    shown.add(name, at, floor=floor, is_first=is_first)
        if len(failures) == len(orders):
            raise failures[0]
        kept = await self._keep(replace(before, places=places), shown, expects=bookmark.walked_at is not None)
        await self._late_events.bring(kept.late_events)
        if failures:
            raise failures[0]
        self._check_sight(places, now)

    async def _keep(self, before: Sightings, shown: Shown, *, expects: bool) -> Sightings:
        now = self._app.clock.now()
        async with self._app.database.transaction() as session:
            here = await self._here(session, shown, before)
            found = after(before, shown, here, now, expects=expects)
            await self._app.keep(session, found)
        if dropped := [id_of(name) for name in before.missing if name not in found.missing and name not in here]:
            LOG.error(
                "missing_here_given_up", application=self._app.name, count=len(dropped),
                ids=dropped[:SHOWN],
            )  # fmt: skip
        self._show(found)
        return found

    def _check_sight(self, places: Mapping[str, Place], now: datetime) -> None:
        """Raises UnexpectedAnswer for a list whose newest were not reached for too long: what is missing there is not
        seen."""
        self._began_at = self._began_at or now
        for kind, place in places.items():
            if now - max(place.seen_at or self._began_at, self._began_at) >= BLIND_AFTER:
                raise UnexpectedAnswer("the newest of a list are not reached", list=f"{kind}s")

    async def _here(self, session: AsyncSession, shown: Shown, before: Sightings) -> frozenset[str]:
        """Which of these the ledger has: an event handled or put aside with its reason, an order known to be paid. So
        is one that reconcile had long seen paid when it was shown first: that is history (case B30), which a list in
        the order of changes shows again."""
        names = list(dict.fromkeys((*before.missing, *before.history, *shown.names)))
        ids = {kind: [id_of(name) for name in names if name.startswith(f"{kind}:")] for kind in KINDS}
        known = await events.known(session, [(self._app.name, one) for one in ids["event"]])
        aside = await delivered_only(session, self._app.name, ids["event"])
        here = {f"event:{event_id}" for _, event_id in known}
        here |= {f"event:{one}" for one, outcome in aside.items() if outcome.word == QUARANTINED}
        told = await events.told(session, self._app.name, [f"order:{one}" for one in ids["order"]])
        states = await observations.last(session, self._app.name, "order", ids["order"])
        observed = {one for one, last in states.items() if status_of(last.state) == PAID}
        if before.looked_at is not None:
            old = [one for one in observed if states[one].read_at < before.looked_at - LATE]
            here |= {name for one in old if (name := f"order:{one}") not in before.missing and name not in told}
        here |= {name for name, types in told.items() if "order.paid" in types}
        here |= {name for name, types in told.items() if "order.observed" in types and id_of(name) in observed}
        return frozenset(here)

    def _show(self, found: Sightings) -> None:
        missed = found.missed()
        orders = sum(name.startswith(ORDER) for name in found.missing)
        self._app.metrics.missing_here.labels(self._app.name, "order").set(orders)
        self._app.metrics.missing_here.labels(self._app.name, "event").set(len(found.missing) - orders)
        age_s = 0.0 if missed is None else missed.age_s
        self._app.metrics.missing_here_seconds.labels(self._app.name).set(age_s)
        self._show_places(found)
        if missed is None or not missed.is_late:
            self._late.over()
        else:
            self._late.lasts(MISSING, orders=missed.orders, events=missed.events, ids=missed.ids)

    def _show_places(self, found: Sightings) -> None:
        """When the newest of each list were looked at, by whoever looked."""
        for listed, place in found.places.items():
            if place.seen_at is not None:
                self._app.metrics.last_seen.labels(self._app.name, listed).set(place.seen_at.timestamp())

    def _named(self, kind: str, items: Sequence[Any]) -> list[tuple[str, datetime | None]]:
        """Each by its name, with when it happened. An order's times say nothing of when it was paid."""
        if kind == "order":
            return [(f"order:{one.order_id}", None) for one in items if one.is_paid and one.order_id is not None]
        listed = understand(items, self._app)
        return [(f"event:{one.id}", one.occurred_at) for one in listed.events]
