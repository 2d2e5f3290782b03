"""A round of the worker: what was stored is committed, and nothing else is; what keeps it from that is told to whoever
asks, until it is over. The parts are made by hand here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from consumer.broker import GroupReport
from consumer.broker.base import Lag, Partition, Record
from consumer.clock import DrivenClock
from consumer.errors import BrokerError, BrokerUnavailable, ConsumerError, LedgerBehind, LedgerUnavailable
from consumer.ledger.handling.handlers import Paused
from consumer.ledger.handling.runs import Run
from consumer.ledger.tables import RunStatus
from consumer.work.ingest.ingest import Taken
from consumer.work.rounds import poll_loop as module
from consumer.work.rounds.poll_loop import PollLoop
from consumer.work.rounds.position import Position

AT = datetime(2026, 1, 1, tzinfo=UTC)
ZERO, ONE = Partition("events", 0), Partition("events", 1)
NOTHING = Taken(recorded=(), again=(), duplicates=0, refused=0, runs=(), emitted=0, reads=0)


def record(partition: Partition, offset: int) -> Record:
    return Record(partition=partition, offset=offset, key=b"", value=b"", headers={}, published_at=AT)


FIRST, SECOND, OTHER = record(ZERO, 4), record(ZERO, 5), record(ONE, 9)


class Said:
    """Remembers which of its methods were called, and with what."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.paused = Paused()

    def __getattr__(self, name: str) -> Any:
        return lambda *given: self.calls.append((name, *given))


class Step:
    """A part that answers by a script: an error is raised."""

    def __init__(self, *script: Any) -> None:
        self.script, self.asked = list(script), list[Any]()

    async def next(self, *asked: Any) -> Any:
        """The next answer."""
        self.asked.append(asked[0] if len(asked) == 1 else asked)
        answer = self.script.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Clock(DrivenClock):
    """Sleeps without waiting, and remembers for how long."""

    def __init__(self) -> None:
        super().__init__()
        self.naps: list[float] = []
        self.look: Callable[[], None] = lambda: None

    async def sleep(self, seconds: float) -> None:
        """See Clock."""
        self.naps.append(seconds)
        self.look()
        self.advance(seconds)
        await asyncio.sleep(0)


class Bench:
    """A loop whose parts are made by hand."""

    def __init__(self, kind: type[PollLoop] = PollLoop) -> None:
        self.clock = Clock()
        self.polls, self.commits, self.takes, self.starts = Step(), Step(), Step(), Step()
        self.understood = Step()
        self.loose: list[frozenset[Partition]] = []
        self.was_idle: list[bool] = []
        self.dispatcher, self.relay, self.pauser, self.observer = (Said() for _ in range(4))
        self.subscription: Any = SimpleNamespace(
            poll=self.polls.next, commit=self.commits.next, start=self.starts.next, lag=self._lag
        )
        self.ingest = SimpleNamespace(take=self._take, understand=self.understood.next)
        self.stop = asyncio.Event()
        nothing: Any = None
        parts: dict[str, Any] = {
            "ingest": self.ingest, "dispatcher": self.dispatcher, "relay": self.relay, "pauser": self.pauser,
            "observer": self.observer, "broker": SimpleNamespace(look_at_groups=self._groups),
        }  # fmt: skip
        self.position = Position(database=nothing, topic="events", clock=self.clock)
        self.loop = kind(
            database=nothing, topic="events", group="work", batch=50, drain_s=20.0, position=self.position,
            clock=self.clock, **parts,
        )  # fmt: skip

    async def _groups(self, _: object) -> Sequence[GroupReport]:
        return []

    async def _lag(self) -> Mapping[Partition, Lag]:
        return {ZERO: Lag(3, 1.5)}

    async def _take(self, records: Sequence[Record], *, loose: frozenset[Partition]) -> Taken:
        self.loose.append(loose)
        self.was_idle.append(self.loop._idle.is_set())
        self.clock.advance(0.25)
        taken: Taken = await self.takes.next(records)
        return taken

    async def poll(self, records: Any, *, takes: Sequence[Any] = (NOTHING,), commit: Any = frozenset()) -> None:
        """One round, in which this was polled; what was taken and committed of it."""
        self.polls.script, self.takes.script, self.commits.script = [records], list(takes), [commit]
        await self.loop._poll(self.subscription, self.stop)

    def told(self) -> str | None:
        """What keeps the worker, as whoever asks is told."""
        try:
            self.loop.check()
        except ConsumerError as error:
            return error.code
        return None

    def told_while_it_waits(self) -> list[str | None]:
        """What it is told at each nap."""
        codes: list[str | None] = []
        self.clock.look = lambda: codes.append(self.told())
        return codes


@pytest.fixture
def bench() -> Bench:
    return Bench()


# case: G5
async def test_what_was_stored_is_committed_behind_its_last_record_and_the_parts_hear_of_it(bench: Bench) -> None:
    await bench.poll([FIRST, SECOND, OTHER])
    assert bench.polls.asked == [(50, module.POLL_S)]
    assert bench.takes.asked == [[FIRST, SECOND, OTHER]]
    assert (bench.was_idle, bench.loop._idle.is_set()) == ([False], True), "who revokes waits for it"
    assert bench.commits.asked == [{ZERO: 6, ONE: 10}]
    assert bench.observer.calls == [("batch", NOTHING, [FIRST, SECOND, OTHER], 0.25)]
    assert bench.pauser.calls == [("taken", NOTHING)]
    assert bench.dispatcher.calls == [("take", ())]
    assert (bench.relay.calls, bench.told(), bench.clock.naps) == ([], None, [])
    assert bench.loop._idle.is_set()


async def test_a_poll_of_nothing_takes_nothing(bench: Bench) -> None:
    await bench.poll([])
    assert (bench.takes.asked, bench.commits.asked) == ([], [])


def run(status: RunStatus) -> Run:
    return Run(
        application="default", event_id="evt_1", handler="shop:ship", seq=1, key="k", status=status, blocking=True
    )


@pytest.mark.parametrize(
    ("statuses", "claimed", "wakes"),
    [
        ([RunStatus.RETRYING], 0, True),
        ([RunStatus.RETRYING], 1, False),
        ([RunStatus.RETRYING, RunStatus.RETRYING, RunStatus.PARKED], 2, False),
        ([RunStatus.RETRYING, RunStatus.RETRYING, RunStatus.PARKED], 1, True),
        ([RunStatus.SUCCEEDED, RunStatus.PARKED], 0, False),
    ],
)
async def test_who_works_on_runs_is_woken_for_those_that_it_was_not_given(
    bench: Bench, statuses: list[RunStatus], claimed: int, wakes: bool
) -> None:
    taken = Taken(recorded=(), again=(), duplicates=0, refused=0, runs=[run(one) for one in statuses], emitted=0,
                  reads=0, claimed=[object()] * claimed)  # type: ignore[list-item]  # they are counted  # fmt: skip
    await bench.poll([FIRST], takes=[taken])
    assert [call[0] for call in bench.dispatcher.calls] == ["take", *(["wake"] if wakes else [])]


# case: R8
async def test_who_works_on_runs_is_woken_for_those_that_a_plan_lets_go(bench: Bench) -> None:
    await bench.poll([FIRST], takes=[replace(NOTHING, let_go=1)])
    assert [call[0] for call in bench.dispatcher.calls] == ["take", "wake"]


async def test_who_publishes_is_woken_for_what_was_emitted(bench: Bench) -> None:
    emitted = Taken(recorded=(), again=(), duplicates=0, refused=0, runs=(), emitted=1, reads=0)
    await bench.poll([FIRST], takes=[emitted])
    assert bench.relay.calls == [("wake",)]


# --- what keeps it ----------------------------------------------------------------------------------------------


# case: O2
async def test_a_poll_that_fails_is_told_until_one_succeeds(bench: Bench) -> None:
    with capture_logs() as logs:
        await bench.poll(BrokerUnavailable())
        assert (bench.told(), bench.clock.naps) == ("broker_unavailable", [module.RETRY_MOST_S])
        await bench.poll([])
    assert bench.told() is None
    assert [line["event"] for line in logs] == ["poll_failed", "poll_failed_over"]


# case: O2
async def test_a_commit_that_fails_is_made_again_though_nothing_more_comes_and_is_told_until_then(bench: Bench) -> None:
    with capture_logs() as logs:
        await bench.poll([FIRST], commit=BrokerUnavailable())
        assert bench.loop._idle.is_set()
        await bench.poll([], commit=BrokerUnavailable())
        assert bench.told() == "broker_unavailable"
        await bench.poll([])
        assert bench.told() is None
        await bench.poll([])
    assert bench.commits.asked == [{ZERO: 5}] * 3
    assert [line["event"] for line in logs] == ["offsets_not_committed", "offsets_not_committed_over"]


# case: O2
async def test_a_commit_of_another_partition_commits_what_an_earlier_one_could_not(bench: Bench) -> None:
    await bench.poll([FIRST], commit=BrokerUnavailable())
    await bench.poll([OTHER])
    await bench.poll([SECOND])
    assert bench.commits.asked == [{ZERO: 5}, {ZERO: 5, ONE: 10}, {ZERO: 6}]


# case: O7
async def test_what_goes_to_another_or_is_read_again_is_not_committed_any_more(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.poll([FIRST, OTHER], commit=BrokerUnavailable())
    await bench.loop._finish_batch(frozenset({ZERO}))
    await bench.poll([], commit=BrokerUnavailable())
    bench.subscription.stands = Step({ONE: 9}).next
    monkeypatch.setattr(bench.position, "go_back", Step(frozenset({ONE})).next)
    await bench.loop._that_follow(bench.subscription, [], frozenset(), bench.stop)
    await bench.poll([])
    assert bench.commits.asked == [{ZERO: 5, ONE: 10}, {ONE: 10}]


# case: O2
async def test_a_batch_is_tried_until_the_ledger_takes_it_at_growing_intervals(bench: Bench) -> None:
    refusals = [LedgerUnavailable() for _ in range(7)]
    codes = bench.told_while_it_waits()
    with capture_logs() as logs:
        await bench.poll([FIRST], takes=[*refusals, NOTHING])
    assert bench.clock.naps == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert codes == [None, *["ledger_unavailable"] * 6], "once may be a lock"
    assert bench.told() is None
    assert [call[0] for call in bench.dispatcher.calls] == [*["wake"] * 7, "take"], "some may have been stored"
    assert bench.observer.calls == [("batch", NOTHING, [FIRST], 0.25)]
    assert bench.commits.asked == [{ZERO: 5}]
    assert [line["event"] for line in logs] == ["batch_not_stored", "batch_not_stored_over"]
    assert (logs[0]["records"], logs[0]["retry_in_s"]) == (1, 0.2)


# case: G5
async def test_told_to_stop_it_commits_nothing_that_was_not_stored(bench: Bench) -> None:
    bench.stop.set()
    await bench.poll([FIRST], takes=[LedgerUnavailable()])
    assert (bench.clock.naps, bench.commits.asked, bench.observer.calls) == ([], [], [])
    assert bench.loop._idle.is_set()


class Compared(PollLoop):
    """Ledger and group are compared by the test's own answers: which of the records follow, and where nothing lies
    between."""

    answers: list[tuple[Sequence[Record], frozenset[Partition]]]
    asked: list[frozenset[Partition]]

    async def _that_follow(
        self, subscription: object, records: Sequence[Record], behind: frozenset[Partition], stop: asyncio.Event
    ) -> tuple[Sequence[Record], frozenset[Partition]]:
        self.asked.append(behind)
        return self.answers.pop(0)


# case: O7
async def test_records_that_do_not_follow_are_left_and_those_that_do_are_taken() -> None:
    bench = Bench(Compared)
    assert isinstance(bench.loop, Compared)
    bench.loop.asked, bench.loop.answers = [], [([OTHER], frozenset()), ([OTHER], frozenset({ONE}))]
    behind = LedgerBehind(frozenset({("events", 0)})), LedgerBehind(frozenset({("events", 1)}))
    await bench.poll([FIRST, OTHER], takes=[*behind, NOTHING])
    assert bench.loop.asked == [{ZERO}, {ONE}]
    assert bench.takes.asked == [[FIRST, OTHER], [OTHER], [OTHER]]
    assert bench.loose == [frozenset(), frozenset(), {ONE}]
    assert [call[0] for call in bench.dispatcher.calls] == ["wake", "wake", "take"]
    assert bench.commits.asked == [{ONE: 10}]


# case: O7
async def test_after_an_assignment_ledger_and_group_are_compared_before_anything_is_taken() -> None:
    bench = Bench(Compared)
    assert isinstance(bench.loop, Compared)
    bench.loop.asked, bench.loop.answers = [], [([], frozenset())]
    await bench.loop._began(frozenset({ZERO, ONE}))
    await bench.poll([FIRST])
    assert (bench.loop.asked, bench.takes.asked) == ([frozenset()], [])
    assert bench.observer.calls == [("moved", "assigned", 2)]


# case: O7
async def test_a_comparison_is_tried_until_it_succeeds_and_leaves_what_was_set_back_or_went(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    stands, back = Step(BrokerUnavailable(), {ZERO: 4}, {ZERO: 4}), Step(LedgerUnavailable(), frozenset({ZERO}))
    bench.subscription.stands = stands.next
    monkeypatch.setattr(bench.position, "go_back", back.next)
    bench.position.must_compare = True
    with capture_logs() as logs:
        found = await bench.loop._that_follow(bench.subscription, [FIRST, OTHER], frozenset({ONE}), bench.stop)
    assert found == ([], frozenset())  # 0 is set back, 1 is another member's
    assert (bench.clock.naps, bench.told()) == ([module.RETRY_MOST_S] * 2, "broker_unavailable")
    assert not bench.position.must_compare
    assert [line["event"] for line in logs] == [
        "ledger_and_log_not_compared", "ledger_and_log_not_compared", "ledger_and_log_not_compared_over",
    ]  # fmt: skip
    stands.script, back.script = [{ZERO: 4, ONE: 9}], [frozenset({ZERO})]
    found = await bench.loop._that_follow(bench.subscription, [FIRST, OTHER], frozenset({ZERO, ONE}), bench.stop)
    assert found == ([OTHER], frozenset({ONE}))


async def test_told_to_stop_nothing_follows(bench: Bench) -> None:
    bench.stop.set()
    found = await bench.loop._that_follow(bench.subscription, [FIRST], frozenset({ZERO}), bench.stop)
    assert found == ([], frozenset())


# --- joining and leaving ----------------------------------------------------------------------------------------


# case: O2
async def test_it_joins_as_soon_as_it_is_let_and_says_what_kept_it(bench: Bench) -> None:
    bench.starts.script = [BrokerUnavailable(), BrokerUnavailable(), None]
    bench.loop._subscription = bench.subscription
    codes = bench.told_while_it_waits()
    assert await bench.loop.lag() == {}
    with capture_logs() as logs:
        await bench.loop._join(bench.subscription, bench.stop)
    assert (codes, bench.clock.naps) == (["broker_unavailable"] * 2, [1, 1])
    assert (bench.loop.check(), bench.loop.polls) == (True, True)
    assert await bench.loop.lag() == {ZERO: Lag(3, 1.5)}
    assert [line["event"] for line in logs] == ["broker_not_ready", "broker_not_ready_over"]


async def test_what_no_waiting_mends_ends_it_and_so_does_being_told(bench: Bench) -> None:
    bench.starts.script = [BrokerError("refused")]
    with pytest.raises(BrokerError, match="refused"):
        await bench.loop._join(bench.subscription, bench.stop)
    bench.stop.set()
    await bench.loop._join(bench.subscription, bench.stop)
    assert not bench.loop.polls


async def test_partitions_go_when_the_batch_in_hand_is_stored(bench: Bench) -> None:
    bench.loop._idle.clear()
    going = asyncio.create_task(bench.loop._finish_batch(frozenset({ZERO})))
    await asyncio.sleep(0)
    assert (going.done(), bench.observer.calls) == (False, [("moved", "revoked", 1)])
    bench.loop._idle.set()
    await going


# --- behind a whole batch ---------------------------------------------------------------------------------------


class Slow:
    """Commits end when the test says how."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.ends = bench, list[asyncio.Future[None]]()
        bench.subscription.commit = self._commit
        bench.understood.script = [None] * 9

    async def _commit(self, offsets: Mapping[Partition, int]) -> frozenset[Partition]:
        self.bench.commits.asked.append(offsets)
        self.ends.append(asyncio.get_running_loop().create_future())
        await self.ends[-1]
        return frozenset()

    async def round(self, *polled: Sequence[Record]) -> asyncio.Task[None]:
        """One round, as far as it comes by itself. `polled`: what the log has when it is asked."""
        self.bench.polls.script, self.bench.takes.script = [*polled], [NOTHING]
        going = asyncio.create_task(self.bench.loop._poll(self.bench.subscription, self.bench.stop))
        await all_that_follows()
        return going


async def all_that_follows() -> None:
    """Whatever the loop has to do until somebody waits for the test: nothing here waits for anything else."""
    for _ in range(20):
        await asyncio.sleep(0)


def batch(first: int, count: int = 50) -> list[Record]:
    """Records that follow; by default a whole batch."""
    return [record(ZERO, offset) for offset in range(first, first + count)]


# case: G5
async def test_behind_a_whole_batch_the_next_is_stored_while_its_offsets_are_committed_and_committed_after_them(
    bench: Bench,
) -> None:
    slow = Slow(bench)
    first = await slow.round(batch(0), batch(50, 7))
    assert (first.done(), bench.commits.asked) == (True, [{ZERO: 50}])
    second = await slow.round()
    assert bench.takes.asked == [batch(0), batch(50, 7)]
    assert (second.done(), len(bench.commits.asked)) == (False, 1), "one commit at a time"
    slow.ends[0].set_result(None)
    await all_that_follows()
    assert (second.done(), bench.commits.asked[1:]) == (False, [{ZERO: 57}]), "behind the last nothing is left open"
    slow.ends[1].set_result(None)
    await second


# case: G5
async def test_partitions_go_when_what_was_stored_of_them_is_committed(bench: Bench) -> None:
    slow = Slow(bench)
    await (await slow.round(batch(0), batch(50)))
    going = asyncio.create_task(bench.loop._finish_batch(frozenset({ZERO})))
    await all_that_follows()
    assert not going.done()
    slow.ends[0].set_result(None)
    await going
    await (await slow.round([]))
    assert bench.takes.asked == [batch(0)], "what was read ahead is another's"


# case: G5, O7
async def test_partitions_go_when_what_is_committed_again_is_committed(bench: Bench) -> None:
    """Though nothing more had come: who gave them up did not wait for that commit, which then came from a stranger."""
    await bench.poll([FIRST], commit=BrokerUnavailable())
    slow = Slow(bench)
    again = await slow.round([])
    going = asyncio.create_task(bench.loop._finish_batch(frozenset({ZERO})))
    await all_that_follows()
    assert (again.done(), going.done(), bench.commits.asked) == (False, False, [{ZERO: 5}] * 2)
    slow.ends[0].set_result(None)
    await going
    await again


# case: O2
async def test_a_commit_that_fails_while_the_next_is_stored_is_told(bench: Bench) -> None:
    slow = Slow(bench)
    await (await slow.round(batch(0), batch(50, 7)))
    second = await slow.round()
    slow.ends[0].set_exception(BrokerUnavailable())
    with capture_logs() as logs:
        await all_that_follows()
        assert (bench.told(), [line["event"] for line in logs]) == ("broker_unavailable", ["offsets_not_committed"])
        slow.ends[1].set_result(None)
        await second
    assert bench.told() is None


# case: O2
async def test_a_commit_hides_nothing_that_has_come_up_since_it_began(bench: Bench) -> None:
    slow = Slow(bench)
    await (await slow.round(batch(0), BrokerUnavailable()))  # type: ignore[arg-type]  # raised where the next is asked for
    await (await slow.round())
    assert bench.told() == "broker_unavailable"
    slow.ends[0].set_result(None)
    await all_that_follows()
    assert bench.told() == "broker_unavailable"
    await (await slow.round([]))
    assert bench.told() is None
