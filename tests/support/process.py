"""The consumer's own processes, as an operator starts them: `python -m consumer ROLE` with an environment."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import aiohttp

from tests.support.merchant.warm import Forked, Forker
from tests.support.ports import eventually

INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV", "PYTHONPATH", "SSL_CERT_FILE")


class ConsumerProcess:
    """One role in a process of its own, on free ports of the loopback. Its log goes to a file, or to `log_to`. No load
    balancer stands before it that would have to notice its end."""

    def __init__(
        self,
        role: str,
        environ: Mapping[str, str],
        folder: Path,
        name: str | None = None,
        *,
        arguments: Sequence[str] = (),
        python: str = sys.executable,
        log_to: int | None = None,
    ) -> None:
        self.role = role
        self._log_to = log_to
        self._python = python
        self._arguments = list(arguments)
        self.name = name or role
        self._folder = folder
        self._environ = _inherited()
        self._environ |= {"CONSUMER_INTERNAL_PORT": "0", "CONSUMER_PORT": "0", "CONSUMER_LOG_LEVEL": "warning"}
        self._environ["CONSUMER_LINGER_S"] = "0"
        self._environ |= dict(environ)
        self._process: subprocess.Popen[bytes] | Forked | None = None
        self.addresses: dict[str, str] = {}

    @property
    def log(self) -> str:
        """What it logged so far."""
        path = self._folder / f"{self.name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    def spawn(self) -> None:
        """Start it; `ready` waits for it."""
        answers = self._folder / f"{self.name}.json"
        with (self._folder / f"{self.name}.log").open("ab") as log, answers.open("wb") as out:
            words = [self.role, *self._arguments, "--json"]
            streams = (0, out.fileno(), log.fileno() if self._log_to is None else self._log_to)
            self._process = started(words, self._environ, streams, self._python)

    async def ready(self, within_s: float = 60.0, *, every_s: float = 0.1) -> None:
        """Wait until `/readyz` says 200."""
        await eventually(self._announced, within_s=within_s, what=f"{self.name} announces its addresses")
        async with aiohttp.ClientSession() as http:

            async def is_ready() -> bool:
                self._check_alive()
                try:
                    async with http.get(self.addresses["internal_url"] + "/readyz") as answer:
                        return answer.status == 200
                except aiohttp.ClientError:
                    return False

            await eventually(is_ready, within_s=within_s, every_s=every_s, what=f"{self.name} is ready")

    async def figure(self, sample: str) -> float:
        """What `/metrics` says of a sample, named with its labels as it stands there; 0 where it is not told yet."""
        async with aiohttp.ClientSession() as http, http.get(self.addresses["internal_url"] + "/metrics") as answer:
            lines = (await answer.text()).splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == sample), 0.0)

    def _announced(self) -> bool:
        self._check_alive()
        try:
            found = json.loads((self._folder / f"{self.name}.json").read_text())
        except ValueError:
            return False
        self.addresses = {name: value for name, value in found.items() if value}
        return True

    def _check_alive(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            raise RuntimeError(f"{self.name} ended with {self._process.returncode}: {self.log[-2000:]}")

    def kill(self) -> None:
        """SIGKILL: no chance to tidy up."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(10)

    def resume(self) -> None:
        """SIGCONT: one that a test made hang must not outlive it."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)

    def wait(self, within_s: float) -> int:
        """Its exit code, when it ends by itself. Raises TimeoutExpired."""
        assert self._process is not None
        return self._process.wait(within_s)

    def stop(self, within_s: float = 40.0) -> int:
        """SIGTERM, and its exit code; SIGKILL when it takes too long."""
        if self._process is None:
            return 0
        if (code := self._process.poll()) is not None:
            return code
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
            return -9


@contextmanager
def ended(*processes: ConsumerProcess) -> Iterator[None]:
    """Stop these processes at the end, whatever happens."""
    try:
        yield
    finally:
        for process in processes:
            process.stop()


def command(
    *arguments: str, environ: Mapping[str, str], within_s: float = 60.0, on_terminal: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `consumer ...` to its end. `on_terminal`: its input is a terminal, where somebody types this."""
    with _terminal(on_terminal) as stdin, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        streams = (0 if stdin is None else stdin, out.fileno(), err.fileno())
        process = started(arguments, _inherited() | dict(environ), streams)
        try:
            code = process.wait(within_s)
        finally:
            process.kill()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess([*arguments], code, out.read().decode(), err.read().decode())


_begun: set[str] = set()
_told: list[Path] = []
_cold = threading.Event()


def tell_each_other(folder: Path) -> None:
    """Processes that share a run of the tests share what was started: here each says what it was the first to start."""
    _told[:] = [folder]


def start_from_nothing() -> None:
    """From now on each starts as an operator's does: what measures memory, or time, wants no other."""
    _cold.set()


def started(
    words: Sequence[str], environ: Mapping[str, str], streams: Sequence[int], python: str = sys.executable
) -> subprocess.Popen[bytes] | Forked:
    """`consumer` with these words. The first of each command starts from nothing, as an operator's does; what comes
    later is forked from a process that has loaded the code."""
    is_first = bool(words) and _is_first(words[0])
    if not is_first and not _cold.is_set() and python == sys.executable and _forker().is_like(environ):
        return _forker().start(words, environ, streams)
    stdin, stdout, stderr = streams
    return subprocess.Popen([python, "-m", "consumer", *words], env=environ, stdin=stdin, stdout=stdout, stderr=stderr)


def _is_first(command: str) -> bool:
    if command in _begun:
        return False
    _begun.add(command)
    try:
        for folder in _told:
            (folder / f"started-{command}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _inherited() -> dict[str, str]:
    return {key: os.environ[key] for key in INHERITED if key in os.environ}


@cache
def _forker() -> Forker:
    return Forker(_inherited())


@contextmanager
def _terminal(typed: str | None) -> Iterator[int | None]:
    """A terminal's descriptor, what is typed already waiting there."""
    if typed is None:
        yield None
        return
    keyboard, terminal = os.openpty()
    try:
        os.write(keyboard, typed.encode())
        yield terminal
    finally:
        os.close(terminal)
        os.close(keyboard)


class Told:
    """A Python process that does something for each line that it is told, and then answers with one."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    async def answer(self, within_s: float = 20.0) -> str:
        """Tell it a line, and wait for its answer. TimeoutError when it does not come."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        print(file=stdin, flush=True)
        return (await asyncio.wait_for(asyncio.to_thread(stdout.readline), within_s)).strip()


@contextmanager
def another_process(script: str, *words: str) -> Iterator[Told]:
    """One that is told by its stdin, with these arguments; killed at the end, if its stdin's end does not end it."""
    given = [sys.executable, "-c", script, *words]
    with subprocess.Popen(given, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Told(process)
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(20) == 0
        finally:
            process.kill()
