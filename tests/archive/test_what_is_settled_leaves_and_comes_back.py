"""`consumer prune`: bodies of settled events leave the ledger, nothing that decides does, and all of it comes back."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from consumer.ledger import Database
from consumer.ledger.handling import handlers as known_handlers
from consumer.ledger.handling import snapshots
from consumer.ledger.plans import items, plans
from consumer.ledger.tables import QuarantineRow, RunStatus
from consumer.plugin import Context, Event, declared, handles
from tests.archive.old_shop import BROKEN, EVENTS, ORDERS, OUTBOX, RUNS, SUBSCRIBED, opened
from tests.support.handling.projections import observed, said


async def pruned(shop: Any, folder: Path, *words: str) -> Any:
    return await asyncio.to_thread(
        shop.desk.ask, "prune", "--older-than", "1d", "--archive", str(folder), "--yes", "--reason", "space", *words
    )


async def imported(shop: Any, folder: Path) -> Any:
    files = await asyncio.to_thread(lambda: [str(one) for one in sorted(folder.glob("*.gz"))])
    return await asyncio.to_thread(shop.desk.ask, "events", "import", *files)


# case: B35, R1
async def test_the_bodies_go_and_nothing_else(database: Database, database_url: str, tmp_path: Path) -> None:
    async with opened(database, database_url) as shop:
        before, decided, runs = await shop.bodies(), await shop.decisions(), await shop.rows(RUNS)
        outbox = await shop.rows(OUTBOX)
        tried = await pruned(shop, tmp_path / "kept", "--dry-run")
        assert await shop.bodies() == before
        found = await pruned(shop, tmp_path / "kept")
        assert (tried["events"], tried["kept"]) == (found["events"], found["kept"])
        after = await shop.bodies()
        gone = {name for name, raw in after.items() if not raw}
        assert len(gone) == found["events"] > 10
        shown = await asyncio.to_thread(shop.desk.ask, "events", "show", "evt_0")
        assert (shown["archive"], shown["payload"]) == (found["files"][0], None)
        assert (await shop.decisions(), await shop.rows(RUNS)) == (decided, runs)
        assert {raw for name, raw in after.items() if name not in gone} <= set(before.values())
        assert await shop.rows(OUTBOX) != outbox, "the copies of bodies in it are gone, too"
        again = await pruned(shop, tmp_path / "kept")
        assert (again["events"], again["files"]) == (0, [])
        back = await imported(shop, tmp_path / "kept")
        assert back["bodies"] == len(gone)
        assert await shop.bodies() == before
        assert await shop.rows(OUTBOX) == outbox
        assert (await imported(shop, tmp_path / "kept"))["bodies"] == 0, "again changes nothing"


# case: B35
async def test_what_somebody_may_still_need_stays(database: Database, database_url: str, tmp_path: Path) -> None:
    async with opened(database, database_url) as shop:
        session = {"id": "cs_1", "status": "COMPLETED", "customer_reference": "alice"}
        await shop.live.arrive(observed("session:cs_1", 200, session, at=shop.live.clock.now() - timedelta(days=50)))
        await pruned(shop, tmp_path)
        kept = {row["id"]: row for row in await shop.rows(EVENTS) if row["archive"] is None}
        assert "session.observed" not in {row["type"] for row in kept.values()}, "no handler sees a session's last read"
        open_ = {row["event_id"] for row in await shop.rows(RUNS) if row["status"] == RunStatus.DEAD.value}
        assert open_
        assert open_ <= kept.keys(), f"the parcel of {BROKEN} is still to be sent"
        reads = [
            row for row in kept.values() if row["key"] == "subscription:sub_1" and row["type"].endswith("observed")
        ]
        assert [b'"version":102' in row["raw"] for row in reads] == [True], "the newest read is what handlers see"


# case: B35, I16
async def test_a_redelivery_does_nothing_and_another_body_is_kept(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    async with opened(database, database_url) as shop:
        await pruned(shop, tmp_path)
        runs, outbox, shipped = await shop.rows(RUNS), await shop.rows(OUTBOX), list(shop.shipped)
        same = said("order.paid", "evt_0", order_id="A0", amount="9")
        await shop.live.arrive(same)
        await shop.live.make_up()
        assert (await shop.rows(RUNS), await shop.rows(OUTBOX), shop.shipped) == (runs, outbox, shipped)
        async with database.reading() as session:
            assert (await session.scalars(select(QuarantineRow))).all() == []
        await shop.live.arrive(replace(same, raw=same.raw.replace(b'"9"', b'"8"')))
        async with database.reading() as session:
            assert [one.reason for one in await session.scalars(select(QuarantineRow))] == ["other_body"]


# case: G9
async def test_a_rebuild_says_which_archives_it_needs(database: Database, database_url: str, tmp_path: Path) -> None:
    async with opened(database, database_url) as shop:
        decided = await shop.decisions()
        await pruned(shop, tmp_path)
        refused = await asyncio.to_thread(shop.desk.ask, "rebuild", "all", "--yes", "--reason", "drift", code=1)
        assert "error[bodies_archived]" in refused
        assert "events import" in refused
        await imported(shop, tmp_path)
        await asyncio.to_thread(shop.desk.ask, "rebuild", "all", "--yes", "--reason", "drift")
        assert await shop.decisions() == decided


# case: B35
async def test_who_decided_it_is_asked_and_why_is_kept(database: Database, database_url: str, tmp_path: Path) -> None:
    async with opened(database, database_url) as shop:
        words = ("prune", "--older-than", "1d", "--archive", str(tmp_path / "kept"), "--reason", "space")
        assert "--yes" in await asyncio.to_thread(shop.desk.ask, *words, code=2), "nobody is there to be asked"
        assert all(raw for raw in (await shop.bodies()).values())
        await pruned(shop, tmp_path / "kept", "--reason", "the year is over")
        trail = (await asyncio.to_thread(shop.desk.ask, "audit", "list"))["entries"]
        assert [one["reason"] for one in trail if one["action"] == "archive.written"] == ["the year is over"]


@pytest.mark.parametrize("words", [("--older-than", "soon"), ("--older-than", "3d")])
async def test_words_that_do_not_fit(sqlite_ledger: Database, tmp_path: Path, words: tuple[str, ...]) -> None:
    async with opened(sqlite_ledger, f"sqlite+aiosqlite:///{tmp_path}/ledger.db") as shop:
        assert "error[usage]" in await asyncio.to_thread(shop.desk.ask, "prune", *words, code=2)


async def test_who_only_looks_needs_no_folder_that_can_be_written(sqlite_ledger: Database, tmp_path: Path) -> None:
    async with opened(sqlite_ledger, f"sqlite+aiosqlite:///{tmp_path}/ledger.db") as shop:
        taken = tmp_path / "taken"
        taken.write_text("something else has this name")
        assert (await pruned(shop, taken, "--dry-run"))["events"] > 0
        words = ("--older-than", "1d", "--archive", str(taken), "--yes")
        assert "cannot be written" in await asyncio.to_thread(shop.desk.ask, "prune", *words, code=2)


# case: R9, R14
async def test_a_replay_leaves_archived_events_out_and_says_so(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    async with opened(database, database_url) as shop:
        await pruned(shop, tmp_path)
        words = ("replay", "plan", "--handler", "fulfilment:order_paid", "--force", "--reason", "a drill")
        planned = await asyncio.to_thread(shop.desk.ask, *words)
        assert (planned["runs"], planned["refused"]["archived"] > 0) == (0, True)
        await imported(shop, tmp_path)
        planned = await asyncio.to_thread(shop.desk.ask, *words)
        assert planned["runs"] > 0
        assert "archived" not in planned["refused"]


# case: R7, B35
async def test_nothing_leaves_while_a_replay_is_applied(database: Database, database_url: str, tmp_path: Path) -> None:
    async with opened(database, database_url) as shop:
        words = ("replay", "plan", "--handler", "fulfilment:order_paid", "--force", "--reason", "a drill")
        planned = await asyncio.to_thread(shop.desk.ask, *words)
        async with database.transaction() as session:
            assert await plans.begin(session, planned["id"], by="ann", reason="x", now=shop.live.clock.now())
        refused = await asyncio.to_thread(
            shop.desk.ask,
            "prune",
            "--older-than",
            "1d",
            "--archive",
            str(tmp_path / "kept"),
            "--yes",
            "--reason",
            "space",
            code=1,
        )
        assert "error[archive_waits]" in refused
        assert all(raw for raw in (await shop.bodies()).values())
        async with database.transaction() as session:
            await plans.cancel(session, planned["id"], by="ann", reason="x", now=shop.live.clock.now())
        planned = await asyncio.to_thread(shop.desk.ask, *words)
        await pruned(shop, tmp_path / "kept")
        async with database.reading() as session:
            gone = await items.archived(session, planned["id"])
        assert len(gone) == planned["runs"], "a plan that was made before is refused, item by item"


# case: A40
async def test_a_clock_that_was_ahead_hides_no_newer_read(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    async with opened(database, database_url) as shop:
        now = shop.live.clock.now()
        ahead = observed("subscription:sub_2", 1, SUBSCRIBED, at=now + timedelta(days=30))
        await shop.live.arrive(ahead)
        await shop.live.arrive(observed("subscription:sub_2", 2, SUBSCRIBED | {"status": "ENDED"}, at=now))
        await pruned(shop, tmp_path)
        async with database.reading() as session:
            newest = await snapshots.newest(session, "default", "subscription", "sub_2")
        assert newest is not None
        assert newest.status == "ENDED"


# case: O5, B35
async def test_a_request_that_nobody_shipped_keeps_its_body(sqlite_ledger: Database, tmp_path: Path) -> None:
    """A projection that counts requests has not taken them."""

    @handles("fulfilment.requested", transactional=True, name="shop:count")
    async def counted(event: Event, ctx: Context) -> None:
        """Counts."""

    handler = declared(counted)
    assert handler is not None
    url = f"sqlite+aiosqlite:///{tmp_path}/ledger.db"
    async with opened(sqlite_ledger, url, shipper=handler) as shop:
        async with sqlite_ledger.transaction() as session:
            await known_handlers.register(session, shop.live.registry.handlers, shop.live.clock.now())
        await pruned(shop, tmp_path / "kept")
        requests = [row for row in await shop.rows(EVENTS) if row["type"] == "fulfilment.requested"]
        assert len(requests) == ORDERS
        assert all(row["raw"] for row in requests)
