"""A process ends when it is told to: before its event loop listens, too, and whatever thread a handler left hanging."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from consumer.cli.bootstrap import run
from tests.support.merchant.plugin import install_plugin
from tests.support.process import command
from tests.support.tools import missing, need_program

ALONE = ["--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
HANGS = """
import threading

threading.Thread(target=threading.Event().wait).start()
"""
HANGS_UP = """
import asyncio, os, signal, sys
from consumer.cli.bootstrap import run, stop_on_signals
from consumer.errors import Terminated

async def process(what):
    stop = stop_on_signals() if what == "role" else asyncio.Event()
    os.kill(os.getpid(), signal.SIGHUP)
    if what == "nohup":
        os.kill(os.getpid(), signal.SIGTERM)
    await stop.wait()

what = sys.argv[1]
signal.signal(signal.SIGHUP, signal.SIG_IGN if what == "nohup" else signal.SIG_DFL)  # however the tests were begun
try:
    run(process(what))
    print("drained")
except Terminated:
    print("tidied up")
print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)
"""


# case: O8
def test_process_1_that_is_stopped_while_it_starts_ends(tmp_path: Path) -> None:
    """As a container starts a role. It starts for as long as nobody writes into its file of settings."""
    unshare = need_program("unshare", "Debian's package util-linux")
    if subprocess.run([unshare, *ALONE, "true"], capture_output=True, check=False).returncode != 0:
        missing("no process may be the first of a namespace here")
    file = tmp_path / "settings.toml"
    os.mkfifo(file)
    environ = {**os.environ, "CONSUMER_CONFIG": str(file)}
    words = [unshare, *ALONE, sys.executable, "-m", "consumer", "serve"]
    with subprocess.Popen(words, env=environ) as started, file.open("wb"):  # opened when the role reads
        [role] = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
        os.kill(int(role), signal.SIGTERM)
        assert started.wait(20) == 143


# case: H4
@pytest.mark.slow
def test_a_thread_that_hangs_keeps_no_process_from_its_end(tmp_path: Path) -> None:
    environ = install_plugin(tmp_path, "hanging", HANGS)
    done = command("handlers", "list", environ=environ, within_s=60)
    assert done.returncode == 0, done.stderr


# case: H4
def test_a_call_that_hangs_in_a_thread_keeps_no_loop_from_its_end() -> None:
    goes_on, over = threading.Event(), threading.Event()

    async def role() -> None:
        came, loop = asyncio.Event(), asyncio.get_running_loop()

        def hang() -> None:
            loop.call_soon_threadsafe(came.set)
            goes_on.wait(30)
            over.set()

        task = asyncio.create_task(asyncio.to_thread(hang))
        await came.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run(role())
    assert not over.is_set()
    goes_on.set()


# case: B26
@pytest.mark.parametrize(
    ("what", "told"), [("role", "drained"), ("command", "tidied up"), ("nohup", "tidied up")], ids=lambda one: one
)
def test_a_terminal_that_is_closed_ends_it_in_good_order(what: str, told: str) -> None:
    """It was killed: its lease ran out by itself, and what it was at work on counted as a death."""
    words = [sys.executable, "-c", HANGS_UP, what]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines() == [told, str(what == "nohup")], done.stderr
