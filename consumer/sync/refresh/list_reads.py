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
from consumer.sync.refresh.schedule import LISTED, ListedKind, ReadQuota, Round, Turns
from consumer.sync.refresh.single_reads import SingleReads

UNANSWERED_S: Final = 600.0  # a read that has waited for so long waits for no walk of its list any more


@dataclass(frozen=True)
class _Answered:
    """The reads that a page answered, how many records nobody has asked for so far, and where the list goes on."""

    rows: Sequence[ReadRow]
    unasked: int
    next_cursor: Cursor | None


class ListReads:
    """Walks the lists of subscriptions and orders of one application for the reads that are due."""

    def __init__(
        self,
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
        self._app = app
        self._resources = resources
        self._answers = answers
        self._singles = singles
        self._quota = quota
        self._turns = turns
        self._cooldown = cooldown
        self._policy = policy
        self._walks: dict[ListedKind, ListWalk] = {}  # those that the next round goes on with
        self._ended: dict[ListedKind, datetime] = {}  # when the last walk that ended had begun
        self._paid_off: set[ListedKind] = set()  # lists whose last walk has
        self._newest_at: dict[ListedKind, float] = {}
        self._newest_only_until: dict[ListedKind, float] = {}

    def kinds(self, due: Sequence[ReadRow]) -> tuple[ListedKind, ...]:
        """Of which kinds so many reads are due that their list is paged. The walks of the others are over."""
        paged = tuple(kind for kind in LISTED if sum(row.kind == kind for row in due) >= self._page_from(kind))
        for kind in LISTED:
            if kind not in paged:
                self._walks.pop(kind, None)
                self._newest_only_until.pop(kind, None)
        return paged

    def is_unanswered(self, row: ReadRow) -> bool:
        """Whether a walk of its list has left it unanswered, or it waits too long for one."""
        since = self._app.clock.now() - timedelta(seconds=UNANSWERED_S)
        began = self._ended.get("subscription" if row.kind == "subscription" else "order")
        return row.due_at <= (since if began is None else max(since, began))

    async def work_off(self, kind: ListedKind, due: Sequence[ReadRow], this: Round) -> list[ReadRow]:
        """Page the list of this kind; returns which of the due reads may be done singly in this round: none of this
        kind while its walk goes on. `RefreshPolicy.singles` bounds how many are: they may be listed by the next one."""
        if kind == "order" and not self._singles.order_shapes:  # shows how full one is
            await self._singles.work_off(iter([row for row in due if row.kind == kind][:1]), this)
        if this.held_up is None:
            await self._by_pages(kind, this)
        self._turns.did(this.answered)
        mine = [row for row in due if row.kind == kind and not self._turns.has_done(row)]
        walk = self._walks.get(kind)
        is_walking = walk is not None and self._app.clock.monotonic() >= walk.rests_until
        return [*(row for row in due if row.kind != kind), *([] if is_walking else mine)]

    def _page_from(self, kind: ListedKind) -> int:
        return self._policy.page_orders_from if kind == "order" else self._policy.page_from

    async def _by_pages(self, kind: ListedKind, this: Round) -> None:
        """Answer what the list shows.

        Which of a page's records are due is looked up page by page: the reads that have waited longest may be anywhere
        in the list. A walk of more than `pages` goes on in the next round, so that other reads come in between, and
        looks at the first page again: those who ask last wait for an answer as well.
        After pages without an answer only the newest is looked at for a while, the longer the more they were: else a
        list that shows none of what is due would take all requests there are.
        """
        walk = self._walks.pop(kind, None) or ListWalk(self._app.clock.now(), kind in self._paid_off)
        began = self._app.clock.monotonic()
        looks = kind not in self._newest_at or began - self._newest_at[kind] >= self._policy.newest_every_s
        if walk.cursor is None and not looks and began < self._newest_only_until.get(kind, 0.0):
            return
        if walk.cursor is not None and looks:
            await self._page(kind, None, this)
        for _ in range(self._policy.pages):
            if self._app.clock.monotonic() < walk.rests_until:
                break
            found = await self._page(kind, walk.cursor, this)
            if found is None:
                break
            walk.note(len(found.rows), found.unasked, found.next_cursor, self._policy, self._app.clock.monotonic())
            if not await self._goes_on(kind, walk):
                if began >= self._newest_only_until.get(kind, 0.0):  # else it was a look at the newest page only
                    self._end(kind, walk)
                return
        self._walks[kind] = walk

    def _end(self, kind: ListedKind, walk: ListWalk) -> None:
        self._ended[kind] = walk.began
        rests = min(walk.barren, 1) if walk.has_paid_off else walk.barren
        self._newest_only_until[kind] = self._app.clock.monotonic() + rests * self._policy.newest_every_s
        (self._paid_off.add if walk.has_paid_off else self._paid_off.discard)(kind)

    async def _page(self, kind: ListedKind, cursor: Cursor | None, this: Round) -> _Answered | None:
        """Answer what one page shows. None: not read, for now; the walk is to go on from here."""
        row = self._turns.next()
        if row is not None and this.held_up is None and await self._quota.allows(row.kind):
            self._turns.taken(row)
            await self._singles.do(row, this)
        if this.held_up is not None or not await self._quota.allows(kind):
            return None
        self._turns.paged()
        if cursor is None:
            self._newest_at[kind] = self._app.clock.monotonic()
        version = await self._answers.version()
        listed = self._resources.subscriptions if kind == "subscription" else self._resources.orders
        try:
            page: Page[Any] = await listed.list(cursor=cursor)
        except PaymentsError as error:
            if self._cooldown.take(error):
                this.held_up = this.held_up or error
                return None
            return _Answered((), 0, None)
        self._answers.service_answered()
        if kind == "order" and not self._singles.order_shapes:
            await self._read_one_of(page.items, this)
        rows, hits, unasked = await self._usable(kind, page.items, version)
        await self._answers.found(rows, hits, version)
        this.answered += rows
        self._turns.did(rows)
        return _Answered(rows, unasked, page.next_cursor if page.items else None)

    async def _read_one_of(self, items: Sequence[Order], this: Round) -> None:
        """No order that was read so far was found: one that is listed is, and shows how full a record is."""
        names = [one.order_id for one in items if one.order_id is not None]
        async with self._app.database.reading() as session:
            due = await read_requests.due_of(session, self._app.name, "order", names, self._app.clock.now())
        await self._singles.work_off(iter(due[:1]), this)
        self._turns.did(this.answered)

    async def _goes_on(self, kind: ListedKind, walk: ListWalk) -> bool:
        if walk.cursor is None or walk.barren == 0:
            return walk.cursor is not None
        if self._app.clock.monotonic() < self._newest_only_until.get(kind, 0.0):
            return False  # a walk has just found that it does not pay
        async with self._app.database.reading() as session:
            due = await read_requests.count_due(session, self._app.clock.now(), self._app.name, kind)
        return walk.pays(due)

    async def _usable(
        self, kind: ListedKind, items: Sequence[Order | Subscription], version: int
    ) -> tuple[list[ReadRow], list[Observation], int]:
        """Listed records that were asked for before the page was, and are as full as a single read of the same object
        was (case B22); and how many others nobody has asked for so far.

        An order is decided on by its status and its amount alone: there, as full as any order that was read singly is
        enough, so that many new orders cost a read per hundred of them.
        """
        ids = {one.order_id if isinstance(one, Order) else one.id: one for one in items if one.status is not None}
        names, application = [name for name in ids if name], self._app.name
        async with self._app.database.transaction() as session:
            now = self._app.clock.now()
            due = await read_requests.due_of(session, application, kind, names, now, version=version)
            last = await observations.last(session, application, kind, names)
            await read_requests.begin(session, due)
        rows, hits = list[ReadRow](), list[Observation]()
        for row in due:
            raw = ids[row.object_id].raw
            is_full = row.object_id in last and last[row.object_id].shape == shape(raw)
            if is_full or (kind == "order" and shape(raw) in self._singles.order_shapes):
                hit = self._app.observation(kind, row.object_id, version, raw)
                if self._singles.odd.is_whole(hit):
                    rows.append(row)
                    hits.append(hit)
        return rows, hits, len(set(names) - last.keys() - {row.object_id for row in due})
