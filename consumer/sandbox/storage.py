"""Storage: the state on disk, one SQLite file. A save is one transaction: a crash leaves a whole state."""

from __future__ import annotations

import json
import sqlite3
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from consumer.sandbox.engine.engine import Engine
from consumer.sandbox.errors import StorageBroken

FILE = "sandbox.db"
FORMAT = 1


class Storage:
    """Records as JSON by shelf and id, and one row of everything else."""

    def __init__(self, folder: Path) -> None:
        self._adapters: dict[str, TypeAdapter[Any]] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(folder / FILE, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS record (shelf TEXT, id TEXT, body TEXT NOT NULL, PRIMARY KEY (shelf, id))"
            )
            self._db.execute("CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, body TEXT NOT NULL)")
        except FileExistsError as error:
            there = f"{error.filename} is no folder, or a link that leads nowhere"
            raise StorageBroken(f"cannot open {folder / FILE}: {there}") from error
        except (OSError, sqlite3.Error) as error:
            raise StorageBroken(f"cannot open {folder / FILE}: {error}") from error

    def load(self, engine: Engine) -> bool:
        """Fill the engine; False when nothing was saved yet. Raises StorageBroken when the file is not ours."""
        try:
            row = self._db.execute("SELECT body FROM meta WHERE name = 'state'").fetchone()
            if row is None:
                return False
            meta = json.loads(row[0])
            if meta.get("format") != FORMAT:
                raise StorageBroken(
                    f"the data were written in format {meta.get('format')}, this sandbox reads {FORMAT}"
                )
            engine.clock.set_offset(meta["offset_s"])
            if engine.clock.driven:
                engine.clock.advance_to(datetime.fromisoformat(meta["now"]))
            engine.assumptions.set(meta["assumptions"] | dict(engine.config.assumptions))
            engine.faults.set(meta["faults"])
            for name, shelf in engine.world.shelves():
                rows = self._db.execute("SELECT body FROM record WHERE shelf = ?", (name,)).fetchall()
                records = [self._adapter(shelf.kind).validate_json(body) for (body,) in rows]
                for record in sorted(records, key=lambda one: one.seq):
                    engine.world.put(shelf, record)
                shelf.take_changes()
            engine.world.seq = meta["seq"]
        except (sqlite3.Error, ValidationError, KeyError, ValueError) as error:
            raise StorageBroken(f"cannot read the saved state: {type(error).__name__}") from error
        return True

    def save(self, engine: Engine) -> None:
        """Write what changed since the last save. Raises StorageBroken."""
        changes = [(shelf, name, shelf.take_changes()) for name, shelf in engine.world.shelves()]
        state = json.dumps(
            {
                "format": FORMAT,
                "seq": engine.world.seq,
                "offset_s": engine.clock.offset_s,
                "now": engine.clock.now().isoformat(),
                "assumptions": engine.assumptions.values(),
                "faults": engine.faults.values(),
            }
        )
        try:
            self._db.execute("BEGIN IMMEDIATE")
            for shelf, name, changed in changes:
                self._write(name, self._adapter(shelf.kind), changed)
            self._db.execute("INSERT OR REPLACE INTO meta VALUES ('state', ?)", (state,))
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            for shelf, _, changed in changes:
                shelf.put_back([record_id for record_id, _ in changed])
            raise StorageBroken(f"cannot save the state: {error}") from error

    def _write(self, name: str, adapter: TypeAdapter[Any], changed: list[tuple[str, Any]]) -> None:
        for record_id, record in changed:
            if record is None:
                self._db.execute("DELETE FROM record WHERE shelf = ? AND id = ?", (name, record_id))
            else:
                body = adapter.dump_json(record).decode()
                self._db.execute("INSERT OR REPLACE INTO record VALUES (?, ?, ?)", (name, record_id, body))

    def clear(self) -> None:
        """Forget everything."""
        self._db.execute("DELETE FROM record")
        self._db.execute("DELETE FROM meta")

    def close(self) -> None:
        """Release the file."""
        self._db.close()

    def _adapter(self, kind: type[Any]) -> TypeAdapter[Any]:
        if kind.__name__ not in self._adapters:
            self._adapters[kind.__name__] = TypeAdapter(kind)
        return self._adapters[kind.__name__]
