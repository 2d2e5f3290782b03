"""A merchant's plugin, installed for a test: a module and the metadata that makes it an entry point."""

from __future__ import annotations

from pathlib import Path


def install_plugin(folder: Path, name: str, source: str) -> dict[str, str]:
    """Write a plugin into `folder`; returns the environment in which a process finds it."""
    (folder / f"{name}.py").write_text(source)
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[consumer.handlers]\n{name} = {name}\n")
    return {"PYTHONPATH": str(folder)}
