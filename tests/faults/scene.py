"""Scene: what a fault may touch, and what a fault is."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.cluster import Cluster
from tests.faults.server import PostgresServer
from tests.promises.deployment import Deployment
from tests.support.process import ConsumerProcess
from tests.support.proxy import TcpProxy

ROLES = ("serve", "work", "sync", "console")
ROOM_MIB = 400
WITHIN_S = 60.0
SHIPPED_S = 90.0
FULL_PIECE = 1 << 20


@dataclass
class Scene:
    """A whole deployment: its processes by role, its API behind `way`, and, where log and ledger are servers, these.
    `kept`: what a strike leaves for its cure."""

    found: Deployment
    processes: dict[str, ConsumerProcess]
    way: TcpProxy
    kafka: Cluster | None = None
    postgres: PostgresServer | None = None
    kept: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What the table calls it."""
        return "embedded" if self.kafka is None else "Kafka, PostgreSQL"

    @property
    def log(self) -> Path:
        """The embedded log's file."""
        return self.found.folder / "log" / "log.db"

    @property
    def ledger(self) -> Path:
        """SQLite's file."""
        return self.found.folder / "ledger" / "consumer.db"

    @property
    def secret(self) -> Path:
        """The file of the API secret."""
        return self.found.folder / "secret"

    @property
    def brokers(self) -> Cluster:
        """Kafka."""
        assert self.kafka is not None
        return self.kafka

    @property
    def server(self) -> PostgresServer:
        """PostgreSQL."""
        assert self.postgres is not None
        return self.postgres

    def topic(self, name: str) -> str:
        """A topic's or a group's whole name."""
        return f"{self.found.environ['CONSUMER_TOPIC_PREFIX']}.{name}"

    def signal(self, role: str, number: signal.Signals) -> None:
        """Send it to the role's process."""
        os.kill(self.processes[role].pid, number)

    async def stop(self, *roles: str) -> None:
        """Stop these roles, all by default, as their supervisor would. Who plays lets go of the ledger's file, too."""
        chosen = [self.processes[role] for role in roles or ROLES]
        await asyncio.gather(*(asyncio.to_thread(process.stop) for process in chosen))
        await self.found.database.stop()

    async def start(self, *roles: str) -> None:
        """Start these roles anew, all by default; nobody waits until they are ready."""
        for role in roles or ROLES:
            self.processes[role] = self.found.process(role)
            self.processes[role].spawn()

    async def restart(self, *roles: str, **settings: str) -> None:
        """Stop and start these, with other settings; "" takes one away."""
        await self.stop(*roles)
        for name, value in settings.items():
            self.kept.setdefault(f"setting {name}", self.found.environ.get(name, ""))
            self._set(name, value)
        await self.start(*roles)

    async def as_before(self, *roles: str) -> None:
        """Stop and start these with the settings they had."""
        await self.stop(*roles)
        for kept in [name for name in self.kept if name.startswith("setting ")]:
            self._set(kept.removeprefix("setting "), self.kept.pop(kept))
        await self.start(*roles)

    def _set(self, name: str, value: str) -> None:
        if value:
            self.found.environ[name] = value
        else:
            self.found.environ.pop(name, None)

    def pay(self, count: int = 1) -> None:
        """Orders are paid; their webhooks are on their way."""
        for _ in range(count):
            self.found.pay_order()


Act = Callable[[Scene], Awaitable[None]]


@dataclass(frozen=True)
class Fault:
    """`what` happens to `where`; any of `codes` names the true cause, and its text `says` so where a code has several.
    `cure` is what the finding asks for. `shipped_s`: the bar of the last order."""

    where: str
    what: str
    codes: frozenset[str]
    strike: Act
    cure: Act
    shipped_s: float = SHIPPED_S
    says: str = ""

    @property
    def name(self) -> str:
        """For the table, and as a test's id."""
        return f"{self.where} {self.what}"


def fault(
    where: str,
    what: str,
    *codes: str,
    strike: Act,
    cure: Act,
    shipped_s: float = SHIPPED_S,
    says: str = "",
) -> Fault:
    """A fault; any of these codes names its cause, with a text that `says` so."""
    return Fault(where, what, frozenset(codes), strike, cure, shipped_s, says)


@contextmanager
def small_disk(folder: Path, room_mib: int = ROOM_MIB) -> Iterator[None]:
    """A disk of its own at this folder, where we may mount one; else it is a plain folder, and nothing fills it."""
    folder.mkdir(parents=True, exist_ok=True)
    words = ["mount", "-t", "tmpfs", "-o", f"size={room_mib}m,mode=0777", "tmpfs", str(folder)]
    mounted = subprocess.run(words, capture_output=True, check=False).returncode == 0
    try:
        yield
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], capture_output=True, check=False)


def fill(folder: Path) -> None:
    """Take all the room there is. AssertionError where that would be the machine's own disk."""
    assert os.path.ismount(folder), "a disk of its own is needed: mounting wants root"
    with (folder / "filler").open("wb", buffering=0) as filler:
        piece = FULL_PIECE
        while piece:
            try:
                while filler.write(b"\0" * piece):
                    pass
            except OSError:
                piece //= 2


def remount(folder: Path, *, writable: bool) -> None:
    """Make the disk read-only, or writable again."""
    word = "rw" if writable else "ro"
    subprocess.run(["mount", "-o", f"remount,{word}", str(folder)], capture_output=True, check=True)
