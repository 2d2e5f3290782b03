"""Session: the transaction that a transactional handler is lent. It may not end it: returning, or an error, alone ends
it. Nor may it keep it: what a handler leaves behind (a task that nobody awaits) finds it shut."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from consumer.errors import HandlerMisuse

_COMMENTS: Final = r"(?:\s|--[^\n]*(?:\n|\Z)|/\*.*?\*/)*"
_ENDS: Final = re.compile(
    _COMMENTS
    + r"(COMMIT|END|ABORT|BEGIN|START|PREPARE\s+TRANSACTION|ROLLBACK(?!(?:\s+(?:TRANSACTION|WORK))?\s+TO\b))\b",
    re.IGNORECASE | re.DOTALL,
)
_OUTLASTS: Final = re.compile(
    _COMMENTS + r"(SET(?!\s+CONSTRAINTS\b)|RESET|DISCARD|LISTEN|PRAGMA(?=[^(]*=))\b",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(eq=False)
class _Loan:
    """To whom the transaction is lent, and whether that is over."""

    handler: str
    is_over: bool = False

    def refuse(self, what: str) -> NoReturn:
        raise HandlerMisuse(
            f"a handler must not {what} ctx.session: others share its transaction; raise an error to undo your writes",
            handler=self.handler,
        )

    def refuse_when_over(self, what: str = "ctx.session") -> None:
        if self.is_over:
            raise HandlerMisuse(
                f"{what} was used when its handler had ended: await all that it starts", handler=self.handler
            )


_lent: ContextVar[_Loan | None] = ContextVar("lent_session", default=None)


@contextmanager
def lent(handler: str) -> Iterator[None]:
    """For the time of a handler's call, in its task and those that it starts: what ends the transaction is refused.
    Those that go on behind its end get no statement through any more."""
    loan = _Loan(handler)
    before = _lent.set(loan)
    try:
        yield
    finally:
        loan.is_over = True
        _lent.reset(before)


def see_to_statement(statement: str) -> None:
    """Before a statement is sent: raises HandlerMisuse for one of a handler's that would end the transaction, or change
    how those who share it, or have the connection next, are answered."""
    if (loan := _lent.get()) is None:
        return
    loan.refuse_when_over()
    if found := _ENDS.match(statement):
        loan.refuse(f"say {found[1].upper()} on")
    if found := _OUTLASTS.match(statement):
        raise HandlerMisuse(
            f"a handler must not say {found[1].upper()} on ctx.session: it would hold for others, too",
            handler=loan.handler,
        )


def see_to_commit(connection: Connection) -> None:
    """Before a connection commits: raises HandlerMisuse while a handler has its transaction. SQLAlchemy takes it for
    ended by then, so the connection is thrown away, and with it what was written."""
    if (loan := _lent.get()) is not None:
        connection.invalidate()
        loan.refuse("commit")


class LentSession(Session):
    """The session beneath: the same holds for `run_sync` and `sync_session`."""

    def commit(self) -> None:
        """Raises HandlerMisuse while a handler has it."""
        if (loan := _lent.get()) is not None:
            loan.refuse("commit")
        super().commit()

    def rollback(self) -> None:
        """Raises HandlerMisuse while a handler has it."""
        if (loan := _lent.get()) is not None:
            loan.refuse("roll back")
        super().rollback()

    def close(self) -> None:
        """Raises HandlerMisuse while a handler has it."""
        if (loan := _lent.get()) is not None:
            loan.refuse("close")
        super().close()


class _LentConnection(AsyncConnection):
    """The same for a connection that the handler asked for: its transaction is that of the session."""

    def __init__(self, given: AsyncConnection, loan: _Loan) -> None:
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

    def __init__(self, loan: _Loan) -> None:
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
        self._loan = _Loan(handler)

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
