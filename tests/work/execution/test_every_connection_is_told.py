"""What Python tells of connections reaches whoever listens: where to, and whether the calling thread waits for it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from consumer.work.execution.network.interpreter import Connection, forget, listen

HOST = "127.0.0.1"


@contextmanager
def heard() -> Iterator[list[Connection]]:
    """What is heard while the block runs."""
    found: list[Connection] = []
    listen(found.append)
    try:
        yield found
    finally:
        forget(found.append)


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server((HOST, 0)) as server:
        yield server.getsockname()[1]


def test_a_connection_says_where_to_and_whether_somebody_waits(port: int) -> None:
    with heard() as found:
        for timeout_s in (None, 5.0, 0.0):
            with socket.socket() as one, contextlib.suppress(BlockingIOError):
                one.settimeout(timeout_s)
                one.connect((HOST, port))
    assert found == [Connection(HOST, str(port), blocks) for blocks in (True, True, False)]
    assert str(found[0]) == f"{HOST}:{port}"


def test_what_is_sent_without_a_connection_is_told_and_so_is_a_name_that_is_looked_up(port: int) -> None:
    with heard() as found:
        with socket.socket(type=socket.SOCK_DGRAM) as one:
            one.sendto(b"x", (HOST, port))
        socket.getaddrinfo(HOST, 80)
        socket.getaddrinfo(HOST.encode(), None)
        socket.gethostbyname(HOST)
    assert found == [
        Connection(HOST, str(port), True),
        Connection(HOST, "80", True, resolves=True),
        Connection(HOST, "", True, resolves=True),
        Connection(HOST, "", True, resolves=True),
    ]
    assert str(found[-1]) == HOST


def test_a_socket_in_the_file_system_is_told_by_its_path(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with heard() as found, socket.socket(socket.AF_UNIX) as one, contextlib.suppress(FileNotFoundError):
        one.connect(path)
    assert found == [Connection(path, "", True)]


def test_who_no_longer_listens_hears_nothing_and_others_go_on(port: int) -> None:
    with heard() as still:
        with heard() as found:
            pass
        socket.gethostbyname(HOST)
    socket.gethostbyname(HOST)
    assert (found, len(still)) == ([], 1)


def test_what_a_listener_raises_keeps_the_connection_from_being_made(port: int) -> None:
    def refuses(_: Connection) -> None:
        raise PermissionError("not here")

    listen(refuses)
    try:
        with socket.socket() as one, pytest.raises(PermissionError, match="not here"):
            one.connect((HOST, port))
    finally:
        forget(refuses)
