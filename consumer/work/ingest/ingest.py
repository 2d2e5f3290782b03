"""Ingest: a batch of records becomes events, runs and derived events, in one transaction (group commit).

Three ways, each slower and safer than the one before; a batch takes the first that works:
  together   all transactional handlers of the batch share the transaction: one failure undoes the batch; a handler
             that takes many events gets them at once;
  isolated   a savepoint per event and handler: a failure undoes that handler's writes only;
  singly     a transaction per event, and if even that breaks, a transaction per handler: the dispatcher's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from itertools import chain

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.broker.base import Partition, Record
from consumer.clock import Clock
from consumer.errors import LedgerBehind, LedgerError
from consumer.events import Event, Locators, Source
from consumer.ledger import Database, log_positions
from consumer.ledger.engine.chunks import portions
from consumer.ledger.handling import events, outbox
from consumer.ledger.handling.events import EventKey
from consumer.ledger.handling.handlers import Paused
from consumer.ledger.handling.lanes import Lane, blocked
from consumer.ledger.handling.runs import Run
from consumer.ledger.reading import heard, quarantine
from consumer.ledger.tables import RunStatus
from consumer.plugin import Context
from consumer.reason import Reason
from consumer.telemetry.way import on_the_way_of, on_the_way_of_all
from consumer.wire import SEED
from consumer.work.execution.claimed import Claimed
from consumer.work.execution.contexts import Contexts
from consumer.work.execution.executor import Executor
from consumer.work.execution.handler_call import was_cut
from consumer.work.execution.savepoint import in_savepoint
from consumer.work.ingest import onwards, replayed
from consumer.work.ingest.arrivals import (
    Refused,
    Stretch,
    each_once,
    event_delivery,
    heard_late,
    not_ahead,
    stretch_of,
    understood,
)
from consumer.work.ingest.claiming import NO_ROOM, Claiming, Room
from consumer.work.ingest.other_bodies import other_bodies
from consumer.work.ingest.replayed import Replayed
from consumer.work.ingest.rolling_deploy import RollingDeploy
from consumer.work.ingest.slow_handlers import SlowHandlers
from consumer.work.ingest.waves import Call, Waves
from consumer.work.outcome import Failed, Outcome, Succeeded, has_given_way, has_timed_out
from consumer.work.registry import Registry
from consumer.work.transition import attempt_row, transition_after
from consumer.work.unit_of_work import Incoming, UnitOfWork, done_by, finished, skipped, waiting

UNDERSTOOD_AT_ONCE = 20

_log = structlog.get_logger(__name__)


class Way(Enum):
    """How a batch is handled; see the module's text."""

    TOGETHER = 1
    ISOLATED = 2
    SINGLY = 3


class _Disturbed(Exception):
    """A handler failed while the batch shared one transaction without savepoints."""


class _GaveWay(Exception):
    """A handler failed by a deadlock. What the events before it hold is held on to, savepoint or not: the transaction
    has to end."""


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What became of a batch, for metrics and to wake other parts. `recorded`: its new events, and the derived ones
    taken with them. `again`: known events that a replay plan runs again. `let_go`: how many older runs a plan has made
    due that nobody has claimed. `emitted`: how many derived events the relay has to publish now. `claimed`: those of
    `runs` that this worker may start now. `others`: the application of each body kept beside a known event."""

    recorded: Sequence[Event]
    again: Sequence[Event]
    duplicates: int
    refused: int
    runs: Sequence[Run]
    emitted: int
    reads: int
    claimed: Sequence[Claimed] = ()
    others: Sequence[str] = ()
    let_go: int = 0


class Ingest:
    """Stores batches of records. The worker keeps `paused` up to date. `generations`: how many steps of what events
    lead to are taken in the same transaction (see `onwards`)."""

    def __init__(
        self,
        *,
        database: Database,
        registry: Registry,
        locators: Mapping[str, Locators],
        contexts: Contexts,
        executor: Executor,
        clock: Clock,
        worker: str,
        room: Room = NO_ROOM,
        generations: int = 0,
    ) -> None:
        self._database = database
        self._generations = generations
        self._claiming = Claiming(room, clock, worker)
        self._registry = registry
        self._rolling_deploy = RollingDeploy(registry, clock)
        self._locators = locators
        self._contexts = contexts
        self._executor = executor
        self._clock = clock
        self._worker = worker
        self._way = Way.TOGETHER
        self._slow_handlers = SlowHandlers(clock)
        self._slow_batches = SlowHandlers(clock)
        self._ahead: dict[int, tuple[Record, Incoming | Refused]] = {}
        self._cut: dict[tuple[EventKey, str], Failed] = {}
        self.paused = Paused()
        self.is_careful = False
        """No handler is called here: each run is the dispatcher's, who works on one at a time."""

    async def take(self, records: Sequence[Record], *, loose: frozenset[Partition] = frozenset()) -> Taken:
        """Store a batch of records; when this returns, their offsets may be committed. `loose`: partitions whose
        records need not follow what the ledger has: what lay between is gone.

        Raises LedgerBehind when records do not follow; LedgerError when the ledger cannot take it (now). Nothing of the
        batch is stored then, or, singly, whole events of it are: taking the same batch again is always safe.
        """
        self._cut.clear()
        arrived, refused = each_once([self._understood(record) for record in records])
        arrived = not_ahead(arrived, self._clock.now())
        stretch = stretch_of(records, loose)
        if self._way is Way.TOGETHER and not self.is_careful:
            try:
                return await self._store(arrived, refused, Way.TOGETHER, stretch=stretch)
            except (LedgerError, LedgerBehind):
                raise
            except Exception as error:  # noqa: BLE001 - whoever it was, the next way finds out
                _log.debug("batch_disturbed", events=len(arrived), error=type(error).__name__)
        return await self._take_apart(arrived, refused, stretch)

    async def understand(self, records: Sequence[Record]) -> None:
        """Read what records say that are to be taken next, a few at a time: whoever has waited for the database goes on
        in between."""
        self._ahead = {}
        for some in portions(records, UNDERSTOOD_AT_ONCE):
            await asyncio.sleep(0)
            self._ahead |= {id(record): (record, understood(record, self._locators)) for record in some}

    def _understood(self, record: Record) -> Incoming | Refused:
        _, said = self._ahead.pop(id(record), (record, None))  # who is kept there keeps its id
        return said or understood(record, self._locators)

    @property
    def _apart(self) -> Way:
        return Way.SINGLY if self.is_careful else Way.ISOLATED

    async def _take_apart(self, arrived: Sequence[Incoming], refused: Sequence[Refused], stretch: Stretch) -> Taken:
        try:
            taken = await self._store(arrived, refused, self._apart, stretch=stretch)
        except (LedgerError, LedgerBehind):
            raise
        except Exception as error:  # noqa: BLE001 - savepoints did not help: one event at a time
            _log.warning("batch_taken_singly", events=len(arrived), error=type(error).__name__)
        else:
            # A batch without a failure: the next may go together again.
            self._way = (
                Way.ISOLATED
                if any(run.code and run.status is not RunStatus.SKIPPED for run in taken.runs)
                else Way.TOGETHER
            )
            return taken
        parts = [await self._take_one(incoming) for incoming in arrived]
        parts.append(await self._store([], refused, Way.ISOLATED, stretch=stretch))
        return _sum(parts)

    async def _take_one(self, incoming: Incoming) -> Taken:
        event = incoming.event
        try:
            return await self._store([incoming], [], self._apart)
        except LedgerError:
            raise
        except _GaveWay:
            _log.debug("event_gave_way")
        except Exception:  # noqa: BLE001 - nobody knows by whom: each handler is tried in a transaction of its own
            with on_the_way_of(event):
                _log.exception("event_breaks_its_transaction", application=event.application)
        try:
            return await self._store([incoming], [], Way.SINGLY)
        except LedgerError:
            raise
        except Exception:  # noqa: BLE001 - kept raw in quarantine, loudly
            with on_the_way_of(event):
                _log.exception("event_cannot_be_stored", application=event.application)
            return await self._store([], [(event_delivery(event), Reason.NOT_STORABLE)], Way.SINGLY)

    async def _store(
        self,
        arrived: Sequence[Incoming],
        refused: Sequence[Refused],
        way: Way,
        stretch: Stretch | None = None,
    ) -> Taken:
        """One transaction. `stretch`: what of the log it takes the ledger over. Raises LedgerBehind."""
        unit = UnitOfWork(self._clock.now())
        async with self._database.transaction() as session:
            if stretch:
                await _must_follow(session, stretch)
            new = await events.record(session, [incoming.event for incoming in arrived], unit.now)
            others = await other_bodies(session, arrived, new)
            await quarantine.put(session, [*refused, *others], unit.now)
            fresh = [incoming for incoming in arrived if incoming.id in new]
            await outbox.arrived(session, [one.id for one in fresh if one.event.source is Source.RELAY])
            again, let_go = await replayed.take(session, arrived, frozenset(new), unit.now)
            coming = [*fresh, *(one.incoming for one in again)]
            lanes = await blocked(session, {(one.event.application, one.event.key) for one in coming})
            registry = await self._rolling_deploy.registry(session)
            calls = [calls for one in again if (calls := self._calls_again(unit, lanes, registry, one))]
            calls += _calls(unit, registry, fresh, new)
            derived: Sequence[Incoming] = ()
            if way is Way.TOGETHER:
                derived = await self._handle_onwards(
                    session, unit, lanes, registry, calls, onwards.EVENTS_MAX - len(arrived)
                )
            else:
                for call in chain.from_iterable(calls):
                    await self._handle(session, unit, lanes, call, alone=way is Way.SINGLY)
            await session.flush()
            await unit.store(session, self._clock.now())
            recorded = {one.id: one.event for one in (*fresh, *derived)}
            claimed = await self._claiming.claim(session, unit.runs, recorded) if stretch else ()
            await heard.note(session, heard_late(arrived, new, unit.now))
            await log_positions.keep(session, {place: end for place, (_, end) in (stretch or {}).items()})
        return Taken(
            recorded=list(recorded.values()),
            again=[one.incoming.event for one in again],
            duplicates=len(arrived) - len(fresh),
            refused=len(refused),
            runs=unit.runs,
            emitted=unit.relayed,
            reads=len(unit.reads),
            claimed=claimed,
            others=[other.application for other, _ in others],
            let_go=let_go,
        )

    async def _handle_onwards(
        self,
        session: AsyncSession,
        unit: UnitOfWork,
        lanes: set[Lane],
        registry: Registry,
        calls: Sequence[Sequence[Call]],
        room: int,
    ) -> Sequence[Incoming]:
        """All of them, then what they emitted, and what that led to: events that are new here and came by no log, at
        most `room`."""
        taken: list[Incoming] = []
        await self._handle_together(session, unit, lanes, calls)
        for _ in range(self._generations):
            if not unit.emitted:
                break
            fresh, new = await self._take_emitted(session, unit, room - len(taken))
            taken += fresh
            # Their keys are those of their causes: what blocks these is known.
            await self._handle_together(session, unit, lanes, _calls(unit, registry, fresh, new))
        return taken

    async def _take_emitted(
        self, session: AsyncSession, unit: UnitOfWork, room: int
    ) -> tuple[Sequence[Incoming], Mapping[EventKey, int]]:
        """What was emitted goes into the outbox; of what need not go by the log, the events that are new here, and
        their numbers."""
        rows = await unit.emit(session, onwards.at_hand(unit.emitted, unit.now, room))
        derived = [Incoming(outbox.derived_event(row)) for row in rows]
        new = await events.record(session, [one.event for one in derived], unit.now)
        return [one for one in derived if one.id in new], new

    async def _handle_together(
        self, session: AsyncSession, unit: UnitOfWork, lanes: set[Lane], calls: Sequence[Sequence[Call]]
    ) -> None:
        """All of them, in waves. Raises _Disturbed for the first that fails."""
        waves = Waves([handler.name for handler in self._registry.handlers], self._slow_batches.has)
        for of_event in calls:
            waves.add([call for call in of_event if self._is_ready(unit, lanes, call)])
        for at_once in waves:
            await self._perform_together(session, unit, at_once)
            for call in at_once:
                self._conclude(unit, lanes, call, Succeeded(), unit.now)

    async def _handle(
        self,
        session: AsyncSession,
        unit: UnitOfWork,
        lanes: set[Lane],
        call: Call,
        *,
        alone: bool,
    ) -> None:
        """One event for one handler: run it now if it may, else leave it to the dispatcher, in its lane's order. That
        is where each is tried `alone`."""
        if not self._is_ready(unit, lanes, call):
            return
        started_at = self._clock.now()
        known = self._cut.get(call.id)
        if alone and known is None:
            self._leave(unit, lanes, call)
            return
        outcome = known or await self._perform(session, unit, call)
        if self._slow_handlers.has(call.handler.name) and has_timed_out(outcome):
            self._leave(unit, lanes, call)  # it was cut off early here: that was no attempt
            return
        self._conclude(unit, lanes, call, outcome, started_at)

    def _conclude(self, unit: UnitOfWork, lanes: set[Lane], call: Call, outcome: Outcome, started_at: datetime) -> None:
        """What became of a run that was called here."""
        handler, event = call.handler, call.incoming.event
        transition = transition_after(handler, outcome, used=0, now=unit.now)
        unit.add(finished(handler, call.incoming, call.seq, transition))
        if transition.status is not RunStatus.SUCCEEDED:
            unit.attempts.append(
                attempt_row(handler, event, transition, number=1, worker=self._worker, started_at=started_at,
                            finished_at=self._clock.now())
            )  # fmt: skip
        if transition.blocking:
            lanes.add(call.lane)

    def _calls_again(self, unit: UnitOfWork, lanes: set[Lane], registry: Registry, one: Replayed) -> Sequence[Call]:
        """A pair that a replay plan begins: as when its event came, for this handler alone."""
        handler = next(
            (found for found in registry.wanting(one.incoming.event.type) if found.name == one.handler), None
        )
        if handler is not None:
            return [Call(handler, one.incoming, one.seq)]
        lane = (one.incoming.event.application, one.handler, one.incoming.event.key)
        unit.add(replayed.waits_for_handler(one, unit.now, blocked=lane in lanes))
        lanes.add(lane)
        return []

    def _is_ready(self, unit: UnitOfWork, lanes: set[Lane], call: Call) -> bool:
        """Whether it is called here and now; what is not is settled or left."""
        if call.incoming.plan == SEED and not call.handler.transactional:
            unit.add(skipped(call.handler, call.incoming, call.seq))
            return False
        if call.lane in lanes or not (self._may_run(unit, call) or call.id in self._cut):
            self._leave(unit, lanes, call)
            return False
        return True

    def _may_run(self, unit: UnitOfWork, call: Call) -> bool:
        handler, application = call.handler, call.incoming.event.application
        return (
            handler.transactional
            and self._registry.get(handler.name) is not None
            and not self.paused.holds(handler.name, application)
            and not self._slow_handlers.has(handler.name)
            and not unit.is_too_deadly(handler, application)
        )

    def _leave(self, unit: UnitOfWork, lanes: set[Lane], call: Call) -> None:
        """The dispatcher's: at once, or when its lane is free."""
        unit.add(waiting(call.handler, call.incoming, call.seq, unit.now, blocked=call.lane in lanes))
        lanes.add(call.lane)

    async def _perform_together(self, session: AsyncSession, unit: UnitOfWork, calls: Sequence[Call]) -> None:
        handler, limit_s = calls[0].handler, self._slow_handlers.limit_s
        batch = [(call.incoming.event, self._context(session, call)) for call in calls]
        if handler.together is None or len(batch) == 1:
            with on_the_way_of(batch[0][0]):
                outcome = await self._executor.transactional(handler, *batch[0], limit_s=limit_s)
        else:
            with on_the_way_of_all([event for event, _ in batch]):
                outcome = await self._executor.together(handler, batch, limit_s=limit_s)
        self._remember(outcome, calls)
        if isinstance(outcome, Failed) or not await _holds(session):
            raise _Disturbed
        for call, (event, ctx) in zip(calls, batch, strict=True):
            unit.take_from(ctx, handler, event, call.incoming.plan)

    async def _perform(self, session: AsyncSession, unit: UnitOfWork, call: Call) -> Outcome:
        handler, event, ctx = call.handler, call.incoming.event, self._context(session, call)
        limit_s = self._slow_handlers.limit_s
        with on_the_way_of(event):
            outcome = await in_savepoint(session, self._executor, handler, event, ctx, limit_s=limit_s)
        if has_given_way(outcome):
            raise _GaveWay
        self._remember(outcome, [call])
        if not isinstance(outcome, Failed):
            unit.take_from(ctx, handler, event, call.incoming.plan)
        return outcome

    def _context(self, session: AsyncSession, call: Call) -> Context:
        return self._contexts.make(
            call.handler, call.incoming.event, attempt=1, plan=call.incoming.plan, session=session
        )

    def _remember(self, outcome: Outcome, calls: Sequence[Call]) -> None:
        """Who took too long goes apart for a while; many at once that did are called one by one."""
        if not isinstance(outcome, Failed):
            return
        if has_timed_out(outcome) or was_cut(outcome):
            (self._slow_handlers if len(calls) == 1 else self._slow_batches).add(calls[0].handler.name)
        if was_cut(outcome) and len(calls) == 1:
            # All stood still for it once; when this batch is taken again, it has failed already.
            self._cut[calls[0].id] = outcome


def _calls(
    unit: UnitOfWork, registry: Registry, fresh: Sequence[Incoming], new: Mapping[EventKey, int]
) -> list[list[Call]]:
    """What new events are for: one list an event, in their order. What a handler does here under another name is
    skipped (case H7)."""
    found: list[list[Call]] = []
    for one in fresh:
        found.append([])
        for handler in registry.wanting(one.event.type):
            other = registry.done_by(handler.name, one.event.type)
            if other is None:
                found[-1].append(Call(handler, one, new[one.id]))
            else:
                unit.add(done_by(other, handler, one, new[one.id]))
    return found


async def _holds(session: AsyncSession) -> bool:
    """Whether the database takes what a handler added and has not sent: what it refuses is no fault of the ledger. The
    next one finds no object of its: of a loaded collection nobody knows what others changed since."""
    if session.new or session.dirty or session.deleted:
        try:
            await session.flush()
        except Exception:  # noqa: BLE001 - apart, its handler has failed; an outage is found there, too
            return False
    session.expunge_all()
    return True


async def _must_follow(session: AsyncSession, stretch: Stretch) -> None:
    starts = {place: start for place, (start, _) in stretch.items() if start is not None}
    if behind := await log_positions.behind(session, starts):
        raise LedgerBehind(behind)


def _sum(parts: Sequence[Taken]) -> Taken:
    return Taken(
        recorded=[event for part in parts for event in part.recorded],
        again=[event for part in parts for event in part.again],
        duplicates=sum(part.duplicates for part in parts),
        refused=sum(part.refused for part in parts),
        runs=[run for part in parts for run in part.runs],
        emitted=sum(part.emitted for part in parts),
        reads=sum(part.reads for part in parts),
        others=[application for part in parts for application in part.others],
        let_go=sum(part.let_go for part in parts),
    )
