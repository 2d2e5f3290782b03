"""Storage: with --data the state survives a restart, and a crash leaves a whole one."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import aiohttp
import pytest

from consumer.sandbox import Sandbox, SandboxConfig, StorageBroken
from tests.sandbox.support import DAY_S, Api, Receiver, again, basic, create, subscribe, types


async def test_everything_survives_a_restart(tmp_path: Path, receiver: Receiver) -> None:
    config = SandboxConfig(driven=True, limits=False, data_dir=tmp_path, webhook_url="http://127.0.0.1:9/")
    async with Sandbox(config) as first:
        open_one = create(first.engine, order_id="open")
        first.engine.payments.pay(create(first.engine, order_id="paid"))
        subscription = subscribe(first.engine, customer_reference="c")
        secret = first.engine.applications.roll_secret(config.app_id, "24h")
        first.assumptions.set({"cursor_type": "string"})
        await first.settled()
        before, at = types(first.engine), first.clock.now()
    config = SandboxConfig(driven=True, limits=False, data_dir=tmp_path, webhook_url=receiver.url)
    async with Sandbox(config) as second, aiohttp.ClientSession() as http:
        api = Api(lambda: second.base_url, http)
        api.authorization = basic(secret=secret)
        assert types(second.engine) == before
        assert second.clock.now() == at
        assert second.assumptions.text("cursor_type") == "string"
        assert (await api.get("/v1/orders/lookup", order_id="paid")).json["status"] == "PAID"
        assert (await api.create(order_id="new"))["status"] == "OPEN"
        assert second.engine.sessions.by_token(open_one.token) is not None
        assert second.engine.session(open_one.id) == open_one
        await second.advance(30 * DAY_S)
        assert second.engine.session(open_one.id).status == "EXPIRED"
        assert again(second.engine, subscription).period_end > subscription.period_end
        assert "subscription.renewed" in receiver.types()


async def test_a_ticking_clock_keeps_its_offset(tmp_path: Path) -> None:
    async with Sandbox(SandboxConfig(data_dir=tmp_path)) as first:
        await first.advance(5 * DAY_S)
        at = first.clock.now()
    async with Sandbox(SandboxConfig(data_dir=tmp_path)) as second:
        assert second.clock.now() >= at


async def test_a_save_that_fails_is_made_up_for_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Sandbox(SandboxConfig(driven=True, data_dir=tmp_path)) as first:
        session = create(first.engine)
        blocker = sqlite3.connect(tmp_path / "sandbox.db", isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        assert first._storage is not None
        first._storage._db.execute("PRAGMA busy_timeout=10")
        with pytest.raises(StorageBroken):
            first.save()
        blocker.execute("ROLLBACK")
        blocker.close()
    async with Sandbox(SandboxConfig(driven=True, data_dir=tmp_path)) as second:
        assert second.engine.session(session.id).id == session.id


async def test_a_reset_clears_the_disk(tmp_path: Path) -> None:
    async with Sandbox(SandboxConfig(driven=True, data_dir=tmp_path)) as first:
        first.engine.payments.pay(create(first.engine))
        await first.reset()
        assert types(first.engine) == []
    async with Sandbox(SandboxConfig(driven=True, data_dir=tmp_path)) as second:
        assert types(second.engine) == []
        assert second.engine.application.id == "svc_app_sandbox"


async def test_a_file_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sandbox.db").write_bytes(b"not a database" * 100)
    with pytest.raises(StorageBroken):
        async with Sandbox(SandboxConfig(data_dir=tmp_path)):
            pass


async def test_another_format_is_refused(tmp_path: Path) -> None:
    async with Sandbox(SandboxConfig(data_dir=tmp_path)):
        pass
    with sqlite3.connect(tmp_path / "sandbox.db") as db:
        db.execute("UPDATE meta SET body = replace(body, '\"format\": 1', '\"format\": 99')")
    db.close()
    with pytest.raises(StorageBroken, match="99"):
        async with Sandbox(SandboxConfig(data_dir=tmp_path)):
            pass
