"""Bookmarks: how far each walk of the service's lists has come. Only the leader's, with the newest token, are kept."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar, Final, Self

import orjson
from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Table, select
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.columns import insert_into
from consumer.errors import LeaseLost
from consumer.ledger.reading import heard
from consumer.ledger.tables import BookmarkRow

_BOOKMARKS: Table = BookmarkRow.__table__
ANYBODY: Final = 0
"""A token below any leader's: what is kept under it is a note of whoever came by, and no claim to lead."""
FIRST_WALK: Final = "first_walk"
"""How the first walk of an application began, which divides history from what is acted on."""
RECONCILE: Final = "reconcile"
"""How the last reconcile walk ended, and whether one has remembered what was there before."""
IDENTITY: Final = "identity"
"""Whose data of an application the ledger holds."""
LEFT: Final = "history"
"""How much history of an application a walk has left alone."""
SEEN_TO: Final = "history_seen_to"
"""When somebody had seen to that."""
_ADAPTERS: dict[type[KeptState], TypeAdapter[Any]] = {}


class KeptState:
    """What a frozen dataclass inherits that is kept here: its fields as JSON, times in ISO 8601. `walk`: under which
    name, given with the base class; none for what is only a part of another, or is kept elsewhere."""

    walk: ClassVar[str]

    def __init_subclass__(cls, *, walk: str = "") -> None:
        super().__init_subclass__()
        cls.walk = walk

    @classmethod
    async def of(cls, session: AsyncSession, application: str, *, locks: bool = False) -> Self:
        """As it is kept of this application; a fresh one where nothing is. `locks`: see `load`."""
        return cls.load(await load(session, application, cls.walk, locks=locks))

    async def keep(self, session: AsyncSession, application: str, *, now: datetime, token: int = ANYBODY) -> None:
        """Store it. Raises LeaseLost as `keep` below does."""
        await keep(session, application, self.walk, self.dump(), token=token, now=now)

    def dump(self) -> dict[str, Any]:
        """As JSON."""
        found: dict[str, Any] = _adapter(type(self)).dump_python(self, mode="json", by_alias=True)
        return found

    @classmethod
    def load(cls, kept: Mapping[str, Any] | None) -> Self:
        """From JSON, also of an older version; a fresh one for None and for what is not understood."""
        try:
            found: Self = _adapter(cls).validate_python(kept or {})
        except ValidationError:
            return cls()
        return found


def _adapter(kind: type[KeptState]) -> TypeAdapter[Any]:
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


async def load(session: AsyncSession, application: str, walk: str, *, locks: bool = False) -> dict[str, Any] | None:
    """What was kept, or None. `locks`: whoever else changes it waits for the end of this transaction."""
    kept = select(_BOOKMARKS.c.state).where(_BOOKMARKS.c.application == application, _BOOKMARKS.c.walk == walk)
    raw = await session.scalar(kept.with_for_update() if locks else kept)
    if raw is None:
        return None
    try:
        found = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None  # what cannot be read is as good as nothing: the walk begins anew
    return found if isinstance(found, dict) else None


async def applications(session: AsyncSession, since: datetime | None = None) -> frozenset[str]:
    """Those for which something was kept (`since` then): somebody reads them, or did. What a worker noted is no
    reading."""
    kept = select(_BOOKMARKS.c.application).where(_BOOKMARKS.c.walk != heard.WALK).distinct()
    return frozenset(await session.scalars(kept if since is None else kept.where(_BOOKMARKS.c.updated_at >= since)))


async def of_all(session: AsyncSession, walk: str) -> Mapping[str, dict[str, Any]]:
    """What was kept of this walk, by application."""
    names = sorted(await session.scalars(select(_BOOKMARKS.c.application).where(_BOOKMARKS.c.walk == walk)))
    return {name: kept for name in names if (kept := await load(session, name, walk)) is not None}


async def keep(
    session: AsyncSession, application: str, walk: str, state: Mapping[str, Any], *, token: int, now: datetime
) -> None:
    """Store it. Raises LeaseLost when a later leader has stored one already (a fencing token only goes up)."""
    insert = insert_into(_BOOKMARKS, session.get_bind().dialect.name)
    newer = insert.excluded
    statement = (
        insert.values(application=application, walk=walk, token=token, state=orjson.dumps(dict(state)), updated_at=now)
        .on_conflict_do_update(
            index_elements=["application", "walk"],
            set_={"token": newer.token, "state": newer.state, "updated_at": newer.updated_at},
            where=_BOOKMARKS.c.token <= newer.token,
        )
        .returning(_BOOKMARKS.c.token)
    )
    if (await session.execute(statement)).first() is None:
        raise LeaseLost("a later leader has moved the bookmark", application=application, walk=walk)
