"""Ledger and log are lost, both: what `deploy/backup.md` says then is typed. What was sold is archived without shipping
it again, access is right, and what is sold from then on is shipped.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from consumer.ledger import Database
from consumer.sandbox import SandboxConfig
from tests.promises.deployment import Deployment, deployment, embedded, started
from tests.support.ports import eventually

ORDERS = 4
ACCESS = "SELECT customer, entitlement, allowed FROM access_entitlement"


# case: G7, B30, B19, U1
@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize("payload", ["snapshot", "thin"])
async def test_in_files(tmp_path: Path, payload: str) -> None:
    places = embedded(tmp_path)
    config = SandboxConfig(seed=1, assumptions={"event_payload": payload})
    async with deployment(tmp_path, **places, config=config) as found:
        async with _at_work(found, "before"):
            for _ in range(ORDERS):
                found.pay_order()
            found.subscribe()
            await found.shipped(within_s=60)
            await found.settled(within_s=60)
            right, calls = await _access(found), found.warehouse.calls.copy()
            assert [allowed for _, _, allowed in right] == [1]
        await found.database.stop()
        _lose("consumer.db", tmp_path)
        _lose("log.db", tmp_path)
        found.database = Database(places["database_url"])
        await found.type("db", "upgrade")
        await found.type("backfill", "--seed", "--full", "--reason", "all was lost", "--yes")
        async with _at_work(found, "after"):
            await eventually(lambda: _is(found, right), within_s=60, what="access is as it was")
            found.pay_order()
            await found.shipped(within_s=60)
            await found.healthy()
            await found.type("reconcile", "--dry-run")  # exit 0: nothing differs
        assert found.warehouse.calls - calls == {found.paid[-1]: 1}, "what was sold before is not even asked for"
        found.assert_one_parcel_each()


@asynccontextmanager
async def _at_work(found: Deployment, when: str) -> AsyncIterator[None]:
    found.hear(at_work=True)
    async with started(*(found.process(role, f"{role}-{when}") for role in ("serve", "work", "sync"))):
        yield


def _lose(name: str, folder: Path) -> None:
    found = list(folder.glob(f"{name}*"))
    assert found
    for path in found:
        path.unlink()


async def _is(found: Deployment, right: list[tuple[Any, ...]]) -> bool:
    return await _access(found) == right


async def _access(found: Deployment) -> list[tuple[Any, ...]]:
    async with found.database.reading() as session:
        return sorted(map(tuple, await session.execute(text(ACCESS))))
