"""Between `events import --missing` and `rebuild all` no worker begins: it would ship what is held. But nobody waits
for a rebuild that cannot agree any more."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession
from structlog.testing import capture_logs

from consumer.app import App
from consumer.archive.bring import check
from consumer.cli.repairing import archive
from consumer.errors import NotDerived
from consumer.ledger import Database, audit, processes
from consumer.ledger.archiving import derivation
from consumer.ledger.archiving.derivation import BEGINS, COMING_FOR, OWED
from consumer.ledger.engine.database_time import drive, shared_time
from consumer.ledger.processes import DIED, Pulse
from consumer.ledger.reading import key_values
from consumer.settings import Role, load_settings
from tests.archive.old_shop import EVENTS, SUBSCRIBED, opened, rows
from tests.contract.ledger.facts import NOW
from tests.support.desk import Desk
from tests.support.handling.live import Live
from tests.support.handling.projections import observed
from tests.support.ports import free_port


async def comes_in(database: Database) -> None:
    async with database.transaction() as session:
        await derivation.owe(session, ["default"])


async def noted(database: Database, actor: str) -> None:
    async with database.transaction() as session:
        audit.note(session, at=NOW, application="default", actor=actor, action="x.done", subject="order:1")


async def owed(database: Database) -> frozenset[str]:
    async with database.reading() as session:
        return await derivation.owed(session)


async def may_begin(database: Database) -> bool:
    try:
        async with database.reading() as session:
            await derivation.require_derived(session)
    except NotDerived:
        return False
    return True


async def beats(database: Database, role: str, died: str | None = None) -> None:
    async with database.transaction() as session:
        now = await shared_time(session)
        word = {} if died is None else {DIED: died}
        pulse = Pulse(process="p", role=role, host="h", pid=1, version="1", started_at=now, ready=True, since=now,
                      said=word)  # fmt: skip
        await processes.beat(session, [pulse], now)


# case: G12
async def test_what_a_handler_changed_since_is_not_waited_for(database: Database) -> None:
    """A version that did not wait has worked since: no rebuild agrees any more, and nobody could ever start."""
    await noted(database, "fulfilment:order_paid")  # in the trail that came in
    await comes_in(database)
    await noted(database, "operator:ops")
    await noted(database, "query API")
    assert not await may_begin(database)
    await comes_in(database)
    await noted(database, "access:subscription")
    await comes_in(database)
    assert await may_begin(database)
    assert await owed(database) == {"default"}, "`status` goes on to say it"


# case: G12
async def test_an_import_of_which_nobody_knows_when_keeps_nobody(database: Database) -> None:
    async with database.transaction() as session:
        await key_values.keep(session, f"{BEGINS}default", OWED)
    assert await may_begin(database)
    assert await owed(database) == {"default"}
    await comes_in(database)
    assert not await may_begin(database), "of what comes in now it is known"


# case: G12
async def test_what_one_application_owes_is_not_hidden_by_what_another_does(database: Database) -> None:
    async with database.transaction() as session:
        await key_values.keep(session, f"{BEGINS}far", OWED)
        await derivation.owe(session, ["near"])
    await noted(database, "access:subscription")
    assert await may_begin(database)
    await comes_in(database)
    assert not await may_begin(database)


# case: G12
async def test_an_operator_may_give_the_rebuild_up(database: Database) -> None:
    """Where it can never agree, as without the trail of then: nobody could ever start."""
    await comes_in(database)
    desk = Desk({"CONSUMER_DATABASE_URL": url_of(database)})
    words = ("--give-up", "--reason", "the trail is lost", "--yes")
    for refused in (("access", *words), ("all", "--dry-run", *words)):
        assert "--give-up goes with" in await asyncio.to_thread(desk.ask, "rebuild", *refused, code=2)
    assert not await may_begin(database)
    assert await asyncio.to_thread(desk.ask, "rebuild", "all", *words) == {"given_up": ["default"]}
    assert await may_begin(database)
    assert await owed(database) == {"default"}, "`status` goes on to say it"
    [entry, *_] = (await asyncio.to_thread(desk.ask, "audit", "list"))["entries"]
    assert (entry["action"], entry["reason"]) == ("rebuild.given_up", "the trail is lost")


# case: G12
async def test_while_events_come_in_nobody_begins(database: Database) -> None:
    """One that was killed before anything came in keeps nobody for ever."""
    async with database.transaction() as session:
        await derivation.begin(session, ["a.jsonl"])
    assert not await may_begin(database)
    async with database.transaction() as session:
        await drive(session, COMING_FOR.total_seconds())
    assert await may_begin(database)
    for is_whole in (True, False, None):
        async with database.transaction() as session:
            began = await derivation.begin(session, ["a.jsonl"])
        assert not await may_begin(database)
        async with database.transaction() as session:
            if is_whole is None:
                await derivation.give_up(session)
            else:
                await derivation.end(session, began, whole=["a.jsonl"] if is_whole else [])
        assert await may_begin(database)


# case: G12
async def test_nothing_is_derived_from_half_of_a_past(database: Database) -> None:
    await comes_in(database)
    async with database.transaction() as session:
        await derivation.begin(session, ["a.jsonl"])  # and is killed
    desk = Desk({"CONSUMER_DATABASE_URL": url_of(database)})
    words = ("rebuild", "all", "--reason", "x", "--yes")
    told = (await asyncio.to_thread(desk.call, *words)).stderr
    assert told.startswith("error[not_derived]: `events import --missing` is under way, or was cut"), told
    assert await owed(database) == {"default"}


def url_of(database: Database) -> str:
    return database.engine.url.render_as_string(hide_password=False)


def worker(database: Database, folder: Path) -> App:
    environ = {"CONSUMER_DATABASE_URL": url_of(database), "CONSUMER_BROKER_URL": f"embedded:{folder}/log.db"}
    return App(load_settings(environ | {"CONSUMER_INTERNAL_PORT": str(free_port())}, Role.WORK))


async def ran(app: App, stop: asyncio.Event) -> None:
    async with app:
        await app.work()
        await app.run(stop)


# case: G12
async def test_a_worker_tells_that_it_lives_before_it_looks(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An import that begins a moment later finds it; and one of which it is too late to wait is told."""
    async with database.transaction() as session:
        await key_values.keep(session, f"{BEGINS}default", OWED)
    looks, alive = derivation.require_derived, list[str]()
    stop = asyncio.Event()

    async def look(session: AsyncSession) -> frozenset[str]:
        alive.extend(one.role for one in await processes.listed(session))
        stop.set()
        return await looks(session)

    monkeypatch.setattr(derivation, "require_derived", look)
    with capture_logs() as lines:
        await ran(worker(database, tmp_path), stop)
    assert alive == ["work"]
    assert [one["applications"] for one in lines if one["event"] == "not_derived"] == [["default"]]


# case: G12
async def test_a_worker_that_was_refused_keeps_nobody_from_the_rebuild(database: Database, tmp_path: Path) -> None:
    """Its supervisor starts it over and over. One that died of something else may still be at what it had begun."""
    await comes_in(database)
    with pytest.raises(NotDerived):
        await ran(worker(database, tmp_path), asyncio.Event())
    desk = Desk({"CONSUMER_DATABASE_URL": url_of(database)})
    await beats(database, "work", "broker_unavailable: the broker does not answer")
    refused = await asyncio.to_thread(desk.ask, "rebuild", "all", "--yes", "--reason", "moved", code=1)
    assert "error[work_goes_on]" in refused
    await beats(database, "work", "not_derived: Events came in")
    await asyncio.to_thread(desk.ask, "rebuild", "all", "--yes", "--reason", "moved")
    assert await owed(database) == frozenset()


@pytest.fixture
async def exported(sqlite_template: Path, tmp_path: Path) -> Path:
    """A folder with all that an old shop has."""
    shutil.copyfile(sqlite_template, tmp_path / "old.db")
    old, folder = Database(f"sqlite+aiosqlite:///{tmp_path}/old.db"), tmp_path / "kept"
    async with opened(old, url_of(old)) as shop:
        await asyncio.to_thread(shop.desk.ask, "events", "export", "--archive", str(folder))
        await asyncio.to_thread(shop.desk.ask, "audit", "export", str(folder / "trail.jsonl"))
    await old.stop()
    return folder


async def doctor_says(desk: Desk) -> list[str]:
    checks = json.loads((await asyncio.to_thread(desk.call, "doctor", "--json")).stdout)["checks"]
    return [one["grade"] for one in checks if one["name"] == "rebuild"]


# case: G12
async def test_who_worked_without_a_rebuild_may_go_on(exported: Path, database: Database) -> None:
    """As every version did before 2026-11-30."""
    desk = Desk({"CONSUMER_DATABASE_URL": url_of(database)})
    assert await doctor_says(desk) == []
    await asyncio.to_thread(desk.ask, "events", "import", "--missing", str(exported))
    assert not await may_begin(database), "the trail that came in is no work of here"
    assert await doctor_says(desk) == ["fail"]
    live = Live(database, {"fulfilment": {}, "access": {}}, application="default")
    await live.arrive(observed("subscription:sub_1", 900, SUBSCRIBED | {"status": "ENDED"}, at=live.clock.now()))
    await live.close()
    assert await may_begin(database)
    assert await owed(database) == {"default"}
    assert await doctor_says(desk) == ["warn"]


# case: G12
async def test_a_worker_that_began_while_files_were_verified_ends_the_import(
    exported: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk({"CONSUMER_DATABASE_URL": url_of(database)})

    def meanwhile(file: Path) -> None:
        check(file)
        asyncio.run(began())

    async def began() -> None:
        other = Database(url_of(database))
        await beats(other, "work")
        await other.stop()

    monkeypatch.setattr(archive, "check", meanwhile)
    refused = await asyncio.to_thread(desk.ask, "events", "import", "--missing", str(exported), code=1)
    assert "error[work_goes_on]" in refused
    assert await rows(database, EVENTS) == []
    assert await may_begin(database)
    monkeypatch.setattr(archive, "check", check)
    await beats(database, "work", "not_derived: Events came in")
    found: Any = await asyncio.to_thread(desk.ask, "events", "import", "--missing", str(exported))
    assert found["events"] > 0
    assert not await may_begin(database)
