"""List reads: many requests for reads, answered by pages of a list, a hundred records a read, while that pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from consumer.ledger.reading import observations, read_requests
from consumer.ledger.reading.observation import Observation, shape
from consumer.ledger.tables import ReadRow
from consumer.payments import Cursor, Order, Page, PaymentsError, Resources, Subscription
from consumer.sync.api import Cooldown
from consumer.sync.application import Application
from consumer.sync.refresh.answers import Answers
from consumer.sync.refresh.policy import ListWalk, RefreshPolicy
from consumer.sync.refresh.schedule import ListedKind, ReadQuota, Turns
from consumer.sync.refresh.single_reads import SingleReads

UNANSWERED_S: Final = 600.0  # a read that has waited for so long waits for no walk of its list any more


@dataclass(frozen=True)
class _Answered:
    """The reads that a page answered, how many records nobody has asked for so far, and where the list goes on."""

    rows: Sequence[ReadRow]
    unasked: int
    next_cursor: Cursor | None


class ListReads:
    """Walks one list of an application, of subscriptions or of orders, for the reads that are due."""

    def __init__(
        self,
        kind: ListedKind,
        app: Application,
        resources: Resources,
        answers: Answers,
        singles: SingleReads,
        *,
        quota: ReadQuota,
        turns: Turns,
        cooldown: Cooldown,
        policy: RefreshPolicy,
    ) -> None:
        self._kind = kind
        self._app = app
        self._listed: Any = resources.subscriptions if kind == "subscription" else resources.orders
        self._answers = answers
        self._singles = singles
        self._quota = quota
        self._turns = turns
        self._cooldown = cooldown
        self._policy = policy
        self._page_from = policy.page_orders_from if kind == "order" else policy.page_from
        self._walk: ListWalk | None = None  # that the next round goes on with
        self._ended: datetime | None = None  # when the last walk that ended had begun
        self._has_paid_off = False  # the last walk
        self._newest_at = float("-inf")
        self._newest_only_until = 0.0

    def is_paged(self, due: Sequence[ReadRow]) -> bool:
        """Whether so many of these reads are of this kind that the list is paged. If they are not, its walk is over."""
        is_paged = sum(row.kind == self._kind for row in due) >= self._page_from
        if not is_paged:
            self._walk, self._newest_only_until = None, 0.0
        return is_paged

    def is_unanswered(self, row: ReadRow) -> bool:
        """Whether a walk of the list has left it unanswered, or it waits too long for one."""
        since = self._app.clock.now() - timedelta(seconds=UNANSWERED_S)
        return row.due_at <= (since if self._ended is None else max(since, self._ended))

    async def work_off(self, due: Sequence[ReadRow], answered: list[ReadRow]) -> list[ReadRow]:
        """Page the list; returns which of the due reads may be done singly in this round: none of this kind while its
        walk goes on. `RefreshPolicy.singles` bounds how many are: they may be listed by the next one."""
        if self._wants_a_shape:
            await self._singles.work_off(iter([row for row in due if row.kind == self._kind][:1]), answered)
        if self._cooldown.error is None:
            await self._by_pages(answered)
        self._turns.did(answered)
        mine = [row for row in due if row.kind == self._kind and not self._turns.has_done(row)]
        is_walking = self._walk is not None and self._app.clock.monotonic() >= self._walk.rests_until
        return [*(row for row in due if row.kind != self._kind), *([] if is_walking else mine)]

    @property
    def _wants_a_shape(self) -> bool:
        """Whether no order was read singly yet, which would show how full one is."""
        return self._kind == "order" and not self._singles.order_shapes

    async def _by_pages(self, answered: list[ReadRow]) -> None:
        """Answer what the list shows.

        Which of a page's records are due is looked up page by page: the reads that have waited longest may be anywhere
        in the list. A walk of more than `pages` goes on in the next round, so that other reads come in between, and
        looks at the first page again: those who ask last wait for an answer as well.
        After pages without an answer only the newest is looked at for a while, the longer the more they were: else a
        list that shows none of what is due would take all requests there are.
        """
        walk = self._walk or ListWalk(self._app.clock.now(), self._has_paid_off)
        self._walk = None
        began = self._app.clock.monotonic()
        looks = began - self._newest_at >= self._policy.newest_every_s
        if walk.cursor is None and not looks and began < self._newest_only_until:
            return
        if walk.cursor is not None and looks:
            await self._page(None, answered)
        for _ in range(self._policy.pages):
            if self._app.clock.monotonic() < walk.rests_until:
                break
            found = await self._page(walk.cursor, answered)
            if found is None:
                break
            walk.note(len(found.rows), found.unasked, found.next_cursor, self._policy, self._app.clock.monotonic())
            if not await self._goes_on(walk):
                if began >= self._newest_only_until:  # else it was a look at the newest page only
                    self._end(walk)
                return
        self._walk = walk

    def _end(self, walk: ListWalk) -> None:
        self._ended, self._has_paid_off = walk.began, walk.has_paid_off
        rests = min(walk.barren, 1) if walk.has_paid_off else walk.barren
        self._newest_only_until = self._app.clock.monotonic() + rests * self._policy.newest_every_s

    async def _page(self, cursor: Cursor | None, answered: list[ReadRow]) -> _Answered | None:
        """Answer what one page shows. None: not read, for now; the walk is to go on from here."""
        row = self._turns.next()
        if row is not None and self._cooldown.error is None and await self._quota.allows(row.kind):
            self._turns.taken(row)
            await self._singles.do(row, answered)
        if self._cooldown.error is not None or not await self._quota.allows(self._kind):
            return None
        self._turns.paged()
        if cursor is None:
            self._newest_at = self._app.clock.monotonic()
        version = await self._answers.version()
        try:
            page: Page[Any] = await self._listed.list(cursor=cursor)
        except PaymentsError as error:
            if self._cooldown.take(error):
                return None
            return _Answered((), 0, None)
        self._answers.service_answered()
        if self._wants_a_shape:
            await self._read_one_of(page.items, answered)
        hits, unasked = await self._usable(page.items, version)
        await self._answers.found([(row, (one,)) for row, one in hits], version)
        rows = [row for row, _ in hits]
        answered += rows
        self._turns.did(rows)
        return _Answered(rows, unasked, page.next_cursor if page.items else None)

    async def _read_one_of(self, items: Sequence[Order], answered: list[ReadRow]) -> None:
        """No order that was read so far was found: one that is listed is, and shows how full a record is."""
        names = [one.order_id for one in items if one.order_id is not None]
        async with self._app.database.reading() as session:
            due = await read_requests.due_of(session, self._app.name, "order", names, self._app.clock.now())
        await self._singles.work_off(iter(due[:1]), answered)
        self._turns.did(answered)

    async def _goes_on(self, walk: ListWalk) -> bool:
        if walk.cursor is None or walk.barren == 0:
            return walk.cursor is not None
        if self._app.clock.monotonic() < self._newest_only_until:
            return False  # a walk has just found that it does not pay
        async with self._app.database.reading() as session:
            due = await read_requests.count_due(session, self._app.clock.now(), self._app.name, self._kind)
        return walk.pays(due)

    async def _usable(
        self, items: Sequence[Order | Subscription], version: int
    ) -> tuple[list[tuple[ReadRow, Observation]], int]:
        """Listed records that were asked for before the page was, and are as full as a single read of the same object
        was (case B22); and how many others nobody has asked for so far.

        An order is decided on by its status and its amount alone: there, as full as any order that was read singly is
        enough, so that many new orders cost a read per hundred of them.
        """
        ids = {one.order_id if isinstance(one, Order) else one.id: one for one in items if one.status is not None}
        names, application, kind = [name for name in ids if name], self._app.name, self._kind
        async with self._app.database.transaction() as session:
            now = self._app.clock.now()
            due = await read_requests.due_of(session, application, kind, names, now, version=version)
            last = await observations.last(session, application, kind, names)
            await read_requests.begin(session, due)
        hits = list[tuple[ReadRow, Observation]]()
        for row in due:
            raw = ids[row.object_id].raw
            is_full = row.object_id in last and last[row.object_id].shape == shape(raw)
            if is_full or (kind == "order" and shape(raw) in self._singles.order_shapes):
                hit = self._app.observation(kind, row.object_id, version, raw, row.traceparent)
                if self._singles.odd.is_whole(hit):
                    hits.append((row, hit))
        return hits, len(set(names) - last.keys() - {row.object_id for row in due})
