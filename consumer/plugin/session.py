"""Session: the transaction that a handler is lent, as `ctx.session`: without the ways to end it (see `loan.py`).

Nor does it overwrite what it has not seen. Of two workers that read a row of several keys, and each write what it makes
of it, the later one knows nothing of the other's change. So before a flush each changed row is locked, as its UPDATE
would lock it, and looked at once more: one that is not as it was read fails the run, which reads it anew (case I23).
SQLite's transactions are alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from types import NoneType
from typing import Any, Final, NoReturn
from uuid import UUID

from sqlalchemy import ClauseElement, Column, event
from sqlalchemy import inspect as sqlalchemy_inspect
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import InstanceState, Mapper, Session

from consumer.loan import LentSession, Loan
from consumer.plugin.handler import RetryLater
from consumer.plugin.statements import locking_these, written_here

AGAIN_S: Final = 0.2
LOCKED_AT_ONCE: Final = 5_000
"""Only within so many do two workers take rows in one order for certain."""
PARAMETERS_MAX: Final = 32_767
"""Of one statement of PostgreSQL's."""
_HELD: Final = "rows_held"
_COMPARED: Final = (str, bytes, int, float, Decimal, date, time, timedelta, UUID, Enum, NoneType)
"""What stays as it was read until another is set: a list may have been changed in place, since nobody knows when."""


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


@event.listens_for(LentSession, "before_flush")
def see_to_rows(session: Session, *_: object) -> None:
    """Before a handler's changes of rows are sent: raises RetryLater where another transaction has changed one since it
    was read. What is held from then on is asked for once."""
    if session.get_bind().dialect.name != "postgresql":
        return
    held: set[Any] = session.info.setdefault(_HELD, set())
    changed = [row for row in session.dirty if session.is_modified(row, include_collections=False)]
    states = [sqlalchemy_inspect(row) for row in (*changed, *session.deleted)]
    for mapper, same in _by_model(state for state in states if state.key not in held).items():
        at_once = min(LOCKED_AT_ONCE, PARAMETERS_MAX // len(mapper.primary_key))
        for begin in range(0, len(same), at_once):
            _lock(session, mapper, same[begin : begin + at_once])
    held.update(state.key for state in states)


@event.listens_for(LentSession, "pending_to_persistent")
def hold(session: Session, row: object) -> None:
    """A row that was inserted: nobody else has seen it."""
    session.info.setdefault(_HELD, set()).add(sqlalchemy_inspect(row, raiseerr=True).key)


@event.listens_for(LentSession, "after_soft_rollback")
def let_go(session: Session, _: object) -> None:
    """Behind a savepoint nothing of it is locked any more."""
    session.info.pop(_HELD, None)


def _by_model(states: Iterable[InstanceState[Any]]) -> Mapping[Mapper[Any], list[InstanceState[Any]]]:
    """Those of one model together, in one order on every worker."""
    found: dict[Mapper[Any], list[InstanceState[Any]]] = {}
    for state in sorted(states, key=lambda one: (str(one.mapper.persist_selectable), str(one.key))):
        found.setdefault(state.mapper, []).append(state)
    return found


def _lock(session: Session, mapper: Mapper[Any], states: Sequence[InstanceState[Any]]) -> None:
    """Rows of one model. What this very transaction wrote, by a statement of the handler's own, is no other's. Raises
    RetryLater."""
    were = {tuple(state.key[1]): _read(state) for state in states if state.key is not None}
    names = sorted({name for read in were.values() for name in read})
    width = len(mapper.primary_key)
    rows = session.execute(locking_these(mapper, names, list(were))).all()
    now = {tuple(row[:width]): dict(zip(names, row[width:], strict=True)) for row in rows}
    for key, read in were.items():
        differs = key not in now or any(now[key][name] != value for name, value in read.items())
        if differs and not session.scalar(written_here(mapper, key)):
            what = f"a row of {mapper.local_table} was changed by another transaction since it was read"
            raise RetryLater(AGAIN_S, f"{what}; to wait instead, ctx.locked(...) or update().values(n=Model.n + 1)")


def _read(state: InstanceState[Any]) -> Mapping[str, Any]:
    """The attributes of a row as they were read, of those that can be compared."""
    found: dict[str, Any] = {}
    for attribute in state.mapper.column_attrs:
        history = state.attrs[attribute.key].history
        for was in (*(history.deleted or ()), *(history.unchanged or ())):
            is_itself = isinstance(was, _COMPARED) and bool(was == was)
            if isinstance(state.dict.get(attribute.key), ClauseElement):
                continue  # `row.n = Model.n + 1`: the database reckons with what is there
            if is_itself and isinstance(attribute.columns[0], Column):
                found[attribute.key] = was
    return found
