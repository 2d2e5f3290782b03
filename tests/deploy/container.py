"""A container without an engine: the unpacked image as a read-only root, the image's own user and environment."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import aiohttp

from deploy.image.store import UnpackedImage
from tests.support.ports import eventually

# The root is mounted read-only; /tmp, /dev and the data are what an engine would give.
ENTER = """
set -eu
root=$1 data=$2 user=$3; shift 3
mkdir -p "$root/dev" "$root/proc" "$root/var/lib/consumer"
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
mount -t tmpfs tmpfs "$root/tmp"
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
mount --bind "$data" "$root/var/lib/consumer"
exec chroot --userspec="$user" --groups= "$root" /usr/bin/env -i --chdir=/var/lib/consumer "$@"
"""


class Container:
    """One start of the image with these arguments; its data is `data`, which belongs to its user."""

    def __init__(self, image: UnpackedImage, data: Path, environ: Mapping[str, str]) -> None:
        self._image = image
        self._data = data
        own = dict(one.split("=", 1) for one in image.config["Env"])
        self._environ = own | {"CONSUMER_HOST": "127.0.0.1", "CONSUMER_INTERNAL_HOST": "127.0.0.1"} | dict(environ)
        self._process: subprocess.Popen[str] | None = None

    def command(self, words: list[str]) -> list[str]:
        """What to execute so that `words` run inside."""
        places = [str(self._image.root), str(self._data), self._image.config["User"]]
        setting = [f"{name}={value}" for name, value in self._environ.items()]
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", ENTER, "sh", *places, *setting, *words]

    def run(self, *arguments: str, entrypoint: list[str] | None = None) -> subprocess.CompletedProcess[str]:
        """Start it and wait for its end."""
        words = [*(entrypoint or self._image.config["Entrypoint"]), *arguments]
        return subprocess.run(self.command(words), capture_output=True, text=True, timeout=120, check=False)

    def start(self, *arguments: str) -> None:
        """Start a role; `--json` makes it say where it listens."""
        words = [*self._image.config["Entrypoint"], *arguments, "--json"]
        with (self._data / f"{arguments[0]}.err").open("w") as errors:
            self._process = subprocess.Popen(self.command(words), stdout=subprocess.PIPE, stderr=errors, text=True)

    async def ready(self) -> None:
        """Until it says that it is ready, on the address it announced."""
        address = json.loads(await asyncio.to_thread(self._announced))["internal_url"]
        async with aiohttp.ClientSession() as http:

            async def answers() -> bool:
                async with http.get(f"{address}/readyz") as answer:
                    return answer.status == 200

            await eventually(answers, within_s=60.0, what="the role is ready")

    def _announced(self) -> str:
        """The document it prints when it listens; what is there when it ended instead."""
        assert self._process is not None
        assert self._process.stdout is not None
        told = ""
        for line in self._process.stdout:
            told += line
            if line == "}\n":
                break
        return told

    def user(self) -> tuple[int, int]:
        """Who the process runs as."""
        assert self._process is not None
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        told = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
        return int(told["Uid"][0]), int(told["Gid"][0])

    def stop(self) -> int:
        """SIGTERM; its exit code."""
        assert self._process is not None
        self._process.terminate()
        try:
            return self._process.wait(60)
        finally:
            self._process.kill()
