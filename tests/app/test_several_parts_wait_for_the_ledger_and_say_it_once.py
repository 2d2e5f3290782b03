"""A worker whose ledger is away begins none of its parts. Each tries again, and one line tells what all wait for."""

from __future__ import annotations

import asyncio
import io
import json
from collections import Counter
from pathlib import Path

import pytest

from consumer.app import App, root
from consumer.errors import LedgerUnavailable
from consumer.ledger import Database
from consumer.settings import Role, load_settings
from tests.support.ports import eventually

TRIES = 8
"""More than two of each part."""


# case: O2
async def test_it_is_said_once_and_its_end_too(
    tmp_path: Path, sqlite_ledger: Database, monkeypatch: pytest.MonkeyPatch, stream: io.StringIO
) -> None:
    tried, waiting, back = 0, set[str](), asyncio.Event()

    async def require(_: Database) -> None:
        nonlocal tried
        tried += 1
        task = asyncio.current_task()
        waiting.add(task.get_name() if task else "")
        if not back.is_set():
            raise LedgerUnavailable("nobody listens")

    async def has_waited() -> bool:
        return tried >= TRIES

    async def is_over() -> bool:
        return "ledger_not_ready_over" in stream.getvalue() and await app.ready()

    monkeypatch.setattr(root, "require_current", require)
    monkeypatch.setattr(root, "LOOK_AGAIN_S", 0.02)
    url = sqlite_ledger.engine.url.render_as_string(hide_password=False)
    environ = {"CONSUMER_DATABASE_URL": url, "CONSUMER_BROKER_URL": f"embedded:{tmp_path}/log.db"}
    stop = asyncio.Event()
    async with App(load_settings(environ, Role.WORK)) as app:
        await app.work()
        running = asyncio.create_task(app.run(stop))
        await eventually(has_waited, within_s=20)
        back.set()
        await eventually(is_over, within_s=20)
        stop.set()
        await running
    events = Counter(json.loads(line)["event"] for line in stream.getvalue().splitlines())
    assert len(waiting) > 1, "one part alone proves nothing"
    assert (events["ledger_not_ready"], events["ledger_not_ready_over"]) == (1, 1)


async def test_who_never_had_a_ledger_does_not_say_at_its_end_that_it_is_back(
    tmp_path: Path, stream: io.StringIO
) -> None:
    """A `serve` of a cluster has none."""
    environ = {"CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/none/consumer.db"}

    async def is_told() -> bool:
        return "heartbeat_not_stored" in stream.getvalue()

    stop = asyncio.Event()
    async with App(load_settings(environ, Role.CONSOLE)) as app:
        running = asyncio.create_task(app.run(stop))
        await eventually(is_told, within_s=20)
        stop.set()
        await running
    assert "heartbeat_not_stored_over" not in stream.getvalue()
