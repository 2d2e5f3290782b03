"""The ledger is restored from a backup, beside a log and a service that went on: what it lacks is read again, from the
log and from the service. Every order and every access is right, an operator's word is not forgotten, and nothing is
done twice: an effect that it has forgotten is called again with the key it had.

What is typed is what `deploy/backup.md` says. In `python -m tests.chaos restore` an hour of business lies between.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from consumer.ledger import Database
from tests.promises.deployment import Deployment, deployment, embedded, started
from tests.support.ports import eventually
from tests.support.postgres import create_database, dumped, restored

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

Backup = Callable[[], Awaitable[Callable[[], Awaitable[str]]]]
"""Makes a backup of the running ledger; what it returns restores it and says where."""

BACKUP = Path(__file__).parents[2] / "deploy" / "backup.md"
BY_SQLITE = re.compile(r'sqlite3 consumer\.db "(?P<words>VACUUM INTO [^"]+)"')
"""One statement, which others that write cannot make begin anew."""
STATE = {
    "orders": "SELECT order_id, proof_event_id, hold, requested_at IS NOT NULL FROM fulfilment_order",
    "access": "SELECT customer, entitlement, allowed FROM access_entitlement",
    "gifts": "SELECT id, customer, kind, reason FROM access_source",
}


# case: O7, G7
async def test_in_files(tmp_path: Path) -> None:
    ledger, copy = tmp_path / "consumer.db", tmp_path / "backup.db"

    async def restore() -> str:
        for name in ("consumer.db", "consumer.db-wal", "consumer.db-shm"):
            (tmp_path / name).unlink(missing_ok=True)
        copy.rename(ledger)
        return f"sqlite+aiosqlite:///{ledger}"

    async def back_up() -> Callable[[], Awaitable[str]]:
        with closing(sqlite3.connect(ledger, isolation_level=None)) as source:
            found = BY_SQLITE.search(BACKUP.read_text())
            assert found is not None
            source.execute(found["words"].replace("FILE", str(copy)))
        return restore

    async with deployment(tmp_path, **embedded(tmp_path)) as found:
        await _story(found, back_up)


# case: O7, G7
@pytest.mark.kafka
@pytest.mark.postgres
async def test_on_postgresql_beside_kafka(tmp_path: Path, postgres_base: str, kafka_url: str) -> None:
    url, dump = await asyncio.to_thread(create_database, postgres_base), tmp_path / "ledger.dump"

    async def restore() -> str:
        copy = await asyncio.to_thread(create_database, postgres_base)
        await restored(dump, copy)
        return copy

    async def back_up() -> Callable[[], Awaitable[str]]:
        await dumped(url, dump)
        return restore

    async with deployment(tmp_path, broker_url=kafka_url, database_url=url) as found:
        await _story(found, back_up)


async def _story(found: Deployment, back_up: Backup) -> None:
    async with _at_work(found, "before"):
        await _live(found, "early")
        restore = await back_up()
        await _live(found, "late")
        await _say(found, "access.complimentary_granted", "a guest", "entitlement=default")
        await eventually(lambda: _knows(found, "SELECT 1 FROM access_source"), within_s=30, what="the gift is known")
        calls, right = found.warehouse.calls.copy(), await _state(found)
    found.pay_order()  # while all is down
    await found.database.stop()
    found.environ["CONSUMER_DATABASE_URL"] = url = await restore()
    found.database = Database(url)
    assert await _state(found) != right, "an older ledger"
    await found.type("db", "upgrade")
    async with _at_work(found, "after"):
        await found.shipped(within_s=60)
        await eventually(
            lambda: _knows(found, "SELECT 1 FROM access_source"), within_s=60, what="the gift is known again"
        )
        await found.settled(within_s=60)
        found.pay_order()  # a walk may have found what webhooks brought before: the next one says that they are heard
        await found.shipped(within_s=60)
        await found.settled(within_s=60)
        await found.healthy()
        await found.type("reconcile", "--dry-run")  # exit 0: nothing differs
        again = await _state(found)
        assert [one for one in right["orders"] if one not in again["orders"]] == []
        assert len(again["orders"]) == len(found.paid)
        assert (again["access"], again["gifts"]) == (right["access"], right["gifts"])
        found.assert_one_parcel_each()
        assert sum((found.warehouse.calls - calls).values()) > 1, (
            "what it had forgotten was called again, by the old key"
        )
    assert "ledger_restored" in (found.folder / "work-after.log").read_text()
    assert "ledger_restored" not in (found.folder / "work-before.log").read_text()


def _at_work(found: Deployment, when: str) -> Any:
    """All roles; webhooks arrive."""
    roles = [found.process(role, f"{role}-{when}") for role in ("serve", "work", "sync")]
    found.hear(at_work=True)
    return started(*roles)


async def _live(found: Deployment, when: str) -> None:
    """Orders are paid, somebody subscribes, and all of it is handled."""
    for _ in range(4):
        found.pay_order()
    found.subscribe()
    await found.shipped(within_s=60)
    await found.settled(within_s=60)


async def _say(found: Deployment, word: str, subject: str, *more: str) -> None:
    given = [part for one in more for part in ("--set", one)]
    await found.type("say", word, subject, *given, "--reason", "a gift", "--yes")


async def _knows(found: Deployment, statement: str) -> bool:
    return await found.one(statement) is not None


async def _state(found: Deployment) -> dict[str, list[tuple[Any, ...]]]:
    """What is believed, without the times at which it was learned."""
    async with found.database.reading() as session:
        return {name: sorted(map(tuple, await session.execute(text(how)))) for name, how in STATE.items()}
