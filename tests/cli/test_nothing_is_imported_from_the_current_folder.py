"""`python -m consumer` is the console script in this, too: a file beside the shell is no plugin and no library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_a_file_beside_the_shell_is_not_imported(tmp_path: Path) -> None:
    for name in ("typer", "structlog", "orjson", "pathlib"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the current folder')")
    done = subprocess.run([sys.executable, "-m", "consumer", "--help"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Webhook consumer" in done.stdout
