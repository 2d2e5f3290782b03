"""Comparison: the service's lists against what was observed last; what differs is published, or braked (case B31)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from sqlalchemy.ext.asyncio import AsyncSession

from consumer.ledger.engine.chunks import portions
from consumer.ledger.handling import events
from consumer.ledger.reading import observations, read_requests
from consumer.ledger.reading.observation import ENDED, ObjectKind, Observation, observation_id, status_of
from consumer.ledger.reading.observations import Observed
from consumer.payments import PaymentsError
from consumer.plugin import ReadRequest
from consumer.sync.application import Application
from consumer.sync.publisher import EventPublisher
from consumer.sync.reconcile.drift import Drift, DriftReport, Told, compare, weighs
from consumer.sync.reconcile.lists import PAGE, ServiceLists, Unplaced
from consumer.sync.reconcile.policy import ReconcilePolicy, Terms
from consumer.sync.refresh.odd_records import OddRecords

WEIGHED: Final[tuple[ObjectKind, ...]] = ("subscription", "order")
ABSENT_MAX: Final = 1000


@dataclass(frozen=True, kw_only=True)
class Sorted:
    """What is done about the records of a page: published `at_once`; `changes` that a brake may hold back; history,
    only `remembered`. Of the others nothing is published."""

    at_once: list[Observation] = field(default_factory=list)
    changes: list[Observation] = field(default_factory=list)
    remembered: list[Observation] = field(default_factory=list)


class Comparison:
    """Walks the lists of one application and publishes what differs."""

    def __init__(self, app: Application, publisher: EventPublisher, policy: ReconcilePolicy) -> None:
        self._app = app
        self._lists = ServiceLists(app)
        self._publisher = publisher
        self._policy = policy
        self._odd = OddRecords()

    async def weigh(self, report: DriftReport, terms: Terms) -> DriftReport:
        """Walk the lists whose changes weigh, and make those changes unless they are too many (case B31). Returns what
        was found.

        More than may wait in memory are counted by one pass and, if they are within the limit, published by another.
        What another writer adds between the two does not lift the limit: the second pass stops there, braked.
        """
        held: list[Observation] | None = []
        if not report.dry_run and (terms.max_changes or 0) > self._policy.held_back_max:
            held, counted = None, DriftReport(application=self._app.name, dry_run=True)
            for kind in WEIGHED:
                await self.walk(kind, counted, terms)
            if self._is_too_much(counted, terms):
                return replace(counted, dry_run=False, braked=True)
        for kind in WEIGHED:
            before = len(held or ())
            try:
                await self.walk(kind, report, terms, held)
            except PaymentsError:
                # One list that cannot be read keeps nobody from healing by the one before, but for who set a limit.
                if held and terms.max_changes is None:
                    await self._decide(held[:before], report, terms)
                raise
        await self._decide(held or (), report, terms)
        return report

    async def _decide(self, held: Sequence[Observation], report: DriftReport, terms: Terms) -> None:
        report.braked = self._is_too_much(report, terms)
        if not report.braked:
            await self._make(held, report)

    def _is_too_much(self, report: DriftReport, terms: Terms) -> bool:
        if terms.max_changes is not None or self._is_beyond(report, terms):
            return self._is_beyond(report, terms)
        least, share = self._policy.brake_min, self._policy.brake_share
        return any(report.changes[kind] > max(least, int(report.listed[kind] * share)) for kind in WEIGHED)

    def _is_beyond(self, report: DriftReport, terms: Terms) -> bool:
        """Whether it is too much whatever else is listed."""
        at_most = self._policy.held_back_max if terms.max_changes is None else terms.max_changes
        return report.changes.total() > at_most

    async def walk(
        self, kind: ObjectKind, report: DriftReport, terms: Terms, held: list[Observation] | None = None
    ) -> None:
        """Compare a whole list, also when it is too much already: how much is told, and what does not weigh is
        published. What weighs is added to `held`; without it, it is made page by page up to the limit."""
        async with aclosing(self._lists.pages(kind)) as pages:
            async for page in pages:
                report.listed[kind] += len(page)
                ways = await self._compared(kind, self._whole(page, report), report, terms)
                if report.dry_run:
                    continue
                await self._publish(ways.at_once, report)
                if self._is_beyond(report, terms):
                    (held or []).clear()
                elif held is not None:
                    held += ways.changes
                else:
                    await self._make(ways.changes, report)

    async def ask_absent(self, report: DriftReport, began: datetime) -> None:
        """Live subscriptions that the list did not show: each is read singly, but for those of a braked walk."""
        if report.dry_run:
            async with self._app.database.reading() as session:
                live = await observations.count_unseen(session, self._app.name, "subscription", began, unless=ENDED)
            report.absent = min(ABSENT_MAX, max(0, live - report.seen_live))
        elif not report.braked:
            async with self._app.database.transaction() as session:
                absent = await observations.unseen(
                    session, self._app.name, "subscription", began, unless=ENDED, limit=ABSENT_MAX
                )
                report.absent = len(absent)
                requests = [ReadRequest(kind="subscription", object_id=one) for one in absent]
                await read_requests.ask(session, self._app.name, requests, self._app.clock.now())

    async def unobserved(self, found: Sequence[Observation]) -> Sequence[Observation]:
        """The payments among these that were not observed yet, or not with this status."""
        whole = [one for one in found if self._odd.is_whole(one)]
        async with self._app.database.reading() as session:
            last = await observations.last(session, self._app.name, "payment", [one.object_id for one in whole])
        known = {(object_id, status_of(one.state)) for object_id, one in last.items()}
        return [one for one in whole if (one.object_id, one.status) not in known]

    async def tell(self, found: Sequence[Observation]) -> None:
        """Publish those of these payments that were not observed so."""
        await self._publish(await self.unobserved(found), DriftReport(application=self._app.name))

    # --- comparing and publishing ------------------------------------------------------------------------------

    def _whole(self, page: Sequence[Observation | Unplaced], report: DriftReport) -> list[Observation]:
        """Those of a page that can be kept; the others are counted."""
        found: list[Observation] = []
        for one in page:
            if isinstance(one, Unplaced):
                report.note_unplaced(one)
            elif self._odd.is_whole(one):
                found.append(one)
            else:
                report.note_unplaced(Unplaced(one.object_id, is_paid=one.is_paid))
        return found

    async def _compared(
        self, kind: ObjectKind, found: Sequence[Observation], report: DriftReport, terms: Terms
    ) -> Sorted:
        """These against what is here; a dry run remembers nothing of them."""
        async with self._app.database.reading() as session:
            last = await observations.last(session, self._app.name, kind, [one.object_id for one in found])
            told = await events.told(session, self._app.name, [one.key for one in found])
            lost = await self._lost(session, [one for one in found if one.key in told], last) if terms.has_gap else ()
        ways = _sorted(found, last, told, lost, terms, report)
        if kind == "subscription":
            is_live = [one.read_at < terms.began and status_of(one.state) != ENDED for one in last.values()]
            report.seen_live += sum(is_live)
        if not report.dry_run:
            # What is held back or not yet published stays unseen: an event that came before and is recorded later, or
            # that told of what a broker would not take now, still tells of it.
            unchanged = sorted(last.keys() - {one.object_id for one in (*ways.changes, *ways.at_once)})
            async with self._app.database.transaction() as session:
                await observations.seen(session, self._app.name, kind, unchanged, self._app.clock.now())
                await observations.keep(session, [one.observed for one in ways.remembered])
        return ways

    async def _lost(
        self, session: AsyncSession, found: Sequence[Observation], last: Mapping[str, Observed]
    ) -> Collection[str]:
        """Of which of these, which events tell of, the last observation was published and has not come: it may have
        lain unread in a log that is gone. What comes twice changes nothing."""
        ids = {
            (self._app.name, observation_id(self._app.name, one.kind, one.object_id, last[one.object_id].version)): one
            for one in found
            if one.object_id in last
        }
        known = await events.known(session, ids)
        return {one.object_id for event, one in ids.items() if event not in known}

    async def _make(self, changes: Sequence[Observation], report: DriftReport) -> None:
        published = report.published
        try:
            await self._publish(changes, report)
        finally:
            report.made += report.published - published

    async def _publish(self, found: Sequence[Observation], report: DriftReport) -> None:
        """Publish, then remember: after a crash in between they are published again, in a newer version. What waits for
        a partition that takes nothing keeps none of the others back, and is raised in the end."""
        away = None
        for some in portions(found, PAGE):
            taken, left = await self._publisher.tell(some)
            async with self._app.database.transaction() as session:
                await observations.keep(session, [one.observed for one in taken])
            report.published += len(taken)
            for_now = {event.id for event in left.for_now}
            away = left.away or away
            for one in some if left.away is None else ():
                if one.event_id in left.ids:
                    report.note_too_large(one, for_now=one.event_id in for_now)
        if away is not None:
            raise away


def _sorted(
    found: Sequence[Observation],
    last: Mapping[str, Observed],
    told: Mapping[str, Told],
    lost: Collection[str],
    terms: Terms,
    report: DriftReport,
) -> Sorted:
    """What is done about each, and counted in the report: `last` observed, `told` by events, `lost` on its way here."""
    ways = Sorted()
    for one in found:
        before, said = last.get(one.object_id), told.get(one.key, {})
        drift = compare(one, before, said)
        if drift is Drift.NONE and one.object_id in lost:
            drift = Drift.DETAIL
        is_history = terms.baseline and not said and (before is None or terms.is_early)
        if is_history and one.kind != "subscription" and drift is not Drift.NONE:
            report.baseline += 1
            ways.remembered.append(one)
            continue
        if is_history and drift is Drift.UNKNOWN:
            report.adopted += 1
            drift = Drift.FIRST
        is_counted = drift is Drift.CHANGED or terms.max_changes is not None or not terms.has_gap
        counts = weighs(one, before, drift) and is_counted
        report.note(one, before, drift, counts=counts)
        if drift is not Drift.NONE:
            (ways.changes if counts else ways.at_once).append(one)
    return ways
