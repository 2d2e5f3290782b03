"""Play: every alert of a drill fires by its fault, is silent after its cure, and `status` is healthy again."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.drills.scene import Drill, Scene
from tests.drills.watcher import watching
from tests.promises.deployment import deployment, embedded, started
from tests.support.ports import eventually
from tests.support.process import command

ROLES = ("serve", "work", "sync", "console")
HEALTHY_WITHIN_S = 240.0
FIRES_WITHIN_S = 480.0


@dataclass(frozen=True)
class Played:
    """Seconds from the fault until all its alerts fired, and from the cure until none did and `status` was healthy."""

    drill: Drill
    fired_s: float
    healthy_s: float

    @property
    def row(self) -> str:
        """Its line of the table."""
        alerts = ", ".join(f"`{one.removeprefix('Consumer')}`" for one in sorted(self.drill.alerts))
        return f"| {self.drill.name} | {alerts} | {self.fired_s:.0f} | {self.healthy_s:.0f} |"


@asynccontextmanager
async def scene(folder: Path) -> AsyncIterator[Scene]:
    """All roles on the embedded log, watched by Prometheus, healthy, and no alert fires."""
    secret = folder / "secret"
    async with deployment(folder, **embedded(folder), CONSUMER_EXPECT=",".join(ROLES)) as found:
        del found.environ["SVC_APP_SECRET"]
        found.environ["SVC_APP_SECRET_FILE"] = str(secret)
        secret.write_text(found.sandbox.config.app_secret)
        with watching(folder) as watcher:
            here = Scene(found, watcher, {role: found.process(role) for role in ROLES})
            async with started(*here.processes.values()):
                try:
                    here.look()
                    here.hear(at_work=True)
                    here.pay()
                    await found.shipped(within_s=60)
                    await _quiet(here)
                    yield here
                finally:
                    await asyncio.gather(*(asyncio.to_thread(one.stop) for one in here.processes.values()))


async def play(drill: Drill, here: Scene) -> Played:
    """Raises AssertionError when an alert does not fire, another one stays, or `status` is not healthy in the end."""
    began = time.monotonic()
    await drill.strike(here)
    missing = set(drill.alerts)

    async def have_fired() -> bool:
        missing.difference_update(await here.watcher.firing())
        assert not missing, f"silent: {missing}"
        return True

    await eventually(have_fired, within_s=FIRES_WITHIN_S, every_s=0.5, what=f"the alerts of: {drill.name}")
    cured = time.monotonic()
    await drill.cure(here)
    await _quiet(here, drill.lingers)
    await here.found.shipped(within_s=60)
    return Played(drill, cured - began, time.monotonic() - cured)


async def _quiet(here: Scene, lingers: frozenset[str] = frozenset()) -> None:
    """Until nothing fires but what lingers, and `status` says healthy."""

    async def is_quiet() -> bool:
        firing = await here.watcher.firing() - lingers
        assert not firing, f"firing: {firing}"
        done = await asyncio.to_thread(command, "status", "--json", environ=here.found.environ, within_s=120)
        assert done.returncode == 0, json.loads(done.stdout)["findings"] if done.stdout else done.stderr
        return not await here.watcher.firing() - lingers

    await eventually(is_quiet, within_s=HEALTHY_WITHIN_S, every_s=1.0, what="no alert fires, and all is healthy")
