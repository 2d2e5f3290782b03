"""Mishaps: a handler as it is when something goes wrong around it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final

import aiohttp
from yarl import URL

from consumer.events import Event
from consumer.plugin import Handler
from consumer.testing.outside import Answer, Outside, Request, Trouble


def crashed(handler: Handler) -> Handler:
    """The same transactional handler, whose process ends after it did its work and before the transaction commits."""

    @functools.wraps(handler.function)
    async def crash(event: Event, ctx: Any) -> None:
        await handler.function(event, ctx)
        await ctx.session.flush()
        raise ConnectionError("the process ended here")

    return replace(handler, function=crash, together=None)


@contextmanager
def in_another_process(handler: Handler) -> Iterator[None]:
    """What differs there for the handler's module: `hash(text)`. (A `__hash__` of the module's own stays: what is kept
    by it must be found.)"""
    names = getattr(handler.function, "__globals__", {})
    if "hash" in names:
        yield
        return
    names["hash"] = lambda one: hash(one) if sys._getframe(1).f_code.co_name == "__hash__" else hash((one, "elsewhere"))
    try:
        yield
    finally:
        del names["hash"]


def unheard(handler: Handler, outside: Outside) -> Handler:
    """The same effect handler, to be run while `outside` loses answers. Where it lost none, because the handler tells
    nobody or somebody else, the handler fails once after its work: what it told may have been lost there."""
    has_failed = False

    @functools.wraps(handler.function)
    async def lose(event: Event, ctx: Any) -> None:
        nonlocal has_failed
        await handler.function(event, ctx)
        if not outside.met and not has_failed:
            has_failed = True
            raise ConnectionError("the answer was lost")

    return replace(handler, function=lose)


def early(handler: Handler, outside: Outside) -> Handler:
    """The same effect handler, whose first attempt ends before it did anything."""
    del outside
    has_failed = False

    @functools.wraps(handler.function)
    async def end(event: Event, ctx: Any) -> None:
        nonlocal has_failed
        if not has_failed:
            has_failed = True
            raise ConnectionError("it ended before it did anything")
        await handler.function(event, ctx)

    return replace(handler, function=end)


def as_it_is(handler: Handler, outside: Outside) -> Handler:
    """The same handler."""
    del outside
    return handler


def lost(_: Request) -> Answer:
    """It was done, and nobody heard it."""
    return Answer(error=aiohttp.ServerDisconnectedError("the answer was lost"))


def refused(request: Request) -> Answer:
    """Nobody is there: nothing was done."""
    url = URL(request.url)
    where: Any = SimpleNamespace(host=url.host, port=url.port, is_ssl=url.scheme == "https", ssl=True)
    return Answer(error=aiohttp.ClientConnectorError(where, ConnectionRefusedError("refused")))


def too_slow(_: Request) -> Answer:
    """No answer in time."""
    return Answer(error=aiohttp.ServerTimeoutError("no answer in time"))


LOSE: Final = "lose the answer"
TROUBLES: Final[Mapping[str, tuple[Trouble, Callable[[Handler, Outside], Handler]]]] = {
    LOSE: (Trouble(instead=lost, is_done=True), unheard),
    "no connection": (Trouble(instead=refused), as_it_is),
    "a 503": (Trouble(instead=lambda _: Answer(status=503)), as_it_is),
    "a 429": (Trouble(instead=lambda _: Answer(status=429)), as_it_is),
    "end early": (Trouble(instead=lambda _: None), early),
}
"""What an effect handler's event may meet before it is tried again, and the handler as it is run then."""
