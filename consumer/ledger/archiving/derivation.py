"""Derivation: whether events came in from archives of which the tables of the plugins do not tell yet. Their runs are
done, so no worker will make up for it: only a rebuild does."""

from __future__ import annotations

from typing import Final

from sqlalchemy.ext.asyncio import AsyncSession

from consumer.ledger.reading import key_values

NAME: Final = "archive/not_derived"


async def owe(session: AsyncSession) -> None:
    """Events came in."""
    await key_values.keep(session, NAME, "owed")


async def is_owed(session: AsyncSession) -> bool:
    """Whether the tables lack what events tell that came in."""
    return bool(await key_values.load(session, NAME))


async def settle(session: AsyncSession) -> None:
    """The tables were derived again, of every application."""
    if await is_owed(session):
        await key_values.keep(session, NAME, "")
