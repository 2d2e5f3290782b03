"""Reconcile: walks orders, subscriptions and payments, and publishes what differs from the last observation.

It heals by state what events cannot (cases B13-B22, B31-B33). It publishes observations only; what they mean is the
handlers' business, and absence never means anything (G7).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import structlog

from consumer.clock import Clock
from consumer.events import parse_time
from consumer.ledger import Database, bookmarks, events, reads
from consumer.ledger.reads import Observed
from consumer.payments import ApiError, Order, Page, Payment, Priority, Subscription
from consumer.plugin import ReadRequest
from consumer.sync import sense
from consumer.sync.drift import Drift, DriftReport, compare
from consumer.sync.figures import Figures
from consumer.sync.identity import Identity
from consumer.sync.observation import ObjectKind, Observation
from consumer.sync.outlet import Outlet
from consumer.sync.reader import Reader, held_up_s
from consumer.sync.rounds import Trouble, repeat

LOG = structlog.get_logger()

WALK: Final = "reconcile"
PAGE: Final = 100
Pages = Callable[[], AsyncGenerator[list[Observation | None], None]]
HELD_BACK_MAX: Final = 20_000
ABSENT_MAX: Final = 1000


@dataclass(frozen=True, kw_only=True)
class ReconcilePolicy:
    """`every`: how often. The brake of a walk nobody limited: `brake_min` changes, or `brake_share` of what a list
    shows if that is more. `held_back_max`: how many changes wait in memory until their list is walked to its end."""

    every: timedelta = timedelta(hours=6)
    brake_min: int = 500
    brake_share: float = 0.1
    look_s: float = 60.0
    held_back_max: int = HELD_BACK_MAX


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one walk may do: see Reconcile.once."""

    max_changes: int | None
    baseline: bool


class Reconcile:
    """Reconcile of one application. `token` gives the leader's fencing token, and raises when it leads no more."""

    def __init__(
        self,
        reader: Reader,
        database: Database,
        outlet: Outlet,
        *,
        clock: Clock,
        token: Callable[[], int],
        figures: Figures | None = None,
        policy: ReconcilePolicy | None = None,
    ) -> None:
        self.application = reader.application
        self._api = reader.client.with_priority(Priority.RECONCILE)
        self._database = database
        self._outlet = outlet
        self._clock = clock
        self._token = token
        self.figures = figures or Figures()
        self._policy = policy or ReconcilePolicy()
        self._identity = Identity(reader, database, clock=clock, token=token, figures=self.figures)
        self.wake = asyncio.Event()
        self.trouble = Trouble(f"reconcile {reader.application}")

    async def run(self, stop: asyncio.Event) -> None:
        """Walk when it is due, or at once after a retention gap; until `stop`."""
        await repeat(self._step, stop=stop, wake=self.wake, clock=self._clock, trouble=self.trouble)

    async def _step(self) -> float:
        is_due, is_first = await self._is_due()
        if is_due:
            await self.once(baseline=is_first)
        return self._policy.look_s

    async def _is_due(self) -> tuple[bool, bool]:
        async with self._database.reading() as session:
            kept = await bookmarks.load(session, self.application, WALK)
            gap_at = (await sense.condition(session, self.application)).gap_at
        began = parse_time(kept.get("began")) if kept else None
        if began is None:
            return True, True
        overdue = self._clock.now() - began >= self._policy.every
        return overdue or (gap_at is not None and gap_at > began), False

    async def once(
        self,
        *,
        dry_run: bool = False,
        max_changes: int | None = None,
        baseline: bool = False,
        leads: bool = True,
    ) -> DriftReport:
        """One walk over all three lists. With `max_changes` it changes at most so many objects or, if it would be
        more, none of them (`braked`). Raises PaymentsError, LedgerError, BrokerError, WrongApplication.

        `baseline` is the first walk of an installation (case B30): orders and payments that the ledger knows nothing
        of are remembered as they are and not published, because somebody else has acted on them already. What is
        paid from now on differs from that, and brings its event. Subscriptions are adopted (case B19). Without
        `leads` the walk leaves no bookmark: observations carry versions, so two walks at once do no harm.
        """
        began, began_s = self._clock.now(), self._clock.monotonic()
        await self._identity.check(remember=leads and not dry_run, priority=Priority.RECONCILE)
        report = DriftReport(application=self.application, dry_run=dry_run)
        limits = Limits(max_changes=max_changes, baseline=baseline)
        await self._subscriptions(report, began, limits)
        await self._walk("order", self._orders, report, limits)
        await self._walk("payment", self._payments, report, limits)
        report.seconds = self._clock.monotonic() - began_s
        if not dry_run and leads:
            await self._finish(report, began)
        self._say(report)
        return report

    async def _finish(self, report: DriftReport, began: datetime) -> None:
        state = {"began": began.isoformat(), "braked": report.braked, "changed": report.found[Drift.CHANGED]}
        token = self._token()
        async with self._database.transaction() as session:
            await bookmarks.keep(session, self.application, WALK, state, token=token, now=self._clock.now())
            if not report.braked:
                await sense.note_reconciled(session, self.application, began=began, token=token)

    # --- the three lists ---------------------------------------------------------------------------------------

    async def _subscriptions(self, report: DriftReport, began: datetime, limits: Limits) -> None:
        await self._walk("subscription", self._listed_subscriptions, report, limits)
        if report.dry_run or report.braked:
            return
        async with self._database.transaction() as session:
            absent = await reads.unseen(
                session, self.application, "subscription", began, unless="ENDED", limit=ABSENT_MAX
            )
            report.absent = len(absent)
            requests = [ReadRequest(kind="subscription", object_id=one) for one in absent]
            await reads.ask(session, self.application, requests, self._clock.now())

    async def _orders(self) -> AsyncGenerator[list[Observation | None], None]:
        async for versions, page in self._versioned(self._api.orders.pages(limit=PAGE)):
            yield [await self._order(order, versions + number) for number, order in enumerate(page.items)]

    async def _listed_subscriptions(self) -> AsyncGenerator[list[Observation | None], None]:
        async for versions, page in self._versioned(self._api.subscriptions.pages(limit=PAGE)):
            yield [await self._subscription(one, versions + number) for number, one in enumerate(page.items)]

    async def _payments(self) -> AsyncGenerator[list[Observation | None], None]:
        async for versions, page in self._versioned(self._api.payments.pages(limit=PAGE)):
            yield [self._payment(one, versions + number) for number, one in enumerate(page.items)]

    async def _versioned(self, pages: Any) -> AsyncGenerator[tuple[int, Page[Any]], None]:
        """Each page with the first of its versions, taken before the page was asked for (case A40)."""
        steps = aiter(pages)
        while True:
            versions = await self._versions()
            try:
                page = await anext(steps)
            except StopAsyncIteration:
                return
            yield versions, page

    async def _versions(self, count: int = PAGE) -> int:
        async with self._database.transaction() as session:
            return await reads.next_version(session, count)

    # --- one record --------------------------------------------------------------------------------------------

    async def _order(self, order: Order, version: int) -> Observation | None:
        """An order by the merchant's id; what the list does not show is read singly (case B22)."""
        if (order.order_id is None or order.status is None) and order.id is not None:
            version = await self._versions(1)
            try:
                order = await self._api.orders.retrieve(order.id)
            except ApiError as error:
                if held_up_s(error) is not None:
                    raise
                return None
        if order.order_id is None:
            return None
        return self._observation("order", order.order_id, version, order.raw)

    async def _subscription(self, one: Subscription, version: int) -> Observation | None:
        if one.id is None:
            return None
        if one.status is None:
            version = await self._versions(1)
            try:
                one = await self._api.subscriptions.retrieve(one.id)
            except ApiError as error:
                if held_up_s(error) is not None:
                    raise
                return None
        return None if one.id is None else self._observation("subscription", one.id, version, one.raw)

    def _payment(self, one: Payment, version: int) -> Observation | None:
        return None if one.id is None else self._observation("payment", one.id, version, one.raw)

    def _observation(self, kind: ObjectKind, object_id: str, version: int, record: dict[str, Any]) -> Observation:
        return Observation(
            application=self.application,
            kind=kind,
            object_id=object_id,
            version=version,
            read_at=self._clock.now(),
            record=record,
        )

    # --- comparing and publishing ------------------------------------------------------------------------------

    async def _walk(self, kind: ObjectKind, pages: Pages, report: DriftReport, limits: Limits) -> None:
        """Compare a whole list. Changes of state wait until it is clear that they are not too many (case B31).

        More than may wait in memory are counted by one pass and, if they are within the limit, published by another.
        What another writer adds between the two does not lift the limit: the second pass stops there, braked.
        """
        held_back: list[Observation] = []
        changed, held_back_max, max_changes = 0, self._policy.held_back_max, limits.max_changes
        at_most = held_back_max if max_changes is None else max_changes
        waits = at_most <= held_back_max
        if not waits and not report.dry_run:
            counted = DriftReport(application=self.application, dry_run=True)
            await self._walk(kind, pages, counted, limits)
            if counted.braked:
                report.add(counted)
                return
        async with aclosing(pages()) as steps:
            async for page in steps:
                known = [one for one in page if one is not None]
                report.listed[kind] += len(page)
                report.unplaced += len(page) - len(known)
                at_once, changes = await self._compared(kind, known, report, limits)
                changed += len(changes)
                if waits and not report.dry_run:
                    held_back += changes
                elif changed <= at_most:
                    at_once += changes
                if not report.dry_run:
                    await self._publish(at_once, report)
                if changed > at_most:
                    break  # whatever else is listed: it is too many
        usual = max(self._policy.brake_min, int(report.listed[kind] * self._policy.brake_share))
        if changed > (min(usual, at_most) if max_changes is None else at_most):
            report.braked = True
        elif not report.dry_run:
            await self._publish(held_back, report)

    async def _compared(
        self, kind: ObjectKind, found: Sequence[Observation], report: DriftReport, limits: Limits
    ) -> tuple[list[Observation], list[Observation]]:
        """Those to be published at once, and those that a brake may hold back."""
        async with self._database.reading() as session:
            last = await reads.last_observed(session, self.application, kind, [one.object_id for one in found])
            new = [one.key for one in found if one.object_id not in last]
            with_events = await events.known_keys(session, self.application, new)
            paid = [one.key for one in found if one.is_paid and one.object_id in last]
            told = await events.known_keys(session, self.application, paid, type="order.paid")
        at_once: list[Observation] = []
        changes: list[Observation] = []
        remembered: list[Observation] = []
        for one in found:
            before = last.get(one.object_id)
            is_known = one.key in with_events or kind == "payment"
            drift = compare(one, before, has_events=is_known, is_told=one.key in told)
            report.note(one, before, drift)
            if drift is Drift.NONE:
                continue
            if limits.baseline and before is None and kind != "subscription" and one.key not in with_events:
                remembered.append(one)
            elif drift is Drift.CHANGED or (limits.max_changes is not None and drift is Drift.UNKNOWN):
                changes.append(one)
            else:
                at_once.append(one)
        report.baseline += len(remembered)
        if not report.dry_run:
            async with self._database.transaction() as session:
                await reads.seen(session, self.application, kind, sorted(last), self._clock.now())
                await reads.keep_observations(session, [one.observed for one in remembered])
        return at_once, changes

    async def _publish(self, found: Sequence[Observation], report: DriftReport) -> None:
        """Publish, then remember: after a crash in between they are published again, in a newer version."""
        for start in range(0, len(found), PAGE):
            some = found[start : start + PAGE]
            await self._outlet.publish([one.event() for one in some])
            kept: list[Observed] = [one.observed for one in some]
            async with self._database.transaction() as session:
                await reads.keep_observations(session, kept)
            report.published += len(some)

    def _say(self, report: DriftReport) -> None:
        for drift in (Drift.CHANGED, Drift.UNKNOWN):
            self.figures.count(f"drift_{drift.value}", self.application, report.found[drift])
        if not report.dry_run:
            self.figures.gauge("reconcile_braked", self.application, int(report.braked))
            self.figures.gauge("last_reconcile_at", self.application, self._clock.now().timestamp())
        if report.braked:
            LOG.error(
                "reconcile found too many changes and made none: look at the dry run, then say --max-changes",
                application=self.application,
                changed=report.found[Drift.CHANGED],
            )
        elif report.drifted:
            LOG.warning(
                "reconcile found drift",
                application=self.application,
                changed=report.found[Drift.CHANGED],
                unknown=report.found[Drift.UNKNOWN],
                dry_run=report.dry_run,
            )
