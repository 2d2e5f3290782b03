"""One relay publishes at a time, whatever the clocks of the machines say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from consumer.broker import Broker
from consumer.clock import DrivenClock, Pace, SystemClock
from consumer.ledger import Database
from consumer.ledger.handling import outbox
from consumer.ledger.handling.outbox import Emitted
from consumer.ledger.tenure import Tenure
from consumer.plugin import Emission
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


def test_what_nobody_tells_of_is_looked_at_less_often_while_nothing_comes() -> None:
    clock = DrivenClock()
    pace = Pace(clock, first_s=0.25, most_s=0.5)
    waits = [pace.wait_s]
    for _ in range(3):
        clock.advance(8)
        waits.append(pace.wait_s)
    assert waits == [0.25, 0.4, 0.5, 0.5]
    pace.stir()
    assert pace.wait_s == 0.25


async def emit(database: Database, number: int) -> None:
    """A derived event that is due by any of the clocks."""
    emission = Emission(id=f"drv_{number}", type="made.up", key=f"order:{number}", data={})
    at = datetime.now(UTC) - timedelta(hours=2)
    async with database.transaction() as session:
        await outbox.put(session, [Emitted(emission=emission, cause=event(number), handler="shop:project")], at)
