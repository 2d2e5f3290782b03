"""One grant that is taken back is named by its table, whichever it is; a user who has all has nothing to hear."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url

import handlers.access.tables
import handlers.fulfilment.tables  # noqa: F401 - the same
from consumer.causes import cure_of
from consumer.clock import SystemClock
from consumer.errors import CollationChanged, DatabaseForbidden, DatabaseNotUtf8, DatabaseShared, SchemaNowhere
from consumer.ledger import Database, processes
from consumer.ledger.engine import schema
from consumer.ledger.engine.applied import SchemaWatch, look_at_collation, look_at_encoding, require_current
from consumer.ledger.engine.grants import Grants, require_grants
from consumer.ledger.engine.shape import needed
from consumer.ledger.processes import USER, Pulse
from tests.support.postgres import StoppableServer, create_database, database_url, stoppable_server

BUILT_IN = ("fulfilment", "access")
ROTATION = Path(__file__).parents[4] / "deploy/rotation.md"
pytestmark = [pytest.mark.postgres, pytest.mark.slow]


class Shop:
    """A ledger, its administrator, and a user of it who was granted all that the README of `deploy` says."""

    def __init__(self, admin: asyncpg.Connection, user: Database, url: str) -> None:
        self.admin, self.user, self.url = admin, user, url

    async def told(self) -> str | None:
        try:
            await require_grants(self.user, BUILT_IN)
        except DatabaseForbidden as error:
            return error.message.partition(": ")[2]
        return None


@pytest.fixture(scope="module")
def server() -> Iterator[StoppableServer]:
    with stoppable_server() as found:
        yield found


@pytest.fixture
async def shop(server: StoppableServer) -> AsyncIterator[Shop]:
    url = await asyncio.to_thread(create_database, server.uri)
    owner = Database(url)
    await schema.upgrade(owner)
    await owner.stop()
    admin = await asyncpg.connect(server.uri, database=make_url(url).database)
    await admin.execute("DROP ROLE IF EXISTS clerk; CREATE ROLE clerk LOGIN")
    await admin.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO clerk")
    await admin.execute("GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO clerk")
    as_clerk = make_url(url).set(username="clerk").render_as_string(hide_password=False)
    user = Database(as_clerk)
    yield Shop(admin, user, as_clerk)
    await user.stop()
    await admin.execute("DROP OWNED BY clerk")
    await admin.close()


async def test_every_table_that_is_needed_is_looked_at(shop: Shop) -> None:
    assert await shop.told() is None
    names = {table.name for table in needed(BUILT_IN)}
    assert {"runs", "outbox", "fulfilment_order", "reads", "leases", "processes"} <= names
    for name in names:
        await shop.admin.execute(f"REVOKE SELECT ON {name} FROM clerk")
        assert await shop.told() == f"SELECT on {name}"
        await shop.admin.execute(f"GRANT SELECT ON {name} TO clerk")
    assert await shop.told() is None


@pytest.mark.parametrize("what", ["INSERT", "UPDATE", "DELETE"])
async def test_who_may_read_and_not_write_is_told(shop: Shop, what: str) -> None:
    await shop.admin.execute(f"REVOKE {what} ON outbox, reads FROM clerk")
    assert await shop.told() == f"{what} on outbox; {what} on reads"


async def test_what_nobody_writes_need_not_be_granted(shop: Shop) -> None:
    await shop.admin.execute("REVOKE INSERT, UPDATE, DELETE ON revisions FROM clerk")
    await shop.admin.execute("REVOKE DELETE ON audit, chain_head FROM clerk")
    assert await shop.told() is None
    await shop.admin.execute("REVOKE INSERT ON audit FROM clerk")
    assert await shop.told() == "INSERT on audit"


async def test_a_schema_that_may_not_be_used_is_no_missing_migration(shop: Shop) -> None:
    await require_current(shop.user)
    await shop.admin.execute("REVOKE USAGE ON SCHEMA public FROM PUBLIC")
    assert await shop.told() == "USAGE on schema public"
    with pytest.raises(DatabaseForbidden, match="USAGE on schema public"):
        await require_current(shop.user)


async def test_a_neighbours_schema_is_not_ours_to_use(shop: Shop) -> None:
    await shop.admin.execute("DROP TABLE outbox; CREATE SCHEMA neighbour; CREATE TABLE neighbour.outbox (x integer)")
    assert await shop.told() is None, "what is missing here is missing, whoever has it elsewhere"


async def test_a_sequence_is_part_of_its_table(shop: Shop) -> None:
    await shop.admin.execute("CREATE SEQUENCE lots OWNED BY audit.id")
    assert await shop.told() == "USAGE on sequence lots"


async def test_a_role_says_so_and_is_well_again_after_the_grant(shop: Shop) -> None:
    grants = Grants(shop.user, BUILT_IN, SystemClock())
    assert await grants.check()
    asked = Grants(shop.user, BUILT_IN, SystemClock())
    await shop.admin.execute("REVOKE UPDATE ON runs FROM clerk")
    with pytest.raises(DatabaseForbidden, match="UPDATE on runs"):
        await asked.check()
    await shop.admin.execute("GRANT UPDATE ON runs TO clerk")
    assert await asked.check()


@pytest.mark.parametrize(
    ("role_is", "told"),
    [("clerk", {"database_forbidden": "stuck"}), ("shop", {"no_work": "stuck", "database_forbidden": "degraded"})],
)
async def test_what_is_forbidden_to_who_looks_hides_no_role_of_another_user_that_is_gone(
    shop: Shop, tmp_path: Path, role_is: str, told: dict[str, str]
) -> None:
    long_ago = datetime.now(UTC) - timedelta(minutes=3)
    work = Pulse(process="a", role="work", host="shop-1", pid=7, version="1", started_at=long_ago, ready=True,
                 since=long_ago, said={USER: role_is})  # fmt: skip
    async with shop.user.transaction() as session:
        await processes.beat(session, [work], long_ago)
    await shop.admin.execute("REVOKE INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public FROM clerk")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("CONSUMER_", "SVC_"))}
    call = [sys.executable, "-m", "consumer", "status", "--json"]
    done = await asyncio.to_thread(
        subprocess.run, call, cwd=tmp_path, env=environ | {"CONSUMER_DATABASE_URL": shop.url}, capture_output=True,
        check=False, timeout=120,
    )  # fmt: skip
    grades = {one["code"]: one["grade"] for one in json.loads(done.stdout)["findings"]}
    assert {code: grade for code, grade in grades.items() if code in ("database_forbidden", "no_work")} == told


# cause: 42501
async def test_who_upgrades_what_another_owns_is_told_whose_table_it_is(shop: Shop) -> None:
    await shop.admin.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON alembic_version TO clerk")
    await shop.admin.execute("GRANT CREATE ON SCHEMA public TO clerk")
    await _back_one(shop)
    with pytest.raises(DatabaseForbidden) as told:
        await schema.upgrade(shop.user)
    assert str(told.value.fields["said"]).startswith("must be owner of table ")
    assert "owner" in str(cure_of(told.value.code))


async def _back_one(shop: Shop) -> None:
    """As if the newest migrations had not been run, the first of which changes a table."""
    await shop.admin.execute("DELETE FROM revisions WHERE id IN ('ledger_0025', 'ledger_0026')")
    await shop.admin.execute("DROP TABLE handler_pauses")
    await shop.admin.execute("ALTER TABLE outbox ALTER COLUMN on_way DROP DEFAULT")
    await shop.admin.execute("UPDATE alembic_version SET version_num = 'ledger_0024' WHERE version_num = 'ledger_0026'")


# cause: 3F000
async def test_a_search_path_that_leads_nowhere_is_told(shop: Shop) -> None:
    name = make_url(shop.url).database
    await shop.admin.execute(f'ALTER ROLE clerk IN DATABASE "{name}" SET search_path = nowhere')
    with pytest.raises(SchemaNowhere):
        await schema.upgrade(shop.user)


# --- whose database it is --------------------------------------------------------------------------------------


# cause: NOT_UTF8
@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
async def test_no_tables_are_made_in_an_encoding_that_cannot_keep_all_customers_write(
    server: StoppableServer, encoding: str
) -> None:
    """Whole orders ended in quarantine for one name."""
    name = f"odd_{encoding.lower()}"
    admin = await asyncpg.connect(server.uri)
    await admin.execute(f"DROP DATABASE IF EXISTS {name}")
    await admin.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
    await admin.close()
    odd = Database(database_url(server.uri, name))
    try:
        for look in (schema.upgrade, look_at_encoding):
            with pytest.raises(DatabaseNotUtf8) as told:
                await look(odd)
            assert told.value.fields == {"encoding": encoding}
    finally:
        await odd.stop()


# cause: COLLATION
async def test_a_server_that_has_come_to_sort_otherwise_is_told(server: StoppableServer) -> None:
    """By a newer C library under it. Of 3,000 events that came again under another order 2,794 were taken for new."""
    ours = Database(await asyncio.to_thread(create_database, server.uri))
    admin = await asyncpg.connect(server.uri)
    watch, name = SchemaWatch(), ours.engine.url.database
    try:
        await schema.upgrade(ours)
        for made_by, told in ((None, None), ("0.1", CollationChanged), (None, None)):
            await admin.execute("UPDATE pg_database SET datcollversion = $1 WHERE datname = $2", made_by, name)
            async with ours.reading() as session:
                await watch.look(session)
            assert type(watch.collation()) is (told or type(None))
            with pytest.raises(CollationChanged) if told else nullcontext():
                await look_at_collation(ours)
        assert watch.refusal() is None
    finally:
        await admin.close()
        await ours.stop()


# cause: 42P07
async def test_a_table_of_somebody_elses_with_a_name_of_ours_is_named(server: StoppableServer) -> None:
    ours = Database(await asyncio.to_thread(create_database, server.uri))
    try:
        async with ours.transaction() as session:
            await session.execute(text("CREATE TABLE events (id integer)"))
        with pytest.raises(DatabaseShared) as told:
            await schema.upgrade(ours)
        assert told.value.fields["said"] == 'relation "events" already exists'
    finally:
        await ours.stop()


async def test_no_tables_are_made_beside_another_applications_migrations(server: StoppableServer) -> None:
    """Ours were noted among theirs: Alembic refused their own next release."""
    url = await asyncio.to_thread(create_database, server.uri)
    admin = await asyncpg.connect(server.uri, database=make_url(url).database)
    await admin.execute("CREATE TABLE alembic_version (version_num varchar(32)); CREATE SCHEMA ledger")
    await admin.execute("INSERT INTO alembic_version VALUES ('3f2a91c0d7be')")
    ours = Database(url)
    try:
        with pytest.raises(DatabaseShared):
            await schema.upgrade(ours)
        assert await admin.fetchval("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == 1
        await admin.execute(f'ALTER DATABASE "{make_url(url).database}" SET search_path = ledger')
        await ours.stop()
        assert (await schema.upgrade(ours)).is_current
        assert await admin.fetchval("SELECT count(*) FROM public.alembic_version") == 1
    finally:
        await ours.stop()
        await admin.close()


async def test_what_a_second_user_of_the_owner_makes_is_the_owners(server: StoppableServer) -> None:
    """As `deploy/rotation.md` has it; what one who only is a member makes, the owner cannot read."""
    url = make_url(await asyncio.to_thread(create_database, server.uri))
    admin = await asyncpg.connect(server.uri, database=url.database)
    await admin.execute(f'CREATE ROLE consumer LOGIN; ALTER DATABASE "{url.database}" OWNER TO consumer')
    for statement in re.findall(r"^    (.* ROLE .*;)$", ROTATION.read_text(), re.MULTILINE):
        await admin.execute(statement)
    first, second = (Database(url.set(username=one).render_as_string()) for one in ("consumer", "consumer_b"))
    try:
        assert (await schema.upgrade(second)).is_current
        assert await admin.fetchval("SELECT tableowner FROM pg_tables WHERE tablename = 'runs'") == "consumer"
        for user in (first, second):
            await require_grants(user, BUILT_IN)
    finally:
        await first.stop()
        await second.stop()
        await admin.execute("DROP OWNED BY consumer; DROP OWNED BY consumer_b")
        await admin.close()
