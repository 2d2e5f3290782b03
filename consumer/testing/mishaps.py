"""Mishaps: a handler as it is when something goes wrong around it."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from consumer.events import Event
from consumer.plugin import Handler
from consumer.testing.outside import Outside


def crashed(handler: Handler) -> Handler:
    """The same transactional handler, whose process ends after it did its work and before the transaction commits."""

    @functools.wraps(handler.function)
    async def crash(event: Event, ctx: Any) -> None:
        await handler.function(event, ctx)
        await ctx.session.flush()
        raise ConnectionError("the process ended here")

    return replace(handler, function=crash, together=None)


def unheard(handler: Handler, outside: Outside) -> Handler:
    """The same effect handler, to be run while `outside` loses answers. Where it lost none, because the handler tells
    nobody or somebody else, the handler fails once after its work: what it told may have been lost there."""
    has_failed = False

    @functools.wraps(handler.function)
    async def lose(event: Event, ctx: Any) -> None:
        nonlocal has_failed
        await handler.function(event, ctx)
        if not outside.lost and not has_failed:
            has_failed = True
            raise ConnectionError("the answer was lost")

    return replace(handler, function=lose)
