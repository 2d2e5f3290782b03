"""Reconcile: walks orders, subscriptions and payments, and publishes what differs from the last observation.

It heals by state what events cannot (cases B13-B22, B31-B33). It publishes observations only; what they mean is the
handlers' business, and absence never means anything (G7).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

import structlog

from consumer.clock import Clock
from consumer.ledger import Database
from consumer.ledger.handling import events
from consumer.ledger.reading import observations
from consumer.ledger.reading import read_requests as reads
from consumer.payments import PaymentsError, Priority
from consumer.plugin import ReadRequest
from consumer.sync.api import ApplicationApi
from consumer.sync.chunks import chunks
from consumer.sync.identity import Identity
from consumer.sync.loop import StageFailure, run_repeatedly
from consumer.sync.metrics import StageMetrics
from consumer.sync.observation import ENDED, ObjectKind, Observation, is_whole, reduced, status_of
from consumer.sync.publisher import EventPublisher
from consumer.sync.reconcile.drift import DRIFTED, Drift, DriftReport, compare, weighs
from consumer.sync.reconcile.lists import PAGE, ServiceLists, Unplaced
from consumer.sync.reconcile.state import WALK as WALK
from consumer.sync.reconcile.state import ReconcileState, keep_state, load_state, note_beside, take_over

LOG = structlog.get_logger()

WEIGHED: Final[tuple[ObjectKind, ...]] = ("subscription", "order")
HELD_BACK_MAX: Final = 20_000
ABSENT_MAX: Final = 1000


@dataclass(frozen=True, kw_only=True)
class ReconcilePolicy:
    """`every`: how often; `braked_again`: how soon after a walk that was braked, as events may have told meanwhile.

    The brake of a walk nobody limited: more than `brake_min` changes in one list, or `brake_share` of what it shows if
    that is more. `held_back_max`: how many changes wait in memory until it is known how many there are.
    """

    every: timedelta = timedelta(hours=24)
    braked_again: timedelta = timedelta(hours=1)
    brake_min: int = 500
    brake_share: float = 0.1
    look_s: float = 60.0
    held_back_max: int = HELD_BACK_MAX


@dataclass(frozen=True, kw_only=True)
class _Terms:
    """What one walk may do: see Reconcile.once. `began`: when it did. `has_gap`: events were forgotten unread before
    it began, which explains orders and subscriptions that nobody has heard of."""

    began: datetime
    max_changes: int | None
    baseline: bool
    has_gap: bool


class Reconcile:
    """Reconcile of one application. `token` gives the leader's fencing token, and raises when it leads no more.
    `report`: of the walk under way or the last one, as far as it came; None when it found nothing yet."""

    def __init__(
        self,
        api: ApplicationApi,
        database: Database,
        publisher: EventPublisher,
        *,
        clock: Clock,
        token: Callable[[], int],
        metrics: StageMetrics | None = None,
        policy: ReconcilePolicy | None = None,
    ) -> None:
        self.application = api.application
        self._lists = ServiceLists(api, database, clock)
        self._database = database
        self._publisher = publisher
        self._clock = clock
        self._token = token
        self.metrics = metrics or StageMetrics()
        self._policy = policy or ReconcilePolicy()
        self._identity = Identity(api, database, clock=clock, token=token, metrics=self.metrics)
        self.report: DriftReport | None = None
        self.wake = asyncio.Event()
        self.failure = StageFailure(f"reconcile {api.application}")

    async def run(self, stop: asyncio.Event) -> None:
        """Walk when it is due, or at once after a retention gap; until `stop`."""
        await run_repeatedly(self._step, stop=stop, wake=self.wake, clock=self._clock, failure=self.failure)

    async def _step(self) -> float:
        async with self._database.transaction() as session:
            state = await take_over(session, self.application, token=self._token(), now=self._clock.now())
        self._show(state)
        if self._is_due(state):
            await self.once()
        elif state.owes_payments:
            await self._payments_owed(state)
        return self._policy.look_s

    def _is_due(self, state: ReconcileState) -> bool:
        if state.began is None:
            return True
        if state.is_healed_in_part:
            return True
        every = min(self._policy.every, self._policy.braked_again) if state.braked else self._policy.every
        overdue = self._clock.now() - state.began >= every
        return overdue or (state.gap_at is not None and state.gap_at > state.began)

    async def once(self, *, dry_run: bool = False, max_changes: int | None = None, leads: bool = True) -> DriftReport:
        """One walk over all three lists. What weighs (see drift) is made when it is known how much there is in all
        lists together: with `max_changes` at most so many objects or, if it would be more, none (`braked`). Raises
        PaymentsError, LedgerError, BrokerError, WrongApplication; `self.report` says what was done until then.

        The first walk of an installation that nobody limits is its baseline (case B30): orders and payments that the
        ledger knows nothing of are remembered as they are and not published, because somebody else has acted on them
        already. What is paid from now on differs from that, and brings its event. Subscriptions are adopted (case
        B19). Later, what is unknown is acted on, and weighs like any other change unless a gap explains it: the
        baseline may have seen a list that was cut short. `max_changes` says that it is to be acted on from the first
        walk on, and counts it always. Without `leads` the walk leaves no bookmark: observations carry versions, so two
        walks at once do no harm.

        Payments come last and weigh nothing: the bookmark is kept before them. Where they cannot be read, this raises,
        and the leader tries them again alone.
        """
        began, began_s = self._clock.now(), self._clock.monotonic()
        self.report = None
        await self._identity.check(remember=leads and not dry_run, priority=Priority.RECONCILE)
        async with self._database.reading() as session:
            before = await load_state(session, self.application)
        report = self.report = DriftReport(application=self.application, dry_run=dry_run)
        is_unlimited = max_changes is None
        terms = _Terms(
            began=began,
            max_changes=max_changes,
            baseline=is_unlimited and not before.baselined,
            has_gap=before.gap_at is not None,
        )
        await self._weigh(report, terms)
        await self._absent(report, began)
        state = None if dry_run else await self._finish(report, before, terms, leads=leads)
        try:
            baseline = is_unlimited and not before.payments_baselined
            await self._payments(report, replace(terms, baseline=baseline), state if leads else None)
            report.seconds = self._clock.monotonic() - began_s
        finally:
            self._say(report, terms)
        return report

    async def _finish(
        self, report: DriftReport, before: ReconcileState, terms: _Terms, *, leads: bool
    ) -> ReconcileState:
        now = self._clock.now()
        # A limited walk that was braked has left the unknown as unknown as it was: the baseline is still to be made.
        baselined = before.baselined or terms.baseline or not report.braked
        state = ReconcileState(
            began=terms.began if baselined else None,
            ended=now,
            braked=report.braked,
            baselined=baselined,
            owes_payments=True,
            payments_baselined=before.payments_baselined,
            answered=before.beside,
            changes=report.changes.total(),
            unplaced=report.unplaced,
            unplaced_paid=report.unplaced_paid,
        )
        if leads:
            await self._keep(state)
            self.metrics.gauge("last_reconcile_at", self.application, now.timestamp())
        elif not report.braked:
            async with self._database.transaction() as session:
                await note_beside(session, self.application, before, now)
        return state

    async def _keep(self, state: ReconcileState) -> None:
        async with self._database.transaction() as session:
            await keep_state(session, self.application, state, token=self._token(), now=self._clock.now())
        self._show(state)

    async def _payments(self, report: DriftReport, terms: _Terms, state: ReconcileState | None) -> None:
        """Walk the payments, and keep that none are owed any more; `state` None keeps nothing."""
        unplaced = report.unplaced
        await self._walk("payment", report, terms)
        report.complete = True
        if state is not None:
            unplaced = state.unplaced + report.unplaced - unplaced
            await self._keep(replace(state, owes_payments=False, payments_baselined=True, unplaced=unplaced))

    async def _payments_owed(self, state: ReconcileState) -> None:
        """The payments of a walk that could not read them, or was cut there: they alone are tried again."""
        began_s = self._clock.monotonic()
        await self._identity.check(priority=Priority.RECONCILE)
        report = self.report = DriftReport(application=self.application)
        terms = _Terms(began=self._clock.now(), max_changes=None, baseline=not state.payments_baselined, has_gap=False)
        await self._payments(report, terms, state)
        report.seconds = self._clock.monotonic() - began_s
        self._say(report, terms)

    # --- the lists ---------------------------------------------------------------------------------------------

    async def _weigh(self, report: DriftReport, terms: _Terms) -> None:
        """Walk the lists whose changes weigh, and make those changes unless they are too many (case B31).

        More than may wait in memory are counted by one pass and, if they are within the limit, published by another.
        What another writer adds between the two does not lift the limit: the second pass stops there, braked.
        """
        held: list[Observation] | None = []
        if not report.dry_run and (terms.max_changes or 0) > self._policy.held_back_max:
            held, counted = None, DriftReport(application=self.application, dry_run=True)
            for kind in WEIGHED:
                await self._walk(kind, counted, terms)
            if self._is_too_much(counted, terms):
                report.add(counted)
                report.braked = True
                return
        for kind in WEIGHED:
            before = len(held or ())
            try:
                await self._walk(kind, report, terms, held)
            except PaymentsError:
                # One list that cannot be read keeps nobody from healing by the one before, but for who set a limit.
                if held and terms.max_changes is None:
                    await self._decide(held[:before], report, terms)
                raise
        await self._decide(held or (), report, terms)

    async def _decide(self, held: Sequence[Observation], report: DriftReport, terms: _Terms) -> None:
        report.braked = self._is_too_much(report, terms)
        if not report.braked:
            await self._make(held, report)

    def _is_too_much(self, report: DriftReport, terms: _Terms) -> bool:
        if terms.max_changes is not None or self._is_beyond(report, terms):
            return self._is_beyond(report, terms)
        least, share = self._policy.brake_min, self._policy.brake_share
        return any(report.changes[kind] > max(least, int(report.listed[kind] * share)) for kind in WEIGHED)

    def _is_beyond(self, report: DriftReport, terms: _Terms) -> bool:
        """Whether it is too much whatever else is listed."""
        at_most = self._policy.held_back_max if terms.max_changes is None else terms.max_changes
        return report.changes.total() > at_most

    async def _walk(
        self, kind: ObjectKind, report: DriftReport, terms: _Terms, held: list[Observation] | None = None
    ) -> None:
        """Compare a whole list, also when it is too much already: how much is told, and what does not weigh is
        published. What weighs is added to `held`; without it, it is made page by page up to the limit."""
        async with aclosing(self._lists.pages(kind)) as pages:
            async for page in pages:
                report.listed[kind] += len(page)
                found = [one for one in page if isinstance(one, Observation) and is_whole(one)]
                whole = {id(one) for one in found}
                for one in page:
                    if isinstance(one, Unplaced):
                        report.note_unplaced(one)
                    elif id(one) not in whole:
                        report.note_unplaced(Unplaced(kind, one.object_id, is_paid=one.is_paid))
                at_once, changes = await self._compared(kind, found, report, terms)
                if report.dry_run:
                    continue
                await self._publish(at_once, report)
                if self._is_beyond(report, terms):
                    (held or []).clear()
                elif held is not None:
                    held += changes
                else:
                    await self._make(changes, report)

    async def _absent(self, report: DriftReport, began: datetime) -> None:
        """Live subscriptions that the list did not show: each is read singly, but for those of a braked walk."""
        if report.dry_run:
            async with self._database.reading() as session:
                live = await observations.count_unseen(session, self.application, "subscription", began, unless=ENDED)
            report.absent = min(ABSENT_MAX, max(0, live - report.seen_live))
        elif not report.braked:
            async with self._database.transaction() as session:
                absent = await observations.unseen(
                    session, self.application, "subscription", began, unless=ENDED, limit=ABSENT_MAX
                )
                report.absent = len(absent)
                requests = [ReadRequest(kind="subscription", object_id=one) for one in absent]
                await reads.ask(session, self.application, requests, self._clock.now())

    # --- comparing and publishing ------------------------------------------------------------------------------

    async def _compared(
        self, kind: ObjectKind, found: Sequence[Observation], report: DriftReport, terms: _Terms
    ) -> tuple[list[Observation], list[Observation]]:
        """Those to be published at once, and those that a brake may hold back."""
        async with self._database.reading() as session:
            last = await observations.last(session, self.application, kind, [one.object_id for one in found])
            told = await events.told(session, self.application, [one.key for one in found])
        at_once: list[Observation] = []
        changes: list[Observation] = []
        remembered: list[Observation] = []
        for one in found:
            before, said = last.get(one.object_id), told.get(one.key, {})
            drift = compare(one, before, said)
            is_history = terms.baseline and before is None and not said
            if is_history and kind != "subscription":
                remembered.append(one)
                continue
            if is_history and drift is Drift.UNKNOWN:
                report.adopted += 1
                drift = Drift.FIRST
            is_counted = drift is Drift.CHANGED or terms.max_changes is not None or not terms.has_gap
            counts = weighs(one, before, drift) and is_counted
            report.note(one, before, drift, counts=counts)
            if drift is not Drift.NONE:
                (changes if counts else at_once).append(one)
        report.baseline += len(remembered)
        if kind == "subscription":
            is_live = [one.read_at < terms.began and status_of(one.state) != ENDED for one in last.values()]
            report.seen_live += sum(is_live)
        if not report.dry_run:
            async with self._database.transaction() as session:
                # What is held back or not yet published stays unseen: an event that came before and is recorded later,
                # or that told of what a broker would not take now, still tells of it.
                unchanged = sorted(last.keys() - {one.object_id for one in (*changes, *at_once)})
                await observations.seen(session, self.application, kind, unchanged, self._clock.now())
                await observations.keep(session, [one.observed for one in remembered])
        return at_once, changes

    async def _make(self, changes: Sequence[Observation], report: DriftReport) -> None:
        published = report.published
        try:
            await self._publish(changes, report)
        finally:
            report.made += report.published - published

    async def _publish(self, found: Sequence[Observation], report: DriftReport) -> None:
        """Publish, then remember: after a crash in between they are published again, in a newer version."""
        for some in chunks(found, PAGE):
            refused = await self._publisher.publish([one.event() for one in some], smaller=reduced)
            left = {event.id for event in refused}
            taken = [one for one in some if one.event_id not in left]
            async with self._database.transaction() as session:
                await observations.keep(session, [one.observed for one in taken])
            report.published += len(taken)
            for one in (one for one in some if one.event_id in left):
                report.note_unplaced(Unplaced(one.kind, one.object_id, is_paid=one.is_paid))

    def _show(self, state: ReconcileState) -> None:
        self.metrics.gauge("reconcile_braked", self.application, int(state.braked))
        self.metrics.gauge("reconcile_unplaced_paid", self.application, state.unplaced_paid)
        self.metrics.gauge("reconcile_unplaced_other", self.application, state.unplaced - state.unplaced_paid)

    def _say(self, report: DriftReport, terms: _Terms) -> None:
        for drift in DRIFTED:
            self.metrics.count(f"drift_{drift.value}", self.application, report.found[drift])
        log = LOG.bind(application=self.application, dry_run=report.dry_run)
        if report.unplaced:
            say = log.error if report.unplaced_paid else log.warning
            say(
                "reconcile found records without the id they are kept by: nothing is done about them",
                records=report.unplaced,
                paid=report.unplaced_paid,
                ids=report.unplaced_ids,
            )
        if terms.baseline and not report.dry_run:
            log.info(
                "the first reconcile walk: what was there before is remembered and not acted on",
                remembered=report.baseline,
                adopted=report.adopted,
            )
        found = {
            "changes": report.changes.total(),
            "made": report.made,
            **{drift.value: report.found[drift] for drift in DRIFTED},
        }
        if report.braked and not report.dry_run:
            what = "stopped at the limit" if report.made else "made none"
            log.error(
                f"reconcile found too many changes and {what}: look at the dry run, then say --max-changes", **found
            )
        elif report.drifted:
            log.warning("reconcile found drift", **found)
