"""Where a walk begins, how far back it acts, and what is done about its pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime

from consumer.errors import UsageError
from consumer.lists.bookmark import Bookmark, ListOrder
from consumer.lists.pager import Lister
from consumer.lists.walk import Walk
from consumer.sync.application import Application
from consumer.sync.backfill.cutover import CutOver, FirstWalk
from consumer.sync.backfill.missing_events import Begun
from consumer.sync.backfill.policy import BackfillPolicy
from consumer.sync.backfill.report import BackfillOptions, BackfillReport
from consumer.sync.backfill.unread import Unread
from consumer.sync.publisher import PublishedIds


class StartingPoint:
    """Begins the walks of one application."""

    def __init__(
        self, app: Application, first_walk: FirstWalk, policy: BackfillPolicy, ids: Callable[[], PublishedIds]
    ) -> None:
        self._app = app
        self._first_walk = first_walk
        self._policy = policy
        self._ids = ids

    async def begin(self, options: BackfillOptions, lister: Lister, *, sweeps: bool) -> Begun:
        """Begin a walk from where the options say. `sweeps`: whether it looks for what is listed late, if that is due.

        Raises LedgerError, and UsageError for a seed that cannot be told how far it goes.
        """
        bookmark = await self.bookmark() if options.reads_bookmark else Bookmark()
        now = self._app.clock.now()
        cut_over = await self._cut_over(options) if options.seed else None
        floor = await self._floor(options) if options.reads_bookmark else options.since
        since = floor if bookmark.walked_at is None else None
        walk = replace(self._walk(lister, bookmark, now), since=since, sweeps=sweeps)
        begun = self._begun(walk, options, floor, cut_over)
        if options.reads_bookmark:
            begun.unread = begun.unmet = await self._app.kept(Unread)
        return begun

    async def begin_look(self, lister: Lister, known: Iterable[str]) -> Begun:
        """Begin to look from the head of a newest-first list down to the first of the `known`; the bookmark stays.
        Raises LedgerError."""
        now = self._app.clock.now()
        seen = Bookmark(order=ListOrder.NEWEST_FIRST, head_ids=tuple(known), walked_at=now, swept_at=now)
        options = BackfillOptions(full=True)
        walk = replace(self._walk(lister, seen, now), sweeps=False)
        return self._begun(walk, options, await self._floor(options))

    def _walk(self, lister: Lister, bookmark: Bookmark, now: datetime) -> Walk:
        return Walk(lister=lister, locators=self._app.locators, bookmark=bookmark, now=now, policy=self._policy.walk)

    def _begun(
        self, walk: Walk, options: BackfillOptions, floor: datetime | None, cut_over: CutOver | None = None
    ) -> Begun:
        cut = cut_over.at if cut_over else None
        report = BackfillReport(application=self._app.name, dry_run=options.dry_run, cut_over=cut)
        began_s = self._app.clock.monotonic()
        return Begun(walk=walk, options=options, report=report, began_s=began_s, floor=floor, told=self._ids(),
                     cut_over=cut_over)  # fmt: skip

    async def bookmark(self) -> Bookmark:
        """The stored bookmark."""
        return await self._app.kept(Bookmark)

    async def _floor(self, options: BackfillOptions) -> datetime:
        """From when on events are acted on; a walk that is the first of all begins it, unless it only foretells."""
        now = self._app.service_time()
        if not options.dry_run:
            await self._first_walk.begin(now)
        return await self._first_walk.floor() or now - self._first_walk.history

    async def _cut_over(self, options: BackfillOptions) -> CutOver:
        """Where a seed ends. Raises UsageError for one that says neither how far back nor how far on it goes."""
        if not (options.full or options.since) and (await self.bookmark()).walked_at is not None:
            raise UsageError("a walk has been completed here: a seed needs --full or --since as well")
        return await self._first_walk.cut_over(options.until, self._app.service_time())
