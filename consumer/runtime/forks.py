"""Forks: what a process that a handler forks takes along of the role's. `multiprocessing` forks, by its default on
Linux before Python 3.14, and so do its pools; what is started anew (`subprocess`, `spawn`) takes nothing along.

A fork wakes the role's event loop by its own signals: who ended one by SIGTERM ended the role, and the fork went on.
And it holds the role's ports open: one that outlived a role kept the next from starting.
"""

from __future__ import annotations

import os
import signal
import socket
import stat
import threading
from contextlib import suppress
from functools import cache

OPEN_FILES = "/dev/fd"
ENDING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})

_before = threading.local()


@cache
def leave_forks_alone() -> None:
    """From here on a fork of this process heeds signals as a process without a role does, and listens on no port."""
    os.register_at_fork(
        before=_let_signals_wait, after_in_parent=_heed_signals, after_in_child=_become_a_process_of_its_own
    )


def _let_signals_wait() -> None:
    """One that comes before the fork is a process of its own would be heard by the role, or by nobody."""
    _before.mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)


def _heed_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _before.mask)


def _become_a_process_of_its_own() -> None:
    signal.set_wakeup_fd(-1)
    for number in ENDING:
        if callable(signal.getsignal(number)):  # who ignores one goes on doing so
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    with suppress(OSError):  # a system without that folder
        for name in os.listdir(OPEN_FILES):  # noqa: PTH208 - names, and nothing is to be imported in a fork
            with suppress(OSError):  # the folder itself was open
                _stop_listening(int(name))
    _heed_signals()


def _stop_listening(number: int) -> None:
    """Its number stays taken: what still names it here must not meet another file by it."""
    if not stat.S_ISSOCK(os.fstat(number).st_mode):
        return
    one = socket.socket(fileno=number)
    try:
        if one.family == socket.AF_UNIX or not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, number, inheritable=False)
        os.close(nowhere)
    finally:
        one.detach()
