"""Network in a transaction: a transactional handler that opens a connection of its own is told, with the author's line.

It works, so it is not stopped; but everybody who shares the transaction waits for that network. The kit refuses it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import structlog

from consumer.work.execution.handler_call import HandlerCall, current_call
from consumer.work.execution.network.interpreter import Connection, forget, listen
from consumer.work.place import Home, home_of, place_of_waiting, place_on_stack

TOLD_MAX = 100
_OURS = frozenset({"sqlalchemy", "asyncpg", "aiosqlite"})
"""The ledger's own drivers: `ctx.session` may well connect."""

_log = structlog.get_logger(__name__)


@contextmanager
def told() -> Iterator[None]:
    """Say it once a place, while this lasts."""
    seen: set[tuple[str, str]] = set()

    def hear(connection: Connection) -> None:
        call = current_call()
        if call is None or len(seen) >= TOLD_MAX or _is_of_the_ledger(sys._getframe(1)):
            return
        at = _place(call)
        if (call.handler, at) not in seen:
            seen.add((call.handler, at))
            _log.error("network_in_transaction", handler=call.handler, where=at, to=str(connection))

    listen(hear)
    try:
        yield
    finally:
        forget(hear)


def _place(call: HandlerCall) -> str:
    if call.function is None:
        return call.handler
    home: Home = home_of(call.function)
    return str(place_on_stack(sys._getframe(1), home) or place_of_waiting(call.work, home) or home.start)


def _is_of_the_ledger(frame: FrameType | None) -> bool:
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] in _OURS:
            return True
        frame = frame.f_back
    return False
