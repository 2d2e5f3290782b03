"""A machine whose clock is wrong delays nothing: what is due is due by the clock that all processes share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import ModuleType

import aiohttp
import pytest
from sqlalchemy import Table, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from structlog.testing import capture_logs

from consumer.app import App
from consumer.app.heartbeat import Heartbeat
from consumer.broker import Message
from consumer.clock import AGREES, SET_BACK, SharedClock, SystemClock
from consumer.events import Locators
from consumer.ledger import Database
from consumer.ledger.engine import schema
from consumer.ledger.engine.database_time import shared_time
from consumer.ledger.handling import events, handlers, outbox, queue, runs
from consumer.ledger.handling.outbox import Emitted
from consumer.ledger.handling.runs import Run
from consumer.ledger.reading import hints, read_requests
from consumer.ledger.tables import ObservationRow, ReadRow, RunStatus
from consumer.plugin import Context, Emission, Event, Handler, ReadRequest, RetryLater, declared, handles
from consumer.sandbox import Sandbox, SandboxConfig
from consumer.sandbox.scenarios.stage import Stage
from consumer.settings import Role, Settings, load_settings
from consumer.telemetry.internal import Readiness
from consumer.telemetry.metrics import Metrics
from consumer.wire import unpack_delivery, unpack_event
from consumer.work.dispatch.result_writer import conclude, store
from consumer.work.outcome import failed
from consumer.work.rounds.set_back import ClockSetBack
from tests.receive.rig import BODY
from tests.support.handling.projections import own
from tests.support.ports import eventually
from tests.sync.conftest import delivery
from tests.work.workshop import order_paid

READS: Table = ReadRow.__table__
OBSERVED: Table = ObservationRow.__table__
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


async def waits(session: AsyncSession, name: str, now: datetime, *, due_at: datetime | None = None) -> None:
    """An event came now, and its run by `clocked:take` is due at once, or then."""
    event = own("parcel.due", f"run:{name}", {}, id_=f"drv_run_{name}", at=now)
    [seq] = (await events.record(session, [event], now)).values()
    run = Run(application="default", event_id=event.id, handler="clocked:take", seq=seq, key=event.key,
              blocking=True, status=RunStatus.RETRYING, next_at=due_at or now)  # fmt: skip
    await runs.add(session, [run], now)


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


@pytest.mark.parametrize("off", [timedelta(hours=1), timedelta(minutes=-1), timedelta(days=400)])
async def test_one_that_is_set_meanwhile_moves_nothing(off: timedelta) -> None:
    """Before it is followed, by what it was, and after that by the time that was told."""
    machine = RightClock()
    clock = SharedClock(machine)

    async def right() -> datetime:
        return datetime.now(UTC)

    def error() -> timedelta:
        return abs(clock.now() - datetime.now(UTC))

    assert not await clock.follow(right)
    for late in (off, timedelta(0)):
        machine.late = late
        assert error() < AGREES
        assert await clock.follow(right)
        assert error() < AGREES


async def test_one_that_stood_still_while_it_was_followed_is_right_with_the_next_answer() -> None:
    class Stopped(RightClock):
        for_s = 0.0

        def monotonic(self) -> float:
            return super().monotonic() + self.for_s

    machine = Stopped()
    clock = SharedClock(machine)

    async def right() -> datetime:
        return datetime.now(UTC)

    machine.for_s = 30.0  # as if it had stood still between its two looks
    await clock.follow(right)
    machine.for_s = 0.0
    await clock.follow(right)
    assert abs(clock.now() - datetime.now(UTC)) < AGREES


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="no such clock here")
def test_seconds_for_which_the_machine_slept_have_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = {time.CLOCK_BOOTTIME: 90.0, time.CLOCK_MONOTONIC: 60.0}
    monkeypatch.setattr(time, "clock_gettime", clocks.__getitem__)
    assert SystemClock().monotonic() == 90.0


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


OFF = pytest.mark.parametrize("off", [timedelta(hours=3), timedelta(hours=-3)], ids=["ahead", "behind"])


def settings_of(role: Role, database_url: str, tmp_path: Path, **more: str) -> Settings:
    """Those of a role with one application."""
    environ = {
        "CONSUMER_DATABASE_URL": database_url,
        "CONSUMER_BROKER_URL": f"embedded:{tmp_path}/log.db",
        "CONSUMER_PORT": "0",
        "CONSUMER_LINGER_S": "0",
        "SVC_APP_SECRET": "svc_sk_live_x",
        "SVC_BASE_URL": "http://127.0.0.1:9",
        "SVC_APP_ID": "svc_app_x",
    }
    return load_settings(environ | more, role)


@pytest.fixture
def machine(off: timedelta, monkeypatch: pytest.MonkeyPatch) -> RightClock:
    """The machine of the process that is built next, off by so much."""
    found = RightClock()
    found.late = off
    monkeypatch.setattr("consumer.app.root.SystemClock", lambda: found)
    return found


@asynccontextmanager
async def running(app: App) -> AsyncIterator[None]:
    """Its parts run."""
    stop = asyncio.Event()
    task = asyncio.create_task(app.run(stop))
    try:
        yield
    finally:
        stop.set()
        await task


def is_now(at: datetime) -> bool:
    """By the database's clock, which is this machine's."""
    return abs(at - datetime.now(UTC)) < timedelta(minutes=1)


@OFF
@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("authenticity", ["api", "none"])
async def test_what_serve_takes_is_received_by_the_ledgers_time(
    authenticity: str, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[Message] = []

    async def publish(topic: str, message: Message, timeout_s: float = 5.0) -> None:
        taken.append(message)

    settings = settings_of(Role.SERVE, database_url, tmp_path, CONSUMER_AUTHENTICITY=authenticity)
    async with App(settings) as app, aiohttp.ClientSession() as http:
        monkeypatch.setattr(app.broker, "publish", publish)
        await app.receive()
        headers = {"content-type": "application/json"}
        async with http.post(f"{app.public_url}/webhooks", data=BODY, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
    [message] = taken
    unpack = unpack_delivery if authenticity == "api" else partial(unpack_event, locators=Locators())
    assert is_now(unpack(message.key, message.value, message.headers).received_at)


@OFF
@pytest.mark.usefixtures("machine")
async def test_work_does_what_is_due_by_the_ledgers_time_and_nothing_before(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    """Timers, and runs that are tried again; those to come are older than those that are due, and would be first."""
    took: dict[str, datetime] = {}

    @handles("parcel.due", name="clocked:take")
    async def take(event: Event, ctx: Context) -> None:
        assert is_now(event.received_at)
        took[event.key] = ctx.now

    plugin = ModuleType("clocked")
    plugin.take = take  # type: ignore[attr-defined]  # what a module holds is set like this
    now = datetime.now(UTC)
    async with database.transaction() as session:
        for name, at in (("later", now + timedelta(hours=1)), ("due", now)):
            timer = Emission(id=f"drv_{name}", type="parcel.due", key=f"timer:{name}", data={}, not_before=at)
            await outbox.put(session, [Emitted(emission=timer, cause=order_paid(1), handler="clocked:take")], now)
            await waits(session, name, now, due_at=at)
    async with App(settings_of(Role.WORK, database_url, tmp_path), plugins={"clocked": plugin}) as app:
        await app.work()
        async with running(app):
            await eventually(lambda: {"timer:due", "run:due"} <= set(took), within_s=30)
    assert set(took) == {"timer:due", "run:due"}
    assert all(is_now(at) for at in took.values())


@pytest.mark.parametrize("off", [timedelta(0)])
async def test_what_is_tried_again_while_the_clock_is_set_ahead_is_not_put_off(
    database: Database, database_url: str, tmp_path: Path, machine: RightClock
) -> None:
    took: list[datetime] = []

    @handles("parcel.due", name="clocked:take")
    async def take(event: Event, ctx: Context) -> None:
        took.append(ctx.now)
        if len(took) == 1:
            machine.late = timedelta(hours=3)
            raise RetryLater(after=0.1)

    plugin = ModuleType("clocked")
    plugin.take = take  # type: ignore[attr-defined]  # what a module holds is set like this
    async with database.transaction() as session:
        await waits(session, "due", datetime.now(UTC))
    async with App(settings_of(Role.WORK, database_url, tmp_path), plugins={"clocked": plugin}) as app:
        await app.work()
        async with running(app):
            await eventually(lambda: len(took) == 2, within_s=30)
    assert all(is_now(at) for at in took)


@pytest.mark.parametrize("off", [timedelta(0)])
async def test_what_was_put_off_while_the_ledgers_clock_was_ahead_is_due_when_it_is_right(
    database: Database, database_url: str, tmp_path: Path, machine: RightClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One machine whose clock leaps ahead by an hour, for as long as a warehouse is away, and is set right."""
    took: list[datetime] = []

    @handles("parcel.due", name="clocked:take")
    async def take(event: Event, ctx: Context) -> None:
        took.append(ctx.now)
        if not is_now(ctx.now):
            raise RetryLater(after=0.1)

    async def of_this_machine(_: AsyncSession) -> datetime:
        return machine.now()

    monkeypatch.setattr("consumer.app.heartbeat.shared_time", of_this_machine)
    monkeypatch.setattr("consumer.app.heartbeat.BEAT_EVERY_S", 0.3)
    plugin = ModuleType("clocked")
    plugin.take = take  # type: ignore[attr-defined]  # what a module holds is set like this

    async def comes(name: str) -> None:
        async with database.transaction() as session:
            await waits(session, name, datetime.now(UTC))

    async with App(settings_of(Role.WORK, database_url, tmp_path), plugins={"clocked": plugin}) as app:
        await app.work()
        async with running(app):
            await comes("first")
            await eventually(lambda: bool(took), within_s=30)
            assert app.worker is not None
            leaps = app.worker._housekeeping._clock_set_back._leaps
            machine.late = timedelta(hours=1)
            await eventually(lambda: not is_now(app.clock.now()), within_s=30)
            await comes("second")
            await eventually(lambda: not is_now(took[-1]), within_s=30)
            await eventually(lambda: not is_now(leaps._at), within_s=30, what="a round of its housekeeping")
            machine.late = timedelta(0)
            await eventually(lambda: is_now(took[-1]), within_s=30)
    async with database.reading() as session:
        assert not await queue.next_due(session, datetime.now(UTC))


async def test_what_was_put_off_by_a_clock_that_was_ahead_is_due_and_no_timer_is(database: Database) -> None:
    now = datetime.now(UTC)
    ahead, timer = now + timedelta(hours=1), now + timedelta(hours=2)
    emitted = {
        "at_once": Emission(id="drv_at_once", type="parcel.due", key="a", data={}),
        "later": Emission(id="drv_later", type="parcel.due", key="b", data={}, not_before=timer),
    }
    asked = [ReadRequest(kind="order", object_id="at_once"), ReadRequest(kind="order", object_id="b", not_before=timer)]
    waiting = partial(Run, application="default", handler="x:y", blocking=True, status=RunStatus.RETRYING)
    async with database.transaction() as session:
        await runs.add(session, [waiting(event_id="evt_wrong", seq=1, key="a", next_at=ahead)], ahead)
        await runs.add(session, [waiting(event_id="evt_right", seq=2, key="b", next_at=timer)], now)
        put = [Emitted(emission=one, cause=order_paid(1), handler="x:y") for one in emitted.values()]
        await outbox.put(session, put, ahead)
        await read_requests.ask(session, "default", asked, ahead)
        await hints.keep(session, [delivery(b"{}", 1, event_id="evt_hint")], ahead)
        await read_requests.ask(session, "default", [ReadRequest(kind="order", object_id="tried")], now)
        [tried] = await read_requests.due(session, now, 9)
        await read_requests.put_off(session, tried, due_at=ahead, code="timeout")
        await runs.add(session, [waiting(handler="x:z", event_id="evt_dead", seq=3, key="c", next_at=now)], now)
        assert await runs.claim(session, handler="x:z", worker="dead", limit=9, now=ahead, lease_s=15)
    async with database.transaction() as session:
        assert await outbox.after_set_back(session, now) == 1
        assert await read_requests.after_set_back(session, now) == 2
        assert await hints.after_set_back(session, now) == 1
        assert await runs.after_set_back(session, now, 15) == 1
    async with database.reading() as session:
        assert [one.event_id for one in await outbox.due(session, now, 9)] == ["drv_at_once"]
        assert [one.object_id for one in await read_requests.due(session, now, 9)] == ["at_once", "tried"]
        assert await queue.next_due(session, now) == {"x:y": now}
        assert [event_id for event_id, _ in await hints.due_ids(session, "default", now, 9)] == ["evt_hint"]
    async with database.transaction() as session:
        found = await runs.claim(session, handler="x:y", worker="w", limit=9, now=now, lease_s=15)
        later = now + timedelta(seconds=16)
        found = [*found, *await runs.claim(session, handler="x:z", worker="w", limit=9, now=later, lease_s=15)]
    assert [one.event_id for one in found] == ["evt_wrong", "evt_dead"]


async def test_an_attempt_under_way_while_the_clock_was_set_back_is_not_put_off(database: Database) -> None:
    """It reckoned its next time by the wrong clock, and stores it after what was put off had been made due."""
    machine = WrongClock(timedelta(0))
    set_back = ClockSetBack(database, machine)
    while await set_back.heed():
        pass
    machine.off = timedelta(hours=1)
    assert not await set_back.heed()
    ahead, machine.off = machine.now(), timedelta(0)
    assert await set_back.heed()
    await is_added(database, "evt_slow", ahead, ahead)
    while await set_back.heed():
        pass
    async with database.reading() as session:
        assert await queue.next_due(session, NOW) == {"x:y": NOW}


async def test_an_attempt_that_is_stored_by_another_clock_than_it_ended_by_is_not_put_off(database: Database) -> None:
    """Its row is of the right time, and its next time of the wrong one: nobody would find it."""
    now = datetime.now(UTC)
    ahead = now + timedelta(hours=1)
    await is_added(database, "evt_stored", now, now)
    handler = Handler(name="x:y", types=("*",), function=asyncio.sleep)
    async with database.transaction() as session:
        [run] = await runs.claim(session, handler="x:y", worker="w", limit=1, now=now, lease_s=15)
        ended = conclude(handler, run, order_paid(1), failed(RetryLater(60)), worker="w", started_at=ahead, now=ahead)
        await store(session, [ended], worker="w", now=now)
    async with database.reading() as session:
        assert await queue.next_due(session, now) == {"x:y": now + timedelta(seconds=60)}


async def is_added(database: Database, event_id: str, next_at: datetime, now: datetime) -> None:
    async with database.transaction() as session:
        run = Run(application="default", event_id=event_id, handler="x:y", seq=len(event_id), key=event_id,
                  blocking=True, status=RunStatus.RETRYING, next_at=next_at)  # fmt: skip
        await runs.add(session, [run], now)


async def test_who_begins_makes_due_what_a_wrong_clock_left_and_nothing_else(database: Database) -> None:
    """All roles ended while the ledger's clock was ahead: nobody saw it set back. Two workers begin at once."""
    now = datetime.now(UTC)
    skewed, days = now + SET_BACK * 0.9, timedelta(days=3)
    await is_added(database, "evt_wrong", now + timedelta(days=1), now + timedelta(days=1))
    await is_added(database, "evt_put_off", now + days, now)
    await is_added(database, "evt_of_one_whose_clock_differs", skewed + days, skewed)
    asked = [ReadRequest(kind="order", object_id=name) for name in ("soon", "often")]
    async with database.transaction() as session:
        await read_requests.ask(session, "default", asked, now)
        soon, often = sorted(await read_requests.due(session, now, 9), key=lambda one: one.object_id, reverse=True)
        await read_requests.put_off(session, soon, due_at=now + timedelta(minutes=7), code="timeout")
        await session.execute(update(READS).where(READS.c.object_id == "often").values(attempts=9))
        await read_requests.put_off(session, often, due_at=now + timedelta(hours=6), code="timeout")
    with capture_logs() as said:
        await asyncio.gather(*(ClockSetBack(database, SystemClock()).heed() for _ in range(2)))
    assert [(one["event"], one["made_due"]) for one in said] == [("clock_was_ahead", 1)]
    async with database.transaction() as session:
        then = now + timedelta(minutes=1)
        found = await runs.claim(session, handler="x:y", worker="w", limit=9, now=then, lease_s=15)
        assert [one.event_id for one in found] == ["evt_wrong"]
        assert not await read_requests.due(session, then, 9)


async def test_who_was_seen_by_a_wrong_clock_is_missed_when_it_is_right(database: Database) -> None:
    now = datetime.now(UTC)

    @handles("parcel.due", name="clocked:take")
    async def take(event: Event, ctx: Context) -> None:
        """Nothing."""

    known = declared(take)
    assert known is not None
    async with database.transaction() as session:
        await handlers.register(session, [known], now + timedelta(days=1))
    await ClockSetBack(database, SystemClock()).heed()
    async with database.reading() as session:
        [row] = await handlers.everyone(session)
        assert is_now(row.first_seen_at)
        assert is_now(row.last_seen_at)


@OFF
@pytest.mark.usefixtures("machine")
async def test_sync_reads_what_is_due_by_the_ledgers_time_and_nothing_before(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    async with Sandbox(SandboxConfig(seed=1)) as sandbox:
        config = sandbox.config
        stage = Stage(sandbox, config.app_id, 2)
        later, due = (stage.order(word).order_id for word in ("later", "due"))
        now = datetime.now(UTC)
        asked = [
            ReadRequest(kind="order", object_id=later, not_before=now + timedelta(hours=1)),
            ReadRequest(kind="order", object_id=due),
        ]
        async with database.transaction() as session:
            await read_requests.ask(session, "default", asked, now)

        async def left() -> set[str]:
            async with database.reading() as session:
                return set(await session.scalars(select(READS.c.object_id).where(READS.c.kind == "order")))

        async def is_read() -> bool:
            return due not in await left()

        service = {"SVC_BASE_URL": sandbox.base_url, "SVC_APP_ID": config.app_id, "SVC_APP_SECRET": config.app_secret}
        async with App(settings_of(Role.SYNC, database_url, tmp_path, **service)) as app:
            await app.sync()
            async with running(app):
                await eventually(is_read, within_s=30)
        assert await left() == {later}
    async with database.reading() as session:
        seen = (await session.execute(select(OBSERVED.c.read_at).where(OBSERVED.c.object_id == due))).scalars()
        assert [is_now(at) for at in seen] == [True]
