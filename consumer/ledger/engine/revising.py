"""Revising: the next migration of a plugin, written from what its models say and its migrations do not make yet.

Compared on an empty SQLite, on which every branch is run first: no ledger is needed, and none is touched. The branch
need not be installed.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from alembic import command
from alembic.autogenerate import produce_migrations, render_python_code
from alembic.autogenerate.api import AutogenContext
from alembic.config import Config
from alembic.operations.ops import DowngradeOps, MigrationScript, UpgradeOps
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import MetaData, create_engine
from sqlalchemy import inspect as sqlalchemy_inspect
from sqlalchemy.engine import Connection
from sqlmodel import AutoString

from consumer.columns import UtcDateTime, Words
from consumer.errors import UsageError
from consumer.ledger.engine import schema

REVISION_MAX_CHARS = 32
MESSAGE_MAX_CHARS = 200
_OURS = (UtcDateTime, Words)
_NUMBER = re.compile(r"_(\d{4})\Z")
_TEMPLATE = '''"""{plugin}: {message}"""

from __future__ import annotations

{imports}

revision = "{revision}"
down_revision = {down}
branch_labels = {labels}
depends_on = None


def upgrade() -> None:
    {upgrade}


def downgrade() -> None:
    {downgrade}
'''


@dataclass(frozen=True, kw_only=True)
class Written:
    """A migration that was written: its id, its file, what it changes (`add column: shop_sale note`), and what its
    author should think of."""

    revision: str
    path: Path
    changes: tuple[str, ...]
    warnings: tuple[str, ...] = ()


def branch_config(migrations: str) -> Config:
    """Alembic's configuration, with the branch in this package in it, installed or not."""
    config = schema.alembic_config()
    known = {path.resolve() for path in schema.branches().values()}
    folders = sorted(known | {versions_of(migrations)})
    config.set_main_option("version_locations", os.pathsep.join(str(path) for path in folders))
    return config


def versions_of(migrations: str) -> Path:
    """The folder of the migrations in this package."""
    return Path(import_module(migrations).__path__[0]).resolve() / "versions"


@contextmanager
def migrated(config: Config) -> Iterator[Connection]:
    """An empty SQLite on which every branch was run."""
    with tempfile.TemporaryDirectory(prefix="migrated-") as folder:
        engine = create_engine(f"sqlite:///{folder}/empty.db")
        try:
            with engine.begin() as connection:
                config.attributes["connection"] = connection
                command.upgrade(config, "heads")
                yield connection
        finally:
            engine.dispose()


def compared(connection: Connection, wanted: MetaData) -> MigrationContext:
    """What Alembic compares these tables, and no others, by."""
    options = {
        "compare_type": True,
        "include_name": lambda name, kind, _: kind != "table" or name in wanted.tables,
        "user_module_prefix": "consumer.columns.",
    }
    return MigrationContext.configure(connection, opts=options)


def tables_of(models: Sequence[type[Any]]) -> MetaData:
    """The tables of these models, apart from everybody else's."""
    wanted = MetaData()
    for model in models:
        sqlalchemy_inspect(model).local_table.to_metadata(wanted)
    return wanted


def write_revision(
    plugin: str, migrations: str, models: Sequence[type[Any]], message: str, *, empty: bool
) -> Written | None:
    """Write the plugin's next migration; None when models and migrations agree. With `empty`, one that does nothing yet
    (to move data). Raises UsageError when the branch has several ends, or the file cannot be written, MigrationFailed
    where one that is there cannot be run."""
    with schema.blamed(), redirect_stdout(sys.stderr):  # what a migration prints: stdout may be one JSON document
        return _written(plugin, migrations, models, message, empty=empty)


def _written(plugin: str, migrations: str, models: Sequence[type[Any]], message: str, *, empty: bool) -> Written | None:
    config = branch_config(migrations)
    script = ScriptDirectory.from_config(config)
    folder = versions_of(migrations)
    head = _head(script, folder)
    with migrated(config) as connection:
        wanted = MetaData() if empty else tables_of(models)
        context = compared(connection, wanted)
        found = produce_migrations(context, wanted)
        if not empty and (found.upgrade_ops is None or found.upgrade_ops.is_empty()):
            return None
        code = _rendered(found, context)
    revision = _next_id(head, plugin, {one.revision for one in script.walk_revisions()})
    words = {
        "plugin": plugin, "message": _plain(message), "revision": revision, "down": repr(head).replace("'", '"'),
        "labels": f'("{plugin}",)' if head is None else "None",
    }  # fmt: skip
    path = folder / f"{revision[-4:]}_{_slug(message)}.py"
    try:
        folder.mkdir(exist_ok=True)
        path.write_text(_TEMPLATE.format(**words, **code), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"the migration cannot be written: {error.strerror}", path=str(path)) from error
    differences = [] if empty or found.upgrade_ops is None else found.upgrade_ops.as_diffs()
    return Written(
        revision=revision,
        path=path,
        changes=tuple(told(one) for one in differences),
        warnings=tuple(warning for one in differences if (warning := _warning(one)) is not None),
    )


def _head(script: ScriptDirectory, folder: Path) -> str | None:
    """The newest revision in this folder."""
    inside = {one.revision: one for one in script.walk_revisions() if Path(one.path).resolve().parent == folder}
    ends = sorted(set(inside) & set(script.get_heads()))
    if len(ends) > 1:
        raise UsageError(f"the branch has several ends, {', '.join(ends)}: let one of them follow the other")
    return ends[0] if ends else None


def _next_id(head: str | None, plugin: str, taken: set[str]) -> str:
    """The id after this one, at most 32 characters: what Alembic's table holds."""
    number = int(found[1]) if head and (found := _NUMBER.search(head)) else len(taken) if head else 0
    stem = _NUMBER.sub("", head) if head else plugin
    while True:
        number += 1
        made = f"{stem[: REVISION_MAX_CHARS - 5]}_{number:04d}"
        if made not in taken:
            return made


def _rendered(found: MigrationScript, context: MigrationContext) -> dict[str, str]:
    """The bodies of both functions, and what they import."""
    imports: set[str] = set()

    def rendered(part: UpgradeOps | DowngradeOps | None) -> str:
        if part is None:
            return "pass"
        item = partial(_item, imports)
        return render_python_code(part, render_as_batch=True, render_item=item, migration_context=context)

    bodies = {"upgrade": rendered(found.upgrade_ops), "downgrade": rendered(found.downgrade_ops)}
    text = "\n".join(bodies.values())
    lines = ["import sqlalchemy as sa"] if "sa." in text else []
    lines += ["from alembic import op"] if "op." in text else []
    own = sorted(one.__name__ for one in _OURS if f"{one.__name__}(" in text)
    ours = [f"from consumer.plugin import {', '.join(own)}"] if own else []
    blocks = ["\n".join(lines), "\n".join(sorted(imports)), *ours]
    return {"imports": "\n\n".join(one for one in blocks if one), **{n: _untold(body) for n, body in bodies.items()}}


def _item(imports: set[str], kind: str, item: Any, _: AutogenContext) -> str | Literal[False]:
    """Our own types by their name on the handler's face, SQLModel's text as what it is; an author's by their module."""
    if kind != "type":
        return False
    if isinstance(item, _OURS):
        return f"{type(item).__name__}()"
    if isinstance(item, AutoString):
        return f"sa.String(length={item.length})" if item.length else "sa.String()"
    module = type(item).__module__
    if not module.startswith("sqlalchemy."):
        imports.add(f"import {module}")
    return False


def _untold(body: str) -> str:
    """Without Alembic's remarks."""
    lines = [line for line in body.splitlines() if not line.strip().startswith("# ###")]
    return "\n".join(lines).strip() or "pass"


def _warning(difference: Any) -> str | None:
    """What fails, or breaks who still runs the code from before (add first, remove in a later release)."""
    what = difference[0] if isinstance(difference, tuple) else ""
    if what.startswith("remove"):
        return f"{told(difference)}: while a deploy is rolling, the code from before still uses it"
    if what == "add_column" and not difference[3].nullable and difference[3].server_default is None:
        return f"{told(difference)}: NOT NULL fails where rows are; give it a server_default, or let it be null"
    return None


def told(difference: Any) -> str:
    """One difference of Alembic's in words: what the migration lacks, or has too much."""
    if isinstance(difference, list):
        return "; ".join(told(one) for one in difference)
    what, *subject = difference
    names = [_named(one) for one in subject if one is not None and not isinstance(one, dict)]
    return f"{what.replace('_', ' ')}: {' '.join(names)}"


def _named(one: Any) -> str:
    name = getattr(one, "name", None)
    return str(one) if name is None else str(name)


def _plain(message: str) -> str:
    return " ".join(message.replace('"', "'").replace("\\", "/").split())[:MESSAGE_MAX_CHARS]


def _slug(message: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", message.lower()).strip("_")[:40] or "revision"
