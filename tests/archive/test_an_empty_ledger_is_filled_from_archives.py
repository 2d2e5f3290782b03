"""What was exported is enough: an empty database with the archives and the trail has the same decisions, derived again,
and tells nobody anything."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import pytest
from sqlalchemy import delete, select, update

from consumer.archive import bring, export
from consumer.archive.prune import Pruned
from consumer.cli.repairing import archive, rebuild
from consumer.columns import unpacked
from consumer.errors import LedgerUnavailable
from consumer.events import Delivery
from consumer.ledger import Database, processes
from consumer.ledger.archiving import bodies, derivation, quarantined
from consumer.ledger.engine import schema
from consumer.ledger.engine.database_time import shared_time
from consumer.ledger.handling import events, handlers
from consumer.ledger.handling.handlers import ALL
from consumer.ledger.plans import plans
from consumer.ledger.processes import Pulse
from consumer.ledger.reading import observations, quarantine, read_requests
from consumer.ledger.reading.observation import ObjectKind, observation_id
from consumer.ledger.reading.observations import Observed
from consumer.ledger.tables import AuditRow, DeadLetterRow, ObservationRow, QuarantineRow, ReadRow
from consumer.reason import Reason
from consumer.sync.backfill.cutover import Began, Left, left_alone
from consumer.sync.identity import Owner
from consumer.sync.reconcile.state import ReconcileState, load_state
from consumer.work.registry import BrokenPlugin, Registry, handlers_of
from tests.access.test_rebuild import OURS, PLUGINS
from tests.archive.old_shop import EVENTS, OUTBOX, RUNS, decisions, opened, rows
from tests.contract.ledger.facts import NOW, event
from tests.support.desk import Desk
from tests.support.handling.live import Live
from tests.support.handling.projections import said
from tests.support.ports import free_port
from tests.support.process import command

AUDIT = AuditRow.__table__
LETTERS = DeadLetterRow.__table__
READS = ReadRow.__table__
OBSERVATIONS = ObservationRow.__table__
QUARANTINE = QuarantineRow.__table__


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without tables."""
    if request.param == "sqlite":
        return f"sqlite+aiosqlite:///{tmp_path}/new.db"
    return str(request.getfixturevalue("postgres_url"))


async def exported(desk: Desk, folder: Path) -> list[str]:
    """Bodies that were pruned, the others, and the trail."""
    await asyncio.to_thread(
        desk.ask, "prune", "--older-than", "1d", "--archive", str(folder), "--yes", "--reason", "space"
    )
    await asyncio.to_thread(desk.ask, "events", "export", "--archive", str(folder))
    await asyncio.to_thread(desk.ask, "audit", "export", str(folder / "trail.jsonl"))
    return [str(one) for one in await asyncio.to_thread(lambda: sorted(folder.iterdir()))]


async def told(database: Database) -> list[Any]:
    return [(row["event_id"], row["type"], row["published_at"]) for row in await rows(database, OUTBOX)]


async def letters(database: Database) -> list[dict[str, Any]]:
    return [{name: row[name] for name in row if name != "id"} for row in await rows(database, LETTERS)]


async def _is_owed(database: Database) -> bool:
    async with database.reading() as session:
        return bool(await derivation.owed(session))


# case: G12
@pytest.mark.parametrize("role", ["work", "sync", "console"])
async def test_nothing_is_written_down_while_somebody_goes_on(
    sqlite_ledger: Database, tmp_path: Path, role: str
) -> None:
    """What it published last would be in the files, as what is known, and its record in a log that is left behind."""
    await _begins(sqlite_ledger, role)
    desk = Desk({"CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/ledger.db"})
    said = await asyncio.to_thread(desk.ask, "events", "export", "--archive", str(tmp_path / "kept"), code=1)
    assert "error[work_goes_on]" in said
    assert not list((tmp_path / "kept").glob("*.gz"))


# case: G12
@pytest.mark.parametrize("is_over", [False, True])
async def test_what_a_worker_that_began_meanwhile_may_have_changed_is_thrown_away(
    sqlite_ledger: Database, tmp_path: Path, *, is_over: bool
) -> None:
    async def meanwhile(database: Database, folder: Path, **named: Any) -> Pruned:
        done = await export.export(database, folder, **named)
        assert done.files
        await _begins(database, "work")
        if is_over:
            async with database.transaction() as session:
                await processes.ended(session, "p", await shared_time(session))
        return done

    async with sqlite_ledger.transaction() as session:
        await events.record(session, [event(1)], NOW)
    desk = Desk({"CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/ledger.db"})
    with patch.object(archive, "export", meanwhile):
        said = await asyncio.to_thread(desk.ask, "events", "export", "--archive", str(tmp_path / "kept"), code=1)
    assert "error[work_goes_on]" in said
    assert not list((tmp_path / "kept").iterdir())


async def _begins(database: Database, role: str) -> None:
    async with database.transaction() as session:
        now = await shared_time(session)
        pulse = Pulse(process="p", role=role, host="h", pid=1, version="1", started_at=now, ready=True, since=now)
        await processes.beat(session, [pulse], now)


# case: G9
@pytest.mark.parametrize(("broken", "owed"), [((), False), ((BrokenPlugin("loyalty", "no such module"),), True)])
async def test_where_no_plugin_has_tables_no_rebuild_is_owed(
    sqlite_ledger: Database, tmp_path: Path, broken: tuple[BrokenPlugin, ...], *, owed: bool
) -> None:
    """`work` would never start there. But a plugin that cannot be loaded may have some."""
    async with sqlite_ledger.transaction() as session:
        await derivation.owe(session, ["default"])
    desk = Desk({"CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/ledger.db"})
    with patch.object(rebuild, "registry_of", return_value=Registry([], broken=broken)):
        done = await asyncio.to_thread(desk.call, "rebuild", "all", "--yes", "--reason", "moved")
    assert (done.returncode, "not all: loyalty cannot be loaded" in done.stdout) == (0, owed), done.stderr
    assert await _is_owed(sqlite_ledger) is owed


# case: G12
async def test_of_several_files_nothing_comes_in_when_one_is_damaged(sqlite_ledger: Database, tmp_path: Path) -> None:
    """The newest come first: where an older one was cut, the ledger had half of its past, and looked whole."""
    async with opened(sqlite_ledger, f"sqlite+aiosqlite:///{tmp_path}/ledger.db") as shop:
        files = await exported(shop.desk, tmp_path / "kept")
    oldest = Path(min(one for one in files if one.endswith(".gz")))
    whole = await asyncio.to_thread(oldest.read_bytes)
    await asyncio.to_thread(oldest.write_bytes, whole[: len(whole) // 2])
    new = Database(f"sqlite+aiosqlite:///{tmp_path}/new.db")
    await schema.upgrade(new)
    desk = Desk({"CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/new.db"})
    said = await asyncio.to_thread(desk.ask, "events", "import", "--missing", *files, code=1)
    assert said.startswith("error[archive_invalid]: the file cannot be read to its end"), said
    assert oldest.name in said
    assert [await rows(new, table) for table in (EVENTS, RUNS, AUDIT)] == [[], [], []]
    await asyncio.to_thread(oldest.write_bytes, whole)
    await asyncio.to_thread(desk.ask, "events", "import", "--missing", *files)
    assert await rows(new, EVENTS)
    await new.stop()


# case: G9, G12
async def test_the_same_decisions_and_nobody_is_told(sqlite_ledger: Database, tmp_path: Path, empty_url: str) -> None:
    async with opened(sqlite_ledger, f"sqlite+aiosqlite:///{tmp_path}/ledger.db") as shop:
        files = await exported(shop.desk, tmp_path / "kept")
        decided, was_told = await shop.decisions(), await told(sqlite_ledger)
        ran = [(row["event_id"], row["handler"], row["status"]) for row in await shop.rows(RUNS)]
        died = await letters(sqlite_ledger)
    database, desk = Database(empty_url), Desk({"CONSUMER_DATABASE_URL": empty_url})
    try:
        await schema.upgrade(database)
        (tmp_path / "kept" / ".part-0.jsonl.gz").touch()  # somebody still writes that
        found = await asyncio.to_thread(desk.ask, "events", "import", "--missing", str(tmp_path / "kept"))
        assert found["without_state"] == ["default"], "no walk is told of, as where only what was pruned is at hand"
        assert found["events"] == len(await rows(database, EVENTS)) > 10
        assert [(one["event_id"], one["handler"], one["status"]) for one in await rows(database, RUNS)] == ran
        assert await letters(database) == died != [], "by which a discard is taken back"
        assert await told(database) == was_told
        assert "not_derived" in (await asyncio.to_thread(desk.call, "invariants")).stdout
        settings = {"CONSUMER_DATABASE_URL": empty_url, "CONSUMER_BROKER_URL": f"embedded:{tmp_path}/log.db"}
        settings["CONSUMER_INTERNAL_PORT"] = str(free_port())
        refused = await asyncio.to_thread(partial(command, "work", environ=settings))
        assert (refused.returncode, "error[not_derived]" in refused.stderr) == (1, True), "it would ship what is held"
        await asyncio.to_thread(desk.ask, "rebuild", "all", "--dry-run")
        await asyncio.to_thread(desk.ask, "rebuild", "access", "--yes", "--reason", "drift")
        assert await _is_owed(database), "no plugin may be left out"
        desk_without = Desk({"CONSUMER_DATABASE_URL": empty_url, "CONSUMER_HANDLERS": "fulfilment"})
        left = await asyncio.to_thread(desk_without.ask, "rebuild", "all", "--yes", "--reason", "drift")
        assert left["lacking"] == ["CONSUMER_HANDLERS leaves out handlers of access"]
        assert await _is_owed(database), "a built-in one may be left out no more"
        await asyncio.to_thread(desk.ask, "rebuild", "all", "--yes", "--reason", "drift")
        assert await decisions(database) == decided
        assert not await _is_owed(database)
        assert await told(database) == was_told, "nothing goes out"
        again = await asyncio.to_thread(desk.ask, "events", "import", "--missing", *files)
        assert (again["events"], again["bodies"], again["missing"], again["without_state"]) == (0, 0, 0, [])
        assert not await _is_owed(database), "nothing came in"
        (tmp_path / "none").mkdir()
        told_so = await asyncio.to_thread(desk.ask, "events", "import", str(tmp_path / "none"), code=2)
        assert "no archive lies in this folder" in told_so
        await asyncio.to_thread(desk.ask, "audit", "export", str(tmp_path / "again.jsonl"))
        assert (await asyncio.to_thread(desk.ask, "audit", "verify", str(tmp_path / "again.jsonl")))["verified"]
        async with database.transaction() as session:
            new = await events.record(session, [event("new")], NOW)
        assert min(new.values()) > max(one["seq"] for one in await rows(database, EVENTS) if one["id"] != "evt_new")
    finally:
        await database.stop()


# case: G12, B30
async def test_what_was_no_history_before_is_none_in_the_new_ledger(
    sqlite_ledger: Database, tmp_path: Path, empty_url: str
) -> None:
    """An order that was paid while the ledger moved is shipped, however long that took: the new one knows when its
    first walk began. Once it has all events: what it lacks since then is acted on."""
    began, owner = Began(began=NOW - timedelta(days=200)), Owner(app_id="svc_app_ours")
    async with opened(sqlite_ledger, f"sqlite+aiosqlite:///{tmp_path}/ledger.db") as shop:
        async with sqlite_ledger.transaction() as session:
            for one in (began, owner, Left(events=7)):
                await one.keep(session, "default", token=7, now=NOW)
        with patch.object(export, "FILE_EVENTS", 1):  # several files
            files = await exported(shop.desk, tmp_path / "kept")
    database, desk = Database(empty_url), Desk({"CONSUMER_DATABASE_URL": empty_url})
    try:
        await schema.upgrade(database)
        some, rest = [one for one in files if not one.endswith("trail.jsonl")][-1:], files
        done = await asyncio.to_thread(desk.call, "events", "import", "--missing", *some)
        assert "events of the export are lacking" in done.stdout
        async with database.reading() as session:
            assert await Began.of(session, "default") == Began(), "what is lacking would be shipped again"
            assert await Owner.of(session, "default") == owner, "another application's would be, too"
        async with database.transaction() as session:
            await session.execute(delete(AUDIT))  # a trail comes into a ledger without a note
        done = await asyncio.to_thread(desk.call, "events", "import", "--missing", *rest)
        assert (done.returncode, "lacking" in done.stdout) == (0, False), done.stdout
        assert "of default nothing that was read" in done.stdout, "as in an export from before these were written down"
        async with database.transaction() as session:
            assert await Began.of(session, "default") == began
            assert await left_alone(session, "default") == 7
            await began.keep(session, "default", token=1, now=NOW)  # a leader of the new ledger may write it
            await Began(began=NOW).keep(session, "default", token=1, now=NOW)
        await asyncio.to_thread(desk.ask, "events", "import", "--missing", *rest)
        async with database.reading() as session:
            assert await Began.of(session, "default") == Began(began=NOW), "what has begun here stands"
    finally:
        await database.stop()


# case: G12, A50
async def test_what_is_asked_of_the_service_is_asked_by_the_new_ledger(
    sqlite_ledger: Database, tmp_path: Path, empty_url: str
) -> None:
    """What is due later, too: nothing else asks for a subscription's next read, or an order's by the service's id."""
    async with opened(sqlite_ledger, f"sqlite+aiosqlite:///{tmp_path}/ledger.db") as shop:
        await shop.live.arrive(said("order.paid", "evt_asked", order_id="Q1", amount="9"))
        asked = await shop.rows(READS)
        assert ("order", "Q1") in [(one["kind"], one["object_id"]) for one in asked]
        files = await exported(shop.desk, tmp_path / "kept")
    database, desk = Database(empty_url), Desk({"CONSUMER_DATABASE_URL": empty_url})
    try:
        await schema.upgrade(database)
        await asyncio.to_thread(desk.ask, "events", "import", "--missing", *files)
        assert await rows(database, READS) == asked
        async with database.transaction() as session:
            await session.execute(update(READS).values(asked=9))
        await asyncio.to_thread(desk.ask, "events", "import", "--missing", *files)
        assert {one["asked"] for one in await rows(database, READS)} == {9}, "what is asked here stands"
    finally:
        await database.stop()


AFTER_EVENTS: Final = int((NOW + timedelta(seconds=1)).timestamp() * 1_000_000)
"""A version that was read when the events had come."""
AHEAD: Final = AFTER_EVENTS * 2
"""A version by a clock that was ahead."""


def _read(kind: ObjectKind, object_id: str, state: str, version: int = 7) -> Observed:
    return Observed(
        application="default", kind=kind, object_id=object_id, version=version, digest="d", read_at=NOW, state=state
    )


# case: B20, B30, G12
async def test_what_was_seen_at_the_service_is_no_news_in_the_new_ledger(
    sqlite_ledger: Database, tmp_path: Path, empty_url: str
) -> None:
    """Nor is what is news there taken for history: an order that is paid while the ledger moves, and that no event ever
    told of, is seen by its state alone."""
    remembered = [
        _read("order", "before", "PAID"),
        _read("order", "late", "PAID"),
        _read("payment", "pay_1", "FINALIZED", AHEAD),
    ]
    unread = [
        _read("order", "lost", "PAID", AFTER_EVENTS),
        _read("order", "untold", "PAID", AFTER_EVENTS),
        _read("order", "open", "PENDING", AFTER_EVENTS),
        _read("subscription", "sub_9", "ACTIVE", AFTER_EVENTS),
    ]
    came = _read("order", "C1", "PAID")
    kept = ReconcileState(began=NOW, ended=NOW, baselined=True, payments_baselined=True, unplaced=3)
    async with opened(sqlite_ledger, f"sqlite+aiosqlite:///{tmp_path}/ledger.db") as shop:
        async with sqlite_ledger.transaction() as session:
            told = [
                event("news1", key="order:lost"),
                replace(event("news2", key="order:open"), type="order.expired"),
                replace(event("news7", key="order:untold"), type="checkout.registered"),
                replace(event("news3", key="subscription:sub_9"), type="subscription.created"),
                replace(event("news4", key="order:late"), type="order.expired"),
                event("news5", key="order:C1"),
                replace(event("news6", key="order:C1"), id=observation_id("default", "order", "C1", 7)),
            ]
            await events.record(session, told, NOW)
            await observations.keep(session, [*remembered, *unread, came])
            await kept.keep(session, "default", token=7, now=NOW)
            await Began(began=NOW).keep(session, "default", token=7, now=NOW)
        with patch.object(export, "UNSETTLED_AT_ONCE", 2):  # several pages
            files = await exported(shop.desk, tmp_path / "kept")
    database, desk = Database(empty_url), Desk({"CONSUMER_DATABASE_URL": empty_url})
    try:
        await schema.upgrade(database)
        done = await asyncio.to_thread(desk.ask, "events", "import", "--missing", *files)
        assert done["without_state"] == []
        async with database.reading() as session:
            state = await load_state(session, "default")
        assert (state.baselined, state.payments_baselined) == (True, True)
        assert (state.began, state.unplaced) == (None, 0), "the next walk is due at once, and tells its own"
        found = [Observed(**row) for row in await rows(database, OBSERVATIONS)]
        by_id = {one.object_id: one for one in (*remembered, came)}
        assert {one.object_id: one for one in found} == by_id, "what may lie unread in the old log is observed again"
        async with database.transaction() as session:
            assert await read_requests.next_version(session) > AHEAD, "what is read there is newer"
        async with database.transaction() as session:
            await session.execute(update(OBSERVATIONS).values(digest="new"))
        await asyncio.to_thread(desk.ask, "events", "import", "--missing", *files)
        assert {row["digest"] for row in await rows(database, OBSERVATIONS)} == {"new"}, "what is read here stands"
    finally:
        await database.stop()


# case: B30, G12
@pytest.mark.parametrize("kept", [ReconcileState(), ReconcileState(began=NOW, baselined=True, early=True)])
async def test_a_first_walk_that_is_still_to_be_made_is_made_by_the_new_ledger(
    sqlite_ledger: Database, tmp_path: Path, kept: ReconcileState
) -> None:
    async with opened(sqlite_ledger, f"sqlite+aiosqlite:///{tmp_path}/ledger.db") as shop:
        async with sqlite_ledger.transaction() as session:
            await kept.keep(session, "default", token=7, now=NOW)
            await observations.keep(session, [_read("order", "open", "PENDING")])
        files = await exported(shop.desk, tmp_path / "kept")
    url = f"sqlite+aiosqlite:///{tmp_path}/new.db"
    database, desk = Database(url), Desk({"CONSUMER_DATABASE_URL": url})
    try:
        await schema.upgrade(database)
        await asyncio.to_thread(desk.ask, "events", "import", "--missing", *files)
        async with database.reading() as session:
            assert await load_state(session, "default") == ReconcileState()
        assert await rows(database, OBSERVATIONS) == [], "what it finds differs from nothing: it is remembered"
    finally:
        await database.stop()


# case: G12, H9
async def test_who_is_paused_is_paused_in_the_new_ledger(
    sqlite_ledger: Database, tmp_path: Path, empty_url: str
) -> None:
    """Otherwise whom an operator stopped would go on with the first worker there. Who waits tries again there."""
    ours = handlers_of(import_module("handlers.fulfilment.handler"))
    async with opened(sqlite_ledger, f"sqlite+aiosqlite:///{tmp_path}/ledger.db") as shop:
        async with sqlite_ledger.transaction() as session:
            await handlers.register(session, ours, NOW)
            await handlers.pause(session, ours[0].name, by="op", reason="ships the wrong thing", now=NOW)
            await handlers.pause(session, ours[1].name, by="op", reason="far alone", now=NOW, application="far")
            await handlers.set_waiting(session, ours[1].name, since=NOW, reason="the warehouse is away")
        files = await exported(shop.desk, tmp_path / "kept")
    database, desk = Database(empty_url), Desk({"CONSUMER_DATABASE_URL": empty_url})
    try:
        await schema.upgrade(database)
        await asyncio.to_thread(desk.ask, "events", "import", "--missing", *files)
        async with database.transaction() as session:
            await handlers.register(session, ours, NOW)  # as the first worker does
            assert (await handlers.paused(session)).of == {(ours[0].name, ALL), (ours[1].name, "far")}
            assert not await handlers.waiting(session)
    finally:
        await database.stop()


# case: G12, G13
async def test_what_lies_in_quarantine_lies_there_in_the_new_ledger(
    sqlite_ledger: Database, tmp_path: Path, empty_url: str
) -> None:
    """It may be a paid order, as of an application that was not set up yet."""
    odd = Delivery(application="club", id="dlv_1", raw=b"\xff{}" * 1000, received_at=NOW, headers={"a": "b"})
    kept = [odd, replace(odd, id="dlv_2", raw=b'{"id":"evt_7"}', event_id="evt_7")]
    async with opened(sqlite_ledger, f"sqlite+aiosqlite:///{tmp_path}/ledger.db") as shop:
        async with sqlite_ledger.transaction() as session:
            await quarantine.put(session, [(one, Reason.UNKNOWN_APPLICATION) for one in kept], NOW)
        with patch.object(export, "QUARANTINED_AT_ONCE", 1):  # several pages
            files = await exported(shop.desk, tmp_path / "kept")
        was = await rows(sqlite_ledger, QUARANTINE)
    database, desk = Database(empty_url), Desk({"CONSUMER_DATABASE_URL": empty_url})
    try:
        await schema.upgrade(database)
        async with database.transaction() as session:
            await quarantine.put(session, [(replace(odd, id="mine"), Reason.NOT_JSON)], NOW)  # under the first number
        for _ in range(2):
            await asyncio.to_thread(desk.ask, "events", "import", "--missing", *files)
        came = [one for one in await rows(database, QUARANTINE) if one["delivery_id"] != "mine"]
        assert [{**one, "id": 0} for one in came] == [{**one, "id": 0} for one in was]
        assert [unpacked(one["raw"]) for one in came] == [one.raw for one in kept]
        thrown = ("quarantine", "discard", str(came[0]["id"]), "--reason", "forged", "--yes")
        await asyncio.to_thread(desk.ask, *thrown)
        await asyncio.to_thread(desk.ask, "events", "import", "--missing", *files)
        left = [one["delivery_id"] for one in await rows(database, QUARANTINE)]
        assert left == ["mine", came[1]["delivery_id"]], "again changes nothing"
        async with database.transaction() as session:
            now = await shared_time(session)
            await quarantined.take_in(session, [{**came[0], "raw": odd.raw, "created_at": now}])
        assert len(await rows(database, QUARANTINE)) == 3, "what came anew since lies there"
    finally:
        await database.stop()


# case: G12, R3
async def test_a_plan_stands_as_it_stood(sqlite_ledger: Database, tmp_path: Path, empty_url: str) -> None:
    async with opened(sqlite_ledger, f"sqlite+aiosqlite:///{tmp_path}/ledger.db") as shop:
        made = [(await asyncio.to_thread(shop.desk.ask, "replay", "plan"))["id"] for _ in range(4)]
        now = shop.live.clock.now()
        async with sqlite_ledger.transaction() as session:
            await plans.begin(session, made[0], by="ann", reason="the shop was mended", now=now)
            await plans.complete(session, made[0], by="ann", now=now, result={})
        await asyncio.to_thread(shop.desk.ask, "replay", "cancel", made[1], "--reason", "not now", "--yes")
        async with sqlite_ledger.transaction() as session:
            await plans.begin(session, made[2], by="bob", reason="half", now=now)
        listed = (await asyncio.to_thread(shop.desk.ask, "replay", "list"))["plans"]
        async with sqlite_ledger.transaction() as session:
            await plans.cancel(session, made[2], by="bob", reason="x", now=now)
        files = await exported(shop.desk, tmp_path / "kept")
    database, desk = Database(empty_url), Desk({"CONSUMER_DATABASE_URL": empty_url})
    try:
        await schema.upgrade(database)
        await asyncio.to_thread(desk.ask, "events", "import", "--missing", *files)
        then, now_ = (
            {one["id"]: one for one in some}
            for some in (listed, (await asyncio.to_thread(desk.ask, "replay", "list"))["plans"])
        )
        assert now_[made[0]] == then[made[0]]
        assert (now_[made[0]]["status"], now_[made[0]]["began_by"]) == ("applied", "ann")
        assert now_[made[1]] == then[made[1]]
        assert (now_[made[2]]["status"], now_[made[2]]["began_by"]) == ("cancelled", "bob")
        assert (now_[made[3]]["status"], now_[made[3]]["ended_by"]) == ("cancelled", "import"), "its items are gone"
    finally:
        await database.stop()


# case: G9
async def test_without_the_trail_nothing_is_derived(sqlite_ledger: Database, tmp_path: Path, empty_url: str) -> None:
    """Which run changed what is known from the trail alone: empty tables would look as if all were well."""
    async with opened(sqlite_ledger, f"sqlite+aiosqlite:///{tmp_path}/ledger.db") as shop:
        files = await exported(shop.desk, tmp_path / "kept")
    database, desk = Database(empty_url), Desk({"CONSUMER_DATABASE_URL": empty_url})
    try:
        await schema.upgrade(database)
        archives = [one for one in files if not one.endswith("trail.jsonl")]
        await asyncio.to_thread(desk.ask, "events", "import", "--missing", *archives)
        refused = await asyncio.to_thread(desk.ask, "rebuild", "all", "--yes", "--reason", "drift", code=1)
        assert "rebuild_differs" in refused
        assert "audit export" in refused

        # Worked on all the same it has a trail, of what came since: of what was before that says nothing.
        live = Live(database, PLUGINS, application="default")
        live.clock.advance(500 * 86400)
        await live.arrive(said("order.paid", "evt_since", order_id="since", amount="9"))
        await live.close()
        assert await rows(database, AUDIT)
        refused = await asyncio.to_thread(desk.ask, "rebuild", "all", "--yes", "--reason", "drift", code=1)
        assert "no trail of what was changed then" in refused
    finally:
        await database.stop()


# case: G9, G12
async def test_a_trail_from_before_the_last_events_is_refused(
    sqlite_ledger: Database, tmp_path: Path, empty_url: str
) -> None:
    """As of a first attempt that was given up, or of last night: what changed since was not derived, and nothing was
    said of the orders, gifts and holds that it lacked."""
    async with opened(sqlite_ledger, f"sqlite+aiosqlite:///{tmp_path}/ledger.db") as shop:
        files = await exported(shop.desk, tmp_path / "kept")
        shop.live.clock.advance(60)
        await shop.live.register("s_late", order_id="late", customer="alice", expected_amount="9")
        await shop.live.arrive(said("order.paid", "evt_late", order_id="late", amount="9"))
        await asyncio.to_thread(shop.desk.ask, "events", "export", "--archive", str(tmp_path / "kept"))
        early = [one for one in files if one.endswith("trail.jsonl")]
        await asyncio.to_thread(shop.desk.ask, "audit", "export", str(tmp_path / "kept" / "trail.later"))
        decided = await shop.decisions()
    database, desk = Database(empty_url), Desk({"CONSUMER_DATABASE_URL": empty_url})
    try:
        await schema.upgrade(database)
        archives = [str(one) for one in await asyncio.to_thread(lambda: sorted((tmp_path / "kept").glob("*.gz")))]
        await asyncio.to_thread(desk.ask, "events", "import", "--missing", *early, *archives)
        refused = await asyncio.to_thread(desk.ask, "rebuild", "all", "--yes", "--reason", "moved", code=1)
        assert "error[rebuild_differs]" in refused
        assert "evt_late, and the trail ends before that" in refused
        assert await _is_owed(database)

        async with database.transaction() as session:
            await session.execute(delete(AUDIT))  # as a new database
        later = str(tmp_path / "kept" / "trail.later")
        await asyncio.to_thread(desk.ask, "events", "import", "--missing", later, *archives)
        await asyncio.to_thread(desk.ask, "rebuild", "all", "--yes", "--reason", "moved")
        assert await decisions(database) == decided
    finally:
        await database.stop()


# case: G9
async def test_another_ledgers_archive_is_refused(sqlite_ledger: Database, tmp_path: Path) -> None:
    async with opened(sqlite_ledger, f"sqlite+aiosqlite:///{tmp_path}/ledger.db") as shop:
        files = await exported(shop.desk, tmp_path / "kept")
    url = f"sqlite+aiosqlite:///{tmp_path}/other.db"
    database, desk = Database(url), Desk({"CONSUMER_DATABASE_URL": url})
    try:
        await schema.upgrade(database)
        async with database.transaction() as session:
            await events.record(session, [event(f"own{number}") for number in range(5)], NOW)
        archives = [one for one in files if one.endswith(".gz")]
        done = await asyncio.to_thread(desk.call, "events", "import", *archives)
        assert (done.returncode, "--missing" in done.stdout) == (1, True)
        refused = await asyncio.to_thread(desk.ask, "events", "import", "--missing", *archives, code=1)
        assert "error[archive_foreign]" in refused
        assert "comes back from the log" in refused, "who restored this one need not look for another way"
        assert "as far as these reach" in refused, "operators' words that are older than the log do not"
        assert len(await rows(database, EVENTS)) == 5, "nothing of it came in"
        async with database.transaction() as session:
            await session.execute(delete(AUDIT))
        assert all([not await rows(database, table) for table in OURS])
    finally:
        await database.stop()


# case: G12
async def test_a_trail_goes_into_an_empty_ledger_only(sqlite_ledger: Database, tmp_path: Path) -> None:
    async with opened(sqlite_ledger, f"sqlite+aiosqlite:///{tmp_path}/ledger.db") as shop:
        files = await exported(shop.desk, tmp_path / "kept")
        again = await asyncio.to_thread(shop.desk.call, "events", "import", files[-1])
        assert again.returncode == 0, "it is the ledger's own"
        async with sqlite_ledger.transaction() as session:
            await session.execute(update(AUDIT).values(hash=None, number=None))
        refused = await asyncio.to_thread(shop.desk.ask, "events", "import", files[-1], code=1)
        assert "error[archive_foreign]" in refused
        assert "empty ledger" in refused


# case: B35
async def test_what_lies_in_two_archives_stands_as_the_newer_one_says(
    sqlite_ledger: Database, tmp_path: Path, empty_url: str
) -> None:
    async with opened(sqlite_ledger, f"sqlite+aiosqlite:///{tmp_path}/ledger.db") as shop:
        folder = tmp_path / "kept"
        await exported(shop.desk, folder)
        async with sqlite_ledger.transaction() as session:  # what happened after it was pruned
            await session.execute(update(RUNS).where(RUNS.c.event_id == "evt_0").values(status="dead", code="late"))
        await asyncio.to_thread(shop.desk.ask, "events", "export", "--archive", str(folder))
        files = await asyncio.to_thread(lambda: [str(one) for one in sorted(folder.glob("*.gz"))])
        ran = [(row["event_id"], row["handler"], row["status"]) for row in await shop.rows(RUNS)]
        known = len(await shop.rows(EVENTS))
    database, desk = Database(empty_url), Desk({"CONSUMER_DATABASE_URL": empty_url})
    try:
        await schema.upgrade(database)
        newest = await asyncio.to_thread(desk.ask, "events", "import", "--missing", files[-1])
        assert newest["events"] == known, "also those whose body lies elsewhere are known by their ids"
        await asyncio.to_thread(desk.ask, "events", "import", "--missing", *files)
        assert [(one["event_id"], one["handler"], one["status"]) for one in await rows(database, RUNS)] == ran
        assert all(row["raw"] for row in await rows(database, EVENTS))
        async with database.transaction() as session:
            new = await events.record(session, [event("new")], NOW)
        assert len(new) == 1
    finally:
        await database.stop()


# case: B35
async def test_an_import_that_ends_half_way_leaves_a_ledger_that_goes_on(
    sqlite_ledger: Database, tmp_path: Path, empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(sqlite_ledger, f"sqlite+aiosqlite:///{tmp_path}/ledger.db") as shop:
        files = [one for one in await exported(shop.desk, tmp_path / "kept") if one.endswith(".gz")]
    database, desk = Database(empty_url), Desk({"CONSUMER_DATABASE_URL": empty_url})
    monkeypatch.setattr(bring, "PORTION_RECORDS", 5)
    kept, calls = bodies.put_back, 0

    async def ends(*args: Any, **given: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise LedgerUnavailable("gone")
        return await kept(*args, **given)

    try:
        await schema.upgrade(database)
        monkeypatch.setattr(bodies, "put_back", ends)
        refused = await asyncio.to_thread(desk.ask, "events", "import", "--missing", *files, code=1)
        assert "error[ledger_unavailable]" in refused
        async with database.transaction() as session:
            await events.record(session, [event("new")], NOW)
        assert {row["id"] for row in await rows(database, EVENTS)} > {"evt_new"}
    finally:
        await database.stop()


# case: G9, G12
async def test_what_lay_in_the_log_goes_out_again(sqlite_ledger: Database, tmp_path: Path, empty_url: str) -> None:
    """It was published, and `work` stopped before it read it: the log may be gone with the ledger."""
    requests = (OUTBOX.c.type == "fulfilment.requested", OUTBOX.c.key == "order:A0")
    async with opened(sqlite_ledger, f"sqlite+aiosqlite:///{tmp_path}/ledger.db") as shop:
        async with sqlite_ledger.transaction() as session:
            lies = (await session.execute(select(OUTBOX.c.event_id).where(*requests))).scalar_one()
            await session.execute(delete(RUNS).where(RUNS.c.event_id == lies))
            await session.execute(delete(EVENTS).where(EVENTS.c.id == lies))
            await session.execute(update(OUTBOX).where(OUTBOX.c.event_id == lies).values(on_way=True))
        files = await exported(shop.desk, tmp_path / "kept")
    database, desk = Database(empty_url), Desk({"CONSUMER_DATABASE_URL": empty_url})
    try:
        await schema.upgrade(database)
        await asyncio.to_thread(desk.ask, "events", "import", "--missing", *files)
        [again] = [row for row in await rows(database, OUTBOX) if row["event_id"] == lies]
        assert again["published_at"] is None, "it is sent, under the id it had"
        await asyncio.to_thread(desk.ask, "rebuild", "all", "--yes", "--reason", "drift")
    finally:
        await database.stop()
