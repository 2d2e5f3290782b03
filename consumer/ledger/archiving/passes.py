"""Passes: how the scheduled archiving last went, for `status` and for whoever does the next one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import orjson
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.events import parse_time
from consumer.ledger.reading import key_values

NAME: Final = "archive/pass"


@dataclass(frozen=True, kw_only=True)
class LastPass:
    """`began_at`: when one first tried; `done_at`: when one last came to its end; `code`: why the last one did not."""

    began_at: datetime | None = None
    done_at: datetime | None = None
    code: str | None = None


async def load(session: AsyncSession) -> LastPass:
    """The last pass; nothing when there was none."""
    stored = await key_values.load(session, NAME)
    state: dict[str, Any] = orjson.loads(stored) if stored else {}
    return LastPass(
        began_at=parse_time(state.get("began_at")), done_at=parse_time(state.get("done_at")), code=state.get("code")
    )


async def keep(session: AsyncSession, found: LastPass) -> None:
    """Remember it."""
    state = {
        "began_at": found.began_at and found.began_at.isoformat(),
        "done_at": found.done_at and found.done_at.isoformat(),
        "code": found.code,
    }
    await key_values.keep(session, NAME, orjson.dumps(state).decode())
