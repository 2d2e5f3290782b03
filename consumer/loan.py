"""Loan: the transaction that a transactional handler is lent. It may not end it: returning, or an error, alone ends
it. Nor may it keep it: what a handler leaves behind (a task that nobody awaits) finds it shut."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, NoReturn

from sqlalchemy.engine import Connection
from sqlalchemy.orm import Session

from consumer.errors import HandlerMisuse

_COMMENTS: Final = r"(?:\s|--[^\n]*(?:\n|\Z)|/\*.*?\*/)*"
_ENDS: Final = re.compile(
    _COMMENTS
    + r"(COMMIT|END|ABORT|BEGIN|START|PREPARE\s+TRANSACTION|ROLLBACK(?!(?:\s+(?:TRANSACTION|WORK))?\s+TO\b))\b",
    re.IGNORECASE | re.DOTALL,
)
_OUTLASTS_CALLED: Final = re.compile(r"\b(set_config|pg_(?:try_)?advisory_lock(?:_shared)?)\s*\(", re.IGNORECASE)
_OUTLASTS: Final = re.compile(
    _COMMENTS + r"(SET(?!\s+CONSTRAINTS\b)|RESET|DISCARD|LISTEN|PRAGMA(?=[^(]*=))\b",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(eq=False)
class Loan:
    """To whom the transaction is lent, and whether that is over."""

    handler: str
    is_over: bool = False

    def refuse(self, what: str) -> NoReturn:
        """Raises HandlerMisuse: a handler must not do this to it."""
        raise HandlerMisuse(
            f"a handler must not {what} ctx.session: others share its transaction; raise an error to undo your writes",
            handler=self.handler,
        )

    def refuse_when_over(self) -> None:
        """Raises HandlerMisuse where its handler has ended."""
        if self.is_over:
            raise HandlerMisuse(
                "ctx.session was used when its handler had ended: await all that it starts", handler=self.handler
            )


_lent: ContextVar[Loan | None] = ContextVar("lent_session", default=None)


@contextmanager
def lent(handler: str) -> Iterator[None]:
    """For the time of a handler's call, in its task and those that it starts: what ends the transaction is refused.
    Those that go on behind its end get no statement through any more."""
    loan = Loan(handler)
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
    if found := _OUTLASTS.match(statement) or _OUTLASTS_CALLED.search(statement):
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
