"""`serve --processes N`: several processes answer at one public port, and live and die together."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from consumer.broker import EmbeddedBroker
from tests.support.load import SECRET, paid_orders, send
from tests.support.ports import eventually
from tests.support.process import ConsumerProcess, command, ended

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

WEBHOOKS = 200


class Several(ConsumerProcess):
    """Two of them."""

    def __init__(self, folder: Path) -> None:
        self.environ = {
            "CONSUMER_BROKER_URL": f"embedded:{folder}/log.db",
            "CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{folder}/ledger.db",
            "CONSUMER_AUTHENTICITY": "signature",
            "CONSUMER_WEBHOOK_SECRETS": SECRET,
            "CONSUMER_LINGER_S": "0",
            "CONSUMER_DRAIN_S": "1",
        }
        super().__init__("serve", self.environ, folder, arguments=["--processes", "2"])
        self._told = folder / "serve.json"

    def is_announced(self) -> bool:
        """Whether they listen."""
        return self._announced()

    @property
    def document(self) -> dict[str, Any]:
        """Where they listen."""
        found: dict[str, Any] = json.loads(self._told.read_text())
        return found

    def children(self) -> list[int]:
        """Those that it started and that live."""
        told = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return [int(pid) for pid in told.split()]


@pytest.fixture
async def several(tmp_path: Path) -> AsyncIterator[Several]:
    serve = Several(tmp_path)
    with ended(serve):
        serve.spawn()
        await eventually(serve.is_announced, within_s=60)
        async with aiohttp.ClientSession() as http:
            for url in serve.document["internal_urls"]:
                await eventually(partial(is_ready, http, url), within_s=30)
        yield serve


def lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def is_ready(http: aiohttp.ClientSession, url: str) -> bool:
    async with http.get(url + "/readyz") as answer:
        return answer.status == 200


async def taken(http: aiohttp.ClientSession, url: str) -> int:
    async with http.get(url + "/metrics") as answer:
        lines = (await answer.text()).splitlines()
    name = 'consumer_receive_requests_total{application="default",outcome="accepted"}'
    return sum(int(float(line.rpartition(" ")[2])) for line in lines if line.startswith(name))


async def test_each_takes_a_part_and_all_of_it_is_durable(several: Several, tmp_path: Path) -> None:
    found = several.document
    report = await send(found["public_url"] + "/webhooks/default", paid_orders(WEBHOOKS, 0), parallel=40)
    assert report.statuses == {200: WEBHOOKS}
    async with aiohttp.ClientSession() as http:
        parts = [await taken(http, url) for url in found["internal_urls"]]
    assert (sum(parts), min(parts) > 0) == (WEBHOOKS, True), parts
    left = several.children()
    assert several.stop() == 0
    assert not any(lives(pid) for pid in left)
    broker = EmbeddedBroker(tmp_path / "log.db")
    [report_of_log] = await broker.look_at_groups({"payments.work": "payments.events"})
    assert report_of_log.records == WEBHOOKS


async def test_one_that_dies_ends_the_others(several: Several) -> None:
    killed, _ = several.children()
    os.kill(killed, signal.SIGKILL)
    assert several.wait(60) == 1
    assert "error[process_ended]: " in several.log
    assert f"pid={killed}, exit_code=-9" in several.log


async def test_one_that_hangs_ends_the_others(several: Several) -> None:
    hangs, _ = several.children()
    os.kill(hangs, signal.SIGSTOP)
    try:
        assert several.wait(110) == 1
    finally:
        with suppress(ProcessLookupError):
            os.kill(hangs, signal.SIGKILL)
    assert f"pid={hangs}, reason=it answers nothing for 20 s" in several.log


async def test_none_is_left_of_one_that_is_killed(several: Several) -> None:
    left = several.children()
    several.kill()
    await eventually(lambda: not any(lives(pid) for pid in left), within_s=30)


@pytest.mark.parametrize(("port", "internal_port"), [(8080, 65_535), (9091, 9090)])
def test_ports_that_not_all_can_have_are_told_before_one_starts(tmp_path: Path, port: int, internal_port: int) -> None:
    environ = {"CONSUMER_PORT": str(port), "CONSUMER_INTERNAL_PORT": str(internal_port)}
    done = command("serve", "--processes", "2", environ=Several(tmp_path).environ | environ)
    assert done.returncode == 2
    assert done.stderr.startswith("error[settings_invalid]: CONSUMER_INTERNAL_PORT: "), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


def test_a_host_that_nobody_knows_is_told_as_one_process_tells_it(tmp_path: Path) -> None:
    """It was the database that does not answer."""
    environ = Several(tmp_path).environ | {"CONSUMER_HOST": "[::1]", "CONSUMER_INTERNAL_PORT": "0"}
    done = command("serve", "--processes", "2", environ=environ)
    assert done.returncode == 1
    assert done.stderr.startswith("error[port_taken]: "), done.stderr
    assert "host=[::1]" in done.stderr


def test_nobody_shares_the_port_unasked(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        environ = {"CONSUMER_PORT": str(other.getsockname()[1]), "CONSUMER_INTERNAL_PORT": "0"}
        done = command("serve", "--processes", "2", environ=Several(tmp_path).environ | environ)
    assert done.returncode == 1
    assert done.stderr.startswith("error[port_taken]: ")
