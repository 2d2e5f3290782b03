"""How the peers are run: the Python ones in an environment of their own (`make bench` makes it), Go's is built here.
What cannot be run is named in one line, and left out."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.load import SECRET

CHECKOUT = Path(__file__).resolve().parents[3]
PYTHON = CHECKOUT / ".cache/peers/bin/python"
PEERS = "tests.bench.peers"
GO_ALSO_AT = "/usr/local/go/bin"
"""Where its own installer puts it, often without the PATH."""
BUILD_WITHIN_S, RUN_WITHIN_S = 300, 300


def python() -> bool:
    """Whether the Python peers can be run; otherwise one line says why not."""
    if not PYTHON.exists():
        _missing("the peers' environment is not there (`make bench` makes it)")
    return PYTHON.exists()


def words(module: str, *arguments: str) -> Sequence[str]:
    """The command that runs one of them."""
    return [str(PYTHON), "-m", f"{PEERS}.{module}", *arguments]


def environ() -> dict[str, str]:
    """What a peer sees."""
    return {**os.environ, "SECRET": SECRET, "GOMAXPROCS": "1"}


def said(module: str, *arguments: str) -> str:
    """What one of them said at its end. Raises RuntimeError when that was not good."""
    done = subprocess.run(
        words(module, *arguments), cwd=CHECKOUT, env=environ(), capture_output=True, text=True, timeout=RUN_WITHIN_S,
        check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"{module}: {done.stderr.strip()[-1_000:]}")
    return done.stdout


def go_receive(folder: Path) -> Path | None:
    """The program in `net_http/`, built into this folder; None: there is no Go, or it cannot have its modules."""
    go = shutil.which("go", path=os.pathsep.join([os.environ.get("PATH", ""), GO_ALSO_AT]))
    if go is None:
        _missing("Go is not installed (net/http and franz-go are left out)")
        return None
    program = folder / "net_http"
    built = subprocess.run(
        [go, "build", "-buildvcs=false", "-o", str(program), "."], cwd=Path(__file__).parent / "net_http",
        capture_output=True, text=True, timeout=BUILD_WITHIN_S, check=False,
    )  # fmt: skip
    if built.returncode != 0:
        _missing(f"net/http and franz-go cannot be built: {' '.join(built.stderr.split())[-300:]}")
        return None
    return program


def _missing(what: str) -> None:
    sys.stdout.write(f"peers: {what}\n")
