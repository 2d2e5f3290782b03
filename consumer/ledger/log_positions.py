"""Log positions: how far this ledger has come in each partition of the log, stored with what was read there.

The group's own offset in the log is stored after that. So a ledger that stands before its group was restored from a
backup: what lies between is in the log, not in the ledger, and is read again (`work/rounds/position.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from sqlalchemy import Executable, Table, delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.columns import among_given, insert_into
from consumer.ledger.tables import LogPositionRow

_POSITIONS: Table = LogPositionRow.__table__
_OF_TOPICS = select(_POSITIONS).where(among_given(_POSITIONS.c.topic, "topics"))

Place = tuple[str, int]
"""Topic, and number of the partition."""


async def behind(session: AsyncSession, starts: Mapping[Place, int]) -> frozenset[Place]:
    """Where the ledger has not come as far as these offsets, though it knows the partition."""
    held = await load(session, sorted({topic for topic, _ in starts}))
    return frozenset(place for place, offset in starts.items() if held.get(place, offset) < offset)


async def keep(session: AsyncSession, offsets: Mapping[Place, int]) -> None:
    """Everything before these offsets is in the ledger, with this transaction. A position never goes back."""
    if not offsets:
        return
    rows = [
        {"topic": topic, "partition": number, "next_offset": offsets[topic, number]}
        for topic, number in sorted(offsets)
    ]
    await session.execute(_keeping(session.get_bind().dialect.name), rows)


@cache
def _keeping(dialect: str) -> Executable:
    insert = insert_into(_POSITIONS, dialect)
    return insert.on_conflict_do_update(
        index_elements=["topic", "partition"],
        set_={"next_offset": insert.excluded.next_offset},
        where=insert.excluded.next_offset > _POSITIONS.c.next_offset,
    )


async def load(session: AsyncSession, topics: Sequence[str]) -> dict[Place, int]:
    """How far the ledger has come in the partitions of these topics; one never read is left out."""
    rows = await session.execute(_OF_TOPICS, {"topics": topics})
    return {(row.topic, row.partition): row.next_offset for row in rows}


async def forget(session: AsyncSession, topic: str) -> None:
    """The topic was made anew: its offsets mean other records now."""
    await session.execute(delete(_POSITIONS).where(_POSITIONS.c.topic == topic))
