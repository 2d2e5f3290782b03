"""Faults of roles whose version is another than the schema's, or than that of the others: the code of a version is a
copy of ours with what tells it apart."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import consumer
from tests.faults.play import green
from tests.faults.scene import ROLES, Fault, Scene, fault
from tests.faults.server import DATABASE

CHECKOUT = Path(consumer.__file__).parents[1]
READY_WITHIN_S = 60.0
TABLE = "settled_hints"
COLUMN = """
SettledHintRow.__table__.append_column(Column("older", String(10)))
"""
MIGRATION = '''"""what the next version brings"""

revision = "ledger_9999"
down_revision = {below!r}
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nothing that this version would miss."""
'''


def _code(scene: Scene, name: str, version: str) -> Path:
    """A copy of our code that calls itself this version."""
    folder = scene.found.folder / name
    if not folder.exists():
        for package in ("consumer", "handlers"):
            shutil.copytree(CHECKOUT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "consumer" / "__init__.py").write_text(f'"""Another version."""\n\n__version__ = "{version}"\n')
    return folder


def _older(scene: Scene) -> Path:
    """It has a column that ours has no more."""
    folder = _code(scene, "older", "0.0.1")
    tables = folder / "consumer" / "ledger" / "tables.py"
    if COLUMN not in (text := tables.read_text()):
        tables.write_text(text + COLUMN)
    return folder


def _newer(scene: Scene) -> Path:
    """It has a migration more."""
    folder = _code(scene, "newer", "9.9.9")
    versions = folder / "consumer" / "ledger" / "migrations" / "versions"
    newest = max(path.name for path in versions.glob("0*.py"))
    (versions / "9999_next.py").write_text(MIGRATION.format(below=f"ledger_{newest.partition('_')[0]}"))
    return folder


async def _become(scene: Scene, role: str, code: Path) -> None:
    """The role is of that version from now on; whoever looks is of ours."""
    path = os.pathsep.join([str(code), scene.found.environ["PYTHONPATH"]])
    await scene.restart(role, PYTHONPATH=path, PYTHONSAFEPATH="1")
    scene.found.environ["PYTHONPATH"] = scene.kept["setting PYTHONPATH"]
    del scene.found.environ["PYTHONSAFEPATH"]


async def _say(scene: Scene, *statements: str) -> None:
    if scene.postgres is not None:
        await scene.server.say(*statements, database=DATABASE)
        return
    with closing(sqlite3.connect(scene.ledger, timeout=20)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def _migrated_away(role: str) -> Fault:
    """The role of the version before goes on while a migration takes away what it needs."""

    async def strike(scene: Scene) -> None:
        await _say(scene, f"ALTER TABLE {TABLE} ADD COLUMN older VARCHAR(10)")
        await _become(scene, role, _older(scene))
        await scene.processes[role].ready(within_s=READY_WITHIN_S)
        await _say(
            scene,
            f"ALTER TABLE {TABLE} DROP COLUMN older",
            "INSERT INTO revisions (id, applied_at) VALUES ('ledger_9999', '2026-01-01 00:00:00')",
        )
        scene.pay(2)

    async def cure(scene: Scene) -> None:
        await scene.as_before(role)
        await _say(scene, "DELETE FROM revisions WHERE id = 'ledger_9999'")

    what = "of a version whose tables were migrated away"
    return fault(role, what, "schema_incompatible", strike=strike, cure=cure, says="(0.0.1)")


def _too_old(role: str) -> Fault:
    async def strike(scene: Scene) -> None:
        await _become(scene, role, _older(scene))
        scene.pay(2)

    return fault(
        role,
        "of a version too old for the schema",
        f"no_{role}",
        strike=strike,
        cure=lambda scene: scene.as_before(role),
        says="schema_incompatible",
    )


def _too_new(role: str) -> Fault:
    async def strike(scene: Scene) -> None:
        await _become(scene, role, _newer(scene))
        scene.pay(2)

    return fault(
        role,
        "of a version whose migration was not run",
        f"no_{role}",
        strike=strike,
        cure=lambda scene: scene.as_before(role),
        says="schema_outdated",
    )


def _left_behind(role: str) -> Fault:
    """It needs nothing of the ledger, or what it needs is there still: nothing is late."""

    async def strike(scene: Scene) -> None:
        await _become(scene, role, _code(scene, "before", "0.0.9"))
        await scene.processes[role].ready(within_s=READY_WITHIN_S)
        await scene.restart(*(one for one in ROLES if one != role))
        await green(scene)

    return fault(
        role,
        "left behind by a deploy",
        "versions_differ",
        strike=strike,
        cure=lambda scene: scene.as_before(role),
        says="0.0.9",
    )


ON_THE_LEDGER = ("work", "sync", "console")
OF_VERSIONS = (
    *(_migrated_away(role) for role in ON_THE_LEDGER),
    *(_too_old(role) for role in ON_THE_LEDGER),
    _too_new("work"),
    _left_behind("serve"),
)
