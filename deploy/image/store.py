"""The image that `build.sh` made, as a folder: its root, and how it says it is to be started."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
CACHE = CHECKOUT / ".cache" / "image"


@dataclass(frozen=True)
class UnpackedImage:
    """`root`: its files, to be looked at only. `config`: what the image says of its start (User, Env, …: OCI)."""

    root: Path
    config: dict[str, Any]


def tag() -> str:
    """The name that `build.sh` gives."""
    for line in (CHECKOUT / "pyproject.toml").read_text().splitlines():
        if line.startswith("version = "):
            return f"payments-consumer:{json.loads(line.removeprefix('version = '))}"
    raise LookupError("pyproject.toml names no version")


def is_built() -> bool:
    """Whether `make image` was run here."""
    return (CACHE / "storage").is_dir() and _buildah("inspect", "--type", "image", tag(), check=False).returncode == 0


@contextmanager
def unpacked() -> Iterator[UnpackedImage]:
    """The image, unpacked as long as the context lasts."""
    described = json.loads(_buildah("inspect", "--type", "image", tag()).stdout)
    container = _buildah("from", "--pull-never", tag()).stdout.strip()
    try:
        root = Path(_buildah("mount", container).stdout.strip())
        yield UnpackedImage(root, described["OCIv1"]["config"])
    finally:
        _buildah("rm", container)


def _buildah(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    store = ["--root", str(CACHE / "storage"), "--runroot", str(CACHE / "run"), "--storage-driver", "vfs"]
    return subprocess.run(["buildah", *store, *words], check=check, capture_output=True, text=True, timeout=300)
