"""A shop that sells already: what `deploy/walks.md` says of a first installation is typed. What the old system shipped,
the minute before the end of it included, is not shipped again; what is paid from then on is; access is right.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from consumer.sandbox import SandboxConfig
from tests.promises.deployment import Deployment, deployment, embedded, started
from tests.support.ports import eventually

ORDERS = 4


# case: B30, B19, U1
@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize("payload", ["snapshot", "thin"])
async def test_in_files(tmp_path: Path, payload: str) -> None:
    """Thin events name an order by the service's id alone: what was shipped before is known by that."""
    config = SandboxConfig(seed=1, assumptions={"event_payload": payload})
    async with deployment(tmp_path, **embedded(tmp_path), config=config) as found:
        for _ in range(ORDERS):
            found.pay_order()
        found.subscribe()
        async with started(found.process("serve"), found.process("work")):
            await found.type("reconcile")  # of the first night
            found.pay_order()
            await found.type("reconcile")  # and of the next
            shipped_before, found.paid = found.paid, []
            found.hear(at_work=True)
            ended_at = datetime.now(UTC).isoformat(timespec="milliseconds")  # as the service tells times
            found.pay_order()
            why = ("--reason", "the old system shipped it")
            await found.type("backfill", "--seed", "--full", "--until", ended_at, *why, "--yes")
            async with started(found.process("sync")):
                found.pay_order()
                await found.shipped(within_s=60)
                await eventually(lambda: _has_access(found), within_s=60, what="who subscribed before has access")
                await found.healthy()
                await found.type("reconcile", "--dry-run")  # exit 0: nothing differs
                await found.type("invariants")
        assert set(found.warehouse.calls) == set(found.paid)
        assert not set(found.warehouse.calls) & set(shipped_before)
        found.assert_one_parcel_each()


async def _has_access(found: Deployment) -> bool:
    return await found.count("access_entitlement WHERE allowed") == 1
