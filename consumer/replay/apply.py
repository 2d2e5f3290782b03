"""Apply: sends copies of a plan's events through the one processing path, a few at a time, until all are taken.

The ledger decides what is done: a worker takes an item and changes its run in one transaction. So this may be killed
anywhere and begun again, and what it sends twice is taken once (cases R7, R8, R15). It keeps below live work: a few of
its events are on their way at once, and the next ones go when no worker has anything of the plan left to begin.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

import orjson

from consumer.broker.base import Broker, Message
from consumer.clock import Clock
from consumer.errors import LeaseLost, NotFound, PlanInProgress, PlanMoved, PlanOver, ReplayStalled
from consumer.events import Source
from consumer.ledger import Database, leases
from consumer.ledger.handling import handlers
from consumer.ledger.handling.events import to_event
from consumer.ledger.handling.handlers import ALL
from consumer.ledger.leases import LEASE_S
from consumer.ledger.plans import items, plans
from consumer.ledger.plans.tables import PlanRow, PlanStatus
from consumer.ledger.tables import EventRow
from consumer.ledger.tenure import Tenure
from consumer.replay.begun import begun
from consumer.replay.differences import by_timers, came_out_otherwise, word
from consumer.replay.plan import Planner
from consumer.replay.send_rate import SendRate
from consumer.wire import pack_event

LOOK_S: Final = 0.05
AGAIN_S: Final = 20.0
STALLED_S: Final = 300.0
STILL_S: Final = 5.0
SHOWN: Final = 100
STALLED_BY_PAUSE: Final = (
    "A handler of the plan is paused: `consumer handlers resume`. The plan is kept; `consumer replay apply` goes on "
    "with it."
)
PORTION: Final = 400
"""Events that are read together, and sent a few at a time."""


@dataclass(frozen=True)
class ReplayProgress:
    """How far it is: items that were taken, of how many; seconds left at this rate, None while nobody can tell, as when
    nothing moves; what it then waits for: handlers of the plan that are paused, by name, and of which application where
    not of all."""

    done: int
    total: int
    left_s: float | None
    paused: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Look:
    """How the plan stands; whether there are items that no worker has taken, and how many of the events sent last; how
    many runs are due and not begun, and how many are at work; whether something that was derived has not arrived; and
    up to which place of the outbox all has arrived when nothing goes on."""

    row: PlanRow | None
    is_any_left: bool
    waiting: Counter[int]
    due: int
    at_work: int
    is_underway: bool
    settled: int

    @property
    def has_room(self) -> bool:
        """Whether the workers have nothing of the plan left to begin."""
        return not (self.waiting or self.due or self.is_underway)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing at all is going on."""
        return self.has_room and not self.at_work

    @property
    def status(self) -> PlanStatus:
        """How the plan stands; one that is gone counts as cancelled."""
        return PlanStatus.CANCELLED if self.row is None else PlanStatus(self.row.status)

    @property
    def total(self) -> int:
        """All items."""
        return 0 if self.row is None else self.row.items


@dataclass(frozen=True, kw_only=True)
class Applied:
    """What came of it. `runs`: handler to state to count. `otherwise`: derived events that were predicted and did not
    come, or came unannounced, and runs that ended otherwise. `moved`: items that were not as planned any more, and were
    left alone."""

    plan: str
    status: str
    items: dict[str, int]
    runs: dict[str, dict[str, int]]
    otherwise: list[str]
    moved: list[dict[str, str]]
    timers: dict[str, int]
    by_timers: list[str]

    @property
    def is_as_planned(self) -> bool:
        """Whether all came out as predicted."""
        return self.status == PlanStatus.APPLIED and not self.otherwise and not self.moved


class Apply:
    """Applies one plan; `holder` is unique per process. `rate_per_s`: events sent per second, at most."""

    def __init__(
        self, *, planner: Planner, broker: Broker, topic: str, clock: Clock, holder: str, rate_per_s: float
    ) -> None:
        self._planner = planner
        self._database: Database = planner.database
        self._broker = broker
        self._topic = topic
        self._clock = clock
        self._tenure = Tenure(self._database, role=plans.ROLE, holder=holder, clock=clock, lease_s=LEASE_S)
        self._rate = SendRate(clock, rate_per_s=rate_per_s)
        self._again_s = AGAIN_S
        self._unsent = 0

    async def has_worker(self) -> bool:
        """Whether a worker lives that could take what is sent."""
        async with self._database.reading() as session:
            return await handlers.any_living(session, self._clock.now())

    async def paused(self, plan_id: str) -> list[tuple[str, str]]:
        """The handlers of the plan that are paused, each with the application for which it is, ALL for all: as long as
        they are, it does not come to its end."""
        async with self._database.reading() as session:
            row, paused = await plans.get(session, plan_id), await handlers.paused(session)
        if row is None:
            return []
        named, whose = orjson.loads(row.predicted).get("effects", {}), orjson.loads(row.filters).get("application")
        about = {ALL, whose} if whose else {ALL, *(application for _, application in paused.of)}
        return sorted((name, one) for name, one in paused.of if name in named and one in about)

    async def run(
        self,
        plan_id: str,
        *,
        by: str,
        reason: str,
        max_age: timedelta,
        told: Callable[[ReplayProgress], None] = lambda _: None,
    ) -> Applied:
        """Begin the plan, or go on with it, to its end.

        Raises NotFound, PlanOver, PlanInProgress, PlanTooOld, PlanMoved (nothing was done then), ReplayStalled.
        """
        await self._lead(plan_id)
        try:
            await self._begin(plan_id, by=by, reason=reason, max_age=max_age)
            status = await self._send_all(plan_id, told)
            return await self._end(plan_id, status, by=by)
        finally:
            await self._tenure.give_back()

    # --- begin -------------------------------------------------------------------------------------------------

    async def _lead(self, plan_id: str) -> None:
        """One at a time. A process that was killed leaves its lease behind for some seconds: that is waited for."""
        before = None
        until = self._clock.monotonic() + LEASE_S * 4 / 3
        while not await self._tenure.take():
            async with self._database.reading() as session:
                lease, row = await leases.current(session, plans.ROLE), await plans.applying(session)
            is_alive = lease is not None and before is not None and lease.until > before
            if is_alive or self._clock.monotonic() > until:
                raise _in_progress(row, plan_id)
            before = before or (lease.until if lease is not None else None)
            await self._clock.sleep(1.0)

    async def _begin(self, plan_id: str, *, by: str, reason: str, max_age: timedelta) -> None:
        async with self._database.reading() as session:
            row, other = await plans.get(session, plan_id), await plans.applying(session)
        if row is None:
            raise NotFound("there is no such plan; see `consumer replay list`", plan=plan_id[:64])
        if other is not None and other.id != plan_id:
            raise _in_progress(other, plan_id)
        match PlanStatus(row.status):
            case PlanStatus.APPLYING:
                async with self._database.transaction() as session:
                    await plans.go_on(session, plan_id, by=by, reason=reason, now=self._clock.now())
                return
            case PlanStatus.APPLIED | PlanStatus.CANCELLED:
                raise PlanOver(plan=plan_id, status=row.status)
            case PlanStatus.PLANNED:
                found = await self._planner.look_again(row, max_age)
                if found:
                    raise PlanMoved(found, plan=plan_id)
                await self._planner.require_workers(plan_id)
                if not await self._tenure.take():  # to look may take longer than a lease lasts
                    raise _in_progress(None, plan_id)
        async with self._database.transaction() as session:
            now = self._clock.now()
            await plans.take_turns(session)
            if (other := await plans.applying(session)) is not None:
                raise _in_progress(other, plan_id)
            if not await plans.begin(session, plan_id, by=by, reason=reason, now=now):
                raise PlanOver(plan=plan_id)
            if gone := await items.archived(session, plan_id):
                raise PlanMoved([one | {"what": "its body lies in an archive"} for one in gone], plan=plan_id)
            await items.claim_followers(session, plan_id, now)

    # --- send --------------------------------------------------------------------------------------------------

    async def _send_all(self, plan_id: str, told: Callable[[ReplayProgress], None]) -> PlanStatus:
        """A portion, until all that comes of it is done; then the next. Returns how the plan stands at the end."""
        portion: Sequence[EventRow] = ()
        sent: Sequence[EventRow] = ()
        settled, news_at, last = 0, self._clock.monotonic(), (-1, -1)
        async with self._database.reading() as session:
            self._unsent = left_before = await items.left(session, plan_id)
        while True:
            await self._keep_lead()
            look = await self._look(plan_id, sent, settled)
            if look.status is not PlanStatus.APPLYING:
                return look.status
            left = self._left(look)
            if (left, look.due + look.at_work) != last:
                last, news_at = (left, look.due + look.at_work), self._clock.monotonic()
            awaits_rate = look.is_quiet and len(portion) > 0
            is_still = not awaits_rate and self._clock.monotonic() - news_at > STILL_S
            left_s = self._rate.left_s(left) if left < left_before and not is_still else None
            paused = _words(await self.paused(plan_id)) if is_still else ()
            told(ReplayProgress(look.total - left, look.total, left_s, paused))
            is_sent = look.is_quiet and not portion
            if is_sent:
                settled = look.settled
                if not look.is_any_left and await self._is_over(plan_id, sent, settled):
                    return look.status
                portion = await self._portion(plan_id)
            waits = not look.is_quiet or (is_sent and not portion)
            idle_s = self._clock.monotonic() - news_at if waits else 0.0
            if portion and look.has_room and (room := self._rate.room(look.at_work)):
                sent, portion = portion[:room], portion[room:]
                await self._send(plan_id, sent)
            elif idle_s > STALLED_S:
                raise await self._stalled(plan_id, left)
            elif look.waiting and idle_s > self._again_s:
                self._again_s += AGAIN_S
                waiting = [row for row in sent if row.seq in look.waiting]
                await self._publish(plan_id, waiting)  # as if it had never been sent
            await self._clock.sleep(LOOK_S)

    async def _stalled(self, plan_id: str, left: int) -> ReplayStalled:
        if paused := _words(await self.paused(plan_id)):
            return ReplayStalled(STALLED_BY_PAUSE, plan=plan_id, waiting=left, paused=", ".join(paused))
        return ReplayStalled(plan=plan_id, waiting=left)

    def _left(self, look: _Look) -> int:
        """How many items no worker has taken. They are counted once, and then as they are sent: to count them at each
        look would take the square of their number."""
        return max(0, self._unsent) + look.waiting.total() if look.is_any_left else 0

    async def _look(self, plan_id: str, sent: Sequence[EventRow], settled: int) -> _Look:
        """What goes on. It costs the same however much of the plan is done."""
        now = self._clock.now()
        async with self._database.reading() as session:
            # In this order: what an item leaves, what its run emits and what works on that is seen by a later of these,
            # also where a place in the outbox was given before what was committed first.
            is_any_left = await items.is_any_left(session, plan_id)
            newest = await items.newest_derived(session, plan_id)
            waiting = await items.on_way(session, plan_id, sent)
            before = await items.working(session, plan_id, now)
            is_underway = await items.underway(session, plan_id, now, settled)
            after = await items.working(session, plan_id, now)
            row = await plans.get(session, plan_id)
        return _Look(
            row=row,
            is_any_left=is_any_left,
            waiting=waiting,
            due=max(before.due, after.due),
            at_work=max(before.at_work, after.at_work),
            is_underway=is_underway,
            settled=newest,
        )

    async def _is_over(self, plan_id: str, sent: Sequence[EventRow], settled: int) -> bool:
        """Asked where nothing went on a moment ago, at the end only: it looks at all that the plan left parked. What a
        worker lets go meanwhile is not parked any more, and is seen by another look."""
        async with self._database.reading() as session:
            if await items.is_any_stranded(session, plan_id):
                return False
        return (await self._look(plan_id, sent, settled)).is_quiet

    async def _portion(self, plan_id: str) -> Sequence[EventRow]:
        async with self._database.reading() as session:
            return await items.next_events(session, plan_id, PORTION)

    async def _send(self, plan_id: str, rows: Sequence[EventRow]) -> None:
        async with self._database.reading() as session:
            self._unsent -= (await items.on_way(session, plan_id, rows)).total()
        await self._publish(plan_id, rows)
        self._rate.sent(len(rows))
        self._again_s = AGAIN_S

    async def _publish(self, plan_id: str, rows: Sequence[EventRow]) -> None:
        if rows:
            await self._broker.publish_many(self._topic, [copy(row, plan_id) for row in rows])

    async def _keep_lead(self) -> None:
        if self._tenure.left_s < LEASE_S / 2 and not await self._tenure.take():
            raise LeaseLost(role=plans.ROLE)

    # --- end ---------------------------------------------------------------------------------------------------

    async def _end(self, plan_id: str, status: PlanStatus, *, by: str) -> Applied:
        predicted = await self._planner.predicted(plan_id)
        now = self._clock.now()
        async with self._database.reading() as session:
            progress = await items.progress(session, plan_id, now)
            counts = await items.run_counts(session, plan_id)
            moved = await items.moved(session, plan_id, SHOWN)
            derived = await items.emitted(session, plan_id)
            standings = dict(await items.standings(session, plan_id))
        late = by_timers(derived)
        observed = Counter(map(word, derived)) - Counter(map(word, late))
        found = Applied(
            plan=plan_id,
            status=(PlanStatus.APPLIED if status is PlanStatus.APPLYING else status).value,
            items=dict(progress.items),
            runs={handler: dict(states) for handler, states in sorted(counts.items())},
            otherwise=came_out_otherwise(predicted, observed, standings, is_cut=status is not PlanStatus.APPLYING),
            moved=[{"event_id": event_id, "handler": handler} for event_id, handler in moved],
            timers=dict(sorted(Counter(one.type for one in derived if one.is_timer and one.not_before > now).items())),
            by_timers=[word(one) for one in late[:SHOWN]],
        )
        if status is PlanStatus.APPLYING:
            result: dict[str, Any] = {"items": found.items, "runs": found.runs, "otherwise": len(found.otherwise)}
            async with self._database.transaction() as session:
                await plans.complete(session, plan_id, by=by, now=now, result=result)
        return found


def copy(row: EventRow, plan_id: str) -> Message:
    """The event once more, for the plan: without its old trace and delivery, with a link to the original. Pure."""
    event = replace(to_event(row), source=Source.REPLAY, delivery_id="", traceparent=None)
    packed = pack_event(event, plan=plan_id)
    return Message(key=packed.key, value=packed.value, headers={**packed.headers, "replays": str(row.seq).encode()})


def _words(paused: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    return tuple(f"{name} of {one}" if one != ALL else name for name, one in paused)


def _in_progress(row: PlanRow | None, plan_id: str) -> PlanInProgress:
    if row is None or row.id == plan_id:
        return PlanInProgress("another process applies a plan right now; see `consumer replay list`")
    return PlanInProgress(
        begun(row.id, renews_keys=row.renews_keys),
        by=row.began_by,
        since=row.began_at,
    )
