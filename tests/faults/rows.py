"""Rows: faults of real processes, each with the code that names its true cause, and what cures it."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tests.promises.deployment import Deployment
from tests.support.process import ConsumerProcess


@dataclass
class Stage:
    """What a fault may touch: the deployment, and its processes by role."""

    found: Deployment
    processes: dict[str, ConsumerProcess]
    kept: object = None

    @property
    def log(self) -> Path:
        """The embedded log's file."""
        return self.found.folder / "log.db"

    @property
    def ledger(self) -> Path:
        """The ledger's file."""
        return self.found.folder / "consumer.db"

    def start(self, role: str) -> None:
        """Start the role anew, as its supervisor would."""
        self.processes[role] = self.found.process(role)
        self.processes[role].spawn()


@dataclass(frozen=True)
class Fault:
    """`what` happens to `where`; `codes`: any of them names the true cause. `cure` is what the finding asks for."""

    where: str
    what: str
    codes: frozenset[str]
    strike: Callable[[Stage], None]
    cure: Callable[[Stage], None]

    @property
    def name(self) -> str:
        """For the table, and as a test's id."""
        return f"{self.where} {self.what}"


def _killed(role: str) -> Fault:
    def strike(stage: Stage) -> None:
        stage.processes[role].kill()

    return Fault(role, "dead", frozenset({f"no_{role}"}), strike, lambda stage: stage.start(role))


def _stopped(role: str) -> Fault:
    def strike(stage: Stage) -> None:
        assert stage.processes[role].stop() == 0

    return Fault(role, "stopped and forgotten", frozenset({f"no_{role}"}), strike, lambda stage: stage.start(role))


def _hung(role: str) -> Fault:
    return Fault(
        role,
        "hung",
        frozenset({f"no_{role}"}),
        lambda stage: os.kill(stage.processes[role].pid, signal.SIGSTOP),
        lambda stage: os.kill(stage.processes[role].pid, signal.SIGCONT),
    )


def _remove_log(stage: Stage) -> None:
    for path in stage.log.parent.glob("log.db*"):
        path.unlink()


def _restart_all(stage: Stage) -> None:
    for role, process in list(stage.processes.items()):
        process.stop()
        stage.start(role)


def _replace_log(stage: Stage) -> None:
    """Everything is stopped, the file is gone, and all start but `sync`: each process is well, and the log is another.
    `sync` reconciles as soon as it runs, which may be sooner than anybody looks."""
    for process in stage.processes.values():
        process.stop()
    _remove_log(stage)
    for role in stage.processes:
        if role != "sync":
            stage.start(role)


def _lock(path: Callable[[Stage], Path]) -> Callable[[Stage], None]:
    def strike(stage: Stage) -> None:
        holder = sqlite3.connect(path(stage), isolation_level=None, timeout=10)
        holder.execute("BEGIN EXCLUSIVE")
        stage.kept = holder

    return strike


def _unlock(stage: Stage) -> None:
    assert isinstance(stage.kept, sqlite3.Connection)
    stage.kept.execute("ROLLBACK")
    stage.kept.close()


def _alter(statement: str) -> Callable[[Stage], None]:
    def run(stage: Stage) -> None:
        with closing(sqlite3.connect(stage.ledger, timeout=20)) as connection:
            connection.execute(statement)
            connection.commit()

    return run


def _hide_ledger(stage: Stage) -> None:
    for process in stage.processes.values():
        process.stop()
    shutil.move(stage.ledger, stage.ledger.with_suffix(".away"))
    stage.ledger.write_bytes(b"this is no database" * 500)


def _show_ledger(stage: Stage) -> None:
    shutil.move(stage.ledger.with_suffix(".away"), stage.ledger)
    for role in stage.processes:
        stage.start(role)


def _credentials(*, taken: bool) -> Callable[[Stage], None]:
    def run(stage: Stage) -> None:
        secret = stage.found.folder / "secret"
        known = stage.found.sandbox.config.app_secret
        secret.write_text(known if taken else known[:-4] + "xxxx")

    return run


RENAME = "ALTER TABLE hints RENAME COLUMN {} TO {}"
EMBEDDED = (
    *(_killed(role) for role in ("serve", "work", "sync", "console")),
    *(_stopped(role) for role in ("serve", "work", "sync", "console")),
    *(_hung(role) for role in ("serve", "work", "sync", "console")),
    Fault("log", "removed", frozenset({"log_replaced"}), _remove_log, _restart_all),
    Fault("log", "replaced", frozenset({"log_replaced"}), _replace_log, lambda stage: stage.start("sync")),
    Fault("log", "locked", frozenset({"log_locked"}), _lock(lambda stage: stage.log), _unlock),
    Fault("ledger", "locked", frozenset({"ledger_locked"}), _lock(lambda stage: stage.ledger), _unlock),
    Fault("ledger", "damaged", frozenset({"ledger_corrupt"}), _hide_ledger, _show_ledger),
    Fault(
        "ledger",
        "of an incompatible version",
        frozenset({"schema_incompatible"}),
        _alter(RENAME.format("attempts", "denials")),
        _alter(RENAME.format("denials", "attempts")),
    ),
    Fault(
        "API",
        "wrong credentials",
        frozenset({"credentials_refused"}),
        _credentials(taken=False),
        _credentials(taken=True),
    ),
)
# One of each sort, for every run of the suite; the rest is `make faults`.
REPRESENTATIVE = ("work hung", "log replaced", "ledger of an incompatible version")
