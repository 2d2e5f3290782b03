"""Reconcile: walks orders, subscriptions and payments, and publishes what differs from the last observation.

It heals by state what events cannot (cases B13-B22, B31-B33). It publishes observations only; what they mean is the
handlers' business, and absence never means anything (G7).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.payments import Priority
from consumer.runtime.loop import WokenStage
from consumer.sync.application import Application
from consumer.sync.backfill.cutover import Began
from consumer.sync.identity import Identity
from consumer.sync.publisher import EventPublisher
from consumer.sync.reconcile.comparison import Comparison
from consumer.sync.reconcile.drift import DRIFTED, DriftReport
from consumer.sync.reconcile.newest_payments import NewestPayments
from consumer.sync.reconcile.policy import ReconcilePolicy, Terms
from consumer.sync.reconcile.state import ReconcileState, keep_state, load_state, note_beside, take_over
from consumer.telemetry.logs import Condition

LOG = structlog.get_logger()
SET_BACK: Final = timedelta(minutes=1)
"""A last walk that is further ahead of our clock began before that was set back: when the next one is due is not known
by it."""


class Reconcile(WokenStage):
    """Reconcile of one application: walks when it is due, or at once after a retention gap, and looks at the newest
    payments in between. `report`: of the walk under way or the last one, as far as it came; None when it
    found nothing yet."""

    def __init__(self, app: Application, publisher: EventPublisher, *, policy: ReconcilePolicy | None = None) -> None:
        super().__init__(f"reconcile {app.name}", app.clock)
        self._app = app
        self._policy = policy or ReconcilePolicy()
        self._comparison = Comparison(app, publisher, self._policy)
        self._newest = NewestPayments(app, self._comparison)
        self._identity = Identity(app)
        monotonic = app.clock.monotonic
        self._braked = Condition("reconcile_braked", level="error", monotonic=monotonic, application=app.name)
        self._unplaced = Condition("reconcile_found_unplaced", monotonic=monotonic, application=app.name)
        self.report: DriftReport | None = None

    async def _step(self) -> float:
        async with self._app.database.transaction() as session:
            state = await take_over(session, self._app.name, token=self._app.token(), now=self._app.clock.now())
            events_walked = await self._events_walked(session)
        self._show(state)
        if self._is_due(state) or (state.early and events_walked):
            await self.once()
        elif state.owes_payments:
            await self._payments_owed(state)
        elif state.payments_baselined and not state.early:
            await self._identity.check(priority=Priority.RECONCILE)
            await self._newest.look()
        return self._policy.look_s

    def _is_due(self, state: ReconcileState) -> bool:
        if state.began is None or state.is_healed_in_part:
            return True
        every = (
            min(self._policy.every, self._policy.braked_again) if state.braked or state.refused else self._policy.every
        )
        overdue = not -SET_BACK < self._app.clock.now() - state.began < every
        return overdue or (state.gap_at is not None and state.gap_at > state.began)

    async def once(self, *, dry_run: bool = False, max_changes: int | None = None, leads: bool = True) -> DriftReport:
        """One walk over all three lists. What weighs (see drift) is made when it is known how much there is in all
        lists together: with `max_changes` at most so many objects or, if it would be more, none (`braked`). Raises
        PaymentsError, LedgerError, BrokerError, WrongApplication; `self.report` says what was done until then.

        The first walk of an installation that nobody limits is its baseline (case B30): orders and payments that the
        ledger knows nothing of are remembered as they are and not published, because somebody else has acted on them
        already. What is paid from now on differs from that, and brings its event. Subscriptions are adopted (case
        B19). Later, what is unknown is acted on, and weighs like any other change unless a gap explains it: the
        baseline may have seen a list that was cut short. Before any walk of the events has begun, which says from when
        on orders are ours, each walk is a baseline, also of what changed since the last, but for what events told of;
        so is the first one after it. `max_changes` says that it is to be acted on from the first walk on, and counts it
        always. Without `leads` the walk leaves no bookmark: observations carry versions, so two walks at once do no
        harm.

        Payments come last and weigh nothing: the bookmark is kept before them. Where they cannot be read, this raises,
        and the leader tries them again alone.
        """
        began, began_s = self._app.clock.now(), self._app.clock.monotonic()
        self.report = None
        await self._identity.check(remember=leads and not dry_run, priority=Priority.RECONCILE)
        async with self._app.database.reading() as session:
            before = await load_state(session, self._app.name)
            events_walked = await self._events_walked(session)
        is_unlimited = max_changes is None
        is_early = is_unlimited and (before.early or not (before.baselined or events_walked))
        report = self.report = DriftReport(application=self._app.name, dry_run=dry_run, early=is_early)
        terms = Terms(
            began=began,
            max_changes=max_changes,
            baseline=is_unlimited and (is_early or not before.baselined),
            has_gap=before.gap_at is not None,
            is_early=is_early,
        )
        report = self.report = await self._comparison.weigh(report, terms)
        await self._comparison.ask_absent(report, began)
        state = None if dry_run else await self._finish(report, before, terms, leads=leads)
        try:
            baseline = is_unlimited and (is_early or not before.payments_baselined)
            await self._payments(report, replace(terms, baseline=baseline), state if leads else None)
            report.seconds = self._app.clock.monotonic() - began_s
        finally:
            self._say(report, terms)
        return report

    async def _finish(
        self, report: DriftReport, before: ReconcileState, terms: Terms, *, leads: bool
    ) -> ReconcileState:
        now = self._app.clock.now()
        async with self._app.database.reading() as session:
            events_walked = await self._events_walked(session)
        # A limited walk that was braked has left the unknown as unknown as it was: the baseline is still to be made.
        baselined = before.baselined or terms.baseline or not report.braked
        is_limited = terms.max_changes is not None
        state = ReconcileState(
            began=terms.began if baselined else None,
            ended=now,
            braked=report.braked,
            baselined=baselined,
            early=before.early if is_limited else terms.is_early and not events_walked,
            owes_payments=True,
            payments_baselined=before.payments_baselined and not terms.is_early,
            answered=before.beside,
            unplaced=report.not_kept,
            unplaced_paid=report.not_kept_paid,
            refused=report.refused,
        )
        if leads:
            await self._keep(state)
            self._app.metrics.last_reconcile.labels(self._app.name).set(now.timestamp())
        elif not report.braked:
            async with self._app.database.transaction() as session:
                await note_beside(session, self._app.name, before, now)
        return state

    async def _events_walked(self, session: AsyncSession) -> bool:
        return (await Began.of(session, self._app.name)).began is not None

    async def _keep(self, state: ReconcileState) -> None:
        async with self._app.database.transaction() as session:
            await keep_state(session, self._app.name, state, token=self._app.token(), now=self._app.clock.now())
        self._show(state)

    async def _payments(self, report: DriftReport, terms: Terms, state: ReconcileState | None) -> None:
        """Walk the payments, and keep that none are owed any more; `state` None keeps nothing."""
        not_kept, refused = report.not_kept, report.refused
        await self._comparison.walk("payment", report, terms)
        report.complete = True
        if state is not None:
            state = replace(
                state,
                owes_payments=False,
                payments_baselined=True,
                unplaced=state.unplaced + report.not_kept - not_kept,
                refused=state.refused + report.refused - refused,
            )
            await self._keep(state)

    async def _payments_owed(self, state: ReconcileState) -> None:
        """The payments of a walk that could not read them, or was cut there: they alone are tried again."""
        began_s = self._app.clock.monotonic()
        await self._identity.check(priority=Priority.RECONCILE)
        report = self.report = DriftReport(application=self._app.name)
        terms = Terms(
            began=self._app.clock.now(),
            max_changes=None,
            baseline=not state.payments_baselined,
            has_gap=False,
            is_early=not state.payments_baselined,
        )
        await self._payments(report, terms, state)
        report.seconds = self._app.clock.monotonic() - began_s
        self._say(report, terms)

    def _show(self, state: ReconcileState) -> None:
        self._app.metrics.reconcile_braked.labels(self._app.name).set(int(state.braked))
        self._app.metrics.reconcile_unplaced.labels(self._app.name, "paid").set(state.unplaced_paid)
        self._app.metrics.reconcile_unplaced.labels(self._app.name, "other").set(state.unplaced - state.unplaced_paid)
        if not state.braked:
            self._braked.over()
        if not (state.unplaced or state.owes_payments):  # those of a walk under way are not known yet
            self._unplaced.over()

    def _say(self, report: DriftReport, terms: Terms) -> None:
        for drift in DRIFTED:
            self._app.metrics.drift.labels(self._app.name, drift.value).inc(report.found[drift])
        log = LOG.bind(application=self._app.name, dry_run=report.dry_run)
        if report.not_kept:
            self._unplaced.lasts(
                "paid_unplaced" if report.not_kept_paid else "unplaced",
                level="error" if report.not_kept_paid else "warning",
                dry_run=report.dry_run,
                hint="they lack the id they are kept by, or are larger than topic events takes: nothing is done "
                "about them",
                records=report.not_kept,
                paid=report.not_kept_paid,
                ids=[*report.unplaced_ids, *report.too_large_ids],
                too_large=report.too_large,
            )
        if terms.baseline and not report.dry_run:
            log.info(
                "reconcile_baseline",
                remembered=report.baseline,
                adopted=report.adopted,
            )
        found: dict[str, Any] = {
            "changes": report.changes.total(),
            "made": report.made,
            **{drift.value: report.found[drift] for drift in DRIFTED},
        }
        if report.braked and not report.dry_run:
            hint = "look at `consumer reconcile --dry-run`, then say --max-changes"
            self._braked.lasts("reconcile_braked", hint=hint, dry_run=report.dry_run, **found)
        elif report.drifted:
            log.warning("reconcile_found_drift", **found)
