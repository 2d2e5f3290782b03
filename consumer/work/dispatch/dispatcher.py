"""Dispatcher: works on the runs that ingest left: effect handlers, and transactional ones that failed before.

Claim due heads of lanes, or take what ingest claimed as it added it; run them (effects outside transactions,
concurrently across lanes), store what became of them, which lets the next of each lane go. The ledger is the queue:
what waits here is claimed there, for as long as a lease, and is given back when it may not start.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import structlog

from consumer.clock import Clock, Pace, is_set_within, rest, until_tick
from consumer.errors import LedgerError, code_of
from consumer.events import Event
from consumer.ledger import Database
from consumer.ledger.engine.database import HELD_MOST
from consumer.ledger.handling import events, queue, runs
from consumer.ledger.handling.handlers import Paused
from consumer.ledger.handling.runs import ClaimedRun, Finished
from consumer.ledger.leases import CLAIM_LEASE_S
from consumer.ledger.tables import RunStatus
from consumer.plugin import Context, Handler
from consumer.telemetry.logs import Condition
from consumer.telemetry.way import on_the_way_of, tell
from consumer.work.dispatch import left_behind
from consumer.work.dispatch.ahead import Ahead
from consumer.work.dispatch.breakers import Breakers
from consumer.work.dispatch.patience import Patience
from consumer.work.dispatch.result_writer import Result, ResultWriter, conclude, store, untried
from consumer.work.execution.claimed import Claimed
from consumer.work.execution.contexts import Contexts
from consumer.work.execution.executor import Executor, Make
from consumer.work.execution.handler_call import was_cut
from consumer.work.execution.loop_thread import LoopThread
from consumer.work.execution.savepoint import in_savepoint
from consumer.work.outcome import Failed, Outcome, failed, has_timed_out
from consumer.work.registry import Registry
from consumer.work.unit_of_work import UnitOfWork

IDLE_S, QUIET_S = 0.5, 2.0
RETRY_S = 0.5
GIVE_BACK_WITHIN_S = 5.0
UNBEGUN_S = 5.0
LATER = datetime.max.replace(tzinfo=UTC)

_log = structlog.get_logger(__name__)


class _CutOff(Exception):
    """A handler took too long over a statement: its connection went with it, so its failure is stored elsewhere."""

    def __init__(self, outcome: Failed) -> None:
        super().__init__()
        self.outcome = outcome


class _ConnectionLost(Exception):
    """The connection broke under a handler: no failure of the handler's (case R11)."""


class Dispatcher:
    """Claims and works on due runs until told to stop. `wake()` it when there may be some. `patient_s`: see
    `Patience`."""

    def __init__(
        self,
        *,
        database: Database,
        registry: Registry,
        contexts: Contexts,
        executor: Executor,
        breakers: Breakers,
        clock: Clock,
        worker: str,
        concurrency: int = 64,
        patient_s: float = 0.0,
        observe: Callable[[Result], None],
        on_emitted: Callable[[], None],
        on_deadly: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._database = database
        self._registry = registry
        self._transactional = tuple(one for one in registry.handlers if one.transactional)
        self._contexts = contexts
        self._executor = executor
        self._breakers = breakers
        self._clock = clock
        self._worker = worker
        self._concurrency = concurrency
        self._patience = Patience(clock, patient_s)
        self._observe = observe
        self._on_emitted = on_emitted
        self._on_deadly = on_deadly
        self._wake = asyncio.Event()
        self._wakes = self._looked_for = 0
        self._pace = Pace(clock, first_s=IDLE_S, most_s=QUIET_S)
        self._claimed: dict[tuple[str, str, str], ClaimedRun] = {}
        self._unclaimed, self._unrenewed = Condition("claim_failed"), Condition("claims_not_renewed")
        self._ahead = Ahead()
        self._busy: Counter[str] = Counter()
        self._unstored: Counter[str] = Counter()
        self._hung: set[str] = set()
        self._upcoming: list[datetime] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._caught_up: set[str] = set()
        self._started = 0
        self._began_s = clock.monotonic()
        self._is_stopping = False
        self._renewed_s = float("-inf")
        self._writer = ResultWriter(database=database, clock=clock, worker=worker, on_stored=self._stored)
        self.paused = Paused()
        self.is_careful = False
        """One run at a time, of all handlers: workers die, and what is left behind alone is what it was."""

    def wake(self) -> None:
        """There may be due runs: look now."""
        self._pace.stir()
        self._wakes += 1
        self._wake.set()

    def room(self, name: str, new: int) -> int:
        """How many of `new` runs of a handler may be claimed as they are added, to be begun with `take`. Returns 0
        while older runs may wait in the ledger: those go first."""
        handler = self._registry.get(name)
        if handler is None or handler.transactional or self._is_stopping or name not in self._caught_up:
            return 0
        if self.is_careful or name in self.paused.wholly or self._breakers.is_open(name):
            return 0
        room = self._wanted(handler, self._clock.now())
        if room < new:
            self._caught_up.discard(name)
        return max(0, min(room, new))

    def take(self, claimed: Sequence[Claimed]) -> None:
        """Work on what was claimed as it was added."""
        for handler in self._registry.handlers:
            if mine := [one for one in claimed if one.run.handler == handler.name]:
                self._take(handler, mine)

    async def keeps_up(self, stop: asyncio.Event) -> None:
        """While it is careful: wait until no run waits for it, or until `stop`. What was taken from the log before
        then would be tried one by one, long after care is over. Only a look that began after the last wake tells: what
        was added since the one before is not in it."""
        while self.is_careful and not stop.is_set() and self._is_behind():
            await rest(self._clock, RETRY_S, stop)

    def _is_behind(self) -> bool:
        wholly = self.paused.wholly
        held = {one.name for one in self._registry.handlers if one.name in wholly or self._breakers.is_open(one.name)}
        waits = {one.name for one in self._registry.handlers} - self._caught_up - held
        begun = self._unstored.total() > 0 or len(self._ahead) > 0
        return begun or self._looked_for < self._wakes or bool(waits)

    def go_singly(self, handler: str) -> None:
        """The handler harmed those it shared a worker with: one run of it at a time, until one succeeds."""
        self._hung.add(handler)

    async def run(self, stop: asyncio.Event, drain_s: float) -> None:
        """Claim and work until `stop`; then let what runs finish, at most `drain_s`, and give the rest back. Claims are
        renewed by a task that does nothing else: whatever waits for somebody's lock meanwhile, they do not end."""
        storing = asyncio.create_task(self._writer.run(), name="dispatcher:results")
        keeping = asyncio.create_task(self._keep_claims(stop), name="dispatcher:claims")
        self._is_stopping = False
        try:
            while not stop.is_set():
                for part in (storing, keeping):
                    if part.done():
                        part.result()  # neither ends before `stop`: what ended it must be seen, and ends the worker
                self._wake.clear()
                if not await self._claim():
                    await self._wait_for_work()
            self._is_stopping = True
            await self._drain(drain_s)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            storing.cancel()
            keeping.cancel()
            await asyncio.gather(storing, keeping, return_exceptions=True)
            await self._give_back()

    async def once(self, *, store: bool = True) -> int:
        """One round: work on what is due now and store it; returns how many runs that were. For the test kit, which
        drives the time, and which plays a death between an effect and its mark by not storing. Raises LedgerError.
        """
        before = self._started
        await self._claim()
        while self._tasks:
            await asyncio.gather(*self._tasks)
        if store:
            await self._writer.flush()
        return self._started - before

    async def renew_claims(self) -> None:
        """Keep what is being worked on ours. Call well within CLAIM_LEASE_S. Raises LedgerError."""
        await self._give_back_what_may_not_start()
        if self._claimed:
            began_s, waiting = self._clock.monotonic(), self._ahead.ids()
            async with self._database.transaction() as session:
                kept = await runs.renew(
                    session,
                    list(self._claimed),
                    worker=self._worker,
                    now=self._clock.now(),
                    lease_s=CLAIM_LEASE_S,
                    alone=self.is_careful,
                )
            if waiting <= kept:
                self._renewed_s = began_s

    async def _wait_for_work(self) -> None:
        """Until woken, until the next run is due, or a short while: other processes leave work too."""
        most_s = self._pace.wait_s
        soonest_s = min(((at - self._clock.now()).total_seconds() for at in self._upcoming), default=most_s)
        await is_set_within(self._wake, max(0.01, min(soonest_s, most_s)))

    # --- claim -------------------------------------------------------------------------------------------------

    async def _claim(self) -> int:
        """Claim due runs for the handlers that have room, and start them; returns how many were claimed."""
        claimed, wakes = 0, self._wakes
        try:
            await self._give_back_what_may_not_start()
            async with self._database.reading() as session:
                due = await queue.next_due(session, self._patience.over(now := self._clock.now()))
                last = await queue.suspected(session) if self._lets_others_go_first() else frozenset()
            self._upcoming = [at for at in due.values() if at > now]
            self._caught_up = {one.name for one in self._registry.handlers if due.get(one.name, LATER) > now}
            self._looked_for = wakes
            wholly = self.paused.wholly
            ready = [(name in last, self._holds(name), at, name)
                     for name, at in due.items() if at <= now and name not in wholly]  # fmt: skip
            for *_, name in sorted(ready):
                handler = self._registry.get(name)
                if handler and (limit := self._wanted(handler, now)) > 0:
                    claimed += await self._claim_for(handler, limit)
        except LedgerError as error:
            self._unclaimed.lasts(error)
            self._patience.failed()
            await self._clock.sleep(RETRY_S)
        else:
            self._unclaimed.over()
        return claimed

    def _lets_others_go_first(self) -> bool:
        """At first a careful worker takes what may well end it after all else: it may do it on every event."""
        return self.is_careful and self._clock.monotonic() - self._began_s < left_behind.AGAIN_S

    def _wanted(self, handler: Handler, now: datetime) -> int:
        """How many to claim: those that may start, and if nothing is wrong with the handler some ahead."""
        room = self._room(handler, now) - self._ahead.count(handler.name)
        if self.is_careful or self._breakers.is_open(handler.name):
            return max(room, 0)
        unstored = self._unstored[handler.name] - self._busy[handler.name]
        return max(room, 0) + self._ahead.wanted(handler, self._clock.monotonic(), unstored)

    async def _give_back_what_may_not_start(self) -> None:
        """Give back the runs that are claimed and not begun of a handler that is paused for one of them, fails or
        hangs, or whose breaker opened; all of them when this worker stops. Others may have room for them, and they are
        due in their order again. Also give back what may be another worker's already."""
        for name in self._ahead.handlers():
            is_held = self._is_stopping or self._is_paused(name) or self._breakers.is_open(name)
            is_held = is_held or self._ahead.is_failing(name) or self._ahead.is_stuck(name, self._clock.monotonic())
            if is_held or self._may_be_lost(name):
                back = self._ahead.clear(name)
                try:
                    async with self._database.transaction() as session:
                        await runs.give_back(session, [run.id for run in back], worker=self._worker)
                finally:
                    # Not before: claimed anew meanwhile, it would be begun, and given back under way. And whatever
                    # comes of it: what cannot be given back now ends with its lease.
                    for run in back:
                        self._claimed.pop(run.id, None)
                self.wake()

    def _is_paused(self, name: str) -> bool:
        """Whether it is for one of those whose runs are claimed and not begun."""
        paused = self.paused
        return bool(paused.of) and any(paused.holds(name, one) for one in self._ahead.applications(name))

    def _may_be_lost(self, name: str) -> bool:
        return self._ahead.may_be_lost(name, self._clock.monotonic(), self._renewed_s)

    def _room(self, handler: Handler, now: datetime) -> int:
        # A handler that hung in its transaction, or blocked it, goes one at a time: on SQLite everybody waits for it.
        own = 1 if handler.name in self._hung else handler.concurrency
        # Of one that fails no more begin than results are stored: whether it is paused is decided by those.
        begun = self._unstored if self._ahead.is_failing(handler.name) else self._busy
        room = min(own - begun[handler.name], self._concurrency - self._busy.total())
        if handler.transactional:
            room = min(room, HELD_MOST - sum(self._busy[one.name] for one in self._sharing_room(handler)))
        if self.is_careful:  # what is not stored is left behind, too
            room = min(room, 1 - self._unstored.total())
        return self._breakers.room(handler, now, room) if room > 0 else 0

    async def _claim_for(self, handler: Handler, limit: int) -> int:
        at_s, known = self._clock.monotonic(), self.paused
        async with self._database.transaction() as session:
            claimed = await runs.claim(
                session,
                handler=handler.name,
                worker=self._worker,
                limit=limit,
                now=(now := self._clock.now()),
                lease_s=CLAIM_LEASE_S,
                over=self._patience.over(now),
                alone=self.is_careful,
            )
            found = await events.load(session, {(run.application, run.event_id) for run in claimed})
            left = {
                run.id: await left_behind.judge(session, run, now)
                for run in claimed
                if run.left_by not in (None, self._worker)
            }
        if known.of and self.paused is known:  # the claim looked, and nobody did since: what it took is not paused
            self.paused = Paused(self.paused.of - {(handler.name, run.application) for run in claimed})
        if len(claimed) < limit:
            self._caught_up.add(handler.name)
        events_of = ((run, found[run.application, run.event_id]) for run in claimed)
        mine = [Claimed(run=run, event=event, at_s=at_s) for run, event in events_of]
        for one in mine:
            if one.run.id in left:
                self._conclude_left(handler, one, left[one.run.id])
        return len(left) + self._take(handler, [one for one in mine if one.run.id not in left])

    def _conclude_left(self, handler: Handler, claimed: Claimed, left: left_behind.Verdict) -> None:
        """Nothing is begun: what a worker left behind alone has failed."""
        run, now = claimed.run, self._clock.now()
        self._claimed[run.id] = run
        self._started += 1
        self._unstored[run.handler] += 1
        result = conclude(handler, run, claimed.event, left.outcome, worker=run.left_by or "", started_at=now, now=now)
        self._writer.add(left_behind.in_its_place(result))
        if left.is_habit:
            self._on_deadly(run.handler)

    def _take(self, handler: Handler, claimed: Sequence[Claimed]) -> int:
        """Begin what is not begun already, as far as there is room; returns how many are ours now that were not."""
        fresh = [one for one in claimed if one.run.id not in self._claimed]
        for one in fresh:
            self._claimed[one.run.id] = one.run
            self._ahead.put(one)
            self._renewed_s = min(self._renewed_s, one.at_s)  # what was renewed since it was claimed was without it
        self._start_waiting(handler)
        return len(fresh)

    def _start_waiting(self, handler: Handler) -> None:
        """Of what is claimed, as many as there is room for; what may not start is put off."""
        name = handler.name
        if self._is_stopping or name in self.paused.wholly or not self._ahead.count(name):
            return
        if self._is_paused(name) or self._may_be_lost(name):
            self.wake()  # it is given back
            return
        now = self._clock.now()
        while self._ahead.count(name) and self._room(handler, now) > 0:
            claimed = self._ahead.pop(name, self._clock.monotonic())
            self._started += 1
            self._unstored[name] += 1
            if put_off := self._breakers.start(handler, claimed.run, now):
                # No attempt, and nobody's room: what it depends on does not answer for its application.
                self._writer.add(untried(handler, claimed.run, claimed.event, put_off, now=now))
            else:
                self._start(handler, claimed)

    def _start(self, handler: Handler, claimed: Claimed) -> None:
        self._busy[handler.name] += 1
        task = asyncio.create_task(self._work(handler, claimed.run, claimed.event), name=f"run:{handler.name}")
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, handler))

    def _ended(self, handler: Handler, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._busy[handler.name] -= 1
        if not self._ahead.is_failing(handler.name):
            self._start_waiting(handler)
        self._look_for_more(handler)

    def _look_for_more(self, handler: Handler) -> None:
        if self._wake.is_set():
            return
        behind = (one for one in self._sharing_room(handler) if one.name not in self._caught_up)
        if any(self._wanted(one, self._clock.now()) > 0 for one in behind):
            self.wake()

    def _holds(self, name: str) -> int:
        """How much of the room that it shares it has: who has least of it goes first, or one that is slow and has many
        waiting would have it all."""
        handler = self._registry.get(name)
        return self._busy[name] if handler is not None and handler.transactional else 0

    def _sharing_room(self, handler: Handler) -> Sequence[Handler]:
        """Those whose attempts take room from each other: the transactional ones hold a connection each."""
        return self._transactional if handler.transactional else (handler,)

    # --- work --------------------------------------------------------------------------------------------------

    async def _work(self, handler: Handler, run: ClaimedRun, event: Event) -> None:
        with on_the_way_of(event):
            tell("handler_began", event, handler=handler.name, attempt=run.attempts + 1)
            await (self._in_transaction if handler.transactional else self._outside)(handler, run, event)

    async def _outside(self, handler: Handler, run: ClaimedRun, event: Event) -> None:
        """An effect handler's attempt."""
        started_at = self._clock.now()
        home, attempt = asyncio.get_running_loop(), run.attempts + 1

        def make(loop: LoopThread) -> Context:
            http = None if self._contexts.http is not None else loop.http
            return self._contexts.make(handler, event, attempt=attempt, plan=run.plan, key_plan=run.key_plan, http=http,
                                       home=home)  # fmt: skip

        try:
            outcome = await self._effect(handler, event, make)
            now = self._clock.now()
            if isinstance(outcome, Failed):
                self._ahead.failed(handler.name)
            else:
                self._ahead.succeeded(handler.name, self._clock.monotonic())
            outcome = self._breakers.judge(handler, run, outcome, now)
            result = conclude(handler, run, event, outcome, worker=self._worker, started_at=started_at, now=now)
        except Exception as error:  # noqa: BLE001 - a claimed run must come to a result, or it holds its place for good
            _log.exception("attempt_broke", handler=handler.name)
            self._fail(handler, run, event, failed(error, about=[event]), started_at)
        else:
            self._writer.add(result)

    async def _effect(self, handler: Handler, event: Event, make: Make) -> Outcome:
        """What the attempt ended with. One that could not begin is judged like any other, as it may be a probe; where
        nothing could begin here, whatever the event is, it costs none."""
        try:
            return await self._executor.effect(handler, event, make)
        except Exception as error:  # noqa: BLE001 - it is the run's failure, and stored as such
            _log.exception("attempt_broke", handler=handler.name)
            outcome = failed(error, about=[event])
            after_s = UNBEGUN_S if outcome.failure.unreachable else None
            return replace(outcome, failure=replace(outcome.failure, after_s=after_s))

    async def _in_transaction(self, handler: Handler, run: ClaimedRun, event: Event) -> None:
        """A transactional handler's further attempt: its writes, what it emits and its mark commit together."""
        started_at = self._clock.now()
        try:
            if self.paused.holds(handler.name, run.application):  # since it was claimed
                await self._give_back_one(run)
                return
            stored = await self._attempt_in_transaction(handler, run, event)
        except (LedgerError, _ConnectionLost) as error:
            _log.warning("run_not_stored", handler=handler.name, code=code_of(error))
            self._forget([run])
        except _CutOff as error:
            self._fail(handler, run, event, error.outcome, started_at)
        except Exception as error:  # noqa: BLE001 - it is the run's failure, and stored as such
            _log.exception("transaction_broke", handler=handler.name)
            self._fail(handler, run, event, failed(error, about=[event]), started_at)
        else:
            if stored is None:
                self._forget([run])
            else:
                self._stored(*stored)

    def _fail(self, handler: Handler, run: ClaimedRun, event: Event, outcome: Failed, started_at: datetime) -> None:
        now = self._clock.now()
        self._writer.add(conclude(handler, run, event, outcome, worker=self._worker, started_at=started_at, now=now))

    async def _give_back_one(self, run: ClaimedRun) -> None:
        async with self._database.transaction() as session:
            await runs.give_back(session, [run.id], worker=self._worker)
        self._forget([run])

    async def _attempt_in_transaction(
        self, handler: Handler, run: ClaimedRun, event: Event
    ) -> tuple[Sequence[Result], Finished] | None:
        started_at = self._clock.now()
        async with self._database.transaction() as session:
            if not await runs.still_claimed(session, run, worker=self._worker):
                return None
            ctx = self._contexts.make(handler, event, attempt=run.attempts + 1, plan=run.plan, session=session)
            connection = await session.connection()
            outcome = await in_savepoint(session, self._executor, handler, event, ctx)
            self._remember_hanging(handler, outcome)
            if isinstance(outcome, Failed) and connection.invalidated:
                is_its_own = has_timed_out(outcome) or was_cut(outcome) or outcome.failure.permanent
                raise _CutOff(outcome) if is_its_own else _ConnectionLost
            now = self._clock.now()
            unit = UnitOfWork(now)
            if not isinstance(outcome, Failed):
                unit.take_from(ctx, handler, event, run.plan)
            await unit.store(session, now)
            result = conclude(handler, run, event, outcome, worker=self._worker, started_at=started_at, now=now)
            done = await store(session, [result], worker=self._worker, now=now)
        if unit.relayed:
            self._on_emitted()
        return [result], done

    def _remember_hanging(self, handler: Handler, outcome: Outcome) -> None:
        if has_timed_out(outcome) or was_cut(outcome):
            self._hung.add(handler.name)
        else:
            self._hung.discard(handler.name)

    # --- end ---------------------------------------------------------------------------------------------------

    def _stored(self, results: Sequence[Result], done: Finished) -> None:
        """Look when there is something to be found: what they let go, a further try, or what there was no room for. An
        end that does not count, as the run was another worker's by then, is told to nobody."""
        self._forget([result.run for result in results])
        for result in results:
            if result.was_tried and result.run.id in done.stored:
                self._observe(result)
        if done.let_go or any(result.finish.status is not RunStatus.SUCCEEDED for result in results):
            self.wake()

    def _forget(self, done: Sequence[ClaimedRun]) -> None:
        for run in done:
            if self._claimed.pop(run.id, None) is not None:
                self._unstored[run.handler] -= 1
        if self.is_careful or {run.handler for run in done} - self._caught_up:
            self.wake()

    async def _drain(self, drain_s: float) -> None:
        over = asyncio.Event()
        keeping = asyncio.create_task(self._keep_claims(over), name="dispatcher:claims")
        try:
            if self._tasks:
                await asyncio.wait(set(self._tasks), timeout=drain_s)
            over.set()
            await asyncio.wait({keeping}, timeout=GIVE_BACK_WITHIN_S)
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    async def _keep_claims(self, over: asyncio.Event) -> None:
        """What runs stays ours; what will not begin is given back."""
        while not over.is_set():
            try:
                await self.renew_claims()
                self._unrenewed.over()
            except LedgerError as error:
                self._unrenewed.lasts(error)
            await is_set_within(over, until_tick(self._clock, CLAIM_LEASE_S / 4))

    async def _give_back(self) -> None:
        """Store what is finished and end the other claims, so that another worker need not wait for their end."""
        try:
            async with asyncio.timeout(GIVE_BACK_WITHIN_S):
                await self._writer.flush()
                if self._claimed:
                    async with self._database.transaction() as session:
                        await runs.give_back(session, list(self._claimed), worker=self._worker)
        except (LedgerError, TimeoutError) as error:
            _log.warning("claims_not_given_back", claims=len(self._claimed), error=type(error).__name__)
