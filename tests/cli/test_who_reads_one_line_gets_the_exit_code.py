"""`consumer status | head -1`: the exit code says how things stand, whoever reads how much of the text."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.desk import Desk

STUCK = 2
"""No `work` process lives."""


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_the_exit_code_is_the_answers(tmp_path: Path, more: list[str]) -> None:
    settings = {"CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/ledger.db", "CONSUMER_LOG_LEVEL": "error"}
    assert Desk(settings).call("db", "upgrade").returncode == 0
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CONSUMER_", "SVC_"))}
    reads, writes = os.pipe()
    os.close(reads)
    try:
        words = [sys.executable, "-m", "consumer", "status", *more]
        done = subprocess.run(words, env=kept | settings, stdout=writes, stderr=subprocess.PIPE, text=True, timeout=60)
    finally:
        os.close(writes)
    assert (done.returncode, done.stderr) == (STUCK, "")
