"""Size: what the ledger's database takes on its disk, before the disk is full."""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

_ASKED = {
    "postgresql": "SELECT pg_database_size(current_database())",
    "sqlite": "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()",
}


async def size_bytes(session: AsyncSession) -> int:
    """Bytes of the whole database, indexes included; without what lies in a write-ahead log."""
    return int((await session.execute(text(_ASKED[session.get_bind().dialect.name]))).scalar_one())
