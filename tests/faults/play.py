"""Play: one fault on real processes, from the first moment of it to green again."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.rows import Fault, Stage
from tests.promises.deployment import deployment, embedded, started
from tests.support.ports import eventually
from tests.support.process import command

ROLES = ("serve", "work", "sync", "console")
NOT_GREEN_WITHIN_S = 60.0
GREEN_WITHIN_S = 180.0
SLACK = 3.0
"""A row is bounded for a machine that does other things, too; what it took is what the table says."""


@dataclass(frozen=True)
class Played:
    """What came of it: seconds until `status` was not green, until the true cause was named, until it was green again
    after the cure, and which code named it."""

    fault: str
    not_green_s: float
    named_s: float
    code: str
    green_s: float

    @property
    def row(self) -> str:
        """Its line of the table."""
        return f"| {self.fault} | {self.not_green_s:.0f} | {self.named_s:.0f} | `{self.code}` | {self.green_s:.0f} |"


async def play(fault: Fault, folder: Path) -> Played:
    """Raises AssertionError when it is not noticed, not named truly, or not green again."""
    secret = folder / "secret"
    async with deployment(folder, **embedded(folder), SVC_APP_SECRET="", CONSUMER_EXPECT=",".join(ROLES)) as found:
        del found.environ["SVC_APP_SECRET"]
        found.environ["SVC_APP_SECRET_FILE"] = str(secret)
        secret.write_text(found.sandbox.config.app_secret)
        stage = Stage(found, {role: found.process(role) for role in ROLES})
        async with started(*stage.processes.values()):
            try:
                return await _played(fault, stage)
            finally:
                for process in stage.processes.values():
                    process.resume()
                    process.stop()


async def _played(fault: Fault, stage: Stage) -> Played:
    environ = stage.found.environ

    async def status() -> dict[str, Any]:
        done = await asyncio.to_thread(command, "status", "--json", environ=environ, within_s=120)
        assert done.stdout, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    async def green() -> bool:
        found = await status()
        assert found["status"] == "healthy", found["findings"]
        return True

    await eventually(green, within_s=GREEN_WITHIN_S, every_s=1, what="healthy before anything happened")
    began = time.monotonic()
    await asyncio.to_thread(fault.strike, stage)
    noticed: list[float] = []

    async def named() -> str:
        found = await status()
        if found["status"] != "healthy" and not noticed:
            noticed.append(time.monotonic() - began)
        codes = [one["code"] for one in found["findings"]]
        assert fault.codes & set(codes), found["findings"]
        return next(str(code) for code in codes if code in fault.codes)

    code: str = await eventually(named, within_s=NOT_GREEN_WITHIN_S * SLACK, every_s=0.5, what=f"{fault.name} is named")
    named_s = time.monotonic() - began
    cured = time.monotonic()
    await asyncio.to_thread(fault.cure, stage)
    await eventually(green, within_s=GREEN_WITHIN_S, every_s=1, what=f"green after {fault.name}")
    return Played(fault.name, noticed[0], named_s, code, time.monotonic() - cured)
