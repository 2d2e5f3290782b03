"""Interpreter: what Python itself tells of connections (its audit events), to whoever asks. One hook a process.

It hears of sockets that are opened in Python, by any client: asyncio, aiohttp, requests, smtplib. A C library's own are
not told, nor those of uvloop's `create_connection`; aiohttp's are, on any loop.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any

CONNECTS = frozenset({"socket.connect", "socket.sendto"})
RESOLVES = frozenset({"socket.getaddrinfo", "socket.gethostbyname"})


@dataclass(frozen=True)
class Connection:
    """Somebody is about to connect to `host`, or only `resolves` it. `blocks`: the calling thread waits for it."""

    host: str
    port: str
    blocks: bool
    resolves: bool = False

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" if self.port else self.host


Listener = Callable[[Connection], None]
_listeners: list[Listener] = []
_lock = Lock()
_is_installed = False


def listen(listener: Listener) -> None:
    """Call it for each connection, on the thread that makes it; what it raises keeps the connection from being made."""
    global _is_installed
    with _lock:
        if not _is_installed:
            sys.addaudithook(_hear)
            _is_installed = True
        _listeners.append(listener)


def forget(listener: Listener) -> None:
    """Call it no more."""
    with _lock:
        _listeners.remove(listener)


def _hear(event: str, args: tuple[Any, ...]) -> None:
    if not _listeners:
        return
    if event in CONNECTS:
        connection = _connecting(*args[:2])
    elif event in RESOLVES:
        connection = Connection(_text(args[0]), _text(args[1] if len(args) > 1 else None), blocks=True, resolves=True)
    else:
        return
    for listener in tuple(_listeners):
        listener(connection)


def _connecting(given: Any, address: Any) -> Connection:
    blocks = isinstance(given, socket.socket) and given.gettimeout() != 0
    if isinstance(address, tuple) and len(address) >= 2:
        return Connection(_text(address[0]), _text(address[1]), blocks)
    return Connection(_text(address), "", blocks)


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return "" if value is None else str(value)
