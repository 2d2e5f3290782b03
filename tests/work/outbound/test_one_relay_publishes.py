"""One relay publishes at a time, whatever the clocks of the machines say."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import orjson
import pytest
from structlog.testing import capture_logs

from consumer.broker import Broker, Message
from consumer.broker.outcomes import Outcomes
from consumer.clock import DrivenClock, Pace, SystemClock
from consumer.errors import BrokerError, BrokerUnavailable, RecordRefused
from consumer.ledger import Database, leases
from consumer.ledger.handling import outbox
from consumer.ledger.handling.outbox import Emitted
from consumer.ledger.tenure import Tenure
from consumer.plugin import Emission
from consumer.telemetry import way
from consumer.work.outbound import relay
from consumer.work.outbound.relay import Relay
from tests.contract.ledger.facts import event
from tests.support.clocks import WrongClock
from tests.support.ports import eventually
from tests.work.workshop import TOPIC

LEASE_S = 1.5


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [timedelta(hours=1), timedelta(hours=-1)], ids=["ahead", "behind"])
async def test_a_machine_whose_clock_is_wrong_neither_steals_the_relay_nor_keeps_it_beyond_its_death(
    database: Database, broker: Broker, monkeypatch: pytest.MonkeyPatch, ahead: timedelta
) -> None:
    # case: B26, G5
    monkeypatch.setattr(relay, "RELAY_LEASE_S", LEASE_S)

    def made(worker: str, clock: SystemClock) -> Relay:
        return Relay(database=database, broker=broker, topic=TOPIC, clock=clock, worker=worker)

    async def publishes(one: Relay, number: int) -> bool:
        """Whether this one publishes what was emitted."""
        await emit(database, number)
        return await one.once() == 1

    right, wrong = made("right", SystemClock()), made("wrong", WrongClock(ahead))
    assert await publishes(right, 0)
    for number in range(1, 6):
        assert await wrong.once() == 0
        assert not wrong.leads
        assert await publishes(right, number)

    async def takes_over(heir: Relay) -> bool:
        await heir.once()
        return heir.leads

    # The leader is never heard of again, as after kill -9.
    await eventually(lambda: takes_over(wrong), within_s=LEASE_S + 5, every_s=0.1, what="the wrong clock leads")
    assert await publishes(wrong, 6)
    assert await right.once() == 0
    heir = made("heir", SystemClock())
    assert not await takes_over(heir), "the one with the wrong clock lives"
    await eventually(lambda: takes_over(heir), within_s=LEASE_S + 5, every_s=0.1, what="the heir leads")
    assert await publishes(heir, 7)


async def test_who_does_not_lead_asks_for_the_lease_now_and_then_however_often_it_is_woken(
    database: Database, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = DrivenClock(datetime.now(UTC))
    leader, follower = [
        Relay(database=database, broker=broker, topic=TOPIC, clock=clock, worker=name) for name in ("leads", "follows")
    ]
    assert await leader.once() == 0
    assert leader.leads
    asked = 0
    real = Tenure.take

    async def counted(self: Tenure) -> bool:
        nonlocal asked
        asked += 1
        return await real(self)

    monkeypatch.setattr(Tenure, "take", counted)
    for _ in range(10):
        assert await follower.once() == 0
    assert asked == 1
    await leader._step_down()
    clock.advance(relay.FOLLOWS_S)
    await emit(database, 0)
    assert await follower.once() == 1


class Waiting:
    """A broker that acknowledges nothing until it is told to."""

    def __init__(self) -> None:
        self.begun, self.acknowledges = asyncio.Event(), asyncio.Event()

    async def publish_many(self, topic: str, sent: Sequence[Message]) -> None:
        """As a Broker does."""
        self.begun.set()
        await self.acknowledges.wait()


async def test_who_waits_for_an_acknowledgement_leads_on(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A try of what is held took as long as the lease, and so did the next leader's, who knew nothing of it: with two
    workers nothing went out beside a partition that takes nothing."""
    # case: B26, G5
    monkeypatch.setattr(relay, "RELAY_LEASE_S", LEASE_S)
    topic, clock = Waiting(), SystemClock()
    leads = Relay(database=database, broker=cast(Any, topic), topic=TOPIC, clock=clock, worker="leads")
    follows = Relay(database=database, broker=cast(Any, topic), topic=TOPIC, clock=clock, worker="follows")
    await emit(database, 0)
    publishing = asyncio.create_task(leads.once())
    await topic.begun.wait()

    async def until() -> datetime:
        async with database.reading() as session:
            lease = await leases.current(session, relay.ROLE)
        assert lease is not None
        return lease.until

    first = await until()

    async def would_be_over() -> bool:
        assert await follows.once() == 0
        assert not follows.leads
        return await until() > first + timedelta(seconds=LEASE_S)

    await eventually(would_be_over, within_s=30, every_s=0.05, what="the lease is renewed")
    topic.acknowledges.set()
    assert await publishing == 1
    assert leads.leads


async def test_what_is_sent_ends_with_who_sends_it(database: Database) -> None:
    topic = Waiting()
    leads = Relay(database=database, broker=cast(Any, topic), topic=TOPIC, clock=SystemClock(), worker="leads")
    await emit(database, 0)
    publishing = asyncio.create_task(leads.once())
    await topic.begun.wait()
    publishing.cancel()
    with suppress(asyncio.CancelledError):
        await publishing
    assert [one for one in asyncio.all_tasks() if "publish_many" in repr(one) and not one.cancelling()] == []


class Topic:
    """A broker that takes everything."""

    def __init__(self) -> None:
        self.lots: list[list[str]] = []

    async def publish_many(self, topic: str, sent: Sequence[Message]) -> None:
        """As a Broker does."""
        assert topic == TOPIC
        self.lots.append([orjson.loads(one.value)["id"] for one in sent])


@pytest.mark.parametrize("is_told", [True, False])
async def test_what_is_due_is_published_once_in_its_order_and_told_where_that_is_wanted(
    database: Database, monkeypatch: pytest.MonkeyPatch, is_told: bool
) -> None:
    # case: G5
    told: list[str] = []
    monkeypatch.setattr(way, "is_told", lambda: is_told)
    monkeypatch.setattr(way, "tell", lambda name, event: told.append(f"{name} {event.id}"))
    topic: Any = Topic()
    publishes = Relay(database=database, broker=topic, topic=TOPIC, clock=DrivenClock(datetime.now(UTC)), worker="w")
    assert await publishes.once() == 0
    for number in (2, 1):
        await emit(database, number)
    assert [await publishes.once() for _ in range(2)] == [2, 0]
    assert topic.lots == [["drv_2", "drv_1"]]
    assert told == (["derived_published drv_2", "derived_published drv_1"] if is_told else [])


class Lowered(Topic):
    """One that refuses for now, with this error, what has one of `refused` for its id."""

    def __init__(self, *refused: int, error: type[BrokerError] = RecordRefused) -> None:
        super().__init__()
        self.refused, self.refusals, self.error = {f"drv_{number}" for number in refused}, 0, error

    async def publish_many(self, topic: str, sent: Sequence[Message]) -> None:
        """As a Broker does."""
        outcomes = Outcomes(sent)
        for place, one in enumerate(sent):
            if orjson.loads(one.value)["id"] in self.refused:
                self.refusals += 1
                outcomes.settle(place, self.error())
        for taken in outcomes.chunks([1] * len(sent), len(sent), len(sent)):
            await super().publish_many(topic, [sent[place] for place in taken])
            for place in taken:
                outcomes.settle(place, None)
        outcomes.check()

    @property
    def went(self) -> list[str]:
        """Which went out, in their order."""
        return [one for lot in self.lots for one in lot]


def to(database: Database, topic: Lowered) -> tuple[Relay, DrivenClock]:
    clock = DrivenClock(datetime.now(UTC))
    return Relay(database=database, broker=cast(Any, topic), topic=TOPIC, clock=clock, worker="w"), clock


async def look(publishes: Relay, times: int = 1) -> None:
    """So many looks, whatever is refused."""
    for _ in range(times):
        with suppress(BrokerUnavailable):
            await publishes.once()


async def test_one_that_a_lowered_limit_refuses_waits_alone(sqlite_ledger: Database) -> None:
    # case: I30, G5
    topic = Lowered(1)
    publishes, clock = to(sqlite_ledger, topic)
    for number in range(3):
        await emit(sqlite_ledger, number)
    with pytest.raises(RecordRefused):
        await publishes.once()
    await look(publishes)
    assert topic.lots == [["drv_0", "drv_2"]]
    topic.refused.clear()
    clock.advance(relay.AGAIN_S)
    assert await publishes.once() == 1
    assert topic.lots == [["drv_0", "drv_2"], ["drv_1"]]


async def test_those_of_its_key_wait_behind_one_that_is_refused_and_those_of_others_go(sqlite_ledger: Database) -> None:
    # case: I30, G5
    topic = Lowered(1)
    publishes, clock = to(sqlite_ledger, topic)
    for number, key in ((1, "order:1"), (2, "order:1"), (3, "order:3")):
        await emit(sqlite_ledger, number, key)
    await look(publishes, 2)
    clock.advance(relay.AGAIN_S)
    await look(publishes, 2)
    assert topic.lots == [["drv_3"]], "an access that was taken away would come back by the older word of it"
    topic.refused.clear()
    clock.advance(relay.AGAIN_S)
    assert await publishes.once() == 2
    assert topic.lots == [["drv_3"], ["drv_1", "drv_2"]]


async def test_however_many_are_refused_those_of_others_go_and_few_are_asked_again(
    sqlite_ledger: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case: I30, G5
    monkeypatch.setattr(relay, "BATCH", 4)
    monkeypatch.setattr(outbox, "WINDOW", 8)
    topic = Lowered(*range(30))
    publishes, clock = to(sqlite_ledger, topic)
    for number in range(31):
        await emit(sqlite_ledger, number)
    await look(publishes, 30)
    assert topic.went == ["drv_30"]
    asked = topic.refusals
    await emit(sqlite_ledger, 31)
    await emit(sqlite_ledger, 32, "order:0")
    await look(publishes, 30)
    assert (topic.went, topic.refusals) == (["drv_30", "drv_31"], asked)
    for _ in range(3):
        clock.advance(relay.AGAIN_S)
        await look(publishes, 3)
    assert topic.refusals == asked + 3, "each refusal costs a producer"
    topic.refused.clear()
    clock.advance(relay.AGAIN_S)
    await look(publishes, 20)
    assert sorted(topic.went) == sorted(f"drv_{number}" for number in range(33))
    assert topic.went.index("drv_0") < topic.went.index("drv_32"), "those of a key in their order"


async def test_a_partition_that_takes_nothing_holds_up_its_own_keys_and_nothing_goes_out_twice(
    sqlite_ledger: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was marked: the same page went out again and again, and what lay behind it never did."""
    # case: G5, O9
    monkeypatch.setattr(relay, "BATCH", 4)
    topic = Lowered(*range(0, 12, 3), error=BrokerUnavailable)
    publishes, clock = to(sqlite_ledger, topic)
    for number in range(12):
        await emit(sqlite_ledger, number)
    await look(publishes, 6)
    assert topic.went == [f"drv_{number}" for number in range(12) if number % 3]
    clock.advance(relay.AGAIN_S)
    await emit(sqlite_ledger, 12, "order:0")
    await look(publishes, 6)
    assert (topic.went[8:], topic.refusals) == ([], 4 + 4), "to try many takes as long as to try one"
    topic.refused.clear()
    clock.advance(relay.AGAIN_S)
    await look(publishes, 6)
    assert sorted(topic.went) == sorted(f"drv_{number}" for number in range(13))
    assert topic.went.index("drv_0") < topic.went.index("drv_12"), "those of a key in their order"


@pytest.mark.parametrize("look_s", [0.25, 3.0, 10.5])
async def test_keys_that_are_taken_again_go_while_others_are_still_refused(
    sqlite_ledger: Database, look_s: float
) -> None:
    """A broker died in the midst of a batch; all partitions but one have new leaders, and that one goes on to be told
    of something at each look."""
    # case: G5, O9
    topic = Lowered(*range(1, 12), error=BrokerUnavailable)
    publishes, clock = to(sqlite_ledger, topic)
    for number in range(12):
        await emit(sqlite_ledger, number)
    await look(publishes)
    topic.refused = {"drv_11"}
    for number in range(20, 20 + round(2 * relay.AGAIN_S / look_s) + 2):
        topic.refused.add(f"drv_{number}")
        await emit(sqlite_ledger, number)
        await look(publishes)
        clock.advance(look_s)
    assert topic.went[1:] == [f"drv_{number}" for number in range(1, 11)]


async def test_a_log_that_is_away_holds_no_key_up(sqlite_ledger: Database) -> None:
    # case: G5
    topic = Lowered(0, 1, error=BrokerUnavailable)
    publishes, _ = to(sqlite_ledger, topic)
    for number in range(2):
        await emit(sqlite_ledger, number)
    await look(publishes)
    topic.refused.clear()
    assert await publishes.once() == 2, "at once, when it is back"


async def test_what_went_out_ahead_of_one_of_its_key_goes_again_behind_it(sqlite_ledger: Database) -> None:
    """As when what a caller had given up before is acknowledged late."""
    # case: G5

    class Overtaken(Topic):
        async def publish_many(self, topic: str, sent: Sequence[Message]) -> None:
            if not self.lots:
                await super().publish_many(topic, sent[1:])
                error = BrokerUnavailable()
                error.durable = frozenset(range(1, len(sent)))
                raise error
            await super().publish_many(topic, sent)

    topic = cast(Any, Overtaken())
    publishes, clock = to(sqlite_ledger, topic)
    for number, key in ((0, "order:1"), (1, "order:1"), (2, "order:2")):
        await emit(sqlite_ledger, number, key)
    await look(publishes, 2)
    clock.advance(relay.AGAIN_S)
    await look(publishes, 2)
    assert topic.lots == [["drv_1", "drv_2"], ["drv_0", "drv_1"]]


async def test_who_leads_no_more_remembers_none_as_refused(sqlite_ledger: Database) -> None:
    # case: I30, G5
    topic = Lowered(1)
    publishes, clock = to(sqlite_ledger, topic)
    await emit(sqlite_ledger, 1)
    await look(publishes)
    await publishes._step_down()
    heir = Relay(database=sqlite_ledger, broker=cast(Any, topic), topic=TOPIC, clock=clock, worker="heir")
    await look(heir)
    await publishes.once()
    assert not publishes._held


async def test_while_some_are_refused_it_is_said_to_last(sqlite_ledger: Database) -> None:
    # case: I30
    topic, stop = Lowered(1), asyncio.Event()
    publishes, clock = to(sqlite_ledger, topic)
    await emit(sqlite_ledger, 1)
    with capture_logs() as logs:
        runs = asyncio.create_task(publishes.run(stop))
        await eventually(lambda: bool(publishes._held), what="it is refused")
        clock.advance(relay.RETRY_S)
        await emit(sqlite_ledger, 2)
        publishes.wake()
        await eventually(lambda: topic.went == ["drv_2"], what="another's goes")
        assert [line["event"] for line in logs if line["event"].startswith("relay_waits")] == ["relay_waits"]
        topic.refused.clear()
        clock.advance(relay.AGAIN_S)
        publishes.wake()
        await eventually(lambda: topic.went == ["drv_2", "drv_1"], what="it goes, too")
        await eventually(lambda: logs[-1]["event"] == "relay_waits_over", what="that is said")
        stop.set()
        publishes.wake()
        await runs


@pytest.mark.parametrize("stirred_by", ["nothing", "being woken", "something due"])
async def test_it_looks_often_again_when_something_comes(sqlite_ledger: Database, stirred_by: str) -> None:
    topic, clock = cast(Any, Topic()), DrivenClock(datetime.now(UTC))
    looks = Relay(database=sqlite_ledger, broker=topic, topic=TOPIC, clock=clock, worker="w")
    await looks.once()
    clock.advance(600)
    if stirred_by == "something due":
        await emit(sqlite_ledger, 1)
    elif stirred_by == "being woken":
        looks.wake()
    await looks.once()
    assert looks._pace.wait_s == (relay.QUIET_S if stirred_by == "nothing" else relay.IDLE_S)


def test_what_nobody_tells_of_is_looked_at_less_often_while_nothing_comes() -> None:
    clock = DrivenClock()
    pace = Pace(clock, first_s=0.25, most_s=0.5)
    waits = [pace.wait_s]
    for _ in range(3):
        clock.advance(4)
        waits.append(pace.wait_s)
    assert waits == [0.25, 0.4, 0.5, 0.5]
    pace.stir()
    assert pace.wait_s == 0.25


async def emit(database: Database, number: int, key: str | None = None) -> None:
    """A derived event that is due by any of the clocks."""
    emission = Emission(id=f"drv_{number}", type="made.up", key=key or f"order:{number}", data={})
    at = datetime.now(UTC) - timedelta(hours=2)
    async with database.transaction() as session:
        await outbox.put(session, [Emitted(emission=emission, cause=event(number), handler="shop:project")], at)
