"""List reads: many requests for reads, answered by pages of a list, a hundred records a read, while that pays."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from consumer.clock import Clock
from consumer.ledger import Database
from consumer.ledger.reading import observations, read_requests
from consumer.ledger.tables import ReadRow
from consumer.payments import Cursor, Order, Page, PaymentsError, Resources, Subscription
from consumer.sync.api import Cooldown
from consumer.sync.observation import Observation, is_whole, shape
from consumer.sync.refresh.answers import Answers
from consumer.sync.refresh.policy import ListWalk, RefreshPolicy
from consumer.sync.refresh.schedule import Round
from consumer.sync.refresh.single_reads import SingleReads

ListedKind = Literal["subscription", "order"]
UNANSWERED_S: Final = 600.0  # a read that has waited for so long waits for no walk of its list any more


@dataclass(frozen=True)
class _Answered:
    """The reads that a page answered, how many records nobody has asked for so far, and where the list goes on."""

    rows: Sequence[ReadRow]
    unasked: int
    next_cursor: Cursor | None


class ListReads:
    """Walks the list of subscriptions, or of orders, of one application for the reads that are due, page by page.

    Which of a page's records are due is looked up as it comes: the reads that have waited longest may be anywhere in
    the list. A walk goes on from round to round, and looks at the newest page now and then: those who ask last wait
    for an answer as well. After pages without an answer only the newest is looked at for a while, the longer the more
    they were: else a list that shows none of what is due would take all requests there are.
    """

    def __init__(
        self,
        kind: ListedKind,
        resources: Resources,
        database: Database,
        answers: Answers,
        singles: SingleReads,
        *,
        clock: Clock,
        cooldown: Cooldown,
        policy: RefreshPolicy,
    ) -> None:
        self.kind = kind
        self._resources = resources
        self._database = database
        self._answers = answers
        self._singles = singles
        self._clock = clock
        self._cooldown = cooldown
        self._policy = policy
        self._walk: ListWalk | None = None
        self._ended: datetime | None = None  # when the last walk that ended had begun
        self._has_paid_off = False  # whether that one has
        self._newest_at: float | None = None
        self._newest_only_until = 0.0
        # Of the round:
        self._pages_left = 0
        self._looks_at_newest = False
        self._wants_sample = False
        self._sample: ReadRow | None = None  # an order on the page: read singly, it shows how full one is
        self.is_reading = False

    def begin(self, due: Sequence[ReadRow]) -> bool:
        """A round begins, and these are due. Whether they are so many that the list is paged for them."""
        page_from = self._policy.page_orders_from if self.kind == "order" else self._policy.page_from
        if len(due) < page_from:
            self._walk, self._pages_left, self._newest_only_until = None, 0, 0.0
            return False
        now = self._clock.monotonic()
        looks = self._newest_at is None or now - self._newest_at >= self._policy.newest_every_s
        walk = self._walk or ListWalk(self._clock.now(), self._has_paid_off)
        rests = walk.cursor is None and not looks and now < self._newest_only_until
        self._walk, self._pages_left = (None, 0) if rests else (walk, self._policy.pages)
        self._looks_at_newest = looks and walk.cursor is not None
        self._sample, self._wants_sample = None, self.kind == "order" and not self._singles.order_shapes
        return True

    @property
    def is_waiting(self) -> bool:
        """Whether a page is to be read now, or is being read."""
        return self.is_reading or (self._pages_left > 0 and (self.is_walking or self._looks_at_newest))

    @property
    def is_walking(self) -> bool:
        """Whether the reads that are due may be answered by the walk that is under way."""
        return self._walk is not None and self._clock.monotonic() >= self._walk.rests_until

    def is_unanswered(self, row: ReadRow) -> bool:
        """Whether a walk of the list has left it unanswered, or it waits too long for one."""
        since = self._clock.now() - timedelta(seconds=UNANSWERED_S)
        return row.due_at <= (since if self._ended is None else max(since, self._ended))

    def read(self, this: Round) -> Coroutine[Any, Any, None]:
        """The next request of the walk, which makes one at a time (`is_reading`). Raises LedgerError, BrokerError."""
        self.is_reading = True
        return self._read(this)

    async def _read(self, this: Round) -> None:
        try:
            await self._go_on(this)
        finally:
            self.is_reading = False

    async def _go_on(self, this: Round) -> None:
        walk = self._walk
        if self._sample is not None:
            row, self._sample = self._sample, None
            await self._singles.do(row, this)
        elif self._looks_at_newest:
            self._looks_at_newest = False
            await self._page(None, this)
        elif walk is not None:
            self._pages_left -= 1
            found = await self._page(walk.cursor, this)
            if found is None or self._sample is not None:
                return  # the page is read again
            walk.note(len(found.rows), found.unasked, found.next_cursor, self._policy, self._clock.monotonic())
            if not await self._goes_on(walk):
                self._end(walk)

    def _end(self, walk: ListWalk) -> None:
        self._walk, now = None, self._clock.monotonic()
        self._pages_left = 0
        if now < self._newest_only_until:
            return  # it was a look at the newest page only
        self._ended, self._has_paid_off = walk.began, walk.has_paid_off
        rests = min(walk.barren, 1) if walk.has_paid_off else walk.barren
        self._newest_only_until = now + rests * self._policy.newest_every_s

    async def _goes_on(self, walk: ListWalk) -> bool:
        if walk.cursor is None or walk.barren == 0:
            return walk.cursor is not None
        if self._clock.monotonic() < self._newest_only_until:
            return False  # a walk has just found that it does not pay
        async with self._database.reading() as session:
            due = await read_requests.count_due(session, self._clock.now(), self._answers.application, self.kind)
        return walk.pays(due)

    async def _page(self, cursor: Cursor | None, this: Round) -> _Answered | None:
        """Answer what one page shows. None: a failure holds all calls up; the walk is to go on from here."""
        if cursor is None:
            self._newest_at = self._clock.monotonic()
        version = await self._answers.version()
        listed = self._resources.subscriptions if self.kind == "subscription" else self._resources.orders
        try:
            page: Page[Any] = await listed.list(cursor=cursor)
        except PaymentsError as error:
            if self._cooldown.take(error):
                this.held_up = this.held_up or error
                return None
            return _Answered((), 0, None)
        self._answers.service_answered()
        rows, hits, unasked = await self._usable(page.items, version)
        await self._answers.found(rows, hits)
        this.note(rows)
        return _Answered(rows, unasked, page.next_cursor if page.items else None)

    async def _usable(
        self, items: Sequence[Order | Subscription], version: int
    ) -> tuple[list[ReadRow], list[Observation], int]:
        """Listed records that were asked for and are as full as a single read of the same object was (case B22); and
        how many others nobody has asked for so far.

        An order is decided on by its status and its amount alone: there, as full as any order that was read singly is
        enough, so that many new orders cost a read per hundred of them.
        """
        ids = {one.order_id if isinstance(one, Order) else one.id: one for one in items if one.status is not None}
        names, application = [name for name in ids if name], self._answers.application
        async with self._database.transaction() as session:
            due = await read_requests.due_of(session, application, self.kind, names, self._clock.now())
            last = await observations.last(session, application, self.kind, names)
            await read_requests.begin(session, due)
        rows, hits = list[ReadRow](), list[Observation]()
        for row in due:
            raw = ids[row.object_id].raw
            is_full = row.object_id in last and last[row.object_id].shape == shape(raw)
            if is_full or (self.kind == "order" and shape(raw) in self._singles.order_shapes):
                hit = self._answers.observation(self.kind, row.object_id, version, raw)
                if is_whole(hit):
                    rows.append(row)
                    hits.append(hit)
        if due and not hits and self._wants_sample:
            self._sample, self._wants_sample = due[0], False
        return rows, hits, len(set(names) - last.keys() - {row.object_id for row in due})
