"""Warm: `consumer` in processes of their own, forked from one that has loaded the code already: a second of
processor time less for each. Environment, folder, streams and exit code are its own, as if it was started."""

from __future__ import annotations

import array
import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

STAGES = ("receive", "work", "sync", "replay", "archive")
LOADED = tuple(f"consumer.{one}" for one in (*STAGES, "cli", "app", "console", "ledger", "broker", "payments"))
COLD = ("PYTHON", "LC_", "LANG", "TZ")
"""Settings that Python itself looks at when it starts begin so: with others than the forker's, nothing is warm."""
MOST_BYTES = 1 << 20


class Forked:
    """A process that was forked: the part of `subprocess.Popen` that tests use."""

    def __init__(self, words: list[str], said: int) -> None:
        self._words = words
        self._said = os.fdopen(said, "rb", buffering=0)
        self.pid = int(self._said.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, if it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, when it ends. Raises TimeoutExpired."""
        if self.returncode is None:
            if timeout is not None and not select.select([self._said], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self._words, timeout)
            self.returncode = int(self._said.readline())
            self._said.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


class Forker:
    """The process that has loaded the code, of this one's own; it ends with this one."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = dict(environ)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock, self._ours = threading.Lock(), ours
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                env=self._environ,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        atexit.register(self._end)

    def is_like(self, environ: Mapping[str, str]) -> bool:
        """Whether a Python that started with this environment would be as this one is; where modules are is given to
        each."""
        return _cold(self._environ) == _cold(environ)

    def start(self, words: Sequence[str], environ: Mapping[str, str], streams: Sequence[int]) -> Forked:
        """Start `consumer` with these words and, as its stdin, stdout and stderr, these files."""
        said, done = os.pipe()
        asked = json.dumps({"words": list(words), "environ": dict(environ), "folder": str(Path.cwd())})
        try:
            with self._lock:
                socket.send_fds(self._ours, [asked.encode()], [*streams, done])
        finally:
            os.close(done)
        return Forked(list(words), said)

    def _end(self) -> None:
        self._ours.close()
        self._process.wait(10)


def _cold(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith(COLD) and name != "PYTHONPATH"}


def _serve(asked: socket.socket) -> None:
    """Fork for each request, until nobody is there to ask."""
    while True:
        request, given, *_ = socket.recv_fds(asked, MOST_BYTES, 4)
        if not request:
            return
        if os.fork() == 0:
            asked.close()
            _watched(json.loads(request), array.array("i", given))
        for one in given:
            os.close(one)


def _watched(request: dict[str, Any], given: Sequence[int]) -> None:
    """Say which process the command is, and how it ended; returns in that process."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *streams, done = given
    pid = os.fork()
    if pid:
        with contextlib.suppress(OSError):  # who asked may be gone
            os.write(done, f"{pid}\n".encode())
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            os.write(done, f"{code}\n".encode())
        os._exit(0)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for one in given:
        os.close(one)
    os.environ.clear()
    os.environ.update(request["environ"])
    os.chdir(request["folder"])
    added = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one and one not in sys.path]
    sys.path[:0] = added
    import consumer
    from consumer.cli import main

    sys.argv = [f"{consumer.__path__[0]}/__main__.py", *request["words"]]
    sys.modules["__main__"].__package__ = "consumer"  # by which typer tells how it was called

    main()


def modules() -> Iterator[str]:
    """All that roles and commands may come to load."""
    for name in (*LOADED, "handlers"):
        yield name
        for found in pkgutil.walk_packages(importlib.import_module(name).__path__, f"{name}."):
            if ".migrations" not in found.name and ".developing" not in found.name:
                yield found.name


def _load() -> None:
    for name in modules():
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    del sys.path[0]  # Python put the folder there, as it does for `python -m consumer`
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # who watches a command is waited for by nobody
    _load()
    _serve(socket.socket(fileno=int(sys.argv[1])))
