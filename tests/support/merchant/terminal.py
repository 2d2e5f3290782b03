"""A terminal: lines of a guide, typed as they are written, in a folder and an environment of a test's own."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

from tests.support.merchant.environment import make_environment
from tests.support.process import INHERITED

LIMIT_S = 300


class Terminal:
    """Where somebody types who has the consumer installed; nothing is fetched from an index."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        python = make_environment(folder / "environment")
        for name in ("consumer", "pip", "pytest"):
            script = Path(python).with_name(name)
            script.write_text(f'#!/bin/sh\nexec {python} -m {name} "$@"\n')
            script.chmod(0o755)
        self.environ = {name: os.environ[name] for name in INHERITED if name in os.environ and name != "VIRTUAL_ENV"}
        self.environ |= {
            "PATH": f"{Path(python).parent}:{os.environ['PATH']}",
            "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_QUIET": "1",  # nothing is fetched
            "CONSUMER_PORT": "0", "CONSUMER_INTERNAL_PORT": "0",
        }  # fmt: skip

    def types(self, line: str) -> str:
        """Run it to its end, which must be good; what it printed. What it exports stays."""
        if line.startswith("export "):
            self.environ |= dict(word.split("=", 1) for word in shlex.split(line)[1:])
            return ""
        done = subprocess.run(
            line,
            shell=True,
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=170,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout

    def starts(self, line: str) -> subprocess.Popen[bytes]:
        """Leave it running; its log is `dev.log`."""
        with (self.folder / "dev.log").open("wb") as log:
            return subprocess.Popen(
                f"exec {line}", shell=True, cwd=self.folder, env=self.environ, stdout=log, stderr=log
            )
