"""Counting and first ones, without reading what grows: counts stop at a limit, groups are found one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Column, Select, func, select
from sqlalchemy.ext.asyncio import AsyncSession

COUNT_MAX: Final = 250_000
"""No count goes on beyond it: what is more is told as this many."""


async def up_to(session: AsyncSession, wanted: Select[Any], most: int = COUNT_MAX) -> int:
    """How many rows that is, or `most`. Give it rows in the order of an index, and it reads only that."""
    return int((await session.execute(select(func.count()).select_from(wanted.limit(most).subquery()))).scalar_one())


async def each_of(session: AsyncSession, column: Column[Any], *where: Any) -> Sequence[Any]:
    """The values of a column by an index that begins with it: one probe for each value, however many rows have it."""
    first = select(func.min(column)).where(*where)
    names = select(first.scalar_subquery().label("name")).cte("names", recursive=True)
    following = first.where(column > names.c.name).scalar_subquery()
    names = names.union_all(select(following).where(names.c.name.is_not(None)))
    return (await session.scalars(select(names.c.name).where(names.c.name.is_not(None)))).all()
