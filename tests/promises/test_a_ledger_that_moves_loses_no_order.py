"""A deployment moves to another database and another log, in the midst of trade: what `deploy/backup.md` says is typed,
line by line. What was paid meanwhile is shipped, however long that took, also where no event ever tells of it; what
waited goes on by the key it had, and nothing is shipped twice."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from consumer.ledger import Database
from consumer.sync.backfill.cutover import Began
from tests.promises.deployment import Deployment, deployment, embedded, started
from tests.support.ports import eventually
from tests.support.postgres import create_database
from tests.support.process import ended

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]

ROLES = ("work", "sync", "console")
"""Those that go on when `serve` is stopped."""
MOVES_FOR = timedelta(hours=3)
PAGE = (Path(__file__).parents[2] / "deploy" / "backup.md").read_text()
MOVE = PAGE.partition("\n## Move to PostgreSQL and Kafka\n")[2].partition("\n## ")[0]
TYPED = re.findall(r"^ +consumer (.+?)(?: +#.*)?$", MOVE, re.MULTILINE)
LEAVES = 2
"""So many of the lines are typed before the settings are changed."""
BY_HAND = "SELECT customer, kind, reason FROM access_source ORDER BY 1"


# case: G12, B20, B30, B35
@pytest.mark.kafka
@pytest.mark.postgres
async def test_from_files_to_postgresql_and_kafka(tmp_path: Path, postgres_base: str, kafka_url: str) -> None:
    to = await asyncio.to_thread(create_database, postgres_base)
    async with deployment(tmp_path, **embedded(tmp_path)) as found:
        await _story(found, {"CONSUMER_DATABASE_URL": to, "CONSUMER_BROKER_URL": kafka_url})


# case: G12, B20, B30, B35
@pytest.mark.kafka
@pytest.mark.postgres
async def test_and_back(tmp_path: Path, postgres_base: str, kafka_url: str) -> None:
    url = await asyncio.to_thread(create_database, postgres_base)
    to = embedded(tmp_path)
    async with deployment(tmp_path, database_url=url, broker_url=kafka_url) as found:
        await _story(found, {"CONSUMER_DATABASE_URL": to["database_url"], "CONSUMER_BROKER_URL": to["broker_url"]})


# case: G12, B20, B30, B35
async def test_to_other_files(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path}/moved.db"
    async with deployment(tmp_path, **embedded(tmp_path)) as found:
        await _story(found, {"CONSUMER_DATABASE_URL": url, "CONSUMER_BROKER_URL": f"embedded:{tmp_path}/moved-log.db"})


async def _story(found: Deployment, to: Mapping[str, str]) -> None:
    found.sandbox.clock.set_offset(-MOVES_FOR.total_seconds())
    serve, *others = (found.process(role, f"{role}-before") for role in ("serve", *ROLES))
    with ended(serve):
        async with started(*others):
            serve.spawn()
            await serve.ready()
            await _trade(found)
            serve.stop()
            found.hear(at_work=False)
            for reads in ((), others[1:]):  # `work` takes what `sync` and `console` said last
                for process in reads:
                    process.stop()
                await eventually(lambda: _nothing_waits(found), within_s=60, what="0 records wait for either group")
    found.pay_order()
    found.pay_order_untold()
    await _began_long_ago(found)
    found.sandbox.clock.advance_to(datetime.now(UTC))
    await _move(found, to)
    found.warehouse.is_away = False
    found.hear(at_work=True)
    async with started(*(found.process(role, f"{role}-after") for role in ("serve", *ROLES))):
        found.pay_order()
        await found.shipped(within_s=90)
        await found.settled(within_s=60)
        await found.type("reconcile", "--dry-run")  # exit 0: nothing differs
        await found.type("invariants")  # exit 0: nothing is broken
        assert await found.one("SELECT count(*) FROM handlers WHERE paused_at IS NOT NULL") == 1
        assert await found.one(BY_HAND) == "friend"
    found.assert_one_parcel_each()


async def _trade(found: Deployment) -> None:
    """Orders are shipped, a customer has subscribed, another was given access; one parcel is still tried again."""
    found.hear(at_work=True)
    await found.walked()
    for _ in range(3):
        found.pay_order()
    found.subscribe()
    gift = ("access.complimentary_granted", "friend", "--set", "entitlement=pro")
    await found.type("say", *gift, "--reason", "a gift", "--yes")
    await found.type("handlers", "pause", "access:recheck", "--reason", "not now")
    await found.shipped(within_s=60)
    await found.settled(within_s=60)
    found.warehouse.is_away = True
    found.pay_order()
    await eventually(
        lambda: found.count("runs WHERE handler = 'warehouse:ship' AND status = 'retrying'"),
        within_s=60,
        what="a parcel is tried again",
    )


async def _nothing_waits(found: Deployment) -> bool:
    """What `consumer status` says of both groups."""
    said = await found.answer("status")
    return re.findall(r"^group .*, (\d+) record", said, re.MULTILINE) == ["0", "0"]


async def _began_long_ago(found: Deployment) -> None:
    """The service's side lived hours ago, and so did the first walk."""
    async with found.database.transaction() as session:
        kept = await Began.of(session, "default")
        assert kept.began is not None
        await Began(began=kept.began - MOVES_FOR).keep(session, "default", token=2**40, now=datetime.now(UTC))


async def _move(found: Deployment, to: Mapping[str, str]) -> None:
    kept = found.folder / "kept"
    typed = [line.replace("DIR", str(kept)).replace("TEXT", "moved").split() for line in TYPED]
    for words in typed[:LEAVES]:
        await found.type(*words)
    await found.database.stop()
    found.environ |= to
    found.database = Database(to["CONSUMER_DATABASE_URL"])
    for words in typed[LEAVES:]:
        await found.type(*words, *(["--yes"] if words[0] == "rebuild" else []))
