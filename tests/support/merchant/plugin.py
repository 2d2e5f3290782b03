"""A merchant's plugin, installed for a test: a module and the metadata that makes it an entry point."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def install_plugin(folder: Path, name: str, source: str) -> dict[str, str]:
    """Write a plugin into `folder`; returns the environment in which a process finds it."""
    (folder / f"{name}.py").write_text(source)
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[consumer.handlers]\n{name} = {name}\n")
    before = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(folder), before] if before else [str(folder)])}


def install_package(folder: Path, name: str, files: Mapping[str, str], groups: Mapping[str, str]) -> dict[str, str]:
    """Write a package into `folder`, with its entry points (group to module); returns the environment as above."""
    for file, text in files.items():
        path = folder / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    told = "".join(f"[{group}]\n{name} = {module}\n" for group, module in groups.items())
    (metadata / "entry_points.txt").write_text(told)
    return {"PYTHONPATH": str(folder)}


def install_migrations(folder: Path, name: str, upgrade: str) -> str:
    """Write a plugin that brings a branch of migrations, one whose upgrade is this statement; returns the folder to
    be put on the path."""
    versions = folder / name / "migrations" / "versions"
    versions.mkdir(parents=True)
    (folder / name / "__init__.py").write_text("")
    (folder / name / "migrations" / "__init__.py").write_text("")
    (versions / "0001_first.py").write_text(
        "import sqlalchemy as sa\nfrom alembic import op\n"
        f'revision = "{name}_0001"\ndown_revision = None\nbranch_labels = ("{name}",)\ndepends_on = None\n'
        f"def upgrade() -> None:\n    {upgrade}\n"
        "def downgrade() -> None:\n    pass\n"
    )
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[consumer.migrations]\n{name} = {name}.migrations\n")
    return str(folder)
