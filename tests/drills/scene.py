"""Scene: what a drill holds in its hands, and what a drill is."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from tests.drills.watcher import Watcher
from tests.promises.deployment import READY_WITHIN_S, Deployment
from tests.support.ports import eventually
from tests.support.process import ConsumerProcess, command

REASON = "TEXT"
FIRES_WITHIN_S = 240.0


@dataclass
class Scene:
    """A whole deployment that is watched. `names`: what stands for the capitals of a runbook. `lock`, `kept`, `noise`:
    what a strike leaves for its cure."""

    found: Deployment
    watcher: Watcher
    processes: dict[str, ConsumerProcess]
    names: dict[str, str] = field(default_factory=lambda: {REASON: "a drill"})
    lock: sqlite3.Connection | None = None
    kept: dict[str, str] = field(default_factory=dict)
    noise: asyncio.Task[None] | None = None

    async def start(self, role: str) -> None:
        """Start the role anew, as its supervisor would, and wait until it is watched."""
        await self.join(role, self.found.process(role))

    async def join(self, name: str, process: ConsumerProcess) -> None:
        """Start the process, and wait until it is watched."""
        self.processes[name] = process
        process.spawn()
        await process.ready(READY_WITHIN_S)
        self.look()

        async def is_seen() -> bool:
            return await self.watcher.sees(process.addresses["internal_url"])

        await eventually(is_seen, within_s=60, every_s=0.2, what=f"Prometheus sees the new {name}")

    async def stop(self, role: str) -> None:
        """Have it end, as its supervisor would."""
        await asyncio.to_thread(self.processes[role].stop)

    async def restart(self, role: str, **settings: str) -> None:
        """Stop it and start it with more settings; `kept` has what was there before."""
        await self.stop(role)
        self.kept |= {name: self.found.environ.get(name, "") for name in settings}
        self.found.environ |= settings
        await self.start(role)

    async def as_before(self, role: str) -> None:
        """Stop it and start it with the settings that were there before."""
        await self.stop(role)
        for name, value in self.kept.items():
            if value:
                self.found.environ[name] = value
            else:
                del self.found.environ[name]
        self.kept.clear()
        await self.start(role)

    def look(self) -> None:
        """Have Prometheus ask the processes where they are now."""
        self.watcher.watch([one.addresses["internal_url"] for one in self.processes.values() if one.addresses])

    def pay(self, count: int = 1) -> None:
        """Orders are paid; their webhooks are on their way."""
        for _ in range(count):
            self.found.pay_order()

    async def type(self, *words: str, exits: Collection[int] = (0,)) -> str:
        """An operator types a command on a terminal, and says yes when asked; what it printed. AssertionError when it
        ends otherwise than with these codes, or with a traceback."""
        done = await asyncio.to_thread(command, *words, environ=self.found.environ, within_s=180, on_terminal="y\n")
        said = f"consumer {' '.join(words)}: {done.returncode}: {done.stdout[-300:]}{done.stderr[-300:]}"
        assert done.returncode in exits, said
        assert "Traceback" not in done.stderr, said
        return done.stdout

    async def be_quiet(self) -> None:
        """Whatever a strike left to make noise ends."""
        if self.noise is not None:
            self.noise.cancel()
            await asyncio.gather(self.noise, return_exceptions=True)
            self.noise = None

    def topic(self, name: str) -> str:
        """What the topic of this deployment is called: `events`, `events.dead`, `deliveries`."""
        return f"{self.found.environ['CONSUMER_TOPIC_PREFIX']}.{name}"

    @property
    def ledger(self) -> Path:
        """The ledger's file."""
        return self.found.folder / "consumer.db"

    def in_ledger(self, statement: str, *values: object) -> list[tuple[object, ...]]:
        """A statement of somebody who has the file in hand; its rows."""
        with closing(sqlite3.connect(self.ledger, timeout=20)) as ledger, ledger:
            return ledger.execute(statement, values).fetchall()


Act = Callable[[Scene], Awaitable[None]]


@dataclass(frozen=True)
class Drill:
    """`alerts`: all of them must fire. `strike`: the fault; `cure`: what mends its cause, beside the commands of the
    runbook. `names`: the words in capitals that its strike gives a meaning. `lingers`: those that look back over hours,
    and fall silent long after the cure. `settings`: of the deployment, where its defaults do not do. `on_kafka`: its
    log is a real Kafka."""

    name: str
    alerts: frozenset[str]
    strike: Act
    cure: Act
    names: frozenset[str] = frozenset()
    lingers: frozenset[str] = frozenset()
    settings: Mapping[str, str] = field(default_factory=dict)
    fires_within_s: float = FIRES_WITHIN_S
    on_kafka: bool = False


def drill(
    name: str,
    *alerts: str,
    strike: Act,
    cure: Act,
    names: tuple[str, ...] = (),
    lingers: tuple[str, ...] = (),
    settings: Mapping[str, str] | None = None,
    fires_within_s: float = FIRES_WITHIN_S,
    on_kafka: bool = False,
) -> Drill:
    """A drill for these alerts, whose names begin with `Consumer`."""
    known = frozenset((*names, REASON))
    return Drill(name, _named(alerts), strike, cure, known, _named(lingers), settings or {}, fires_within_s, on_kafka)


async def nothing(_: Scene) -> None:
    """A cure that is all in the runbook's commands."""


def _named(alerts: tuple[str, ...]) -> frozenset[str]:
    return frozenset(f"Consumer{one}" for one in alerts)
