"""Play: every alert of a drill fires by its fault, what its runbook says is typed as written, it is silent after that,
and `status` is healthy again."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.drills import runbook
from tests.drills.rules import SPEED, alerts
from tests.drills.scene import Drill, Scene
from tests.drills.watcher import watching
from tests.promises.deployment import READY_WITHIN_S, Places, deployment, embedded, started
from tests.support.kafka import KafkaServer
from tests.support.ports import eventually
from tests.support.process import command

NOTHING = "nothing is wrong"
ROLES = ("serve", "work", "sync", "console")
HEALTHY_WITHIN_S = 240.0
SILENT_FOR_S = 120.0
ORDERS_PER_S, SUBSCRIBE_EVERY_S = 1.0, 10.0
LOOKING_EXITS = (0, 1, 3)
"""Who looks may be told that something is wrong; never that it was typed wrongly: 2, which for `status` is: stuck."""
STATUS_EXITS = (0, 1, 2, 3)


@dataclass(frozen=True)
class Played:
    """Seconds from the fault until all its alerts fired, and from the cure until none did and `status` was healthy."""

    drill: Drill
    fired_s: float
    healthy_s: float

    @property
    def row(self) -> str:
        """Its line of the table."""
        names = ", ".join(f"`{one.removeprefix('Consumer')}`" for one in sorted(self.drill.alerts))
        return f"| {self.drill.name} | {names} | {self.fired_s:.0f} | {self.healthy_s:.0f} |"


@asynccontextmanager
async def scene(
    folder: Path, settings: Mapping[str, str] | None = None, speed: int = SPEED, *, places: Places | None = None
) -> AsyncIterator[Scene]:
    """All roles, watched by Prometheus, healthy, and no alert fires. `speed`: see `rules`. `places`: of log and ledger,
    else files."""
    secret = folder / "secret"
    async with deployment(folder, **(places or embedded(folder)), CONSUMER_EXPECT=",".join(ROLES)) as found:
        del found.environ["SVC_APP_SECRET"]
        found.environ["SVC_APP_SECRET_FILE"] = str(secret)
        found.environ |= settings or {}
        secret.write_text(found.sandbox.config.app_secret)
        with watching(folder, speed) as watcher:
            here = Scene(found, watcher, {role: found.process(role) for role in ROLES})
            async with started(*here.processes.values()):
                try:
                    here.look()
                    found.hear(at_work=True)
                    here.pay()
                    await found.shipped(within_s=READY_WITHIN_S)
                    await _quiet(here)
                    yield here
                finally:
                    await here.be_quiet()
                    await asyncio.gather(*(asyncio.to_thread(one.stop) for one in here.processes.values()))


@contextmanager
def places(drill: Drill, folder: Path) -> Iterator[Places]:
    """Where log and ledger of the drill lie. Raises KafkaMissing."""
    if not drill.on_kafka:
        yield embedded(folder)
        return
    server = KafkaServer(folder / "kafka")
    try:
        server.start()
        yield {**embedded(folder), "broker_url": server.url}
    finally:
        server.stop()


async def play(drill: Drill, here: Scene) -> Played:
    """Raises AssertionError when an alert does not fire, a command of its runbook does not do as written, another alert
    stays, or `status` is not healthy in the end."""
    began = time.monotonic()
    await drill.strike(here)
    assert here.names.keys() == drill.names
    missing = set(drill.alerts)

    async def have_fired() -> bool:
        missing.difference_update(await here.watcher.firing())
        assert not missing, f"silent: {missing}"
        return True

    await eventually(have_fired, within_s=drill.fires_within_s, every_s=0.5, what=f"the alerts of: {drill.name}")
    fired_s = time.monotonic() - began
    books = runbook.runbooks(drill.alerts)
    for path in books:
        for words in _commands(runbook.diagnosis(path), here):
            await here.type(*words, exits=STATUS_EXITS if words[0] == "status" else LOOKING_EXITS)
    cured = time.monotonic()
    await drill.cure(here)
    for path in books:
        for words in _commands(runbook.cure(path), here):
            await here.type(*words)
    await _quiet(here, drill.lingers)
    await here.found.shipped(within_s=60)
    return Played(drill, fired_s, time.monotonic() - cured)


async def stay_silent(here: Scene, for_s: float = SILENT_FOR_S) -> str:
    """Nothing is wrong: customers buy and subscribe, and somebody asks how things stand. Every alert is evaluated, and
    none fires at any moment. Its line of the table; raises AssertionError when it is otherwise."""
    began = datetime.now(UTC)
    async with here.found.busy(orders_per_s=ORDERS_PER_S, subscribe_every_s=SUBSCRIBE_EVERY_S):
        while (datetime.now(UTC) - began).total_seconds() < for_s:
            await here.type("status")
    await here.found.shipped(within_s=60)
    fired = await here.watcher.fired_since(began)
    assert not fired, f"fired although nothing is wrong: {fired}"
    evaluated = await here.watcher.evaluated_since(began)
    assert evaluated == alerts().keys(), f"not evaluated: {alerts().keys() - evaluated}"
    here.found.assert_one_parcel_each()
    bought = f"{len(here.found.paid)} orders, {len(here.found.subscribed)} subscriptions"
    return f"| {NOTHING} for {for_s:.0f} s, {bought} | none of {len(evaluated)} | | |"


def _commands(lines: Sequence[str], here: Scene) -> list[Sequence[str]]:
    """Those of the lines that are for this fault."""
    typed = [runbook.words(line, here.names) for line in lines]
    return [words for words in typed if words is not None]


async def _quiet(here: Scene, lingers: frozenset[str] = frozenset()) -> None:
    """Until nothing fires but what lingers, and `status` says healthy."""

    async def is_quiet() -> bool:
        firing = await here.watcher.firing() - lingers
        assert not firing, f"firing: {firing}"
        done = await asyncio.to_thread(command, "status", "--json", environ=here.found.environ, within_s=120)
        assert done.returncode == 0, json.loads(done.stdout)["findings"] if done.stdout else done.stderr
        return not await here.watcher.firing() - lingers

    await eventually(is_quiet, within_s=HEALTHY_WITHIN_S, every_s=1.0, what="no alert fires, and all is healthy")
