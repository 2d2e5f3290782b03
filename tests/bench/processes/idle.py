"""A role that has nothing to do: how soon it is ready (the median of STARTS), what it takes of a core in a minute, and
its memory. All roles of a stack stand side by side, in processes of their own, and are started one after the other."""

from __future__ import annotations

import asyncio
import os
import sys
import time
import uuid
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median

from consumer.sandbox import Sandbox, SandboxConfig
from tests.bench.processes.stacks import both, upgraded
from tests.bench.ratio import Bound, Measured, processor_s
from tests.support.load import SECRET
from tests.support.process import ConsumerProcess, ended

ROLES = ("serve", "work", "sync", "console")
CPU_PERCENT, MEMORY_MIB, READY_S = 1.0, 80.0, 0.8
SETTLES_S, LASTS_S = 10.0, 60.0
STARTS, WITHIN_S = 5, 60.0
APPLICATION = {"SVC_APP_ID": "svc_app_sandbox", "SVC_APP_SECRET": "svc_sk_live_sandbox"}


def measure(folder: Path, postgres: str, kafka: str) -> list[Measured]:
    """Both stacks, one after the other."""
    found: list[Measured] = []
    for name, place, urls in both(folder, postgres, kafka):
        found += asyncio.run(_stack(place, urls, name))
    return found


async def _stack(folder: Path, urls: Mapping[str, str], name: str) -> list[Measured]:
    environ = {
        **urls,
        **APPLICATION,
        "CONSUMER_TOPIC_PREFIX": f"idle-{uuid.uuid4().hex[:8]}",
        "CONSUMER_AUTHENTICITY": "signature",
        "CONSUMER_WEBHOOK_SECRETS": SECRET,
    }
    await upgraded(environ)
    async with Sandbox(SandboxConfig()) as sandbox, AsyncExitStack() as stack:
        environ["SVC_BASE_URL"] = sandbox.base_url
        first_s = await _first_group_s(environ, folder)
        found: list[Measured] = [Bound(f"ready, {name}: work, the first group of all", first_s, READY_S, "s")]
        roles, ready_s = {}, {}
        for role in ROLES:
            earlier_s = [await _started_s(role, environ, folder) for _ in range(STARTS - 1)]
            roles[role] = ConsumerProcess(role, environ, folder)
            stack.enter_context(ended(roles[role]))
            ready_s[role] = median([*earlier_s, await _ready_s(roles[role])])
            sys.stdout.write(f"{name}: {role} took {processor_s(roles[role].pid):.2f} s of CPU until it was ready\n")
        await asyncio.sleep(SETTLES_S)
        before = {role: processor_s(process.pid) for role, process in roles.items()}
        await asyncio.sleep(LASTS_S)
        for role, process in roles.items():
            percent = (processor_s(process.pid) - before[role]) / LASTS_S * 100
            found += _bounds(f"{name}: {role}", ready_s[role], percent, memory_mib(process.pid))
        return found


async def _first_group_s(environ: Mapping[str, str], folder: Path) -> float:
    """A Kafka that has had no group yet makes its own topic for them first: it is told by itself."""
    return await _started_s("work", {**environ, "CONSUMER_TOPIC_PREFIX": f"first-{uuid.uuid4().hex[:8]}"}, folder)


async def _started_s(role: str, environ: Mapping[str, str], folder: Path) -> float:
    """How soon one is ready that is stopped then."""
    process = ConsumerProcess(role, environ, folder, f"{role}-earlier")
    with ended(process):
        return await _ready_s(process)


async def _ready_s(process: ConsumerProcess) -> float:
    """From the start of the process until `/readyz` says 200."""
    began_s = time.perf_counter()
    process.spawn()
    await process.ready(WITHIN_S, every_s=0.01)
    return time.perf_counter() - began_s


def memory_mib(pid: int) -> float:
    """What of its memory is resident."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def _bounds(who: str, ready_s: float, percent: float, mib: float) -> list[Measured]:
    return [
        Bound(f"ready, {who}", ready_s, READY_S, "s"),
        Bound(f"idle, {who}, of a core", percent, CPU_PERCENT, "%"),
        Bound(f"idle, {who}, memory", mib, MEMORY_MIB, "MiB"),
    ]
