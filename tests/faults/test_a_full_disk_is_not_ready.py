"""Whose ledger or log has no room left is not ready, by HTTP, and ready again when there is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from consumer.sandbox import DEFAULT_WEBHOOK_SECRET
from tests.faults.play import GREEN_WITHIN_S, green, on_files, on_postgres, status_of
from tests.faults.rows.every import EMBEDDED, SERVERS
from tests.faults.scene import WITHIN_S, Fault, Scene
from tests.support.ports import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]
FULL = {one.name: one for one in (*EMBEDDED, *SERVERS) if "on a full disk" in one.what}
LEDGER_OF, LOG_OF = ("work", "sync"), ("serve", "work")


# case: O8
async def test_the_ledger_that_is_a_file_and_the_log(tmp_path: Path) -> None:
    async with on_files(tmp_path) as scene:
        await _refuses(scene, FULL["ledger on a full disk"], LEDGER_OF)
        await _refuses(scene, FULL["log on a full disk"], LOG_OF, past={"webhooks_refused"})


# case: O8
@pytest.mark.postgres
@pytest.mark.parametrize(
    ("role", "settings"),
    [
        ("sync", {"CONSUMER_AUTHENTICITY": "api"}),
        ("work", {"CONSUMER_AUTHENTICITY": "signature", "CONSUMER_WEBHOOK_SECRETS": DEFAULT_WEBHOOK_SECRET}),
    ],
    ids=["sync", "work"],
)
async def test_the_ledger_on_postgresql(role: str, settings: dict[str, str], tmp_path: Path) -> None:
    """Who has to write what webhooks bring. Who has not changes rows that have their room."""
    async with on_postgres(tmp_path, settings) as scene:
        await _refuses(scene, FULL["PostgreSQL on a full disk (53100)"], [role])


async def _refuses(scene: Scene, fault: Fault, roles: Sequence[str], past: Set[str] = frozenset()) -> None:
    """`past`: what `status` says for two minutes of what was; that it becomes green then, too, is `make faults`."""
    await fault.strike(scene)
    async with aiohttp.ClientSession() as http:

        async def asked(role: str) -> tuple[int, Mapping[str, str]]:
            async with http.get(f"{scene.processes[role].addresses['internal_url']}/readyz") as answer:
                said: dict[str, Any] = await answer.json()
                return answer.status, said.get("problems", {})

        async def names_it() -> bool:
            found = [await asked(role) for role in roles]
            assert all(status == 503 and fault.codes & set(said.values()) for status, said in found), found
            return True

        async def is_ready() -> bool:
            return [await asked(role) for role in roles] == [(200, {})] * len(roles)

        await eventually(names_it, within_s=WITHIN_S, every_s=0.5, what=f"{fault.name}: 503, and why")
        await fault.cure(scene)
        await eventually(is_ready, within_s=WITHIN_S, every_s=0.5, what=f"{fault.name}: ready again")
    await (_only(scene, past) if past else green(scene))
    await scene.found.shipped(within_s=fault.shipped_s)


async def _only(scene: Scene, past: Set[str]) -> None:
    """Wait until nothing else is told, while a customer buys."""
    scene.pay()

    async def is_past() -> bool:
        found = (await status_of(scene))["findings"]
        assert {one["code"] for one in found} <= past, found
        return True

    await eventually(is_past, within_s=GREEN_WITHIN_S, every_s=0.5, what="nothing else is told")
