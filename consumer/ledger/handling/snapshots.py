"""Snapshots: the newest authenticated read of an order or a subscription, from the recorded observations (case H2)."""

from __future__ import annotations

from sqlalchemy import Table, select
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.events import Trust
from consumer.ledger.tables import EventRow
from consumer.plugin.snapshot import Snapshot, SnapshotKind, observation_type, snapshot_in

_EVENTS: Table = EventRow.__table__
CANDIDATES = 20


async def newest(session: AsyncSession, application: str, kind: SnapshotKind, object_id: str) -> Snapshot | None:
    """The recorded read with the highest version, or None when none was recorded. One query, by index `ix_events_key`.

    Reads arrive in the order of their versions, but for those that were under way at once: so the newest is among the
    last few that arrived.
    """
    statement = (
        select(_EVENTS.c.raw, _EVENTS.c.received_at)
        .where(
            _EVENTS.c.application == application,
            _EVENTS.c.key == f"{kind}:{object_id}",
            _EVENTS.c.type == observation_type(kind),
            _EVENTS.c.trust == Trust.READ.value,
        )
        .order_by(_EVENTS.c.seq.desc())
        .limit(CANDIDATES)
    )
    # What a handler has added to the session and not flushed is no business of a look at something else.
    with session.no_autoflush:
        rows = (await session.execute(statement)).all()
    found = [
        snapshot_in(row.raw, application=application, kind=kind, object_id=object_id, at=row.received_at)
        for row in rows
    ]
    return max((one for one in found if one is not None), key=lambda one: one.version, default=None)
