"""Handler session: the open transaction as a handler sees it. It writes in it; the worker alone ends it."""

from __future__ import annotations

from typing import NoReturn

from sqlalchemy.ext.asyncio import AsyncSession

from consumer.errors import HandlerMisuse


class HandlerSession(AsyncSession):
    """The same session, without the ways to end its transaction: many events and their marks share it (case G2).

    A commit half way would keep an order that is marked as requested and lose the request; a rollback would lose
    events whose offsets are committed. Both raise HandlerMisuse, so that the handler fails and nobody else.
    `begin_nested()` is a handler's own savepoint, and stays.
    """

    def __init__(self, session: AsyncSession, handler: str) -> None:
        # Not AsyncSession's own: that would open a second session. This is the given one under another face.
        self.__dict__.update(session.__dict__)
        self._handler = handler

    async def commit(self) -> NoReturn:
        """Raises HandlerMisuse."""
        self._refuse("commit")

    async def rollback(self) -> NoReturn:
        """Raises HandlerMisuse."""
        self._refuse("roll back")

    async def close(self) -> NoReturn:
        """Raises HandlerMisuse; so does `async with ctx.session`, at its end."""
        self._refuse("close")

    async def aclose(self) -> NoReturn:
        """Raises HandlerMisuse."""
        self._refuse("close")

    async def reset(self) -> NoReturn:
        """Raises HandlerMisuse."""
        self._refuse("reset")

    async def invalidate(self) -> NoReturn:
        """Raises HandlerMisuse."""
        self._refuse("invalidate")

    def _refuse(self, what: str) -> NoReturn:
        raise HandlerMisuse(
            f"a handler must not {what} ctx.session: others share its transaction; raise an error to undo your writes",
            handler=self._handler,
        )
