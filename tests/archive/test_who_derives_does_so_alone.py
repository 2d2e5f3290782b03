"""`rebuild` and `events import --missing` each have the ledger to themselves: no other of them, no `prune` and no
worker gets in between, and half of a past is not taken for a whole one."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from consumer.archive.bring import bring
from consumer.cli.repairing import archive
from consumer.cli.walking import alone
from consumer.console.invariants import kept
from consumer.errors import ArchiveInvalid, NotDerived
from consumer.ledger import Database, leases
from consumer.ledger.archiving import bodies, derivation
from consumer.ledger.archiving.derivation import COMING_FOR
from consumer.ledger.engine.database_time import drive, shared_time
from consumer.ledger.leases import ARCHIVES
from consumer.ledger.reading import key_values
from consumer.replay.rebuild import Rebuild
from tests.archive.old_shop import EVENTS, opened, rows
from tests.archive.test_work_waits_for_a_rebuild import comes_in, doctor_says, may_begin, owed, ran, url_of, worker
from tests.support.desk import Desk

REBUILD = ("rebuild", "all", "--yes", "--reason", "moved")


async def leads(database: Database, holder: str) -> None:
    async with database.transaction() as session:
        assert await leases.acquire(session, ARCHIVES, holder, await shared_time(session), 15)


async def named(database: Database) -> dict[str, int]:
    async with database.reading() as session:
        found = await kept.wrong(session, await shared_time(session))
    return dict(found["default"].broken) if found else {}


@pytest.fixture
def nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a lease that may be a dead process's."""
    monkeypatch.setattr(alone, "LEASE_S", -1.5)


@pytest.fixture
async def folder(sqlite_template: Path, tmp_path: Path) -> Path:
    """All that an old shop has."""
    (tmp_path / "old.db").write_bytes(await asyncio.to_thread(sqlite_template.read_bytes))
    old, folder = Database(f"sqlite+aiosqlite:///{tmp_path}/old.db"), tmp_path / "kept"
    async with opened(old, url_of(old)) as shop:
        await asyncio.to_thread(shop.desk.ask, "events", "export", "--archive", str(folder))
        await asyncio.to_thread(shop.desk.ask, "audit", "export", str(folder / "trail.jsonl"))
    await old.stop()
    return folder


# case: G12
async def test_half_of_a_past_is_not_forgotten(
    folder: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed or failed, once some events are in: an hour later, too, no rebuild agrees to it."""
    desk = Desk({"CONSUMER_DATABASE_URL": url_of(database)})
    words = ("events", "import", "--missing", str(folder))

    async def cut(database: Database, path: Path, **named: Any) -> bodies.Brought:
        await bring(database, path, **named)
        raise ArchiveInvalid("the disk is gone")

    with monkeypatch.context() as patched:
        patched.setattr(archive, "bring", cut)
        assert "the disk is gone" in await asyncio.to_thread(desk.ask, *words, code=1)
    assert await rows(database, EVENTS)
    async with database.transaction() as session:
        await drive(session, (COMING_FOR + timedelta(minutes=1)).total_seconds())
    assert await named(database) == {"import_cut": 1}
    told = (await asyncio.to_thread(desk.call, "invariants")).stdout
    assert "consumer events import --missing DIR" in told
    refused = await asyncio.to_thread(desk.ask, *REBUILD, code=1)
    assert "error[not_derived]: `events import --missing` is under way, or was cut" in refused
    assert not await may_begin(database)
    await asyncio.to_thread(desk.ask, *words)
    assert await named(database) == {"not_derived": 1}
    await asyncio.to_thread(desk.ask, *REBUILD)
    assert await may_begin(database)
    assert await named(database) == {}


# case: G12
async def test_a_killed_import_of_which_events_are_in_does_not_run_out(database: Database) -> None:
    """Nor does one that takes longer than an hour. An operator may give it up."""
    async with database.transaction() as session:
        await derivation.begin(session, ["a.jsonl"])
    await comes_in(database)
    async with database.transaction() as session:
        await drive(session, (COMING_FOR * 3).total_seconds())
    with pytest.raises(NotDerived, match="type it again"):
        async with database.reading() as session:
            await derivation.require_all_in(session)
    desk = Desk({"CONSUMER_DATABASE_URL": url_of(database)})
    await asyncio.to_thread(desk.ask, "rebuild", "all", "--give-up", "--yes", "--reason", "no archive is left")
    assert await may_begin(database)


# case: G12, B26
@pytest.mark.parametrize("word", ["rebuild", "import"])
async def test_no_worker_begins_beside_it(database: Database, tmp_path: Path, word: str) -> None:
    desk = Desk({"CONSUMER_DATABASE_URL": url_of(database)})
    await leads(database, "box-1-aa")
    assert await may_begin(database), "retention keeps nobody from working"
    async with database.transaction() as session:
        await drive(session, 16)
    await leads(database, f"box-1-aa/{word}")
    with pytest.raises(NotDerived, match="is under way: start again"):
        async with asyncio.timeout(30):
            await ran(worker(database, tmp_path), asyncio.Event())
    assert await doctor_says(desk) == ["fail"]
    async with database.transaction() as session:
        await drive(session, 60)
    assert await may_begin(database), "it was killed"


# case: G9, G12, B26
@pytest.mark.usefixtures("nobody_waits")
@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
async def test_nothing_else_derives_imports_or_prunes_while_a_rebuild_goes_on(
    folder: Path, database: Database, monkeypatch: pytest.MonkeyPatch, dry: tuple[str, ...]
) -> None:
    """On PostgreSQL sums were doubled, what came in meanwhile was settled unseen, and bodies were gone half way."""
    desk, said = Desk({"CONSUMER_DATABASE_URL": url_of(database)}), list[str]()
    await asyncio.to_thread(desk.ask, "events", "import", "--missing", str(folder))
    once = Rebuild.run

    async def beside(rebuild: Rebuild, *given: Any, **named: Any) -> Any:
        monkeypatch.setattr(Rebuild, "run", once)
        why = ("--yes", "--reason", "x")
        for words in (
            REBUILD,
            ("rebuild", "all", "--give-up", *why),
            ("events", "import", "--missing", str(folder)),
            ("prune", "--older-than", "1h", "--archive", str(folder), *why),
        ):
            said.append(await asyncio.to_thread(desk.ask, *words, code=1))
        return await once(rebuild, *given, **named)

    monkeypatch.setattr(Rebuild, "run", beside)
    await asyncio.to_thread(desk.ask, *REBUILD, *dry)
    assert ["error[another_leads]: a `rebuild` keeps the lead" in one for one in said] == [True] * 4, said
    assert await owed(database) == (frozenset({"default"}) if dry else frozenset())


# case: G12, B26
@pytest.mark.usefixtures("nobody_waits")
async def test_nothing_derives_or_imports_while_an_import_goes_on(
    folder: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one of two took the same events in, and was told that they were of another ledger."""
    desk, said = Desk({"CONSUMER_DATABASE_URL": url_of(database)}), list[str]()
    words = ("events", "import", "--missing", str(folder))

    async def beside(database: Database, path: Path, **named: Any) -> bodies.Brought:
        monkeypatch.setattr(archive, "bring", bring)
        said.extend([await asyncio.to_thread(desk.ask, *one, code=1) for one in (words, REBUILD)])
        return await bring(database, path, **named)

    monkeypatch.setattr(archive, "bring", beside)
    await asyncio.to_thread(desk.ask, *words)
    assert said, "it has a file of events"
    assert all("error[another_leads]: an `events import --missing` keeps the lead" in one for one in said), said


# case: G12
@pytest.mark.parametrize("meanwhile", [None, "default", "other"])
async def test_a_rebuild_settles_what_was_owed_when_it_began(database: Database, meanwhile: str | None) -> None:
    await comes_in(database)
    async with database.reading() as session:
        known = await derivation.marks(session)
    if meanwhile:
        async with database.transaction() as session:
            await derivation.owe(session, [meanwhile])
    async with database.transaction() as session:
        await derivation.settle(session, known)
    assert await owed(database) == ({meanwhile} if meanwhile else frozenset())


# case: G12
async def test_an_import_that_lost_its_lease_does_not_end_the_next_one(database: Database) -> None:
    async with database.transaction() as session:
        began = await derivation.begin(session, ["a.jsonl"])
        await drive(session, 20)
        await derivation.begin(session, ["a.jsonl"])
    async with database.transaction() as session:
        await derivation.end(session, began)
    assert not await may_begin(database)


# case: G12
async def test_each_file_that_was_to_come_in_has_to(database: Database) -> None:
    """One that is in already is typed to its end: the other one is lacking still, and is named."""

    async def imported(*files: str, cut: bool = False) -> None:
        async with database.transaction() as session:
            began = await derivation.begin(session, files)
        await comes_in(database)
        async with database.transaction() as session:
            await derivation.end(session, began, whole=() if cut else files)

    await imported("a.jsonl", "b.jsonl", cut=True)
    for typed, lacking in (("a.jsonl", "b.jsonl"), ("c.jsonl", "b.jsonl")):
        await imported(typed)
        with pytest.raises(NotDerived) as caught:
            async with database.reading() as session:
                await derivation.require_all_in(session)
        assert f"(files={lacking})" in caught.value.line()
    await imported("b.jsonl")
    async with database.reading() as session:
        await derivation.require_all_in(session)


# case: G12
async def test_an_import_that_an_older_build_noted_as_cut_ends_with_any_whole_one(database: Database) -> None:
    """It noted a time, and no files: `status`, `invariants` and `rebuild` ended with `error[internal]`."""
    await comes_in(database)
    async with database.transaction() as session:
        await key_values.keep(session, derivation.HALF, "2026-11-30T23:59:00+00:00")
    assert await named(database) == {"import_cut": 1}
    assert not await may_begin(database)
    async with database.transaction() as session:
        await derivation.end(session, await derivation.begin(session, ["a.jsonl"]), whole=["a.jsonl"])
    assert await named(database) == {"not_derived": 1}


# case: G12, B26
@pytest.mark.usefixtures("nobody_waits")
async def test_a_rebuild_beside_the_daily_retention_names_it(database: Database) -> None:
    """It named a `sync` process, and no cure."""
    await leads(database, "box-1-aa")
    said = await asyncio.to_thread(Desk({"CONSUMER_DATABASE_URL": url_of(database)}).ask, *REBUILD, code=1)
    assert "error[another_leads]: the daily retention of a `sync` (pid 1 on box) is under way" in said
