"""Sealing: gives the entries of the audit trail their places in the chain, after they were committed.

Who writes an entry waits for nobody: it is written without a place. Who seals, one at a time by the lock on the chain's
head, takes what has none, links it and moves the head on. So two writers cannot fork the chain, and what commits late
comes later in it. What was written in the last seconds is not sealed yet; an export and an anchor seal it first.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import orjson
from sqlalchemy import Table, bindparam, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.columns import among, insert_into
from consumer.ledger.engine.counting import each_of
from consumer.ledger.plans.tables import PlanRow
from consumer.ledger.tables import AuditRow, ChainHeadRow
from consumer.ledger.trail.chain import CONTENT, START, linked

_AUDIT: Table = AuditRow.__table__
_HEAD: Table = ChainHeadRow.__table__
_PLANS: Table = PlanRow.__table__
BATCH: Final = 500
_ONE: Final = 1
FROZEN: Final = (
    "id",
    "number",
    "created_at",
    "created_by",
    "filters",
    "forced",
    "renews_keys",
    "items",
    "predicted",
    "digest",
)


@dataclass(frozen=True)
class Head:
    """The last sealed entry."""

    number: int
    hash: str


async def head(session: AsyncSession) -> Head:
    """The end of the chain."""
    row = (await session.execute(select(_HEAD.c.number, _HEAD.c.hash).where(_HEAD.c.id == _ONE))).first()
    return Head(0, START) if row is None else Head(row.number, row.hash)


async def seal(session: AsyncSession, limit: int = BATCH) -> int:
    """Seal the oldest entries that have no place yet; how many. Waits for who is sealing, and for nobody else."""
    insert = insert_into(_HEAD, session.get_bind().dialect.name)
    await session.execute(insert.values(id=_ONE, number=0, hash=START).on_conflict_do_nothing())
    locked = select(_HEAD.c.number, _HEAD.c.hash).where(_HEAD.c.id == _ONE).with_for_update()
    number, before = (await session.execute(locked)).one()
    waiting = select(_AUDIT).where(text("number IS NULL")).order_by(_AUDIT.c.id).limit(limit)
    places = []
    for row in map(dict, (await session.execute(waiting)).mappings()):
        number += 1
        before = linked(before, number, content(row))
        places.append({"of": row["id"], "place": number, "link": before})
    if places:
        moved = update(_AUDIT).where(_AUDIT.c.id == bindparam("of"))
        connection = await session.connection()
        await connection.execute(moved.values(number=bindparam("place"), hash=bindparam("link")), places)
        await session.execute(update(_HEAD).where(_HEAD.c.id == _ONE).values(number=number, hash=before))
    return len(places)


def content(row: Mapping[str, Any]) -> dict[str, Any]:
    """What of a row is sealed, as JSON has it."""
    return {name: _plain(row[name]) for name in CONTENT}


async def entries(session: AsyncSession, after: int, until: int, limit: int = BATCH) -> Sequence[dict[str, Any]]:
    """The next sealed entries, in their order, up to number `until`."""
    wanted = select(_AUDIT).where(_AUDIT.c.number > after, _AUDIT.c.number <= until)
    rows = await session.execute(wanted.order_by(_AUDIT.c.number).limit(limit))
    return [{"number": row["number"], **content(row), "hash": row["hash"]} for row in map(dict, rows.mappings())]


async def newest(session: AsyncSession, subject: str | None, limit: int) -> Sequence[dict[str, Any]]:
    """The newest entries, sealed or not, newest first; of one subject or of all."""
    wanted = select(_AUDIT).order_by(_AUDIT.c.id.desc()).limit(limit)
    if subject is not None:
        applications = await each_of(session, _AUDIT.c.application)
        wanted = wanted.where(among(_AUDIT.c.application, applications), _AUDIT.c.subject == subject)
    rows = await session.execute(wanted)
    return [{"number": row["number"], **content(row)} for row in map(dict, rows.mappings())]


async def plans(session: AsyncSession) -> AsyncIterator[dict[str, Any]]:
    """What of each plan never changes, oldest first."""
    after = 0
    while True:
        wanted = select(_PLANS).where(_PLANS.c.number > after).order_by(_PLANS.c.number).limit(50)
        rows = (await session.execute(wanted)).mappings().all()
        if not rows:
            return
        for row in rows:
            yield frozen(dict(row))
        after = rows[-1]["number"]


def frozen(row: Mapping[str, Any]) -> dict[str, Any]:
    """What of a plan never changes, as JSON has it."""
    return {name: _plain(row[name]) for name in FROZEN}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="microseconds")
    return orjson.loads(value) if isinstance(value, bytes) else value
