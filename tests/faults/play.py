"""Play: one fault on real processes, from the first moment of it to green again."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.faults.cluster import cluster
from tests.faults.scene import ROLES, WITHIN_S, Fault, Scene, small_disk
from tests.faults.server import postgres
from tests.promises.deployment import Places, deployment
from tests.support.ports import eventually
from tests.support.process import command
from tests.support.proxy import TcpProxy

GREEN_WITHIN_S = 180.0
READY_WITHIN_S = 180.0
PAID_EVERY_S = 5.0
STDERR_CHARS = 1000
SLACK = 2.0
"""Green has its bar on any machine. Until the cause is named, one that does other things may take longer; what it took
is what the table says."""


@dataclass(frozen=True)
class Played:
    """What came of it: seconds until `status` was not green, until the true cause was named, until it was green again
    after the cure, and which code named it, with what it said where that code has several causes."""

    scene: str
    fault: str
    not_green_s: float
    named_s: float
    code: str
    green_s: float
    said: str = ""


@asynccontextmanager
async def on_files(folder: Path) -> AsyncIterator[Scene]:
    """All roles on a log and a ledger that are files, each on a small disk of its own, and all is green."""
    with small_disk(folder / "log"), small_disk(folder / "ledger"):
        places: Places = {
            "broker_url": f"embedded:{folder}/log/log.db",
            "database_url": f"sqlite+aiosqlite:///{folder}/ledger/consumer.db",
        }
        async with _deployed(folder, places) as scene:
            yield scene


@asynccontextmanager
async def on_postgres(folder: Path, more: Mapping[str, str]) -> AsyncIterator[Scene]:
    """The same with the ledger on PostgreSQL, whose disk is small, and with more settings."""
    with small_disk(folder / "log"), small_disk(folder / "postgres"):
        async with postgres(folder / "postgres") as server:
            places: Places = {"broker_url": f"embedded:{folder}/log/log.db", "database_url": server.url}
            async with _deployed(folder, places, more) as scene:
                scene.postgres = server
                yield scene


@asynccontextmanager
async def on_servers(folder: Path) -> AsyncIterator[Scene]:
    """All roles on Kafka and PostgreSQL, each on a small disk of its own, and all is green."""
    async with AsyncExitStack() as stack:
        for disk in ("kafka", "other-disk"):
            stack.enter_context(small_disk(folder / disk))
        stack.enter_context(small_disk(folder / "postgres"))
        kafka = await stack.enter_async_context(cluster(folder / "kafka", folder / "other-disk"))
        server = await stack.enter_async_context(postgres(folder / "postgres"))
        places: Places = {"broker_url": f"kafka://127.0.0.1:{kafka.proxy.port}", "database_url": server.url}
        scene = await stack.enter_async_context(_deployed(folder, places, kafka.environ()))
        scene.kafka, scene.postgres = kafka, server
        yield scene


@asynccontextmanager
async def _deployed(folder: Path, places: Places, more: Mapping[str, str] | None = None) -> AsyncIterator[Scene]:
    async with (
        deployment(folder, **places, CONSUMER_EXPECT=",".join(ROLES)) as found,
        TcpProxy(urlsplit(found.sandbox.base_url).port or 0) as way,
    ):
        scene = Scene(found, {role: found.process(role) for role in ROLES}, way)
        del found.environ["SVC_APP_SECRET"]
        found.environ |= more or {}
        found.environ["SVC_BASE_URL"] = f"http://127.0.0.1:{way.port}"
        found.environ["SVC_APP_SECRET_FILE"] = str(scene.secret)
        scene.secret.write_text(found.sandbox.config.app_secret)
        await scene.start()
        try:
            for process in scene.processes.values():
                await process.ready(within_s=READY_WITHIN_S)
            scene.found.hear(at_work=True)
            scene.pay()
            await found.shipped(within_s=90)
            await green(scene)
            yield scene
        finally:
            for process in scene.processes.values():
                process.resume()
            await scene.stop()


async def play(fault: Fault, scene: Scene) -> Played:
    """Raises AssertionError when it is not noticed, not named truly, or not green again."""
    began = time.monotonic()
    await fault.strike(scene)
    noticed: list[float] = []

    async def named() -> str:
        found = await status_of(scene)
        if found["status"] != "healthy" and not noticed:
            noticed.append(time.monotonic() - began)
        true = [one for one in found["findings"] if one["code"] in fault.codes and fault.says in one["text"]]
        assert true, found["findings"]
        return str(true[0]["code"])

    code = await eventually(named, within_s=WITHIN_S * SLACK, every_s=1, what=f"{fault.name} is named")
    named_s = time.monotonic() - began
    assert noticed[0] <= WITHIN_S, f"{fault.name}: green for {noticed[0]:.0f} s"
    cured = time.monotonic()
    await fault.cure(scene)
    await green(scene)
    green_s = time.monotonic() - cured
    await scene.found.shipped(within_s=fault.shipped_s)
    return Played(scene.name, fault.name, noticed[0], named_s, code, green_s, fault.says)


async def green(scene: Scene) -> None:
    """Wait until `status` says healthy, while customers go on buying."""
    last = 0.0

    async def is_green() -> bool:
        nonlocal last
        if time.monotonic() - last >= PAID_EVERY_S:
            last = time.monotonic()
            scene.pay()
        found = await status_of(scene)
        assert found["status"] == "healthy", found["findings"]
        return True

    await eventually(is_green, within_s=GREEN_WITHIN_S, every_s=1, what="healthy")


async def status_of(scene: Scene) -> dict[str, Any]:
    """What `consumer status --json` prints."""
    done = await asyncio.to_thread(command, "status", "--json", environ=scene.found.environ, within_s=120)
    assert done.stdout, done.stderr[-STDERR_CHARS:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found
