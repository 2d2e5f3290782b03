"""A model of the runs' states against the ledger's own SQL and the workers' own breakers: two workers that claim, fail,
crash and come back, an operator who pauses, resumes, redrives, discards and restores. Nothing overtakes, nothing is
lost, nothing is stuck, and an outage burns no last attempt."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from sqlalchemy import select

from consumer.clock import DrivenClock
from consumer.events import Event, Source, Trust
from consumer.ledger import Database
from consumer.ledger.handling import dead, events, handlers, lanes, runs
from consumer.ledger.handling.dead import DeadFilter
from consumer.ledger.handling.handlers import ALL
from consumer.ledger.handling.runs import ClaimedRun, Finish, Run
from consumer.ledger.tables import RunRow, RunStatus
from consumer.plugin import Context, Handler
from consumer.retry import Failure, OnDead, RetryPolicy
from consumer.testing.ground import empty_ledger
from consumer.work.dispatch.breakers import Breakers
from consumer.work.dispatch.result_writer import Result, conclude, store, untried
from consumer.work.outcome import Failed, Outcome, Succeeded
from tests.support.ledger.parked import release_stranded

T = TypeVar("T")
KEYS = ("order:a", "order:b", "order:c", "order:d")
SHOPS = {"order:a": "near", "order:b": "near", "order:c": "far", "order:d": "far"}
"""Whose order it is: two applications, each with a breaker of its own."""
WORKERS = ("w1", "w2")
LEASE_S = 15.0
WHAT = st.sampled_from(["succeed", "fail", "fail", "reject", "later", "unreachable", "unreachable"])


async def nothing(event: Event, ctx: Context) -> None:
    return None


ON_DEAD: dict[str, OnDead] = {"blocks": "block", "goes-on": "continue"}
HANDLERS = {
    name: Handler(
        name=name, types=("*",), function=nothing, on_dead=on_dead, version="v1",
        breaker_after=1 if on_dead == "block" else 2,
        retry=RetryPolicy(attempts=2, first_s=5, ceiling_s=5, jitter=0),
    )
    for name, on_dead in ON_DEAD.items()
}  # fmt: skip


class Lanes(RuleBasedStateMachine):
    """Two workers, two handlers, two shops of two keys each; arrivals, claims, outcomes, lost claims, operators, in any
    interleaving."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="lanes-"))
        (self.folder / "ledger.db").write_bytes(empty_ledger())
        self.database = Database(f"sqlite+aiosqlite:///{self.folder}/ledger.db")
        self.runner = asyncio.Runner()
        self.clock = DrivenClock()
        self.count = 0
        self.held: dict[str, dict[tuple[str, str, str], ClaimedRun]] = {worker: {} for worker in WORKERS}
        # The model: what arrived, per lane in order of arrival.
        self.arrived: dict[tuple[str, str], list[str]] = {(h, k): [] for h in HANDLERS for k in KEYS}
        self.breakers = {worker: self.anew() for worker in WORKERS}
        self.paused: set[tuple[str, str]] = set()
        self.do(self.register())

    def anew(self) -> Breakers:
        """A process's breakers when it begins."""
        return Breakers(monotonic=self.clock.monotonic, applications=frozenset(SHOPS.values()))

    async def register(self) -> None:
        async with self.database.transaction() as session:
            await handlers.register(session, list(HANDLERS.values()), self.clock.now())

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            try:
                self.drain()
            finally:
                self.runner.run(self.database.stop())
                self.runner.close()
                shutil.rmtree(self.folder, ignore_errors=True)

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    # --- what may happen ---------------------------------------------------------------------------------------

    @rule(key=st.sampled_from(KEYS))
    def arrive(self, key: str) -> None:
        """An event is recorded with a run for each handler, as ingest does."""
        self.count += 1
        event_id = f"evt_{self.count:04d}"

        async def take() -> None:
            async with self.database.transaction() as session:
                new = await events.record(session, [an_event(event_id, key, self.clock)], self.clock.now())
                blocking = await lanes.blocked(session, {(SHOPS[key], key)})
                await runs.add(
                    session,
                    [self.new_run(name, event_id, key, seq, blocking) for name in HANDLERS for seq in new.values()],
                    self.clock.now(),
                )

        self.do(take())
        for name in HANDLERS:
            self.arrived[name, key].append(event_id)

    def new_run(self, name: str, event_id: str, key: str, seq: int, lanes: set[tuple[str, str, str]]) -> Run:
        blocked = (SHOPS[key], name, key) in lanes
        return Run(
            application=SHOPS[key], event_id=event_id, handler=name, seq=seq, key=key,
            status=runs.first_status(blocked=blocked), blocking=True, next_at=None if blocked else self.clock.now(),
        )  # fmt: skip

    @rule(worker=st.sampled_from(WORKERS), name=st.sampled_from(sorted(HANDLERS)), limit=st.integers(1, 3))
    def claim(self, worker: str, name: str, limit: int) -> None:
        """As the dispatcher does: nothing of a paused handler, and no more than its breaker has room for."""
        room = self.breakers[worker].room(HANDLERS[name], self.clock.now(), limit)

        async def take() -> list[ClaimedRun]:
            async with self.database.transaction() as session:
                if name in (await handlers.paused(session)).wholly or not room:
                    return []
                return list(
                    await runs.claim(session, handler=name, worker=worker, limit=room, now=self.clock.now(),
                                     lease_s=LEASE_S)
                )  # fmt: skip

        claimed = self.do(take())
        for run in claimed:
            assert self.paused.isdisjoint({(name, ALL), (name, run.application)})
            self.may_start(run)
            if put_off := self.breakers[worker].start(HANDLERS[name], run, self.clock.now()):
                self.put_off(worker, run, put_off)
            else:
                self.held[worker][run.id] = run

    def put_off(self, worker: str, run: ClaimedRun, outcome: Failed) -> None:
        """Its shop's warehouse does not answer, another's may: it waits, for no attempt, and not for long."""
        assert outcome.failure.after_s is not None
        assert 0 < outcome.failure.after_s <= 60
        now = self.clock.now()
        result = untried(HANDLERS[run.handler], run, an_event(run.event_id, run.key, self.clock), outcome, now=now)
        assert (result.finish.attempts, result.attempt) == (run.attempts, None)
        self.store(result, worker)

    def may_start(self, run: ClaimedRun) -> None:
        """Nothing overtakes: every earlier run of the lane is settled (or dead where that does not block)."""
        for row in self.rows():
            if (row.handler, row.key) == (run.handler, run.key) and row.seq < run.seq:
                settled = row.status in ("succeeded", "skipped") or (row.status == "dead" and not row.blocking)
                assert settled, f"{run.event_id} overtakes {row.event_id}, which is {row.status}"

    @rule(worker=st.sampled_from(WORKERS), name=st.sampled_from(sorted(HANDLERS)), what=WHAT)
    def work(self, worker: str, name: str, what: str) -> None:
        """Claim one and finish it, as happens most of the time."""
        self.claim(worker, name, 1)
        self.finish(worker, what, -1)

    @rule(worker=st.sampled_from(WORKERS), what=WHAT, which=st.integers(0, 5))
    def finish(self, worker: str, what: str, which: int) -> None:
        held = list(self.held[worker].values())
        if not held:
            return
        self.end(worker, held[which % len(held)], what)

    @rule(worker=st.sampled_from(WORKERS), name=st.sampled_from(sorted(HANDLERS)), away=st.sampled_from(KEYS))
    def one_shop_is_away(self, worker: str, name: str, away: str) -> None:
        """Orders of both are tried one after another: only the other shop's get through."""
        for key in KEYS:
            self.arrive(key)
        for _ in KEYS:
            self.claim(worker, name, 1)
            for run in list(self.held[worker].values()):
                self.end(worker, run, "unreachable" if run.application == SHOPS[away] else "succeed")

    def end(self, worker: str, run: ClaimedRun, what: str) -> None:
        del self.held[worker][run.id]
        outcome = {
            "succeed": Succeeded(),
            "fail": Failed(Failure("handler_failed", "x"), "f"),
            "reject": Failed(Failure("rejected", "x", permanent=True), "f"),
            "later": Failed(Failure("retry_later", "x", after_s=3), "f"),
            "unreachable": Failed(Failure("handler_failed", "x", unreachable=True), "f"),
        }[what]
        now = self.clock.now()
        event = an_event(run.event_id, run.key, self.clock)
        outcome = self.judged(worker, run, outcome, what)  # type: ignore[arg-type]  # a dict of both
        result = conclude(
            HANDLERS[run.handler], run, event, outcome, worker=worker, started_at=now, now=now
        )  # fmt: skip

        self.store(result, worker)

    def store(self, result: Result, worker: str) -> None:
        async def write() -> None:
            async with self.database.transaction() as session:
                await store(session, [result], worker=worker, now=self.clock.now())

        self.do(write())

    def judged(self, worker: str, run: ClaimedRun, outcome: Outcome, what: str) -> Outcome:
        """As its worker's breaker counts it."""
        breakers, handler = self.breakers[worker], HANDLERS[run.handler]
        before = {application: breakers.waits(handler.name, application) for application in SHOPS.values()}
        judged = breakers.judge(handler, run, outcome, self.clock.now())
        after = {application: breakers.waits(handler.name, application) for application in SHOPS.values()}
        if what == "unreachable":
            is_spared = isinstance(judged, Failed) and judged.failure.after_s is not None
            assert is_spared == after[run.application], "an attempt is spared exactly while its shop's breaker is open"
            assert after[run.application] or not before[run.application], "no failure closes a breaker"
        others = before.keys() - {run.application}
        assert [before[one] for one in others] == [after[one] for one in others], "one shop says nothing of another"
        return judged

    @rule(name=st.sampled_from(sorted(HANDLERS)), whose=st.sampled_from((ALL, "near", "far")), is_pause=st.booleans())
    def pause_or_resume(self, name: str, whose: str, is_pause: bool) -> None:
        async def act() -> None:
            async with self.database.transaction() as session:
                if is_pause:
                    now = self.clock.now()
                    await handlers.pause(session, name, by="op", reason="model", now=now, application=whose)
                else:
                    assert await handlers.resume(session, name, whose) == (whose == ALL or (name, whose) in self.paused)

        self.do(act())
        if is_pause:
            self.paused.add((name, whose))
            return
        self.paused -= {(name, whose)} if whose != ALL else {(name, one) for one in (ALL, *SHOPS.values())}
        for worker in WORKERS:
            self.breakers[worker].forget(name, whose)

    @rule(worker=st.sampled_from(WORKERS))
    def crash(self, worker: str) -> None:
        """A worker is killed: its claims stay in the ledger until they run out, its breakers are forgotten."""
        self.held[worker].clear()
        self.breakers[worker] = self.anew()

    @rule(worker=st.sampled_from(WORKERS))
    def stop_cleanly(self, worker: str) -> None:
        async def give() -> None:
            async with self.database.transaction() as session:
                if self.held[worker]:
                    await runs.give_back(session, list(self.held[worker]), worker=worker)

        self.do(give())
        self.held[worker].clear()
        self.breakers[worker] = self.anew()

    @rule(seconds=st.sampled_from([1.0, 6.0, 20.0]))
    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def keep_house(self) -> None:
        async def tidy() -> None:
            async with self.database.transaction() as session:
                await release_stranded(session, self.clock.now())

        self.do(tidy())

    @rule(what=st.sampled_from(["redrive", "discard", "restore"]), key=st.sampled_from(KEYS))
    def operate(self, what: str, key: str) -> None:
        async def act() -> None:
            async with self.database.transaction() as session:
                wanted = DeadFilter(order_id=key.partition(":")[2], discarded=what == "restore", limit=1)
                found = await dead.search(session, wanted)
                doing = {"redrive": dead.redrive, "discard": dead.discard, "restore": dead.restore}[what]
                await doing(session, found, by="op", reason="model", now=self.clock.now())

        self.do(act())

    # --- what always holds -------------------------------------------------------------------------------------

    @invariant()
    def none_is_lost_and_states_make_sense(self) -> None:
        if not hasattr(self, "database"):
            return
        rows = self.rows()
        found = {lane: [row.event_id for row in rows if (row.handler, row.key) == lane] for lane in self.arrived}
        assert found == self.arrived
        for row in rows:
            unresolved = row.status in (RunStatus.RETRYING, RunStatus.PARKED)
            assert row.blocking == (unresolved or (row.status == "dead" and row.handler == "blocks"))
            assert (row.next_at is not None) == (row.status == "retrying") or row.status == "skipped"

    def drain(self) -> None:
        """Nothing is stuck: with time, house-keeping and a handler that works, every lane comes to its end. Nobody
        closes a breaker: probes must do that. What is paused stays so, untouched, until it is resumed."""
        for worker in WORKERS:
            if self.held[worker]:
                self.crash(worker)
        wholly = {name for name, whose in self.paused if whose == ALL}
        before = [(row.event_id, row.status) for row in self.rows() if row.handler in wholly]
        for name in wholly:
            self.claim("w1", name, 3)
        assert before == [(row.event_id, row.status) for row in self.rows() if row.handler in wholly]
        for name, whose in sorted(self.paused):
            if (name, whose) in self.paused:  # who resumes it for all lifts what it was paused for alone
                self.pause_or_resume(name, whose, False)
        for _ in range(4 * (self.count + 2)):
            self.clock.advance(LEASE_S + 10)
            self.keep_house()
            for name in HANDLERS:
                self.claim("w1", name, 3)
            for run in list(self.held["w1"].values()):
                self.settle(run)
            if not any(row.status == "retrying" for row in self.rows()):
                break
        for row in self.rows():
            waits = row.status == "parked"
            behind = any(
                other.status == "dead" and other.blocking and other.seq < row.seq
                and (other.handler, other.key) == (row.handler, row.key)
                for other in self.rows()
            )  # fmt: skip
            assert row.status in ("succeeded", "dead", "skipped") or (waits and behind), f"{row.event_id}: {row.status}"

    def settle(self, run: ClaimedRun) -> None:
        done = Finish(run=run, status=RunStatus.SUCCEEDED, blocking=False, attempts=run.attempts + 1)

        async def write() -> None:
            async with self.database.transaction() as session:
                await runs.finish(session, [done], worker="w1", now=self.clock.now())

        self.breakers["w1"].judge(HANDLERS[run.handler], run, Succeeded(), self.clock.now())
        self.do(write())
        del self.held["w1"][run.id]

    def rows(self) -> list[RunRow]:
        async def read() -> list[RunRow]:
            async with self.database.reading() as session:
                return list((await session.execute(select(RunRow).order_by(RunRow.__table__.c.seq))).scalars())

        return self.do(read())


def an_event(event_id: str, key: str, clock: DrivenClock) -> Event:
    return Event(
        application=SHOPS[key], id=event_id, type="order.paid", key=key, trust=Trust.SIGNED, source=Source.WEBHOOK,
        raw=b"{}", received_at=clock.now(), order_id=key.partition(":")[2],
    )  # fmt: skip


# case: G2, G5, H1, R12
TestLanes = pytest.mark.slow(Lanes.TestCase)
TestLanes.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
