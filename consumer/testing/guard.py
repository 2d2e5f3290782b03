"""Guard: while the kit runs handlers no connection leaves the process, and what would go wrong in production is noted.

`allow` names hosts (or paths of sockets) that may be connected to. The kit's own ledger is a file: it needs none.
"""

from __future__ import annotations

import asyncio
import functools
import socket
import sys
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

from consumer.plugin import Handler
from consumer.testing.blocking import Steps
from consumer.testing.refusal import NetworkRefused, Refused, refuse
from consumer.work.execution.network.interpreter import Connection, forget, listen
from consumer.work.place import Home, Place, home_of, place_of_waiting, place_on_stack

_running: ContextVar[Running | None] = ContextVar("kit_running", default=None)


@dataclass(eq=False)
class Running:
    """One call of a handler: its coroutine, and what it asked of the outside."""

    handler: Handler
    home: Home
    work: Coroutine[Any, Any, Any]
    requests: list[Sent] = field(default_factory=list)

    def place(self, frame: FrameType | None = None) -> Place:
        """Where the author's code is now: on this stack, else where it waits, else where it begins."""
        return place_on_stack(frame, self.home) or place_of_waiting(self.work, self.home) or self.home.start

    def refuse(self, what: str, place: Place) -> Refused:
        """What is to be said about it."""
        return refuse(self.handler.name, what, place)


MAY_LACK = ("GET", "HEAD", "OPTIONS", "DELETE")


class Sent:
    """A request of a handler's, from where, and what became of it: the kit's `Pending` and `Response` write it."""

    def __init__(self, method: str, url: str) -> None:
        running = _running.get()
        self.text = f"{method} {url}"
        self._may_lack = method in MAY_LACK
        self.is_sent = False
        self.status = 0
        self.is_looked_at = False
        self.place = running.place(sys._getframe()) if running is not None else None
        if running is not None:
            running.requests.append(self)

    @property
    def never_done(self) -> bool:
        """Whether the answer cannot say that it is done. That it is not there may be an end of asking and removing."""
        return self.status >= 500 or self.status in (401, 429) or (self.status == 404 and not self._may_lack)


OWN_CLIENT = (
    "it connects to {to} by a client of its own; use ctx.http, which the kit records, or allow it by name: "
    "Workbench(allow=[{host!r}])"
)
IN_TRANSACTION = (
    "it connects to {to} inside a transaction, which waits for the network then; emit an event, and tell the outside "
    "from an effect handler of it"
)
UNHEARD = "a {status} of {sent} counts as success, nobody looked at the answer: call answer.raise_for_status()"
UNSENT = "{sent} was never sent: await it, or `async with ctx.http...`"
BLOCKS = "it holds its event loop ({what}); await something asynchronous, or `await asyncio.to_thread(...)`"


class Guard:
    """Of one workbench. `found` are the refusals so far."""

    def __init__(self, allow: Collection[str] = ()) -> None:
        self.allow = set(allow)
        self._found: list[Refused] = []
        self._last: Running | None = None

    def guarded(self, handler: Handler) -> Handler:
        """The same handler, looked at while it runs."""
        function, together = self._watched(handler, handler.function), handler.together
        return replace(handler, function=function, together=together and self._watched(handler, together))

    def _watched(self, handler: Handler, function: Callable[..., Coroutine[Any, Any, Any]]) -> Any:
        home = home_of(handler.function)

        @functools.wraps(function)
        async def watched(*given: Any) -> Any:
            running = self._last = Running(handler, home, function(*given))
            token = _running.set(running)
            try:
                result = await Steps(running.work, home, functools.partial(self._holds, running))
            finally:
                _running.reset(token)
            self._weigh(running)
            return result

        return watched

    @contextmanager
    def watching(self) -> Iterator[None]:
        """No connection leaves the process meanwhile. Raises the first refusal at the end, or when it does not come."""
        with self.noting():
            try:
                yield
            except TimeoutError:
                self.judge()
                raise
        self.judge()

    @contextmanager
    def noting(self) -> Iterator[None]:
        """The same, without raising: `taken` has the refusals."""
        listen(self._hear)
        try:
            yield
        finally:
            forget(self._hear)

    def taken(self) -> list[Refused]:
        """The refusals since the last time."""
        found, self._found = self._found, []
        return found

    def note(self, refused: Refused) -> None:
        """Something that a handler did wrong."""
        self._found.append(refused)

    def judge(self) -> None:
        """Raise the first refusal since the last time."""
        if found := self.taken():
            raise found[0]

    def _hear(self, connection: Connection) -> None:
        running = _running.get() or self._last
        if running is None or (connection.resolves and connection.host == socket.gethostname()):
            return  # smtplib asks for its own name, to say it
        place = running.place(sys._getframe())
        text = IN_TRANSACTION if running.handler.transactional else OWN_CLIENT
        if running.handler.transactional or connection.host not in self.allow:
            refused = running.refuse(text.format(to=connection, host=connection.host), place)
            self.note(refused)
            raise NetworkRefused(str(refused))
        if _running.get() and connection.blocks and asyncio._get_running_loop() is not None:
            self.note(running.refuse(BLOCKS.format(what=f"a blocking connection to {connection}"), place))

    def _weigh(self, running: Running) -> None:
        """It says that it succeeded: what did it not look at?"""
        for sent in running.requests:
            place = sent.place or running.home.start
            if not sent.is_sent:
                self.note(running.refuse(UNSENT.format(sent=sent.text), place))
            elif sent.never_done and not sent.is_looked_at:
                self.note(running.refuse(UNHEARD.format(status=sent.status, sent=sent.text), place))

    def _holds(self, running: Running, place: Place, seconds: float) -> None:
        self.note(running.refuse(BLOCKS.format(what=f"for {seconds:.1f} s so far"), place))
