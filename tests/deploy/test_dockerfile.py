"""deploy/Dockerfile: hadolint has nothing to say."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


def test_hadolint_has_nothing_to_say() -> None:
    hadolint = Path(sysconfig.get_path("scripts")) / "hadolint"
    done = subprocess.run([hadolint, CHECKOUT / "deploy/Dockerfile"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")
