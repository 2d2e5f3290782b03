"""Scene: what a drill holds in its hands, and what a drill is."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tests.drills.watcher import Watcher
from tests.promises.deployment import Deployment
from tests.support.ports import free_port
from tests.support.process import ConsumerProcess, command


@dataclass
class Scene:
    """A whole deployment that is watched. `orders`, `lock`, `kept`, `noise`: what a strike leaves for its cure."""

    found: Deployment
    watcher: Watcher
    processes: dict[str, ConsumerProcess]
    orders: list[str] = field(default_factory=list)
    lock: sqlite3.Connection | None = None
    kept: dict[str, str] = field(default_factory=dict)
    noise: asyncio.Task[None] | None = None

    async def start(self, role: str) -> None:
        """Start the role anew, as its supervisor would, and have it watched."""
        self.processes[role] = self.found.process(role)
        self.processes[role].spawn()
        await self.processes[role].ready()
        self.look()

    async def restart(self, role: str, **settings: str) -> None:
        """Stop it and start it with more settings; `kept` has what was there before."""
        await asyncio.to_thread(self.processes[role].stop)
        self.kept |= {name: self.found.environ.get(name, "") for name in settings}
        self.found.environ |= settings
        await self.start(role)

    async def as_before(self, role: str) -> None:
        """Stop it and start it with the settings that were there before."""
        await asyncio.to_thread(self.processes[role].stop)
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

    async def type(self, *words: str) -> None:
        """A command of a runbook, as written there; AssertionError when it fails."""
        done = await asyncio.to_thread(command, *words, environ=self.found.environ)
        assert done.returncode == 0, f"consumer {' '.join(words)}: {done.stderr}"

    def hear(self, *, at_work: bool) -> None:
        """Webhooks go to `serve`, or where nobody listens."""
        port = self.found.environ["CONSUMER_PORT"] if at_work else free_port()
        self.found.sandbox.set_webhook_url(f"http://127.0.0.1:{port}/webhooks/default")


Act = Callable[[Scene], Awaitable[None]]


@dataclass(frozen=True)
class Drill:
    """`alerts`: all of them must fire. `strike` and `cure`: the fault, and what its runbook says. `lingers`: those that
    look back over hours, and fall silent long after the cure."""

    name: str
    alerts: frozenset[str]
    strike: Act
    cure: Act
    lingers: frozenset[str] = frozenset()


def drill(name: str, *alerts: str, strike: Act, cure: Act, lingers: tuple[str, ...] = ()) -> Drill:
    """A drill for these alerts, whose names begin with `Consumer`."""
    return Drill(name, _named(alerts), strike, cure, _named(lingers))


def _named(alerts: tuple[str, ...]) -> frozenset[str]:
    return frozenset(f"Consumer{one}" for one in alerts)
