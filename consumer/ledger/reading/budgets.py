"""The shared storage of the request budget and of the credential circuits: named short texts, changed atomically."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from sqlalchemy import Table, bindparam, delete, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.clock import Clock
from consumer.columns import insert_into
from consumer.ledger.base_tables import BudgetRow
from consumer.ledger.engine.database import Database

_BUDGETS: Table = BudgetRow.__table__
T = TypeVar("T")


class LedgerBudgetStore:
    """`consumer.payments.BudgetStore` in the database: every process that shares the ledger shares the budget.

    Its time is the database's on PostgreSQL, so that servers need not agree, and the clock's on SQLite (one machine).
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def update(
        self, names: Sequence[str], step: Callable[[Mapping[str, str], float], tuple[Mapping[str, str], T]]
    ) -> T:
        """Run `step` on what is stored, and store what it returns, in one transaction; an empty text is forgotten.

        Raises LedgerUnavailable.
        """
        wanted = sorted(set(names))
        async with self._database.transaction() as session:
            texts = await self._locked(session, wanted)
            changes, result = step({name: value for name, value in texts.items() if value}, await self._now_s(session))
            kept = {name: value for name, value in changes.items() if value}
            if forgotten := changes.keys() - kept.keys():
                await session.execute(delete(_BUDGETS).where(_BUDGETS.c.name.in_(forgotten)))
            if kept:
                rows = [{"b_name": name, "b_value": kept[name]} for name in sorted(kept)]
                statement = update(_BUDGETS).where(_BUDGETS.c.name == bindparam("b_name"))
                connection = await session.connection()
                await connection.execute(statement.values(value=bindparam("b_value")), rows)
        return result

    async def _locked(self, session: AsyncSession, names: Sequence[str]) -> dict[str, str]:
        """The texts, their rows locked in one order by everybody; a missing one is made first, empty."""
        statement = (
            select(_BUDGETS.c.name, _BUDGETS.c.value)
            .where(_BUDGETS.c.name.in_(names))
            .order_by(_BUDGETS.c.name)
            .with_for_update()
        )
        found = {row.name: row.value for row in await session.execute(statement)}
        if len(found) < len(names):
            insert = insert_into(_BUDGETS, session.get_bind().dialect.name)
            await session.execute(
                insert.on_conflict_do_nothing(index_elements=["name"]), [{"name": name, "value": ""} for name in names]
            )
            found = {row.name: row.value for row in await session.execute(statement)}
        return found

    async def _now_s(self, session: AsyncSession) -> float:
        if session.get_bind().dialect.name == "postgresql":
            return float(await session.scalar(text("SELECT extract(epoch FROM clock_timestamp())")) or 0.0)
        return self._clock.now().timestamp()
