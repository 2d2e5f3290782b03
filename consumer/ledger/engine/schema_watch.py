"""Schema watch: whether the tables still give what this version needs, while a role of it runs. A migration of another
version may have come since its start; each is noted in a table, which is all that is asked until one was."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Table, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.errors import ConsumerError, SchemaIncompatible
from consumer.ledger.engine.branches import branches
from consumer.ledger.engine.shape import missing_of
from consumer.ledger.tables import RevisionRow

_REVISIONS: Table = RevisionRow.__table__


class SchemaWatch:
    """Looks with each heartbeat."""

    def __init__(self) -> None:
        self._seen: tuple[int, datetime | None] | None = None
        self._refusal: ConsumerError | None = None

    def refusal(self) -> ConsumerError | None:
        """What the last look found; None while the tables suit."""
        return self._refusal

    async def look(self, session: AsyncSession) -> None:
        """Compare, where a migration was run or taken back since the last look. Raises LedgerError."""
        count, newest = (await session.execute(select(func.count(), func.max(_REVISIONS.c.applied_at)))).one()
        if (count, newest) == self._seen:
            return
        lacking = await (await session.connection()).run_sync(missing_of, branches().keys())
        self._refusal = SchemaIncompatible(lacking=",".join(lacking)) if lacking else None
        self._seen = (count, newest)
