"""`consumer rebuild`: the same rows, and nothing goes out; refused while `work` goes on; a merchant's
projection too."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text

from consumer.app.commands.rebuilding import rebuild_of
from consumer.broker import Broker
from consumer.errors import RebuildDiffers, UsageError
from consumer.ledger import Database, processes
from consumer.ledger.engine.database_time import shared_time
from consumer.ledger.processes import Pulse
from consumer.ledger.reading import observations
from consumer.ledger.reading.observation import ObjectKind, Observation
from consumer.ledger.rebuilding import past
from consumer.plugin import Context, Event, handles
from consumer.work.registry import load_registry
from tests.access.test_rebuild import live_in, rebuild
from tests.support.desk import Desk
from tests.support.handling.live import Live
from tests.support.handling.projections import said, unreadable
from tests.support.merchant.plugin import install_package, install_plugin
from tests.support.ports import eventually
from tests.work.workshop import Workshop, order_paid, service_event


@pytest.fixture
async def desk(sqlite_ledger: Database, tmp_path: Path) -> Desk:
    """Two orders were handled: one is requested, one is held."""
    async with live_in(sqlite_ledger) as live:
        await live.register("s1", order_id="A1", customer="c", expected_amount="10")
        await live.arrive(said("order.paid", "evt_1", order_id="A1", amount="9"))
        await live.arrive(said("order.paid", "evt_2", order_id="A2", amount="9"))
        await live.arrive(unreadable("order:A2", 1))
        await live.pass_time(60)
    return Desk({"CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/ledger.db"})


async def rows(database: Database) -> list[tuple[Any, ...]]:
    async with database.reading() as session:
        found = await session.execute(text("SELECT order_id, hold, requested_at FROM fulfilment_order ORDER BY 1"))
        outbox = await session.execute(text("SELECT count(*), 0, 0 FROM outbox"))
        return [tuple(row) for row in [*found, *outbox]]


# case: G9
async def test_the_same_rows_again(desk: Desk, sqlite_ledger: Database) -> None:
    before = await rows(sqlite_ledger)
    tried = await asyncio.to_thread(desk.ask, "rebuild", "all", "--dry-run")
    assert {one["table"]: (one["rows_before"] == one["rows_after"], one["is_same"]) for one in tried["tables"]}[
        "fulfilment_order"
    ] == (True, True)
    async with sqlite_ledger.transaction() as session:  # somebody's hand slipped
        await session.execute(text("UPDATE fulfilment_order SET hold = NULL"))
    tried = await asyncio.to_thread(desk.ask, "rebuild", "fulfilment", "--dry-run")
    assert [(one["table"], one["differs"]) for one in tried["tables"] if not one["is_same"]] == [
        ("fulfilment_order", ["hold"])
    ]
    assert await rows(sqlite_ledger) != before, "a dry run changes nothing"
    await asyncio.to_thread(desk.ask, "rebuild", "fulfilment", "--yes", "--reason", "drift")
    assert await rows(sqlite_ledger) == before


# case: G9
async def test_memory_does_not_grow_with_the_past(sqlite_ledger: Database) -> None:
    """Bodies are read a few at once, as their turn comes; never all of them."""
    count, size = 200, 200_000
    async with live_in(sqlite_ledger) as live:
        for number in range(count):
            await live.arrive(said("order.paid", f"evt_{number}", order_id=f"A{number}", amount="9", pad="x" * size))
        before = await rows(sqlite_ledger)
        tracemalloc.start()
        try:
            await rebuild(live).run(live.application)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert await rows(sqlite_ledger) == before
    assert peak < count * size / 2


# case: G9
async def test_what_a_run_emitted_is_found_without_a_look_at_all(sqlite_ledger: Database) -> None:
    """Of the table SQLite takes another index, or scans it: for each run it reads everything that was ever emitted."""
    plans: list[str] = []
    async with sqlite_ledger.reading() as session:
        connection = await session.connection()

        def explained(conn: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
            if "outbox" in statement and not statement.startswith("EXPLAIN"):
                plans.extend(row[-1] for row in conn.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters))

        event.listen(connection.sync_connection, "before_cursor_execute", explained)
        for noted in (True, False):
            assert [one async for one in past.handled(session, "default", ("a:b",), noted=noted)] == []
    looks = [one for one in plans if " emitted " in one and not one.startswith("MATERIALIZE")]
    assert len(looks) == 2
    assert all("cause=?" in one for one in looks), looks


OPTIONS: dict[str, dict[str, Any]] = {
    "fulfilment": {"matching": "auto"},
    "access": {"entitlements": {"monthly": ["films"]}},
}


@pytest.mark.parametrize(
    "lost",
    [
        "DELETE FROM fulfilment_order WHERE order_id = 'A1'",
        "DELETE FROM access_subscription WHERE subscription_id = 'sub_1'",
        "DELETE FROM fulfilment_payment",
    ],
)
async def test_lost_rows_come_back_by_the_cure_that_is_printed(
    sqlite_ledger: Database, tmp_path: Path, lost: str
) -> None:
    # case: G9, F31, A14
    records: list[tuple[ObjectKind, str, dict[str, Any]]] = [
        ("order", "A1", {"id": "svc_A1", "order_id": "A1", "status": "PAID", "amount": "10"}),
        ("payment", "pay_1", {"id": "pay_1", "status": "SUCCEEDED", "amount": "10", "order_id": "A1"}),
        ("payment", "pay_2", {"id": "pay_2", "status": "SUCCEEDED", "amount": "10", "order_id": "never"}),
        (
            "subscription",
            "sub_1",
            {"id": "sub_1", "status": "ACTIVE", "price_id": "monthly", "customer_reference": "c"},
        ),
    ]
    live = Live(sqlite_ledger, OPTIONS, application="default")
    try:
        for version, (kind, id_, record) in enumerate(records, 1):
            seen = Observation(
                application="default",
                kind=kind,
                object_id=id_,
                version=version,
                read_at=live.clock.now(),
                record=record,
            )
            async with sqlite_ledger.transaction() as session:
                await observations.keep(session, [seen.observed])
            await live.arrive(seen.event())
        await live.pass_time(60)
    finally:
        await live.close()
    desk = Desk({
        "CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/ledger.db",
        "CONSUMER_HANDLER_OPTIONS": json.dumps(OPTIONS),
    })  # fmt: skip
    whole = await asyncio.to_thread(desk.call, "invariants", "--json")
    sent = (await rows(sqlite_ledger))[-1]
    async with sqlite_ledger.transaction() as session:
        await session.execute(text(lost))
    [found] = json.loads((await asyncio.to_thread(desk.call, "invariants", "--json")).stdout)["applications"]
    before = json.loads(whole.stdout)["applications"][0]["broken"]
    cures = {one["cure"] for one in found["problems"] if one["code"] not in before}
    assert cures, "it is seen"
    for cure in cures:
        words = cure.removeprefix("consumer ").replace("…", "a-hand-slipped").split()
        done = await asyncio.to_thread(desk.call, *words, "--yes")
        assert done.returncode == 0, done.stderr
    assert (await asyncio.to_thread(desk.call, "invariants", "--json")).stdout == whole.stdout
    assert (await rows(sqlite_ledger))[-1] == sent, "nobody is told anything"
    trail = (await asyncio.to_thread(desk.call, "audit", "list", "--json")).stdout
    assert "plugin.rebuilt" in trail
    assert "a-hand-slipped" in trail


# case: G9
async def test_not_while_work_goes_on(desk: Desk, sqlite_ledger: Database) -> None:
    async with sqlite_ledger.transaction() as session:
        now = await shared_time(session)
        pulse = Pulse(process="w1", role="work", host="h", pid=1, version="1", started_at=now, ready=True, since=now)
        await processes.beat(session, [pulse], now)
    refused = await asyncio.to_thread(desk.ask, "rebuild", "all", "--yes", "--reason", "drift", code=1)
    assert "error[work_goes_on]" in refused
    assert "--yes" in await asyncio.to_thread(desk.ask, "rebuild", "all", "--reason", "drift", code=2)
    assert "no such plugin" in await asyncio.to_thread(desk.ask, "rebuild", "nothing", "--yes", code=1)


PLUGIN = """
from typing import Any, ClassVar
from sqlalchemy import Column, Integer, String, Table
from sqlmodel import Field, SQLModel
from consumer.plugin import handles, insert_into

class Tally(SQLModel, table=True):
    __tablename__ = "rebuilt_tally"
    __table__: ClassVar[Table]
    application: str = Field(sa_column=Column(String(64), primary_key=True))
    key: str = Field(sa_column=Column(String(600), primary_key=True))
    times: int = Field(sa_column=Column(Integer, nullable=False))

@handles("order.*", transactional=True, name="rebuilt:tally")
async def tally(event, ctx):
    table = Tally.__table__
    row = insert_into(table, ctx.session.get_bind().dialect.name).values(
        application=ctx.application, key=event.key, times=1
    )
    await ctx.session.execute(
        row.on_conflict_do_update(index_elements=["application", "key"], set_={"times": table.c.times + 1})
    )
"""


# case: G9
async def test_a_merchants_projection(
    sqlite_ledger: Database, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_plugin(tmp_path, "rebuilt", PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    plugin = import_module("rebuilt")
    async with sqlite_ledger.engine.begin() as connection:
        await connection.run_sync(plugin.Tally.__table__.create)
    work = Workshop(sqlite_ledger, broker, [plugin.tally])
    await work.publish(order_paid(1, "A"), order_paid(2, "A"), order_paid(3, "B"))
    async with work.working():
        await eventually(lambda: work.all_succeeded(3))
    async with sqlite_ledger.transaction() as session:
        await session.execute(text("UPDATE rebuilt_tally SET times = 7"))
    desk = Desk({"CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/ledger.db"})
    assert "rebuilt_tally" in await asyncio.to_thread(
        desk.ask, "rebuild", "rebuilt", "--yes", "--reason", "drift", code=2
    )
    done = await asyncio.to_thread(
        desk.ask, "rebuild", "rebuilt", "--yes", "--reason", "drift", "--table", "rebuilt_tally"
    )
    assert [(one["table"], one["rows_after"], one["is_same"]) for one in done["tables"]] == [
        ("rebuilt_tally", 2, False)
    ]
    async with sqlite_ledger.reading() as session:
        found = await session.execute(text("SELECT key, times FROM rebuilt_tally ORDER BY key"))
        assert [tuple(row) for row in found] == [("order:A", 2), ("order:B", 1)]


WRITER = """
import counts
from consumer.plugin import handles

@handles("order.*", transactional=True, name="writer:tally")
async def tally(event, ctx):
    await counts.tally(event, ctx)

@handles("order.*", name="writer:mail")
async def mail(event, ctx):
    pass
"""


# case: G9, H7
async def test_what_a_handler_wrote_that_is_not_here_by_that_name_is_not_dropped(
    sqlite_ledger: Database, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Renamed without a mapping, left out, or another package's: its rows were gone, and the command content."""
    source = PLUGIN.replace("rebuilt_tally", "counts_tally").replace("rebuilt:tally", "counts:count")
    install_plugin(tmp_path, "counts", source)
    install_plugin(tmp_path, "writer", WRITER)
    monkeypatch.syspath_prepend(str(tmp_path))
    plugin, writer = import_module("counts"), import_module("writer")
    async with sqlite_ledger.engine.begin() as connection:
        await connection.run_sync(plugin.Tally.__table__.create)

    @handles("order.*", name="counts:sent")
    async def sent(event: Event, ctx: Context) -> None:
        """An effect, which nobody has any more."""

    @handles("order.*", transactional=True, name="counts:tally")
    async def tally(event: Event, ctx: Context) -> None:
        await plugin.tally(event, ctx)

    work = Workshop(sqlite_ledger, broker, [tally, sent, writer.tally, writer.mail])
    await work.publish(order_paid(1, "A"), order_paid(2, "B"))
    async with work.working():
        await eventually(lambda: work.all_succeeded(8))
    ledger = {"CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/ledger.db"}

    async def rebuilt(*words: str, code: int = 0, what: str = "all", more: Mapping[str, str] | None = None) -> Any:
        asked = ("rebuild", what, "--yes", "--reason", "drift", "--table", "counts_tally", *words)
        return await asyncio.to_thread(Desk({**ledger, **(more or {})}).ask, *asked, code=code)

    async def times() -> list[int]:
        async with sqlite_ledger.reading() as session:
            return list(await session.scalars(text("SELECT times FROM counts_tally ORDER BY key")))

    for more in ({}, {"CONSUMER_HANDLERS": "fulfilment,access,counts"}):
        refused = await rebuilt(code=1, more=more)
        assert "error[rebuild_differs]" in refused
        assert "counts:tally" in refused
        assert "counts:sent" not in refused, "an effect wrote nothing"
        assert "writer:mail" not in refused
        assert ("writer:tally" in refused) is bool(more)
    assert await times() == [2, 2]
    mapped = {"CONSUMER_RENAMED_HANDLERS": "counts:tally=counts:count"}
    assert {one["is_same"] for one in (await rebuilt(more=mapped))["tables"]} == {True}
    assert await times() == [2, 2]
    only_built_in = await rebuilt(code=1, more={"CONSUMER_HANDLERS": "fulfilment,access"})
    assert "handlers=counts:tally, writer:tally)" in only_built_in, "their tables would stay as they are, unnoticed"
    for what in ("all", "fulfilment"):
        refused = await rebuilt("--without", "no:body", code=2, what=what)
        assert "--without names a handler of which no run succeeded" in refused
        refused = await rebuilt("--without", "fulfilment:order_paid", code=2, what=what)
        assert "--without names a handler that is built in" in refused
    assert "handlers=writer:tally)" in await rebuilt(code=1, what="counts", more=mapped), "it is played by `all` alone"
    await rebuilt("--without", "counts:tally", "--without", "writer:tally", what="counts")
    assert await times() == []
    await rebuilt(more=mapped)
    assert await times() == [2, 2], "its runs are still there: nothing was lost for good"
    work.functions = [plugin.tally]  # by the new name, before anybody thought of the mapping
    await work.publish(order_paid(3, "A"))
    async with work.working():
        await eventually(lambda: work.count("counts:count", "succeeded", 1))
    assert await times() == [3, 2]
    await rebuilt(more=mapped)
    assert await times() == [3, 2], "the runs of both names"


KEEPER = """
from datetime import timedelta
from typing import ClassVar
from sqlalchemy import Column, ForeignKeyConstraint, String, Table
from sqlmodel import Field, SQLModel
from consumer.plugin import handles

class Account(SQLModel, table=True):
    __tablename__ = "keeper_account"
    __table__: ClassVar[Table]
    application: str = Field(sa_column=Column(String(64), primary_key=True))
    name: str = Field(sa_column=Column(String(64), primary_key=True))

class Entry(SQLModel, table=True):
    __tablename__ = "keeper_entry"
    __table__: ClassVar[Table]
    __table_args__ = (
        ForeignKeyConstraint(["application", "account"], ["keeper_account.application", "keeper_account.name"]),
    )
    application: str = Field(sa_column=Column(String(64), primary_key=True))
    key: str = Field(sa_column=Column(String(600), primary_key=True))
    account: str = Field(sa_column=Column(String(64), nullable=False))

@handles("order.paid", transactional=True, name="keeper:keep")
async def keep(event, ctx):
    await ctx.insert_new(Account, application=ctx.application, name="sales")
    await ctx.insert_new(Entry, application=ctx.application, key=event.key, account="sales")
    ctx.emit("keeper.remind", event.key, {}, ctx.now + timedelta(days=1), once="remind")

@handles("order.expired", transactional=True, name="keeper:forget")
async def forget(event, ctx):
    ctx.withdraw("keeper.remind", event.key, once="remind")

@handles("keeper.remind", transactional=True, name="keeper:remind")
async def remind(event, ctx):
    pass
"""


# case: G9
@pytest.mark.parametrize("whose", ["its own", "another's"])
async def test_a_projection_whose_timer_was_withdrawn_and_whose_tables_refer_to_each_other(
    sqlite_ledger: Database, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    """No row of the outbox says that the timer was: what its run wrote was left out."""
    name = "keeper" if whose == "its own" else "keepers"
    source = KEEPER.replace("keeper", name)
    if whose == "another's":
        source = source.partition(f'@handles("{name}.remind"')[0]
    install_plugin(tmp_path, name, source)
    monkeypatch.syspath_prepend(str(tmp_path))
    plugin = import_module(name)
    async with sqlite_ledger.engine.begin() as connection:
        for model in (plugin.Account, plugin.Entry):
            await connection.run_sync(model.__table__.create)
    work = Workshop(sqlite_ledger, broker, [plugin.keep, plugin.forget])
    await work.publish(
        order_paid(1, "A"), service_event("evt_2", "order.expired", "A"), order_paid(3, "B"), order_paid(4, "C")
    )
    async with work.working():
        await eventually(lambda: work.all_succeeded(4))
    desk = Desk({"CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/ledger.db"})
    tables = [word for table in ("account", "entry") for word in ("--table", f"{name}_{table}")]
    done = await asyncio.to_thread(desk.ask, "rebuild", name, "--yes", "--reason", "drift", *tables)
    assert {(one["table"], one["rows_before"], one["rows_after"], one["is_same"]) for one in done["tables"]} == {
        (f"{name}_account", 1, 1, True),
        (f"{name}_entry", 3, 3, True),
    }


SHARED = {
    "__init__.py": "",
    "keep.py": """
from typing import ClassVar
from sqlalchemy import Column, String, Table
from sqlmodel import Field, SQLModel
from consumer.plugin import handles

class Kept(SQLModel, table=True):
    __tablename__ = "stall_kept"
    __table__: ClassVar[Table]
    application: str = Field(sa_column=Column(String(64), primary_key=True))
    key: str = Field(sa_column=Column(String(600), primary_key=True))

@handles("order.paid", transactional=True, name="stall:keep")
async def keep(event, ctx):
    await ctx.insert_new(Kept, application=ctx.application, key=event.key)
""",
    "tell.py": """
from consumer.plugin import handles

@handles("order.paid", transactional=True, name="stall:tell")
async def tell(event, ctx):
    pass
""",
}


# case: G9
async def test_plugins_of_one_package_are_rebuilt_together(
    sqlite_ledger: Database, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that writes none of the package's rows dropped them all, and derived nothing."""
    install_package(tmp_path, "stall", SHARED, {})
    entries = "[consumer.handlers]\nstall_keep = stall.keep\nstall_tell = stall.tell\n"
    (tmp_path / "stall-1.0.dist-info" / "entry_points.txt").write_text(entries)
    monkeypatch.syspath_prepend(str(tmp_path))
    plugin = import_module("stall.keep")
    async with sqlite_ledger.engine.begin() as connection:
        await connection.run_sync(plugin.Kept.__table__.create)
    work = Workshop(sqlite_ledger, broker, [plugin.keep])
    await work.publish(order_paid(1, "A"), order_paid(2, "B"))
    async with work.working():
        await eventually(lambda: work.all_succeeded(2))
    desk = Desk({"CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/ledger.db"})
    for name in ("stall_tell", "stall_keep"):
        done = await asyncio.to_thread(desk.ask, "rebuild", name, "--yes", "--reason", "drift", "--table", "stall_kept")
        assert [(one["table"], one["rows_after"], one["is_same"]) for one in done["tables"]] == [
            ("stall_kept", 2, True)
        ]


async def test_a_plugin_that_derives_no_table_loses_none(
    sqlite_ledger: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a table and effect handlers only it was refused by an error of SQL."""
    source = PLUGIN.replace("rebuilt", "told_only").replace("transactional=True, ", "")
    install_plugin(tmp_path, "told_only", source)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UsageError, match="nothing would derive its tables again"):
        rebuild_of(["told_only"], sqlite_ledger, load_registry(["told_only"]), {})


WHYS = {
    "await ctx.snapshot()": "a snapshot is of its time",
    "if ctx.options.get('odd'): raise KeyError('odd')": "did not then: KeyError",
}


# case: G9
@pytest.mark.parametrize("looks", WHYS)
async def test_a_projection_that_cannot_be_played_again_says_why(
    sqlite_ledger: Database, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: str
) -> None:
    """It was said that it fails now and did not then, of one that looks at what the service showed last as well."""
    name = f"looks_{list(WHYS).index(looks)}"
    source = PLUGIN.replace("rebuilt", name).replace("    table = Tally", f"    {looks}\n    table = Tally")
    install_plugin(tmp_path, name, source)
    monkeypatch.syspath_prepend(str(tmp_path))
    plugin = import_module(name)
    async with sqlite_ledger.engine.begin() as connection:
        await connection.run_sync(plugin.Tally.__table__.create)
    work = Workshop(sqlite_ledger, broker, [plugin.tally])
    await work.publish(order_paid(1, "A"))
    async with work.working():
        await eventually(lambda: work.all_succeeded(1))
    made = rebuild_of([name], sqlite_ledger, load_registry([name]), {name: {"odd": True}})
    with pytest.raises(RebuildDiffers, match=WHYS[looks]):
        await made.run("default", dry_run=True)


RELAY = """
from consumer.plugin import handles

@handles("order.*", transactional=True, name="relay:emit")
async def emit(event, ctx):
    await ctx.snapshot()
    ctx.emit("shop.told", event.key, {})
"""


# case: G9
async def test_one_without_tables_that_cannot_be_played_again_may_be_left_out(
    sqlite_ledger: Database, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_plugin(tmp_path, "relay", RELAY)
    monkeypatch.syspath_prepend(str(tmp_path))
    work = Workshop(sqlite_ledger, broker, [import_module("relay").emit])
    await work.publish(order_paid(1, "A"))
    async with work.working():
        await eventually(lambda: work.all_succeeded(1))
    desk, asked = Desk({"CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/ledger.db"}), ("rebuild", "all")
    refused = await asyncio.to_thread(desk.ask, *asked, "--dry-run", code=1)
    assert "its package has no tables: if it writes into no other's, leave it out by `--without relay:emit`" in refused
    await asyncio.to_thread(desk.ask, *asked, "--yes", "--reason", "moved", "--without", "relay:emit")


# case: G9, H7
async def test_after_a_move_handlers_that_nobody_knows_are_said(desk: Desk, sqlite_ledger: Database) -> None:
    """An effect, mostly; or whose package is not here, so that nothing drops its tables, nor fills them."""
    async with sqlite_ledger.transaction() as session:
        await session.execute(text("UPDATE runs SET handler = 'shop:ship' WHERE event_id = 'evt_2'"))
    said = await asyncio.to_thread(desk.call, "rebuild", "all", "--dry-run")
    assert "not here: shop:ship; if one of them had tables of its own, install it" in said.stdout + said.stderr
