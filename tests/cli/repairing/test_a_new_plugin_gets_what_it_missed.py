"""An order is paid, then a plugin is installed: `status`, `explain`, `handlers list` and `invariants` name the command
that lets it act on the order, at once, and the command can be typed."""

from __future__ import annotations

import asyncio
import re
import shlex
from pathlib import Path

import pytest

from consumer.events import Trust
from consumer.ledger import Database
from tests.support.desk import Desk
from tests.support.handling.live import Live
from tests.support.handling.projections import said
from tests.support.merchant.plugin import install_plugin

PLUGIN = """
from consumer.plugin import handles

@handles("fulfilment.requested", name="newcomer:ship")
async def ship(event, ctx):
    pass
"""


# case: R2, O5
async def test_the_command_is_named_at_once(
    sqlite_ledger: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live(sqlite_ledger, {"fulfilment": {"matching": "off"}, "access": {}}, application="default")
    try:
        await live.arrive(said("order.paid", "evt_1", trust=Trust.READ, order_id="A1"))
        await live.relay()
    finally:
        await live.close()
    desk = Desk({"CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/ledger.db"})

    async def named(*words: str) -> set[str]:
        told = (await asyncio.to_thread(desk.call, *words)).stdout
        return set(re.findall(r"consumer replay plan --handler newcomer:ship[^`\n,\]]*", told))

    looks = [("status",), ("explain", "order", "A1"), ("handlers", "list"), ("invariants",)]
    assert [await named(*words) for words in looks] == [set()] * 4, "nobody could take it"
    install_plugin(tmp_path, "newcomer", PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    for words in looks:
        found = await named(*words)
        assert len(found) == 1, words
        plan = await asyncio.to_thread(desk.ask, *shlex.split(found.pop())[1:])
        assert plan["runs"] == 1, words
        assert plan["effects"]["newcomer:ship"]["calls"] == 1, words
