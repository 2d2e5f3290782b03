"""The role `console`, as it is started: its page says how things stand as `consumer status` does, and keeps it from
nothing else."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import encode_basic_auth
from argon2 import PasswordHasher

from consumer.cli.looking.background_status import background_status
from consumer.cli.looking.status import Look
from consumer.settings import settings_to_look
from tests.support.desk import Desk
from tests.support.postgres import copy_database
from tests.support.process import ConsumerProcess

QUICK = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
ADA = {"Authorization": encode_basic_auth("ada", "correct horse")}
SERVERS = pytest.param("servers", marks=[pytest.mark.postgres, pytest.mark.kafka, pytest.mark.slow])


@pytest.fixture(params=["files", SERVERS])
def environ(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """A ledger and a log, of files or of servers; nobody works."""
    (tmp_path / "users").write_text(f"ada viewer {QUICK.hash('correct horse')}\n")
    found = {"CONSUMER_CONSOLE_USERS": str(tmp_path / "users"), "CONSUMER_EXPECT": "work"}
    if request.param == "servers":
        base, template = request.getfixturevalue("postgres_base"), request.getfixturevalue("postgres_template")
        broker = request.getfixturevalue("kafka_broker").url
        return found | {"CONSUMER_DATABASE_URL": copy_database(base, template), "CONSUMER_BROKER_URL": broker}
    shutil.copy(request.getfixturevalue("sqlite_template"), tmp_path / "ledger.db")
    files = {"DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/ledger.db", "BROKER_URL": f"embedded:{tmp_path}/log.db"}
    return found | {f"CONSUMER_{name}": value for name, value in files.items()}


async def test_its_page_is_the_command(tmp_path: Path, environ: dict[str, str]) -> None:
    console = ConsumerProcess("console", environ, tmp_path)
    console.spawn()
    try:
        await console.ready()
        async with aiohttp.ClientSession(headers=ADA) as http:
            async with http.get(console.addresses["internal_url"] + "/console/") as response:
                assert response.status == 200
                seen = await response.text()
            async with http.get(console.addresses["internal_url"] + "/healthz") as response:
                assert response.status == 200
        status = await asyncio.to_thread(Desk(environ).call, "status", "--json")
    finally:
        ended = console.stop()
    assert ended == 0
    told = json.loads(status.stdout)
    assert f'<h1 class="grade {told["status"]}">' in seen
    codes = re.findall(r"<strong>(?:stuck|degraded|unknown)</strong> (?:<a [^>]+>)?<code>(\w+)</code>", seen)
    assert codes == [one["code"] for one in told["findings"]]
    assert "no_work" in codes
    assert '"level":"error"' not in console.log


@pytest.mark.parametrize("environ", ["files"], indirect=True)
def test_users_that_are_none_end_it_with_every_problem(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / "users").write_text("ada operator\nbob boss $argon2id$x\n")
    called = Desk(environ).call("console")
    assert called.returncode == 2
    assert "line 1: is not `name role argon2-hash`" in called.stderr
    assert "line 2: the role is none of viewer, operator" in called.stderr
    assert "$argon2" not in called.stderr


def test_a_look_that_outlives_its_role_is_silent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    begun, may_end, raised = threading.Event(), threading.Event(), list[object]()

    def run(look: Coroutine[Any, Any, Look]) -> Look:
        look.close()
        begun.set()
        may_end.wait(20)
        return Look()

    async def role() -> threading.Thread:
        asking = asyncio.ensure_future(background_status(settings)())
        assert await asyncio.to_thread(begun.wait, 20)
        asking.cancel()
        return next(one for one in threading.enumerate() if one.name == "status")

    monkeypatch.setattr("consumer.cli.looking.background_status.run", run)
    monkeypatch.setattr(threading, "excepthook", raised.append)
    settings, _ = settings_to_look({"CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/none.db"})
    thread = asyncio.run(role())
    may_end.set()
    thread.join(20)
    assert not thread.is_alive()
    assert raised == []
