"""A process that a handler forks is one of its own: its signals do not end the role, and it holds none of its ports."""

from __future__ import annotations

import json
import subprocess
import sys

# As a handler does, in a thread. The role hears a signal of its own behind what the fork's may have told its loop.
ROLE = """
import asyncio, json, multiprocessing, os, signal, socket, time, warnings
from consumer.cli.bootstrap import run, stop_on_signals

warnings.simplefilter("ignore")  # newer Pythons say that forks beside threads may hang
begun, begins = os.pipe()

def go_on():
    os.write(begins, b"!")
    time.sleep(60)

def fork(does, *arguments):
    child = multiprocessing.get_context("fork").Process(target=does, args=arguments)
    child.start()
    return child

def end(child):
    child.terminate()
    child.join(20)
    return child.exitcode

async def role():
    stop, told = stop_on_signals(), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, told.set)
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    at_once = await asyncio.to_thread(lambda: end(fork(time.sleep, 60)))
    child = await asyncio.to_thread(fork, go_on)
    await asyncio.to_thread(os.read, begun, 1)
    server.close()
    await server.wait_closed()
    with socket.socket() as again:
        free = again.connect_ex(("127.0.0.1", port)) != 0
    ended = [at_once, await asyncio.to_thread(end, child)]
    os.kill(os.getpid(), signal.SIGUSR1)
    await told.wait()
    print(json.dumps({"port_is_free": free, "forks": ended, "role_stops": stop.is_set()}))

run(role())
"""


# case: H4
def test_who_ends_a_fork_ends_no_role_and_leaves_no_port_taken() -> None:
    done = subprocess.run([sys.executable, "-c", ROLE], capture_output=True, text=True, timeout=60, check=False)
    assert json.loads(done.stdout) == {"port_is_free": True, "forks": [-15, -15], "role_stops": False}, done.stderr
