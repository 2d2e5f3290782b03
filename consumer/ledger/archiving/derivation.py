"""Derivation: whether events came in from archives of which the tables of the plugins do not tell yet. Their runs are
done, so no worker will make up for it: only a rebuild of all plugins does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sqlalchemy.ext.asyncio import AsyncSession

from consumer.errors import NotDerived
from consumer.ledger.reading import key_values

BEGINS: Final = "archive/not_derived/"
OWED: Final = "owed"


async def owe(session: AsyncSession, applications: Iterable[str]) -> None:
    """Events of these came in."""
    for application in sorted(applications):
        await key_values.keep(session, f"{BEGINS}{application}", OWED)


async def owed(session: AsyncSession) -> frozenset[str]:
    """The applications of which the tables lack what events tell that came in."""
    found = await key_values.beginning(session, BEGINS)
    return frozenset(name.removeprefix(BEGINS) for name, value in found.items() if value == OWED)


async def require_none(session: AsyncSession) -> None:
    """Who works all the same ships what is held and forgets gifts, and then no rebuild agrees with what was told.
    Raises NotDerived."""
    if found := await owed(session):
        raise NotDerived(applications=", ".join(sorted(found)))


async def settle(session: AsyncSession) -> None:
    """The tables of all plugins were derived again, of every application."""
    for application in await owed(session):
        await key_values.keep(session, f"{BEGINS}{application}", "")
