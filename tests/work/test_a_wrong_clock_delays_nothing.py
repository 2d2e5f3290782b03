"""A machine whose clock is wrong delays nothing: what is due is due by the clock that all processes share."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import aiohttp
import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.app import App
from consumer.app.heartbeat import Heartbeat
from consumer.broker import Message
from consumer.clock import AGREES, SharedClock, SystemClock
from consumer.events import Locators
from consumer.ledger import Database
from consumer.ledger.engine import schema
from consumer.ledger.engine.database_time import shared_time
from consumer.settings import Role, load_settings
from consumer.telemetry.internal import Readiness
from consumer.telemetry.metrics import Metrics
from consumer.wire import unpack_delivery, unpack_event
from tests.receive.rig import BODY

NOW = datetime(2026, 5, 1, tzinfo=UTC)


async def told() -> datetime:
    """An answer that takes no time."""
    return NOW


class WrongClock(SystemClock):
    """A machine that is off by so much."""

    def __init__(self, off: timedelta) -> None:
        self.off = off

    def now(self) -> datetime:
        return NOW + self.off


class RightClock(SystemClock):
    """A machine that is right; `late`: how long it was held up in all."""

    late = timedelta(0)

    def now(self) -> datetime:
        return super().now() + self.late


@pytest.mark.parametrize("off", [timedelta(hours=-3), timedelta(minutes=-1), timedelta(days=400)])
async def test_it_is_the_time_of_the_database(off: timedelta) -> None:
    clock = SharedClock(WrongClock(off))
    assert await clock.follow(told)
    assert clock.now() == NOW

    async def a_little_later() -> datetime:
        return NOW + timedelta(milliseconds=300)

    assert not await clock.follow(a_little_later), "what an answer takes on its way moves nothing"
    assert clock.now() == NOW


async def test_a_machine_that_was_set_right_is_followed_back() -> None:
    machine = WrongClock(timedelta(hours=2))
    clock = SharedClock(machine)
    await clock.follow(told)
    machine.off = timedelta(0)
    assert await clock.follow(told)
    assert (clock.now(), clock.ahead) == (NOW, timedelta(0))


async def test_one_that_agrees_stays_as_it_is() -> None:
    clock = SharedClock(WrongClock(AGREES / 2))
    assert not await clock.follow(told)
    assert clock.ahead == timedelta(0)


@pytest.mark.parametrize("off", [timedelta(0), timedelta(hours=3)])
@pytest.mark.parametrize("took", [timedelta(seconds=2), timedelta(seconds=10), timedelta(minutes=5)])
async def test_an_answer_that_took_long_moves_nothing(off: timedelta, took: timedelta) -> None:
    machine = WrongClock(off)
    clock = SharedClock(machine)
    await clock.follow(told)

    async def told_late() -> datetime:
        machine.off += took
        return NOW  # the time when it was asked

    assert not await clock.follow(told_late)
    assert clock.ahead == off


async def test_a_machine_that_is_wrong_is_followed_although_the_answer_took_long() -> None:
    machine = WrongClock(timedelta(hours=3))
    clock = SharedClock(machine)

    async def told_late() -> datetime:
        machine.off += timedelta(seconds=10)
        return NOW + timedelta(seconds=5)

    assert await clock.follow(told_late)
    assert clock.now() == NOW + timedelta(seconds=10)


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


async def test_a_beat_that_was_held_up_moves_no_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path}/consumer.db"
    database = Database(url)
    await schema.upgrade(database)
    await database.stop()
    machine = RightClock()
    clock = SharedClock(machine)
    pulse = Heartbeat(url, readiness=Readiness(clock), metrics=Metrics(), clock=clock, process="one")

    async def held_up(session: AsyncSession) -> datetime:
        answer = await shared_time(session)
        machine.late += timedelta(seconds=8)  # as if the loop had stood still before the answer was taken
        return answer

    monkeypatch.setattr("consumer.app.heartbeat.shared_time", held_up)
    try:
        await pulse.agree_on_time()
        assert clock.ahead == timedelta(0)
    finally:
        await pulse.stop()


@pytest.mark.parametrize("off", [timedelta(minutes=10), timedelta(minutes=-10)], ids=["ahead", "behind"])
@pytest.mark.parametrize("authenticity", ["api", "none"])
async def test_what_serve_takes_is_received_by_the_ledgers_time(
    off: timedelta, authenticity: str, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = RightClock()
    machine.late = off
    monkeypatch.setattr("consumer.app.root.SystemClock", lambda: machine)
    environ = {
        "CONSUMER_DATABASE_URL": database_url,
        "CONSUMER_BROKER_URL": f"embedded:{tmp_path}/log.db",
        "CONSUMER_AUTHENTICITY": authenticity,
        "CONSUMER_PORT": "0",
        "CONSUMER_LINGER_S": "0",
        "SVC_APP_SECRET": "svc_sk_live_x",
        "SVC_BASE_URL": "http://127.0.0.1:9",
        "SVC_APP_ID": "svc_app_x",
    }
    taken: list[Message] = []

    async def publish(topic: str, message: Message, timeout_s: float = 5.0) -> None:
        taken.append(message)

    async with App(load_settings(environ, Role.SERVE)) as app, aiohttp.ClientSession() as http:
        monkeypatch.setattr(app.broker, "publish", publish)
        await app.receive()
        headers = {"content-type": "application/json"}
        async with http.post(f"{app.public_url}/webhooks", data=BODY, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
    [message] = taken
    unpack = unpack_delivery if authenticity == "api" else partial(unpack_event, locators=Locators())
    received_at = unpack(message.key, message.value, message.headers).received_at
    assert abs(received_at - datetime.now(UTC)) < timedelta(seconds=30)
