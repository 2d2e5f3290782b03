"""Free ports, waiting for a condition instead of sleeping and hoping, and whether somebody answers."""

from __future__ import annotations

import asyncio
import inspect
import socket
import time
from collections.abc import Callable
from typing import Any, Protocol

from consumer.errors import ConsumerError

_given: set[int] = set()


def free_port() -> int:
    """A TCP port of the loopback that nobody listens on now, another one each time: a broker wants three at once."""
    while True:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = int(found.getsockname()[1])
        if port not in _given:
            _given.add(port)
            return port


async def eventually(
    condition: Callable[[], Any], *, within_s: float = 10.0, every_s: float = 0.02, what: str = ""
) -> Any:
    """The first true value of `condition` (plain or awaited), asked again and again; AssertionError when there is
    none in time.

    An AssertionError raised by `condition` counts as "not yet" and is shown at the end.
    """
    deadline = time.monotonic() + within_s
    while True:
        missed: AssertionError | None = None
        try:
            found = condition()
            value = await found if inspect.isawaitable(found) else found
            if value:
                return value
        except AssertionError as error:
            missed = error
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s} s: {what or condition}") from missed
        await asyncio.sleep(every_s)


class Asked(Protocol):
    """A `Database` or a `Broker`."""

    async def check(self) -> bool: ...


async def answers(asked: Asked) -> bool:
    """Whether it can be used now, whatever it says of why it cannot."""
    try:
        return await asked.check()
    except ConsumerError:
        return False
