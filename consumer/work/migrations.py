"""Migrations: what is wrong with the plugins' branches, with the file and line of the migration. Imports them all."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from alembic.script import Script, ScriptDirectory

from consumer.ledger.engine import schema
from consumer.work.place import shown, told_import

REVISION_CHARS = 32
"""What Alembic's own table holds; SQLite lets more pass, PostgreSQL does not."""
TEXT_MAX_CHARS = 300

Told = tuple[str, str]


def migration_problems() -> list[Told]:
    """Each problem: the branch (a plugin's name, or `migrations` for what is nobody's alone), and what is wrong."""
    entries = list(entry_points(group=schema.GROUP))
    with redirect_stdout(sys.stderr):  # what a migration prints: stdout may be one JSON document
        return _of_packages(entries) or list(_of_revisions(set(schema.branches()) - {schema.LEDGER}))


def _of_packages(entries: Sequence[EntryPoint]) -> list[Told]:
    found = []
    for entry in entries:
        try:
            package = import_module(entry.value)
            folder = Path(package.__path__[0]) / "versions"
        except KeyboardInterrupt:
            raise  # an operator's
        except BaseException as error:  # noqa: BLE001 - whatever a plugin does at import stays its own
            text = f"its migrations cannot be imported: {told_import(error, [entry.value], TEXT_MAX_CHARS)}"
            found.append((entry.name, text))
            continue
        if not folder.is_dir() or not any(folder.glob("*.py")):
            found.append((entry.name, f"its migrations have no versions in {folder}"))
    return found


def _of_revisions(labels: set[str]) -> Iterator[Told]:
    try:
        script = ScriptDirectory.from_config(schema.alembic_config())
        heads = [_revision(script, head) for head in script.get_heads()]
        bases = [_revision(script, base) for base in script.get_bases()]
        long = [one for one in script.walk_revisions() if len(one.revision) > REVISION_CHARS]
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a migration is a plugin's own code
        at = at_migration(error)
        yield "migrations", f"cannot be read: {type(error).__name__}: {error}"[: TEXT_MAX_CHARS - len(at)] + at
        return
    unlabelled = sorted(labels - {label for base in bases for label in base.branch_labels})
    for label in unlabelled:
        yield label, f"its first migration lacks branch_labels with the name of the plugin{_first(label, bases)}"
    for one in sorted(long, key=lambda one: one.revision):
        text = f"the id of a revision has at most {REVISION_CHARS} characters: {one.revision}"
        yield "migrations", text + _at(one.path, "revision")
    if not unlabelled and not long and len(heads) > len(labels) + 1:
        ends = ", ".join(f"{head.revision}{_at(head.path, 'down_revision')}" for head in heads)
        yield "migrations", f"{len(heads)} heads for {len(labels) + 1} branches: {ends}"


def _revision(script: ScriptDirectory, revision: str) -> Script:
    found: Any = script.get_revision(revision)
    return found  # type: ignore[no-any-return]  # None only for a revision that is none


def _first(label: str, bases: Sequence[Script]) -> str:
    """Where the first migration of a plugin's branch begins."""
    folder = schema.branches().get(label)
    own = [base for base in bases if folder is not None and Path(base.path).parent == Path(folder)]
    return _at(own[0].path, "branch_labels") if own else ""


def at_migration(error: BaseException) -> str:
    """The line of a migration that an error came through, or the one that names what its text names."""
    files = {str(path): path for folder in schema.branches().values() for path in sorted(Path(folder).glob("*.py"))}
    if isinstance(error, SyntaxError) and error.filename in files:
        return f" ({shown(error.filename)}:{error.lineno})"
    inside, trace = "", error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename in files:
            inside = f" ({shown(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno})"
        trace = trace.tb_next
    return inside or _naming(files, re.findall(r"'([^']+)'", str(error)))


def _naming(files: Mapping[str, Path], words: Sequence[str]) -> str:
    for file, path in files.items():
        for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), start=1):
            if any(f"'{word}'" in line or f'"{word}"' in line for word in words):
                return f" ({shown(file)}:{number})"
    return ""


def _at(file: str, name: str) -> str:
    """The line of a migration where this is set; its first line when it is not."""
    lines = Path(file).read_text("utf-8", "replace").splitlines()
    number = next((number for number, line in enumerate(lines, start=1) if re.match(rf"{name}\b", line)), 1)
    return f" ({shown(file)}:{number})"
