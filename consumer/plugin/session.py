"""Session: the transaction that a handler is lent, as `ctx.session`: without the ways to end it (see `loan.py`)."""

from __future__ import annotations

from typing import Any, NoReturn

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from consumer.loan import Loan


class _LentConnection(AsyncConnection):
    """The same for a connection that the handler asked for: its transaction is that of the session."""

    def __init__(self, given: AsyncConnection, loan: Loan) -> None:
        # Not AsyncConnection's own, as below.
        self.engine, self.sync_engine, self.sync_connection = given.engine, given.sync_engine, given.sync_connection
        self._loan = loan

    async def commit(self) -> NoReturn:
        """Raises HandlerMisuse."""
        self._loan.refuse("commit")

    async def rollback(self) -> NoReturn:
        """Raises HandlerMisuse."""
        self._loan.refuse("roll back")

    async def close(self) -> NoReturn:
        """Raises HandlerMisuse; so does `async with` of it, at its end."""
        self._loan.refuse("close")

    async def invalidate(self, *_: object, **__: object) -> NoReturn:
        """Raises HandlerMisuse."""
        self._loan.refuse("invalidate")

    def get_transaction(self) -> NoReturn:
        """Raises HandlerMisuse."""
        self._loan.refuse("take the transaction of")


class _Ended:
    """Stands for the session when its handler has ended."""

    def __init__(self, loan: Loan) -> None:
        self._loan = loan

    def __getattr__(self, name: str) -> NoReturn:
        self._loan.refuse_when_over()
        raise AttributeError(name)


class HandlerSession(AsyncSession):
    """The same session, without the ways to end its transaction: many events and their marks share it (case G2).

    A commit half way would keep an order that is marked as requested and lose the request; a rollback would lose
    events whose offsets are committed. Both raise HandlerMisuse, so that the handler fails and nobody else.
    `begin_nested()` is a handler's own savepoint, and stays.
    """

    def __init__(self, session: AsyncSession, handler: str) -> None:
        # Not AsyncSession's own: that would open a second session. This is the given one under another face.
        self.__dict__.update(session.__dict__)
        self._loan = Loan(handler)

    def end(self) -> None:
        """Its handler has ended: from now on everything raises HandlerMisuse. The session itself goes on."""
        self._loan.is_over = True
        self.__dict__.update(sync_session=_Ended(self._loan), _proxied=_Ended(self._loan))

    async def connection(self, *given: Any, **named: Any) -> AsyncConnection:
        """Its connection, which does not end the transaction either."""
        return _LentConnection(await super().connection(*given, **named), self._loan)

    def get_transaction(self) -> NoReturn:
        """Raises HandlerMisuse."""
        self._loan.refuse("take the transaction of")

    def get_nested_transaction(self) -> NoReturn:
        """Raises HandlerMisuse: `begin_nested()` gives a handler its own."""
        self._loan.refuse("take the savepoint of")

    async def commit(self) -> NoReturn:
        """Raises HandlerMisuse."""
        self._loan.refuse("commit")

    async def rollback(self) -> NoReturn:
        """Raises HandlerMisuse."""
        self._loan.refuse("roll back")

    async def close(self) -> NoReturn:
        """Raises HandlerMisuse; so does `async with ctx.session`, at its end."""
        self._loan.refuse("close")

    async def aclose(self) -> NoReturn:
        """Raises HandlerMisuse."""
        self._loan.refuse("close")

    async def reset(self) -> NoReturn:
        """Raises HandlerMisuse."""
        self._loan.refuse("reset")

    async def invalidate(self) -> NoReturn:
        """Raises HandlerMisuse."""
        self._loan.refuse("invalidate")
