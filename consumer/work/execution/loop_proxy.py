"""Loop proxy: an object that belongs to one event loop, used from a handler on another.

Awaiting a method runs it on the loop the object belongs to; a walk (`async for`) fetches each item there. Values
come back as they are; parts of the object (`client.orders`) are wrapped like the object itself.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_PLAIN = (str, bytes, int, float, bool, type(None), tuple, list, dict, set, frozenset)


class LoopProxy:
    """Wraps `target`, which lives on `loop`."""

    __slots__ = ("_proxy_loop", "_proxy_target")

    def __init__(self, target: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._proxy_target = target
        self._proxy_loop = loop

    def __getattr__(self, name: str) -> Any:
        return _wrapped(getattr(self._proxy_target, name), self._proxy_loop)

    def __repr__(self) -> str:
        return repr(self._proxy_target)


def _wrapped(value: Any, loop: asyncio.AbstractEventLoop) -> Any:
    if inspect.iscoroutinefunction(value):
        return functools.partial(_awaited, value, loop)
    if inspect.isasyncgenfunction(value):
        return functools.partial(_walked, value, loop)
    if isinstance(value, (*_PLAIN, type)):
        return value
    if inspect.isroutine(value):
        return functools.partial(_called, value, loop)
    return LoopProxy(value, loop)


def _called(function: Callable[..., Any], loop: asyncio.AbstractEventLoop, *arguments: Any, **named: Any) -> Any:
    return _wrapped(function(*arguments, **named), loop)


async def _awaited(
    function: Callable[..., Coroutine[Any, Any, Any]],
    loop: asyncio.AbstractEventLoop,
    *arguments: Any,
    **named: Any,
) -> Any:
    return await on_loop(loop, function(*arguments, **named))


async def _walked(
    function: Callable[..., AsyncIterator[Any]], loop: asyncio.AbstractEventLoop, *arguments: Any, **named: Any
) -> AsyncIterator[Any]:
    walk = function(*arguments, **named)
    end = object()
    try:
        while (item := await on_loop(loop, _next(walk, end))) is not end:
            yield item
    finally:
        close = getattr(walk, "aclose", None)
        if close is not None:
            await on_loop(loop, close_walk(close))


async def _next(walk: AsyncIterator[Any], end: object) -> Any:
    return await anext(walk, end)


async def close_walk(close: Callable[[], Any]) -> None:
    """End a walk on its own loop."""
    await close()


async def on_loop(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    """Do the work on `loop`, wherever the caller runs; cancelling the caller cancels the work."""
    if loop is asyncio.get_running_loop():
        return await work
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))
