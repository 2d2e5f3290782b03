"""deploy/Dockerfile and the merchant's: hadolint has nothing to say."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", ["Dockerfile", "plugins/Dockerfile"])
def test_hadolint_has_nothing_to_say(name: str) -> None:
    hadolint = Path(sysconfig.get_path("scripts")) / "hadolint"
    done = subprocess.run([hadolint, CHECKOUT / "deploy" / name], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")
