"""Backfill: walks the list of events and publishes what the ledger lacks. One walk, or again and again.

Cases B1-B13, B23-B30, B34. What a walk publishes goes the same way as everything else (topic `events`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from datetime import datetime

from consumer.lists.progress import ListStart, Progress, WalkProgress
from consumer.lists.walk import Walk, cursors_refused
from consumer.payments import CursorsRefused, Priority, UnexpectedAnswer
from consumer.runtime.loop import WokenStage
from consumer.sync.application import Application
from consumer.sync.backfill import cutover, silence
from consumer.sync.backfill.cutover import FirstWalk
from consumer.sync.backfill.missing_events import Begun, MissingEvents
from consumer.sync.backfill.policy import BackfillPolicy
from consumer.sync.backfill.report import BackfillOptions, BackfillReport, Telling
from consumer.sync.backfill.starting_point import StartingPoint
from consumer.sync.settlement import Settlement


class Backfill(WokenStage):
    """Backfill of one application: walks every `interval_s` seconds.

    `walking` is held while a walk moves the bookmark; `under_way` is that walk. `missing` takes its pages.
    `reconcile_due` is set when a walk has found a gap in the list, where state is all that is left (case B13), and when
    the first walk of all begins: what was there before is to be remembered at once (case B30).
    """

    def __init__(
        self,
        app: Application,
        settlement: Settlement,
        *,
        policy: BackfillPolicy | None = None,
        reconcile_due: asyncio.Event | None = None,
    ) -> None:
        super().__init__(f"backfill {app.name}", app.clock)
        self.app = app
        self.settlement = settlement
        self.walking = asyncio.Lock()
        self.under_way: Walk | None = None
        self._cursors_refused = cursors_refused(app.name)
        self._silent = silence.silence_of(app.name, app.clock.monotonic)
        self._telling = Telling(app.name, app.clock, app.metrics)
        self._lister = app.client.with_priority(Priority.BACKFILL).events
        self._policy = policy or BackfillPolicy()
        self._reconcile_due = reconcile_due or asyncio.Event()
        self.first_walk = FirstWalk(app, self._policy.history, begins=self._reconcile_due)
        self.missing = MissingEvents(app, settlement)
        self._list_start = ListStart(app.database, app.name)
        self.start = StartingPoint(app, self.first_walk, self._policy, settlement.ids)
        self.interval_s = self._policy.interval_s

    async def _step(self) -> float:
        began = self.app.clock.monotonic()
        report = await self.once()
        if report.unread:  # all else is done: what holds it up is told where any other failure is
            raise UnexpectedAnswer("events that are listed in brief cannot be read", events=report.unread)
        return max(0.0, began + self.interval_s - self.app.clock.monotonic())

    async def once(
        self,
        options: BackfillOptions | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        begins: Callable[[], Awaitable[None]] | None = None,
    ) -> BackfillReport:
        """One walk; `begins` is awaited when it can be done as asked, before a page is read. Raises PaymentsError,
        BrokerError, LedgerError; what was done until then stays done.

        On a failure the next walk goes on where this one was cut (case B10); a 429 is waited out on the way (B24).
        """
        async with self.walking:
            begun = await self.start.begin(options or BackfillOptions(), self._lister, sweeps=True)
            if begins is not None:
                await begins()
            await self.read(begun, on_progress)
            return await self.conclude(begun, asks_again=True)

    # --- the parts of a walk, which catching up uses as well ----------------------------------------------------

    async def read(
        self,
        begun: Begun,
        on_progress: Callable[[Progress], None] | None = None,
        *,
        reads_max: int | None = None,
    ) -> bool:
        """Take the pages of the walk; False when it took `reads_max` reads, of pages and of events, and it is left
        there, as if by a crash: the next one goes on. Raises as `once`."""
        walk, report = begun.walk, begun.report
        begins_at = await self._list_start.at() if on_progress is not None else None
        progress = WalkProgress(walk, self.app.clock, begins_at=begins_at)
        self.under_way = walk
        try:
            async with aclosing(walk.pages()) as pages:
                async for page in pages:
                    await self.missing.take(page, begun)
                    self.say_refused(walk)
                    if on_progress is not None:
                        on_progress(progress.progress(page, listed=report.listed, published=report.published))
                    if reads_max is not None and walk.pages_read + begun.reads >= reads_max:
                        return False
        finally:
            self.under_way = None
            self.say_refused(walk, counts=True)
        if not walk.refused:
            self._cursors_refused.over()
        return True

    def say_refused(self, walk: Walk, *, counts: bool = False) -> None:
        """Say that the walk has met cursors which are not taken; `counts`: it has ended, and they are counted."""
        if walk.refused:
            self._cursors_refused.lasts(CursorsRefused.code)
            if counts:
                self.app.metrics.cursors_refused.labels(self.app.name).inc(walk.refused)

    async def conclude(self, begun: Begun, *, asks_again: bool = False) -> BackfillReport:
        """A walk has seen all: remember what it tells, and say what it found. `asks_again`: once that is remembered,
        for the bookmark is past it, ask for what waits to be read, which takes long and may be cut. Raises LedgerError,
        PaymentsError, and BrokerError; PaymentsError also where events could not be read and do not wait, with the
        bookmark or for the next seed: such a walk is not complete."""
        walk, options, cut_over, report = begun.walk, begun.options, begun.cut_over, begun.report
        now, is_complete = walk.now, not begun.has_failed
        report.order, report.pages, report.gap, report.refused = walk.order, walk.pages_read, walk.gap, walk.refused
        if not options.dry_run:
            await self._list_start.keep(walk.begins_at, now)
        left_alone = None
        if options.follows_bookmark and is_complete:
            left_alone = await self._note(report, tuple(begun.unannounced), now)
        elif options.sees_to_history and not begun.failures:
            async with self.app.database.transaction() as session:
                await cutover.SeenTo(at=now).keep(session, self.app.name, now=now)
        # One that an operator named holds anyway, but where the next seed has to be the first one again.
        holds = is_complete or (cut_over is not None and cut_over.is_said and not begun.loses_history)
        if cut_over is not None and cut_over.is_first and holds and not options.dry_run:
            await self.first_walk.begin(cut_over.at + self.first_walk.history)
        try:
            if asks_again and begun.unmet.events:
                left_alone = await self._ask_again(begun, left_alone)
        finally:
            report.unread += len(begun.unread.events)
            report.seconds = self.app.clock.monotonic() - begun.began_s
            self._say(report, left_alone)
        if begun.has_failed:
            raise begun.failures[0]
        return report

    async def _ask_again(self, begun: Begun, left_alone: int | None) -> int | None:
        """Ask for what earlier walks could not read. Returns how much history is left alone by now; None where this
        walk cannot know. Raises as `once`."""
        begun.unannounced.clear()
        await self.missing.ask_again(begun)
        if left_alone is None:
            return None
        async with self.app.database.transaction() as session:
            name, token, now = self.app.name, self.app.token(), begun.walk.now
            await silence.note_later(session, name, begun.unannounced, token=token, now=now)
            return await cutover.note_left(session, name, begun.report.history, token=token, now=now)

    # --- what a walk tells --------------------------------------------------------------------------------------

    async def _note(self, report: BackfillReport, unannounced: Sequence[str], now: datetime) -> int:
        """Webhooks that are silent make the walks more frequent; a gap calls for a reconcile walk (O1, B13).
        Returns how much history is left alone by now."""
        async with self.app.database.transaction() as session:
            health = await silence.note_walk(
                session,
                self.app.name,
                recovered=unannounced,
                gap=report.gap,
                heard_at=self.settlement.heard_at,
                token=self.app.token(),
                now=now,
                silent=self._silent,
            )
            left_alone = await cutover.note_left(
                session, self.app.name, report.history, token=self.app.token(), now=now
            )
        silent = health.silent_since is not None
        often = min(self._policy.silent_interval_s, self._policy.interval_s)
        self.interval_s = often if silent else self._policy.interval_s
        self.app.metrics.webhooks_silent.labels(self.app.name).set(int(silent))
        self.app.metrics.gap_open.labels(self.app.name).set(int(health.gap_at is not None))
        self.app.metrics.events_history.labels(self.app.name).set(left_alone)
        if report.gap:
            self._reconcile_due.set()
        return left_alone

    def _say(self, report: BackfillReport, left_alone: int | None) -> None:
        self._telling.say(report, left_alone)
        if not report.dry_run:
            self.app.metrics.walk_seconds.labels("events").observe(report.seconds)
            self.app.walked(self.app.clock.now())
