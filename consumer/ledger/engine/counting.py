"""Counting and first ones, without reading what grows: counts stop at a limit, groups are found one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Column, Select, Update, func, select
from sqlalchemy.ext.asyncio import AsyncSession

COUNT_MAX: Final = 250_000
"""No count goes on beyond it: what is more is told as this many."""


async def up_to(session: AsyncSession, wanted: Select[Any], most: int = COUNT_MAX) -> int:
    """How many rows that is, or `most`. Give it rows in the order of an index, and it reads only that."""
    return int((await session.execute(select(func.count()).select_from(wanted.limit(most).subquery()))).scalar_one())


async def changed(session: AsyncSession, change: Update) -> int:
    """Change these rows; how many they were."""
    done = await session.execute(change)
    return int(done.rowcount)  # type: ignore[attr-defined]  # a cursor's result has it


@dataclass(frozen=True)
class Span:
    """The first and the last number that rows have in a column."""

    column: Column[Any]
    first: int
    last: int

    @property
    def count(self) -> int:
        """How many numbers that is; a few may be of no row."""
        return self.last - self.first + 1


async def numbered(session: AsyncSession, column: Column[Any]) -> Span | None:
    """The numbers of all rows, by the index of the column; None without a row."""
    ends = (select(func.min(column)).scalar_subquery(), select(func.max(column)).scalar_subquery())
    first, last = (await session.execute(select(*ends))).one()
    return None if first is None else Span(column, first, last)


async def count_between(session: AsyncSession, span: Span) -> int:
    """How many rows have a number of the newest COUNT_MAX of the span."""
    since = max(span.first, span.last - COUNT_MAX + 1)
    counted = select(func.count()).where(span.column >= since, span.column <= span.last)
    return int((await session.execute(counted)).scalar_one())


async def each_of(session: AsyncSession, column: Column[Any], *where: Any) -> Sequence[Any]:
    """The values of a column by an index that begins with it: one probe for each value, however many rows have it."""
    return (await session.scalars(each_statement(column, *where))).all()


def each_statement(column: Column[Any], *where: Any) -> Select[Any]:
    """What `each_of` asks, for who asks it often."""
    first = select(func.min(column)).where(*where)
    names = select(first.scalar_subquery().label("name")).cte("names", recursive=True)
    following = first.where(column > names.c.name).scalar_subquery()
    names = names.union_all(select(following).where(names.c.name.is_not(None)))
    return select(names.c.name).where(names.c.name.is_not(None))
