"""Key values: short texts by their names, for what needs no table of its own. They lie in the table of the request
budget, whose texts can be looked at here, too."""

from __future__ import annotations

from sqlalchemy import Table, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.columns import insert_into
from consumer.ledger.base_tables import BudgetRow

_BUDGETS: Table = BudgetRow.__table__


async def load(session: AsyncSession, name: str) -> str | None:
    """The stored text of this name, to look at it without changing it; None when there is none."""
    found: str | None = await session.scalar(select(_BUDGETS.c.value).where(_BUDGETS.c.name == name))
    return found


async def beginning(session: AsyncSession, prefix: str) -> dict[str, str]:
    """The stored texts whose name begins so, by name; `prefix` ends with `/`."""
    after = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    named = select(_BUDGETS.c.name, _BUDGETS.c.value).where(_BUDGETS.c.name >= prefix, _BUDGETS.c.name < after)
    return {row.name: row.value for row in await session.execute(named) if row.name.startswith(prefix)}


async def keep(session: AsyncSession, name: str, value: str) -> None:
    """Store the text of this name; the last one counts."""
    insert = insert_into(_BUDGETS, session.get_bind().dialect.name)
    statement = insert.on_conflict_do_update(index_elements=["name"], set_={"value": insert.excluded.value})
    await session.execute(statement, {"name": name, "value": value})


async def swap(session: AsyncSession, name: str, was: str, value: str) -> None:
    """Store the text of this name if `was` is what is there; else nothing."""
    there = (_BUDGETS.c.name == name, _BUDGETS.c.value == was)
    await session.execute(update(_BUDGETS).where(*there).values(value=value))
