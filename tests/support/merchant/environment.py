"""A Python environment of a test's own, into which a merchant's package is installed as a merchant does it."""

from __future__ import annotations

import os
import site
import subprocess
import sysconfig
import venv
from collections.abc import Mapping
from pathlib import Path

from tests.support.process import INHERITED


def make_environment(folder: Path) -> str:
    """One that sees everything of this one, so that installing changes nothing here; its Python."""
    venv.create(folder, with_pip=False, symlinks=True)
    inside = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    outside = [*site.getsitepackages(), sysconfig.get_path("purelib")]
    (inside / "outside.pth").write_text("".join(f"import site; site.addsitedir({one!r})\n" for one in set(outside)))
    return str(folder / "bin" / "python")


def run_module(
    python: str, *arguments: str, cwd: Path, environ: Mapping[str, str] | None = None, exit_code: int = 0
) -> str:
    """Run a module to its end, which must be this one; what it printed."""
    inherited = {key: os.environ[key] for key in INHERITED if key in os.environ and key != "VIRTUAL_ENV"}
    done = subprocess.run(
        [python, "-m", *arguments], cwd=cwd, env=inherited | dict(environ or {}), capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == exit_code, done.stdout + done.stderr
    return done.stdout


def install_packages(python: str, *folders: Path) -> None:
    """As `pip install -e`, with what is there already."""
    editable = [word for folder in folders for word in ("-e", str(folder))]
    run_module(python, "pip", "install", "-q", "--no-deps", "--no-build-isolation", *editable, cwd=folders[0])
