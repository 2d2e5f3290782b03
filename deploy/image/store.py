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

    def is_of_these_sources(self) -> bool:
        """Whether the packages in it are the checkout's, file by file."""
        (packages,) = self.root.glob("opt/consumer/lib/python3.*/site-packages")
        return all(_sources(packages / name) == _sources(CHECKOUT / name) for name in ("consumer", "handlers"))


def _sources(package: Path) -> dict[Path, bytes]:
    return {path.relative_to(package): path.read_bytes() for path in package.rglob("*.py")}


def tag() -> str:
    """The name that `build.sh` gives."""
    for line in (CHECKOUT / "pyproject.toml").read_text().splitlines():
        if line.startswith("version = "):
            return f"payments-consumer:{json.loads(line.removeprefix('version = '))}"
    raise LookupError("pyproject.toml names no version")


def is_built() -> bool:
    """Whether `make image` was run here."""
    return (CACHE / "storage").is_dir() and buildah("inspect", "--type", "image", tag(), check=False).returncode == 0


@contextmanager
def unpacked(name: str | None = None) -> Iterator[UnpackedImage]:
    """The image (or another one there), unpacked as long as the context lasts."""
    name = name or tag()
    described = json.loads(buildah("inspect", "--type", "image", name).stdout)
    container = buildah("from", "--pull-never", name).stdout.strip()
    try:
        root = Path(buildah("mount", container).stdout.strip())
        yield UnpackedImage(root, described["OCIv1"]["config"])
    finally:
        buildah("rm", container)


def buildah(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run buildah on the store of `build.sh`."""
    store = ["--root", str(CACHE / "storage"), "--runroot", str(CACHE / "run"), "--storage-driver", "vfs"]
    return subprocess.run(["buildah", *store, *words], check=check, capture_output=True, text=True, timeout=300)
