"""Faults of the log and the ledger that are files."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from consumer.broker import EmbeddedBroker
from consumer.ledger import log_memory
from tests.faults.scene import Act, Fault, Scene, fault, fill, remount
from tests.support.ports import eventually

REMEMBERED_WITHIN_S = 90.0
"""Somebody looks at the log every 20 s."""
Place = Callable[[Scene], Path]


def _log(scene: Scene) -> Path:
    return scene.log


def _ledger(scene: Scene) -> Path:
    return scene.ledger


def _locked(where: str, place: Place) -> Fault:
    async def strike(scene: Scene) -> None:
        holder = sqlite3.connect(place(scene), isolation_level=None, timeout=10)
        holder.execute("BEGIN EXCLUSIVE")
        scene.kept["holder"] = holder

    async def cure(scene: Scene) -> None:
        with closing(scene.kept.pop("holder")) as holder:
            holder.execute("ROLLBACK")

    return fault(where, "locked", f"{where}_locked", strike=strike, cure=cure)


def _full(where: str, place: Place) -> Fault:
    async def strike(scene: Scene) -> None:
        fill(place(scene).parent)
        scene.pay(10)

    async def cure(scene: Scene) -> None:
        (place(scene).parent / "filler").unlink()

    return fault(where, "on a full disk", f"{where}_disk_full", strike=strike, cure=cure)


def _read_only(where: str, place: Place) -> Fault:
    """Nobody has it open when the disk turns read-only: an open file forbids that."""

    async def strike(scene: Scene) -> None:
        await scene.stop()
        remount(place(scene).parent, writable=False)
        await scene.start()

    async def cure(scene: Scene) -> None:
        await scene.stop()
        remount(place(scene).parent, writable=True)
        await scene.start()

    return fault(where, "on a read-only disk", f"{where}_disk_read_only", strike=strike, cure=cure)


def _damaged(where: str, place: Place) -> Fault:
    async def strike(scene: Scene) -> None:
        await scene.stop()
        for path in _parts(place(scene)):
            shutil.move(path, path.parent / f"away-{path.name}")
        place(scene).write_bytes(b"this is no database" * 500)
        await scene.start()

    async def cure(scene: Scene) -> None:
        await scene.stop()
        await _bring_back(place(scene))
        await scene.start()

    return fault(where, "damaged", f"{where}_corrupt", strike=strike, cure=cure)


def _not_a_file(where: str, place: Place) -> Fault:
    """Root may open everything, so what cannot be opened is a folder."""

    async def strike(scene: Scene) -> None:
        await scene.stop()
        for path in _parts(place(scene)):
            shutil.move(path, path.parent / f"away-{path.name}")
        place(scene).mkdir()
        await scene.start()

    async def cure(scene: Scene) -> None:
        await scene.stop()
        place(scene).rmdir()
        await _bring_back(place(scene))
        await scene.start()

    return fault(where, "cannot be opened", f"{where}_not_opened", strike=strike, cure=cure)


def _parts(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{path.name}*"))


async def _bring_back(path: Path) -> None:
    for part in _parts(path):
        part.unlink()
    for away in path.parent.glob(f"away-{path.name}*"):
        shutil.move(away, away.parent / away.name.removeprefix("away-"))


async def _remove_log(scene: Scene) -> None:
    for path in _parts(scene.log):
        path.unlink()


async def _replace_log(scene: Scene) -> None:
    """Everything is stopped, the file is gone, and all start but `sync`: each process is well, and the log is another.
    `sync` reconciles as soon as it runs, which may be sooner than anybody looks."""
    await scene.stop()
    await _remove_log(scene)
    await scene.start("serve", "work", "console")


async def _put_log_back(scene: Scene) -> None:
    """A backup of the file is put back: it has the same identity, and lacks what came since. Started as above."""
    copy = scene.log.with_name("backup.db")
    with closing(sqlite3.connect(scene.log)) as now, closing(sqlite3.connect(copy)) as backup:
        now.backup(backup)
    [held] = await EmbeddedBroker(copy).look_at_groups({scene.topic("work"): scene.topic("events")})
    scene.pay(3)

    async def is_further() -> bool:
        async with scene.found.database.reading() as session:
            return sum((await log_memory.load(session, scene.topic("events"))).ends) > sum(held.ends)

    await eventually(is_further, within_s=REMEMBERED_WITHIN_S, every_s=1.0)
    await scene.stop()
    await _remove_log(scene)
    shutil.move(copy, scene.log)
    await scene.start("serve", "work", "console")


async def _remove_ledger(scene: Scene) -> None:
    """Somebody tidied up."""
    await scene.stop()
    for path in _parts(scene.ledger):
        shutil.move(path, path.parent / f"away-{path.name}")


async def _empty_ledger(scene: Scene) -> None:
    """Another file, and nothing in it, as of a volume that was mounted in its place."""
    await _remove_ledger(scene)
    with closing(sqlite3.connect(scene.ledger)) as connection, connection:
        connection.execute("CREATE TABLE somebody_elses (id INTEGER)")
    await scene.start()


async def _restore_ledger(scene: Scene) -> None:
    await scene.stop()
    await _bring_back(scene.ledger)
    await scene.start()


async def _mark_log(scene: Scene) -> None:
    """A later version has written it, in a form of its own."""
    await scene.stop()
    with closing(sqlite3.connect(scene.log)) as connection:
        [scene.kept["form"]] = connection.execute("PRAGMA user_version").fetchone()
        connection.execute("PRAGMA user_version=99")
    await scene.start()


async def _as_marked(scene: Scene) -> None:
    await scene.stop()
    with closing(sqlite3.connect(scene.log)) as connection:
        connection.execute(f"PRAGMA user_version={scene.kept.pop('form')}")
    await scene.start()


async def _restart(scene: Scene) -> None:
    await scene.stop()
    await scene.start()


def _alter(statement: str) -> Act:
    async def run(scene: Scene) -> None:
        with closing(sqlite3.connect(scene.ledger, timeout=20)) as connection:
            connection.execute(statement)
            connection.commit()

    return run


RENAME = "ALTER TABLE hints RENAME COLUMN {} TO {}"
OF_THE_LOG_FILE = (
    fault("log", "removed", "log_replaced", strike=_remove_log, cure=_restart),
    fault("log", "replaced", "log_replaced", strike=_replace_log, cure=lambda scene: scene.start("sync")),
    fault("log", "put back from a backup", "log_replaced", strike=_put_log_back,
          cure=lambda scene: scene.start("sync")),
    _locked("log", _log),
    _full("log", _log),
    _read_only("log", _log),
    _damaged("log", _log),
    _not_a_file("log", _log),
    fault("log", "of another version", "no_work", strike=_mark_log, cure=_as_marked, says="log_incompatible"),
)  # fmt: skip
OF_THE_LEDGER_FILE = (
    _locked("ledger", _ledger),
    _full("ledger", _ledger),
    _read_only("ledger", _ledger),
    _damaged("ledger", _ledger),
    _not_a_file("ledger", _ledger),
    fault("ledger", "removed", "database_missing", strike=_remove_ledger, cure=_restore_ledger),
    fault("ledger", "replaced by an empty one", "schema_outdated", strike=_empty_ledger, cure=_restore_ledger),
    fault("ledger", "of an incompatible version", "schema_incompatible",
          strike=_alter(RENAME.format("attempts", "denials")), cure=_alter(RENAME.format("denials", "attempts"))),
)  # fmt: skip
