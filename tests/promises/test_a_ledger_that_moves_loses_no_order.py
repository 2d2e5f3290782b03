"""The ledger moves to an empty database by way of archives, and the log is a new one: what `deploy/backup.md` says is
typed. What was paid meanwhile is shipped, however long that took, and nothing is shipped twice."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from consumer.ledger import Database
from consumer.sync.backfill.cutover import Began
from tests.promises.deployment import Deployment, deployment, embedded, started

ROLES = ("serve", "work", "sync")
MOVES_FOR = timedelta(hours=3)


# case: G12, B30
@pytest.mark.slow
@pytest.mark.timeout(500)
async def test_to_another_database_and_another_log(tmp_path: Path) -> None:
    async with deployment(tmp_path, **embedded(tmp_path)) as found:
        found.sandbox.clock.set_offset(-MOVES_FOR.total_seconds())
        found.hear(at_work=True)
        async with started(*(found.process(role, f"{role}-before") for role in ROLES)):
            for _ in range(3):
                found.pay_order()
            found.subscribe()
            await found.shipped(within_s=60)
            await found.settled(within_s=60)
        await _began_long_ago(found)
        found.hear(at_work=False)
        found.pay_order()
        found.sandbox.clock.advance_to(datetime.now(UTC))
        await _move(found)
        found.hear(at_work=True)
        async with started(*(found.process(role, f"{role}-after") for role in ROLES)):
            await found.shipped(within_s=60)
            await found.settled(within_s=60)
            await found.type("reconcile", "--dry-run")  # exit 0: nothing differs
        found.assert_one_parcel_each()


async def _began_long_ago(found: Deployment) -> None:
    """The service's side lived hours ago, and so did the first walk."""
    async with found.database.transaction() as session:
        kept = await Began.of(session, "default")
        assert kept.began is not None
        await Began(began=kept.began - MOVES_FOR).keep(session, "default", token=2**40, now=datetime.now(UTC))


async def _move(found: Deployment) -> None:
    kept = found.folder / "kept"
    await found.type("events", "export", "--archive", str(kept))
    await found.type("audit", "export", str(kept / "trail.jsonl"))
    await found.database.stop()
    url = f"sqlite+aiosqlite:///{found.folder}/moved.db"
    found.environ |= {"CONSUMER_DATABASE_URL": url, "CONSUMER_BROKER_URL": f"embedded:{found.folder}/moved-log.db"}
    found.database = Database(url)
    await found.type("db", "upgrade")
    files = [str(one) for one in sorted(kept.iterdir())]
    await found.type("events", "import", "--missing", *files)
    await found.type("rebuild", "all", "--yes", "--reason", "drift")
