"""Refresh: the reads that handlers asked for. A request is always answered, by an observation.

Why always, and not only when the record differs from the last observation: who asked waits for the answer. A handler
clears its "must be read" mark and plans its next check by it; silence would break that chain for good (A14, A30).
Walks nobody asked for (reconcile) publish only what differs.

That the service has no such object is an answer too, told once per request by `*.unreadable`; the read is tried again
all the same (U30). That it does not answer is none, and nothing is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

import structlog

from consumer.clock import Clock
from consumer.ledger import Database
from consumer.ledger.reading import observations
from consumer.ledger.reading import read_requests as reads
from consumer.ledger.tables import ReadRow
from consumer.payments import (
    ApiError,
    Cursor,
    Order,
    Page,
    PaymentsError,
    Priority,
    ResourceNotFound,
    Subscription,
    UnexpectedAnswer,
    ValidationError,
)
from consumer.sync.api import ApplicationApi, Cooldown
from consumer.sync.loop import StageFailure, run_repeatedly, together
from consumer.sync.metrics import StageMetrics
from consumer.sync.observation import Observation, Unreadable, is_whole, reduced, shape
from consumer.sync.publisher import EventPublisher
from consumer.sync.quota import ReadQuota
from consumer.sync.refresh.policy import URGENT, ListWalk, RefreshPolicy, in_turn
from consumer.sync.refresh.turns import Turns

LOG = structlog.get_logger()

ALARM_AFTER_ATTEMPTS = 8
ANSWERS_FOR_S = 60.0
PROBE_AGAIN_S = 5.0
SHAPES_MAX = 8
UNANSWERED_S = 600.0  # a read that has waited for so long waits for no walk of its list any more
TOLD = "unreadable"  # the code of a read whose asker knows that the service shows no such object


Kind = Literal["subscription", "order"]
KINDS: tuple[Kind, ...] = ("subscription", "order")
UNLISTED = ("session", "service_order")  # read singly only


@dataclass(frozen=True)
class _Answered:
    """The reads that a page answered, how many records nobody has asked for so far, and where the list goes on."""

    rows: Sequence[ReadRow]
    unasked: int
    next_cursor: Cursor | None


class Refresh:
    """Does the due reads of one application. One process at a time does (see Leader)."""

    def __init__(
        self,
        api: ApplicationApi,
        database: Database,
        publisher: EventPublisher,
        *,
        clock: Clock,
        metrics: StageMetrics | None = None,
        policy: RefreshPolicy | None = None,
    ) -> None:
        self.application = api.application
        self._resources = api.client.with_priority(Priority.REFRESH)
        self._database = database
        self._publisher = publisher
        self._clock = clock
        self.metrics = metrics or StageMetrics()
        self._policy = policy or RefreshPolicy()
        self._cooldown = Cooldown(clock)
        self._answers, self._answers_until = False, 0.0
        self._quota = ReadQuota(clock, api.client.budget, self._policy)
        self._turns = Turns()
        self._walked = dict[Kind, datetime]()  # when the last walk that ended had begun
        self._order_shapes: dict[str, None] = {}
        self._paid_off: set[Kind] = set()  # lists whose last walk has
        self._walks: dict[Kind, ListWalk] = {}  # those that the next round goes on with
        self._newest_at, self._newest_only_until = dict[Kind, float](), dict[Kind, float]()
        self.wake = asyncio.Event()
        self.failure = StageFailure(f"refresh {api.application}")

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`."""
        await run_repeatedly(self._step, stop=stop, wake=self.wake, clock=self._clock, failure=self.failure)

    async def _step(self) -> float:
        if await self.once():
            return 0.0
        return min(self._policy.idle_s, self._policy.spent_s) if self._quota.is_spent else self._policy.idle_s

    async def once(self) -> int:
        """One round over the due reads; returns how many were answered.

        Raises LedgerError, BrokerError (the reads stay due), and the PaymentsError that holds all calls up.
        """
        self._cooldown.check()
        self._quota.begin()
        left = await self._due()
        held_up, answered = list[PaymentsError](), list[ReadRow]()
        paged = [kind for kind in KINDS if sum(row.kind == kind for row in left) >= self._page_from(kind)]
        self._turns.begin(row for row in left if row.kind not in paged or self._is_unanswered(row))
        for kind in KINDS if self._quota.since_other < URGENT else KINDS[::-1]:
            if kind in paged:
                left = await self._many(kind, left, held_up, answered)
            else:
                self._walks.pop(kind, None)
                self._newest_only_until.pop(kind, None)
        left = [row for row in left if not self._turns.has_done(row)]
        waiting = iter(in_turn(left, self._policy.singles, self._quota.since_other, self._quota.last_other))
        await together(*(self._work_off(waiting, held_up, answered) for _ in range(self._policy.concurrency)))
        if held_up and not answered:
            raise held_up[0]
        return len(answered)

    def _page_from(self, kind: Kind) -> int:
        return self._policy.page_orders_from if kind == "order" else self._policy.page_from

    def _is_unanswered(self, row: ReadRow) -> bool:
        """Whether a walk of its list has left it unanswered, or it waits too long for one."""
        since = self._clock.now() - timedelta(seconds=UNANSWERED_S)
        began = self._walked.get("subscription" if row.kind == "subscription" else "order")
        return row.due_at <= (since if began is None else max(since, began))

    async def _due(self) -> list[ReadRow]:
        """What is to be read now, each kind by itself: access hangs on subscriptions, and neither thousands of orders
        that became known at once nor thousands of older subscriptions may keep the others waiting (case B23)."""
        now, batch = self._clock.now(), self._policy.batch
        async with self._database.reading() as session:
            found = [await reads.due(session, now, batch, self.application, kind) for kind in KINDS]
            rest = await reads.due(session, now, batch, self.application, *UNLISTED)
        return [*(row for rows in found for row in rows), *rest]

    # --- many: by the list -------------------------------------------------------------------------------------

    async def _many(
        self, kind: Kind, due: Sequence[ReadRow], held_up: list[PaymentsError], answered: list[ReadRow]
    ) -> list[ReadRow]:
        """Page the list of this kind; returns which of the due reads are to be done singly in this round: none of this
        kind while its walk goes on, and not all when they are many, for they may be listed by the next round."""
        if kind == "order" and not self._order_shapes:  # shows how full one is
            await self._work_off(iter([row for row in due if row.kind == kind][:1]), held_up, answered)
        if not held_up:
            await self._by_pages(kind, held_up, answered)
        self._turns.did(answered)
        mine = [row for row in due if row.kind == kind and not self._turns.has_done(row)]
        walk = self._walks.get(kind)
        is_walking = walk is not None and self._clock.monotonic() >= walk.rests_until
        singly = [] if is_walking else mine[: max(self._page_from(kind), self._policy.batch // 5)]
        return [*(row for row in due if row.kind != kind), *singly]

    async def _by_pages(self, kind: Kind, held_up: list[PaymentsError], answered: list[ReadRow]) -> None:
        """Answer what the list shows, a hundred records a read, while that pays.

        Which of a page's records are due is looked up page by page: the reads that have waited longest may be anywhere
        in the list. A walk of more than `pages` goes on in the next round, so that other reads come in between, and
        looks at the first page again: those who ask last wait for an answer as well.
        After pages without an answer only the newest is looked at for a while, the longer the more they were: else a
        list that shows none of what is due would take all requests there are.
        """
        walk = self._walks.pop(kind, None) or ListWalk(self._clock.now(), kind in self._paid_off)
        began, every_s = self._clock.monotonic(), self._policy.newest_every_s
        looks = kind not in self._newest_at or began - self._newest_at[kind] >= every_s
        if walk.cursor is None and not looks and began < self._newest_only_until.get(kind, 0.0):
            return
        if walk.cursor is not None and looks:
            await self._page(kind, None, held_up, answered)
        for _ in range(self._policy.pages):
            if self._clock.monotonic() < walk.rests_until:
                break
            found = await self._page(kind, walk.cursor, held_up, answered)
            if found is None:
                break
            walk.note(len(found.rows), found.unasked, found.next_cursor, self._policy, self._clock.monotonic())
            if not await self._goes_on(kind, walk):
                if began >= self._newest_only_until.get(kind, 0.0):  # else it was a look at the newest page only
                    self._walked[kind] = walk.began
                    rests = min(walk.barren, 1) if walk.has_paid_off else walk.barren
                    self._newest_only_until[kind] = self._clock.monotonic() + rests * every_s
                    (self._paid_off.add if walk.has_paid_off else self._paid_off.discard)(kind)
                return
        self._walks[kind] = walk

    async def _page(
        self, kind: Kind, cursor: Cursor | None, held_up: list[PaymentsError], answered: list[ReadRow]
    ) -> _Answered | None:
        """Answer what one page shows. None: not read, for now; the walk is to go on from here."""
        row = self._turns.next()
        if row is not None and not held_up and await self._quota.allows(row.kind):
            self._turns.taken(row)
            await self._single(row, held_up, answered)
        if held_up or not await self._quota.allows(kind):
            return None
        self._turns.paged()
        if cursor is None:
            self._newest_at[kind] = self._clock.monotonic()
        async with self._database.transaction() as session:
            version = await reads.next_version(session)
        listed = self._resources.subscriptions if kind == "subscription" else self._resources.orders
        try:
            page: Page[Any] = await listed.list(cursor=cursor)
        except PaymentsError as error:
            if self._cooldown.take(error):
                held_up.append(error)
                return None
            return _Answered((), 0, None)
        self._answered()
        rows, hits, unasked = await self._usable(kind, page.items, version)
        await self._answer(rows, hits)
        answered += rows
        self._turns.did(rows)
        return _Answered(rows, unasked, page.next_cursor if page.items else None)

    async def _goes_on(self, kind: Kind, walk: ListWalk) -> bool:
        if walk.cursor is None or walk.barren == 0:
            return walk.cursor is not None
        if self._clock.monotonic() < self._newest_only_until.get(kind, 0.0):
            return False  # a walk has just found that it does not pay
        async with self._database.reading() as session:
            return walk.pays(await reads.count_due(session, self._clock.now(), self.application, kind))

    async def _usable(
        self, kind: Kind, items: Sequence[Order | Subscription], version: int
    ) -> tuple[list[ReadRow], list[Observation], int]:
        """Listed records that were asked for and are as full as a single read of the same object was (case B22); and
        how many others nobody has asked for so far.

        An order is decided on by its status and its amount alone: there, as full as any order that was read singly is
        enough, so that many new orders cost a read per hundred of them.
        """
        ids = {one.order_id if isinstance(one, Order) else one.id: one for one in items if one.status is not None}
        names = [name for name in ids if name]
        async with self._database.transaction() as session:
            due = await reads.due_of(session, self.application, kind, names, self._clock.now())
            last = await observations.last(session, self.application, kind, names)
            await reads.begin(session, due)
        rows, hits = list[ReadRow](), list[Observation]()
        for row in due:
            raw = ids[row.object_id].raw
            is_full = row.object_id in last and last[row.object_id].shape == shape(raw)
            if is_full or (kind == "order" and shape(raw) in self._order_shapes):
                hit = self._observation(row, kind, row.object_id, version, raw)
                if is_whole(hit):
                    rows.append(row)
                    hits.append(hit)
        return rows, hits, len(set(names) - last.keys() - {row.object_id for row in due})

    # --- few: one by one ---------------------------------------------------------------------------------------

    async def _work_off(
        self, waiting: Iterator[ReadRow], held_up: list[PaymentsError], answered: list[ReadRow]
    ) -> None:
        for row in waiting:
            if held_up:
                return
            if await self._quota.allows(row.kind):
                await self._single(row, held_up, answered)

    async def _single(self, row: ReadRow, held_up: list[PaymentsError], answered: list[ReadRow]) -> None:
        async with self._database.transaction() as session:
            version = await reads.next_version(session)
            await reads.begin(session, [row])
        try:
            observations = await self._read(row, version)
        except PaymentsError as error:
            if self._cooldown.take(error):
                held_up.append(error)
                return
            await self._put_off(row, error, told=await self._tell(row, version, error))
            return
        self._answered()
        if not all(is_whole(one) for one in observations):
            await self._put_off(row, UnexpectedAnswer("the record cannot be kept"), told=False)
            return
        await self._answer([row], observations)
        answered.append(row)

    async def _read(self, row: ReadRow, version: int) -> Sequence[Observation]:
        """The answer of the service. The version was taken, and committed, before the request leaves (case A40)."""
        if row.kind == "subscription":
            subscription = await self._resources.subscriptions.retrieve(row.object_id)
            return [self._observation(row, "subscription", row.object_id, version, subscription.raw)]
        if row.kind == "order":
            order = await self._resources.orders.lookup(row.object_id)
            self._order_shapes[shape(order.raw)] = None
            if len(self._order_shapes) > SHAPES_MAX:
                self._order_shapes.pop(next(iter(self._order_shapes)))
            return [self._observation(row, "order", row.object_id, version, order.raw)]
        if row.kind == "service_order":
            order = await self._resources.orders.retrieve(row.object_id)
            return self._of_order(row, order.order_id, version, order.raw)
        if row.kind == "session":
            found = await self._resources.checkout_sessions.retrieve(row.object_id)
            if found.order is None:
                return []  # a subscription session has no order (cases F22, F23)
            return self._of_order(row, found.order.order_id or found.order_id, version, found.order.raw)
        LOG.error("a read of an unknown kind was asked for", application=row.application, kind=row.kind)
        return []

    def _of_order(
        self, row: ReadRow, order_id: str | None, version: int, record: dict[str, object]
    ) -> list[Observation]:
        """An order read otherwise than by the merchant's id; without that id nobody's order can be told from it."""
        if order_id is None:
            self.metrics.count("reads_without_order_id", self.application)
            LOG.warning("the order's record shows no order id of the merchant", application=row.application)
            return []
        return [self._observation(row, "order", order_id, version, record)]

    def _observation(
        self, row: ReadRow, kind: str, object_id: str, version: int, record: dict[str, object]
    ) -> Observation:
        return Observation(
            application=row.application,
            kind="subscription" if kind == "subscription" else "order",
            object_id=object_id,
            version=version,
            read_at=self._clock.now(),
            record=record,
        )

    async def _answer(self, rows: Sequence[ReadRow], found: Sequence[Observation]) -> None:
        """Publish first, then tick off: after a crash in between it is read again, in a newer version. What the topic
        takes in no form is no answer: it is put off, and not remembered as published."""
        refused = {event.id for event in await self._publisher.publish([one.event() for one in found], smaller=reduced)}
        published = [one for one in found if one.event_id not in refused]
        left = {one.object_id for one in found if one.event_id in refused}
        done = [row for row in rows if not left or row.object_id not in left]
        async with self._database.transaction() as session:
            await observations.keep(session, [one.observed for one in published])
            await reads.done(session, done, self._clock.now())
        for row in (row for row in rows if row not in done):
            await self._put_off(row, UnexpectedAnswer("the record is larger than the topic takes"), told=False)
        self.metrics.count("reads_answered", self.application, len(done))
        for one in published:
            if one.has_unknown_status:
                self.metrics.count(f"unknown_status_{one.kind}", self.application)

    async def _tell(self, row: ReadRow, version: int, error: PaymentsError) -> bool:
        """Tell who asked that the service shows no such object; whether that is told, now or before.

        Published first, then marked: after a crash in between it is told again, in a newer version.
        """
        if row.code == TOLD:
            return True
        cannot_be = isinstance(
            error, ResourceNotFound | ValidationError
        )  # an id that cannot be asked for has no object
        if not cannot_be or row.kind not in ("order", "subscription"):
            return False
        if not await self._is_answering():
            return False
        unreadable = Unreadable(
            application=row.application,
            kind="subscription" if row.kind == "subscription" else "order",
            object_id=row.object_id,
            version=version,
            read_at=self._clock.now(),
            code=error.service_code if isinstance(error, ApiError) else error.code,
            request_id=error.request_id if isinstance(error, ApiError) else None,
        )
        await self._publisher.publish([unreadable.event()])
        self.metrics.count("reads_unreadable", self.application)
        return True

    async def _is_answering(self) -> bool:
        """Whether this address answers these credentials at all: where nothing else is found either (a wrong base
        URL, a proxy's page), a 404 says nothing about the object."""
        if self._clock.monotonic() >= self._answers_until:
            try:
                await self._resources.application.retrieve()
            except PaymentsError as error:
                self._cooldown.take(error)
                self._answers, self._answers_until = False, self._clock.monotonic() + PROBE_AGAIN_S
            else:
                self._answered()
        return self._answers

    def _answered(self) -> None:
        self._answers, self._answers_until = True, self._clock.monotonic() + ANSWERS_FOR_S

    async def _put_off(self, row: ReadRow, error: PaymentsError, *, told: bool) -> None:
        """Not found, refused or failed: due again later, for ever. Absence never means that something ended (G7)."""
        attempt = row.attempts + 1
        wait_s = self._policy.retry.wait_s(attempt, 0.5)
        async with self._database.transaction() as session:
            due_at = self._clock.now() + timedelta(seconds=wait_s)
            await reads.put_off(session, row, due_at=due_at, code=TOLD if told else error.code)
        self.metrics.count("reads_failed", self.application)
        if isinstance(error, ResourceNotFound):
            self.metrics.count("reads_not_found", self.application)
        if attempt == ALARM_AFTER_ATTEMPTS:
            request_id = error.request_id if isinstance(error, ApiError) else None
            LOG.error(
                "a record cannot be read; its state is kept as it is",
                application=row.application, kind=row.kind, object_id=row.object_id, code=error.code, attempts=attempt,
                request_id=request_id,
            )  # fmt: skip
