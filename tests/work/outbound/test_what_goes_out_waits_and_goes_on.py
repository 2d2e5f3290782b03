"""Letters and derived events go out one lot after another; in between they wait as long as they should, and what keeps
them waiting is said once. A letter that is too large goes out without its attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, cast

import orjson
import pytest
from sqlalchemy.ext.asyncio import AsyncSession
from structlog.testing import capture_logs

from consumer.broker.base import Message
from consumer.clock import DrivenClock
from consumer.errors import BrokerUnavailable, LedgerUnavailable, PartitionAway, RecordRefused, RecordTooLarge
from consumer.ledger import Database
from consumer.ledger.handling import dead
from consumer.ledger.handling.dead import Letter
from consumer.ledger.tables import AttemptRow, DeadLetterRow, EventRow
from consumer.work.outbound import dead_letters, relay
from consumer.work.outbound.dead_letters import HISTORY_MAX_BYTES, DeadLetters, message
from consumer.work.outbound.relay import Relay
from tests.work.workshop import AT

NOT_ASKED: Any = None


def letter(attempts: int = 0, *, reason: str | None = "no", code: str | None = "rejected") -> Letter:
    row = DeadLetterRow(id=1, application="default", event_id="evt_1", handler="shop:ship", died_at=AT, blocking=True,
                        attempts=3, code=code, reason=reason, fingerprint=code and "f1", code_version="v1")  # fmt: skip
    event = EventRow(seq=1, application="default", id="evt_1", type="order.paid", key="order:A-1", trust="signed",
                     source="webhook", raw=b'{"id":"evt_1"}', received_at=AT, recorded_at=AT)  # fmt: skip
    rows = [AttemptRow(id=number, application="default", event_id="evt_1", handler="shop:ship", number=number,
                       outcome="retrying", code="handler_failed", reason="r" * 300, fingerprint="f1", trace="ship.py:3",
                       code_version="v1", worker="w", started_at=AT, finished_at=AT + timedelta(seconds=1))
            for number in range(1, attempts + 1)]  # fmt: skip
    return Letter(row=row, event=event, attempts=rows)


# --- letters ----------------------------------------------------------------------------------------------------


def test_a_letter_is_the_event_as_it_came_and_why() -> None:
    # case: R10
    sent = message(letter(1))
    assert (sent.key, sent.value) == (b"default/order:A-1", b'{"id":"evt_1"}')
    said = {name: value.decode() for name, value in sent.headers.items() if name.startswith("dead_")}
    history = orjson.loads(said.pop("dead_history"))
    assert said == {
        "dead_handler": "shop:ship", "dead_at": AT.isoformat(), "dead_code": "rejected", "dead_reason": "no",
        "dead_fingerprint": "f1", "dead_code_version": "v1", "dead_attempts": "3",
    }  # fmt: skip
    assert history == [
        {"number": 1, "outcome": "retrying", "code": "handler_failed", "reason": "r" * 300, "fingerprint": "f1",
         "trace": "ship.py:3", "code_version": "v1", "worker": "w", "started_at": "2026-01-01T00:00:00Z",
         "finished_at": "2026-01-01T00:00:01Z"}
    ]  # fmt: skip
    unsaid = message(letter(reason=None, code=None)).headers
    assert [unsaid[f"dead_{name}"] for name in ("code", "reason", "fingerprint", "history")] == [b"", b"", b"", b"[]"]
    assert "dead_history" not in message(letter(1), with_attempts=False).headers


def test_of_too_many_attempts_the_oldest_are_left_out_a_quarter_at_a_time() -> None:
    history = message(letter(100)).headers["dead_history"]
    assert len(history) <= HISTORY_MAX_BYTES
    # 100 less 26 are 74, and those less 19 fit.
    assert [one["number"] for one in orjson.loads(history)] == list(range(46, 101))


def test_attempts_that_just_fit_are_all_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = message(letter(4)).headers["dead_history"]
    monkeypatch.setattr(dead_letters, "HISTORY_MAX_BYTES", len(whole))
    assert message(letter(4)).headers["dead_history"] == whole
    monkeypatch.setattr(dead_letters, "HISTORY_MAX_BYTES", len(whole) - 1)
    assert [one["number"] for one in orjson.loads(message(letter(4)).headers["dead_history"])] == [3, 4]


class Topic:
    """A broker that takes only records of at most so many headers."""

    def __init__(self, most: int) -> None:
        self.most, self.sent = most, list[tuple[str, Message]]()

    async def publish(self, topic: str, sent: Message) -> None:
        """As a Broker does."""
        if len(sent.headers) > self.most:
            raise RecordTooLarge
        self.sent.append((topic, sent))


def letters_to(topic: Any = NOT_ASKED) -> DeadLetters:
    return DeadLetters(database=NOT_ASKED, broker=topic, topic="events.dead", clock=DrivenClock(), leads=lambda: True)


@pytest.mark.parametrize(("short_of", "sent", "said"), [(0, [True], 0), (1, [False], 0), (2, [], 1)])
async def test_a_letter_that_is_too_large_goes_without_its_attempts_or_is_said(
    short_of: int, sent: list[bool], said: int
) -> None:
    # case: R10
    topic = Topic(len(message(letter(1)).headers) - short_of)
    with capture_logs() as logs:
        await letters_to(topic)._publish(letter(1))
    assert [(where, "dead_history" in one.headers) for where, one in topic.sent] == [
        ("events.dead", has) for has in sent
    ]
    assert [(line["event"], line["handler"]) for line in logs] == [("dead_letter_too_large", "shop:ship")] * said


class Lowered(Topic):
    """One that refuses for now what has more headers."""

    async def publish(self, topic: str, sent: Message) -> None:
        """As a Broker does."""
        if len(sent.headers) > self.most:
            raise RecordRefused
        self.sent.append((topic, sent))


async def test_a_letter_that_a_lowered_limit_refuses_goes_without_its_attempts() -> None:
    # case: R10
    topic = Lowered(len(message(letter(1)).headers) - 1)
    await letters_to(topic)._publish(letter(1))
    assert ["dead_history" in one.headers for _, one in topic.sent] == [False]


class Refusing(Topic):
    """One that refuses the letters of these handlers."""

    def __init__(self, refused: str, error: type[BrokerUnavailable] = RecordRefused) -> None:
        super().__init__(99)
        self.refused, self.error, self.asked = set(refused), error, 0

    async def publish(self, topic: str, sent: Message) -> None:
        """As a Broker does."""
        self.asked += 1
        if sent.headers["dead_handler"].decode() in self.refused:
            raise self.error
        await super().publish(topic, sent)

    @property
    def went(self) -> str:
        """Whose letters it has."""
        return "".join(one.headers["dead_handler"].decode() for _, one in self.sent)


class Kept:
    """Letters of these handlers, as the ledger keeps them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, handlers: str) -> None:
        self.waiting = list[Letter]()
        self.add(handlers)
        monkeypatch.setattr(dead, "unpublished", self.unpublished)
        monkeypatch.setattr(dead, "mark_published", self.mark_published)

    def add(self, handlers: str) -> None:
        """These died."""
        for handler in handlers:
            one = letter()
            one.row.handler, one.row.id = handler, ord(handler)
            self.waiting.append(one)

    async def unpublished(self, session: AsyncSession, most: int, after: int) -> Sequence[Letter]:
        """As the ledger finds them."""
        return [one for one in self.waiting if one.row.id > after][:most]

    async def mark_published(self, session: AsyncSession, letters: Sequence[Letter], now: datetime) -> None:
        """As the ledger does."""
        self.waiting[:] = [one for one in self.waiting if one not in letters]

    @property
    def wait(self) -> str:
        """Whose wait."""
        return "".join(one.row.handler for one in self.waiting)


def letters_of(ledger: Database, topic: Topic, clock: DrivenClock | None = None) -> DeadLetters:
    return DeadLetters(
        database=ledger, broker=cast(Any, topic), topic="events.dead", clock=clock or DrivenClock(), leads=lambda: True
    )


@pytest.mark.parametrize(("error", "went"), [(RecordRefused, "ac"), (BrokerUnavailable, "a")])
async def test_letters_that_are_published_are_marked_though_another_is_refused(
    monkeypatch: pytest.MonkeyPatch, sqlite_ledger: Database, error: type[BrokerUnavailable], went: str
) -> None:
    """They went out again every five seconds until the limit was raised, and those after it never did."""
    # case: R10, I30
    topic, kept = Refusing("b", error), Kept(monkeypatch, "abc")
    with pytest.raises(error):
        await letters_of(sqlite_ledger, topic).once()
    assert topic.went == went
    assert kept.wait == "".join(name for name in "abc" if name not in went)


async def test_letters_whose_partition_takes_nothing_hold_up_no_younger_ones(
    monkeypatch: pytest.MonkeyPatch, sqlite_ledger: Database
) -> None:
    # case: R10, O9
    topic, kept = Refusing("bc", PartitionAway), Kept(monkeypatch, "abcd")
    letters = letters_of(sqlite_ledger, topic)
    for went in ("a", "a"):
        with pytest.raises(PartitionAway):
            await letters.once()
        assert topic.went == went, "one try of such a letter a look"
    await letters.once()
    assert (topic.went, kept.wait) == ("ad", "bc")


async def test_however_many_are_refused_younger_letters_go_out(
    monkeypatch: pytest.MonkeyPatch, sqlite_ledger: Database
) -> None:
    """A lot that was all refused was tried again for ever, and what died since waited behind it. Of those that were
    refused one is tried again at a time, and not whenever something dies."""
    # case: R10, I30
    monkeypatch.setattr(dead_letters, "BATCH", 3)
    topic, kept, clock = Refusing("abcdefg"), Kept(monkeypatch, "abcdefghi"), DrivenClock()
    letters = letters_of(sqlite_ledger, topic, clock)
    for _ in range(3):
        with pytest.raises(RecordRefused):
            await letters.once()
    assert (topic.went, kept.wait) == ("hi", "abcdefg")
    asked = topic.asked
    for died in "jk":
        kept.add(died)
        assert await letters.once() == 1
    assert (topic.went, topic.asked - asked) == ("hijk", 2)
    kept.add("l")
    clock.advance(dead_letters.RETRY_S)
    with pytest.raises(RecordRefused):
        await letters.once()
    assert (topic.went, topic.asked - asked) == ("hijkl", 5), "it first, then one that was refused, in both its forms"


async def test_refused_letters_go_out_in_turn_as_the_limit_is_raised(
    monkeypatch: pytest.MonkeyPatch, sqlite_ledger: Database
) -> None:
    # case: R10, I30
    topic, kept, clock = Refusing("abcd"), Kept(monkeypatch, "abcd"), DrivenClock()
    letters = letters_of(sqlite_ledger, topic, clock)
    with pytest.raises(RecordRefused):
        await letters.once()
    topic.refused = set("ab")
    for _ in range(2):
        clock.advance(dead_letters.RETRY_S)
        with pytest.raises(RecordRefused):
            await letters.once()
    clock.advance(dead_letters.RETRY_S)
    assert await letters.once() == 2
    assert (topic.went, kept.wait) == ("cd", "ab")
    topic.refused.clear()
    assert await letters.once() == 2
    assert (topic.went, kept.wait) == ("cdab", "")
    kept.add("e")
    assert [await letters.once(), await letters.once()] == [1, 0]


async def test_refused_letters_that_are_taken_again_go_out_without_a_pause(
    monkeypatch: pytest.MonkeyPatch, sqlite_ledger: Database
) -> None:
    """What keeps them waiting is over when none waits any more; and another process that leads begins anew."""
    # case: R10, I30
    monkeypatch.setattr(dead_letters, "AGAIN", 1)
    topic, kept, stop, leads = Refusing("abc"), Kept(monkeypatch, "abc"), asyncio.Event(), [True]
    clock, waits = DrivenClock(), list[float]()
    letters = letters_of(sqlite_ledger, topic, clock)
    letters._leads = lambda: leads[0]

    async def wait(seconds: float, _: asyncio.Event) -> None:
        waits.append(seconds)
        clock.advance(seconds)
        topic.refused.clear()
        if waits[-1] == dead_letters.LOOK_EVERY_S:
            stop.set()

    monkeypatch.setattr(letters, "_wait", wait)
    with capture_logs() as logs:
        await letters.run(stop)
    assert (waits, kept.wait) == ([dead_letters.RETRY_S, dead_letters.LOOK_EVERY_S], "")
    assert [line["event"] for line in logs] == ["dead_letters_wait", "dead_letters_wait_over"]
    kept.add("d")
    topic.refused, leads[0] = set("d"), False
    with pytest.raises(RecordRefused):
        await letters.once()
    stop.clear()
    await letters.run(stop)
    assert letters._refused == 0


Step = int | Exception


class ScriptedLetters(DeadLetters):
    """Each round ends as the script says; after the last one it stops."""

    def __init__(self, *script: Step, leads: bool = True) -> None:
        super().__init__(database=NOT_ASKED, broker=NOT_ASKED, topic="events.dead", clock=DrivenClock(),
                         leads=lambda: leads)  # fmt: skip
        self.script, self.waits, self.woken = list(script), list[float](), list[bool]()

    async def once(self) -> int:
        """What the script says."""
        self.woken.append(self._wake.is_set())
        self.wake()
        return scripted(self.script)

    async def _wait(self, seconds: float, stop: asyncio.Event) -> None:
        self.waits.append(seconds)
        await asyncio.sleep(0)
        if not self.script:
            stop.set()


def scripted(script: list[Step]) -> int:
    """The next step of it."""
    step = script.pop(0)
    if isinstance(step, Exception):
        raise step
    return step


async def test_letters_are_looked_for_now_and_then_and_at_once_while_there_are_many() -> None:
    # case: G5
    rounds = ScriptedLetters(dead_letters.BATCH, 3, LedgerUnavailable(), BrokerUnavailable(), 0)
    with capture_logs() as logs:
        await rounds.run(asyncio.Event())
    assert rounds.waits == [dead_letters.LOOK_EVERY_S, *[dead_letters.RETRY_S] * 2, dead_letters.LOOK_EVERY_S]
    assert rounds.woken == [False] * 5
    assert [(line["event"], line.get("code")) for line in logs] == [
        ("dead_letters_wait", "ledger_unavailable"),
        ("dead_letters_wait", "broker_unavailable"),
        ("dead_letters_wait_over", None),
    ]


async def test_who_does_not_lead_publishes_no_letters() -> None:
    rounds, stop = ScriptedLetters(1, leads=False), asyncio.Event()
    task = asyncio.create_task(rounds.run(stop))
    await asyncio.sleep(0)
    rounds.script.clear()
    await task_over(task)
    assert rounds.woken == []


async def task_over(task: asyncio.Task[None]) -> None:
    """It ends soon."""
    async with asyncio.timeout(10):
        await task


async def test_letters_wait_until_woken_stopped_or_for_a_while() -> None:
    stop, rounds = asyncio.Event(), letters_to()
    await task_over(asyncio.create_task(rounds._wait(0.01, stop)))
    waiting = asyncio.create_task(rounds._wait(600, stop))
    done, _ = await asyncio.wait({waiting}, timeout=0.02)
    assert not done
    rounds.wake()
    await task_over(waiting)
    rounds._wake.clear()
    stop.set()
    await task_over(asyncio.create_task(rounds._wait(600, stop)))


# --- derived events ---------------------------------------------------------------------------------------------


class Lease:
    """A tenure of ten seconds, as the relay asks for it."""

    lease_s = 10.0

    def __init__(self, left_s: float, broken: Exception | None = None) -> None:
        self.left_s, self.asked, self._broken = left_s, 0, broken

    @property
    def holds(self) -> bool:
        """As a Tenure does."""
        return self.left_s > 0

    async def take(self) -> bool:
        """As a Tenure does."""
        self.asked += 1
        return self.holds

    async def give_back(self) -> None:
        """As a Tenure does."""
        if self._broken is not None:
            raise self._broken
        self.left_s = 0


class ScriptedRelay(Relay):
    """Each round ends as the script says; after the last one it stops."""

    def __init__(self, *script: Step, lease: Lease | None = None, clock: DrivenClock | None = None) -> None:
        self.clock = clock or DrivenClock()
        super().__init__(database=NOT_ASKED, broker=NOT_ASKED, topic="events", clock=self.clock, worker="w")
        self.lease = lease or Lease(10.0)
        self._tenure = self.lease  # type: ignore[assignment]  # what is asked of it
        self.script, self.waits, self.stop = list(script), 0, asyncio.Event()
        self.woken = list[bool]()

    async def once(self) -> int:
        """What the script says."""
        self.woken.append(self._wake.is_set())
        self.wake()
        try:
            return scripted(self.script)
        finally:
            if not self.script:
                self.stop.set()

    async def _wait(self) -> None:
        self.waits += 1


async def slept(clock: DrivenClock, task: asyncio.Task[None]) -> list[float]:
    """For how long it slept each time until it was over."""
    found: list[float] = []
    for _ in range(1000):
        await asyncio.sleep(0)
        if task.done():
            return found
        if clock.sleepers:
            before, after = clock.monotonic(), clock._sleepers[0][0]
            found.append(round(after - before, 3))
            clock.advance(after - before)
    raise AssertionError("it goes on")


async def test_the_relay_goes_on_at_once_with_a_full_lot_and_waits_a_while_when_it_cannot() -> None:
    # case: G5
    rounds = ScriptedRelay(relay.BATCH, 3, LedgerUnavailable(), BrokerUnavailable(), 0)
    with capture_logs() as logs:
        naps = await slept(rounds.clock, asyncio.create_task(rounds.run(rounds.stop)))
    assert (rounds.waits, naps, rounds.woken) == (2, [relay.RETRY_S] * 2, [False] * 5)
    assert [(line["event"], line.get("code")) for line in logs] == [
        ("relay_waits", "ledger_unavailable"),
        ("relay_waits", "broker_unavailable"),
        ("relay_waits_over", None),
    ]
    assert not rounds.leads


class Follower(Relay):
    """It asks for a lease that a ledger which takes no write refuses, and at last gives to somebody else."""

    def __init__(self, refusals: int) -> None:
        self.clock, self.left, self.stop = DrivenClock(), refusals, asyncio.Event()
        super().__init__(database=NOT_ASKED, broker=NOT_ASKED, topic="events", clock=self.clock, worker="w")
        self._tenure = self  # type: ignore[assignment]  # what is asked of it

    holds, left_s, lease_s = False, 0.0, 10.0

    async def take(self) -> bool:
        """As a Tenure does."""
        self.left -= 1
        if self.left >= 0:
            raise LedgerUnavailable
        self.stop.set()
        return False

    async def give_back(self) -> None: ...

    async def _wait(self) -> None:
        await self.clock.sleep(relay.FOLLOWS_S)


async def test_a_follower_whose_ledger_takes_no_write_says_it_as_what_lasts() -> None:
    """Between two askings it knew of nothing wrong, and said it anew each time: a line every second and a half."""
    # case: G5
    rounds = Follower(20)
    with capture_logs() as logs:
        await slept(rounds.clock, asyncio.create_task(rounds.run(rounds.stop)))
    assert [line["event"] for line in logs] == ["relay_waits", "relay_waits_over"]


async def test_a_lease_that_cannot_be_given_back_is_said() -> None:
    rounds = ScriptedRelay(0, lease=Lease(10.0, LedgerUnavailable()))
    with capture_logs() as logs:
        await rounds.run(rounds.stop)
    assert logs == [
        {"event": "lease_not_released", "log_level": "warning", "lease": "relay", "error": "LedgerUnavailable"}
    ]


@pytest.mark.parametrize(("left_s", "asks"), [(5.1, 0), (5.0, 1), (0.1, 1)])
async def test_a_leader_renews_when_half_of_the_lease_is_over(left_s: float, asks: int) -> None:
    rounds = ScriptedRelay(lease=Lease(left_s))
    assert await rounds._lead()
    assert rounds.lease.asked == asks
    rounds.lease.left_s = 1.0
    assert await rounds._lead()  # at once again: it is the leader's
    assert rounds.lease.asked == asks + 1


async def test_who_follows_asks_once_in_a_while() -> None:
    rounds, asked = ScriptedRelay(lease=Lease(0.0)), list[int]()
    for seconds in (0.0, 0.89, 0.02, 0.89, 0.02):
        rounds.clock.advance(seconds)
        assert not await rounds._lead()
        asked.append(rounds.lease.asked)
    assert asked == [1, 1, 2, 2, 3]


@pytest.mark.parametrize(("left_s", "follows_s", "idle_s"), [(10.0, 600.0, 0.01), (0.0, 0.01, 600.0)])
async def test_who_leads_waits_shortly_and_who_follows_longer_unless_woken(
    monkeypatch: pytest.MonkeyPatch, left_s: float, follows_s: float, idle_s: float
) -> None:
    monkeypatch.setattr(relay, "FOLLOWS_S", follows_s)
    monkeypatch.setattr(relay, "IDLE_S", idle_s)
    monkeypatch.setattr(relay, "QUIET_S", idle_s)
    rounds = ScriptedRelay(lease=Lease(left_s))
    await task_over(asyncio.create_task(Relay._wait(rounds)))
    rounds.lease.left_s = 10.0 - left_s
    rounds.wake()
    await task_over(asyncio.create_task(Relay._wait(rounds)))
