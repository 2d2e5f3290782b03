"""The last observation that was published of each object: a later one goes out only when it differs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, Table, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.columns import among, insert_into
from consumer.ledger.engine.chunks import CHUNK, matching, portions
from consumer.ledger.tables import ObservationRow

_OBSERVATIONS: Table = ObservationRow.__table__


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What was read of one object, and in which version of the world. `state` is its meaning in documented fields,
    `shape` tells which fields the record had: reconcile compares by them."""

    application: str
    kind: str
    object_id: str
    version: int
    digest: str
    read_at: datetime
    state: str = ""
    shape: str = ""


async def keep(session: AsyncSession, observed: Sequence[Observed]) -> None:
    """Remember what was published; an older read never overwrites a newer one."""
    if not observed:
        return
    insert = insert_into(_OBSERVATIONS, session.get_bind().dialect.name)
    newer = insert.excluded
    statement = insert.on_conflict_do_update(
        index_elements=["application", "kind", "object_id"],
        set_={name: newer[name] for name in ("version", "digest", "read_at", "state", "shape")},
        where=newer.version > _OBSERVATIONS.c.version,
    )
    unique = {(one.application, one.kind, one.object_id): one for one in sorted(observed, key=lambda o: o.version)}
    await session.execute(statement, [dict(unique[key].__dict__) for key in sorted(unique)])


async def last(session: AsyncSession, application: str, kind: str, object_ids: Sequence[str]) -> dict[str, Observed]:
    """Object id to its last published observation."""
    where = (_OBSERVATIONS.c.application == application) & (_OBSERVATIONS.c.kind == kind)
    found: dict[str, Observed] = {}
    for some in portions(object_ids, CHUNK):
        rows = await session.execute(select(_OBSERVATIONS).where(where, among(_OBSERVATIONS.c.object_id, some)))
        found |= {row["object_id"]: Observed(**row) for row in rows.mappings()}
    return found


async def which(session: AsyncSession, keys: Collection[tuple[str, str]]) -> frozenset[tuple[str, str]]:
    """Those of (application, key) that the service was seen to have; a key is a kind and an id, as in `order:A1`."""
    found: set[tuple[str, str]] = set()
    columns = (_OBSERVATIONS.c.application, _OBSERVATIONS.c.kind, _OBSERVATIONS.c.object_id)
    named = ((object_id, application, kind) for application, key in keys for kind, _, object_id in [key.partition(":")])
    for some in matching(_OBSERVATIONS.c.object_id, (_OBSERVATIONS.c.application, _OBSERVATIONS.c.kind), named):
        rows = await session.execute(select(*columns).where(some))
        found |= {(application, f"{kind}:{object_id}") for application, kind, object_id in rows}
    return frozenset(found)


async def after(session: AsyncSession, application: str, kind: str, object_id: str, limit: int) -> Sequence[Observed]:
    """The next objects in the order of their ids, from one on."""
    mine = (_OBSERVATIONS.c.application == application, _OBSERVATIONS.c.kind == kind)
    wanted = select(_OBSERVATIONS).where(*mine, _OBSERVATIONS.c.object_id > object_id)
    rows = await session.execute(wanted.order_by(_OBSERVATIONS.c.object_id).limit(limit))
    return [Observed(**row) for row in rows.mappings()]


async def seen(session: AsyncSession, application: str, kind: str, object_ids: Sequence[str], now: datetime) -> None:
    """These were read again just now and did not differ."""
    if object_ids:
        where = (_OBSERVATIONS.c.application == application) & (_OBSERVATIONS.c.kind == kind)
        await session.execute(
            update(_OBSERVATIONS).where(where, among(_OBSERVATIONS.c.object_id, object_ids)).values(read_at=now)
        )


async def unseen(
    session: AsyncSession, application: str, kind: str, before: datetime, *, unless: str, limit: int
) -> Sequence[str]:
    """Objects last read before then, unless their state begins with `unless`; those not seen for longest first."""
    wanted = select(_OBSERVATIONS.c.object_id).where(*_unseen(application, kind, before, unless))
    return list(await session.scalars(wanted.order_by(_OBSERVATIONS.c.read_at).limit(limit)))


async def count_unseen(session: AsyncSession, application: str, kind: str, before: datetime, *, unless: str) -> int:
    """How many were last read before then, unless their state begins with `unless` (see `unseen`)."""
    counted = select(func.count()).select_from(_OBSERVATIONS).where(*_unseen(application, kind, before, unless))
    return (await session.execute(counted)).scalar_one()


def _unseen(application: str, kind: str, before: datetime, unless: str) -> tuple[ColumnElement[bool], ...]:
    mine = (_OBSERVATIONS.c.application == application, _OBSERVATIONS.c.kind == kind)
    return *mine, _OBSERVATIONS.c.read_at < before, _OBSERVATIONS.c.state.not_like(f"{unless}%")
