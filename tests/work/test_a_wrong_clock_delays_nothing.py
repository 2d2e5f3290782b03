"""A machine whose clock is wrong delays nothing: what is due is due by the clock that all processes share."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from consumer.app.heartbeat import Heartbeat
from consumer.clock import AGREES, SharedClock, SystemClock
from consumer.ledger import Database
from consumer.ledger.engine import schema
from consumer.telemetry.internal import Readiness
from consumer.telemetry.metrics import Metrics

NOW = datetime(2026, 5, 1, tzinfo=UTC)


class WrongClock(SystemClock):
    """A machine that is off by so much."""

    def __init__(self, off: timedelta) -> None:
        self.off = off

    def now(self) -> datetime:
        return NOW + self.off


@pytest.mark.parametrize("off", [timedelta(hours=-3), timedelta(minutes=-1), timedelta(days=400)])
def test_it_is_the_time_of_the_database(off: timedelta) -> None:
    clock = SharedClock(WrongClock(off))
    assert clock.follow(NOW)
    assert clock.now() == NOW
    assert not clock.follow(NOW + timedelta(milliseconds=300)), "what an answer takes on its way moves nothing"
    assert clock.now() == NOW


def test_a_machine_that_was_set_right_is_followed_back() -> None:
    machine = WrongClock(timedelta(hours=2))
    clock = SharedClock(machine)
    clock.follow(NOW)
    machine.off = timedelta(0)
    assert clock.follow(NOW)
    assert (clock.now(), clock.ahead) == (NOW, timedelta(0))


def test_one_that_agrees_stays_as_it_is() -> None:
    clock = SharedClock(WrongClock(AGREES / 2))
    assert not clock.follow(NOW)
    assert clock.ahead == timedelta(0)


async def test_a_process_follows_the_ledger(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path}/consumer.db"
    database = Database(url)
    await schema.upgrade(database)
    await database.stop()
    clock = SharedClock(WrongClock(timedelta(hours=-5)))
    pulse = Heartbeat(url, readiness=Readiness(clock), metrics=Metrics(), clock=clock, process="one")
    try:
        await pulse.agree_on_time()
        assert abs(clock.now() - datetime.now(UTC)) < timedelta(seconds=10)
    finally:
        await pulse.stop()
