"""Lanes: (application, handler, key), of which only the head, the earliest blocking run, may be worked on.

Every question here is asked lane by lane, by index `ix_runs_blocking`, in a scalar subquery that no planner can turn
into a join: what it costs follows from how many lanes are asked for, and never from how long the backlog is or what
the statistics say of it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    ScalarSelect,
    Select,
    Table,
    bindparam,
    false,
    func,
    literal_column,
    or_,
    select,
    tuple_,
)
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.columns import each_given, unindexed
from consumer.ledger.engine.chunks import grouped
from consumer.ledger.tables import RunRow, RunStatus

_RUNS: Table = RunRow.__table__
_AHEAD: Table = RunRow.__table__.alias("ahead")  # type: ignore[assignment]  # an alias has the table's columns

Lane = tuple[str, str, str]
"""(application, handler, key): what is worked on in order."""

Place = tuple[str, str, str | None]
"""(handler, application, key): up to where parked runs were looked at; without a key, past that application."""

RunId = tuple[str, str, str]
"""(application, event id, handler)."""

PARKED_A_LOOK = 1000


@dataclass(frozen=True)
class Page:
    """Parked runs that lead their lanes, among some of the parked ones, and after what to go on; None at the end."""

    stranded: Sequence[RunId]
    after: Place | None


def is_status(status: RunStatus) -> ColumnElement[bool]:
    """The run stands like this; the word is in the statement itself, so that the partial index of it serves."""
    return _RUNS.c.status == literal_column(f"'{status.value}'")


def stands(*statuses: RunStatus) -> ColumnElement[bool]:
    """One of these runs that were found by their ids stands like this. No planner takes the index of that state for it,
    and reads all that stand so, because it believes that there are none."""
    return or_(false(), *[unindexed(_RUNS.c.status) == one.value for one in statuses])


def head_of(application: Any, handler: Any, key: Any) -> ScalarSelect[Any]:
    """The event id of the run that leads the lane; NULL when nothing blocks it."""
    lane = (_AHEAD.c.application == application, _AHEAD.c.key == key, _AHEAD.c.handler == handler)
    return select(_AHEAD.c.event_id).where(_AHEAD.c.blocking, *lane).order_by(_AHEAD.c.seq).limit(1).scalar_subquery()


_KEYS = each_given("keys")
_HEADS = select(head_of(bindparam("application"), bindparam("handler"), _KEYS.c.value)).select_from(_KEYS)


async def heads(session: AsyncSession, lanes: Collection[Lane]) -> list[RunId]:
    """The runs that lead these lanes."""
    found: list[RunId] = []
    for (application, handler), keys in grouped(((lane[0], lane[1]), lane[2]) for lane in lanes):
        rows = await session.scalars(_HEADS, {"application": application, "handler": handler, "keys": keys})
        found += [(application, event_id, handler) for event_id in rows if event_id is not None]
    return found


async def blocked(session: AsyncSession, keys: Collection[tuple[str, str]]) -> set[Lane]:
    """The lanes of these (application, key) where an unresolved run makes later ones wait: from handler to handler, so
    that it costs nothing how many wait already."""
    found: set[Lane] = set()
    for (application,), chunk in grouped(((application,), key) for application, key in keys):
        rows = await session.execute(_BLOCKED, {"application": application, "keys": chunk})
        found |= {(application, handler, key) for key, handler in rows}
    return found


def _first_handler(key: Any, after: Any = None) -> ScalarSelect[Any]:
    first = select(func.min(_AHEAD.c.handler)).where(
        _AHEAD.c.blocking, _AHEAD.c.application == bindparam("application"), _AHEAD.c.key == key
    )
    return (first if after is None else first.where(_AHEAD.c.handler > after)).scalar_subquery()


def _blocked() -> Select[Any]:
    first = _first_handler(_KEYS.c.value).label("handler")
    lane = select(_KEYS.c.value.label("key"), first).select_from(_KEYS).cte("lane", recursive=True)
    following = select(lane.c.key, _first_handler(lane.c.key, lane.c.handler))
    lane = lane.union_all(following.where(lane.c.handler.is_not(None)))
    return select(lane.c.key, lane.c.handler).where(lane.c.handler.is_not(None))


_BLOCKED = _blocked()


_PLACE = (_RUNS.c.handler, _RUNS.c.application, _RUNS.c.key)
_PARKED = (
    select(_RUNS.c.application, _RUNS.c.event_id, _RUNS.c.handler, _RUNS.c.key,
           head_of(_RUNS.c.application, _RUNS.c.handler, _RUNS.c.key).label("head"))
    .where(is_status(RunStatus.PARKED))
    .order_by(*_PLACE, _RUNS.c.seq)
    .limit(bindparam("most"))
)  # fmt: skip


async def stranded(
    session: AsyncSession,
    after: Place | None = None,
    limit: int = PARKED_A_LOOK,
    *,
    held: Collection[tuple[str, str]] = (),
) -> Page:
    """Parked runs that wait behind nothing, among the next `limit` parked ones by index `ix_runs_parked`; give the page
    to `runs.release`, and its `after` to the next look. A lane that does not end in the page is done with: only its
    first run can lead it. `held`: (handler, application) of which none goes on now, and which the next look passes
    over where this one ended among them."""
    wanted = _PARKED
    if after is not None:
        place = [one for one in after if one is not None]
        wanted = wanted.where(tuple_(*_PLACE[: len(place)]) > tuple_(*place))
    rows = (await session.execute(wanted, {"most": limit})).all()
    leading = [
        (row.application, row.event_id, row.handler)
        for row in rows
        if row.head == row.event_id and (row.handler, row.application) not in held
    ]
    last = rows[-1] if len(rows) == limit else None
    if last is None:
        return Page(leading, None)
    is_held = (last.handler, last.application) in held
    return Page(leading, (last.handler, last.application, None if is_held else last.key))
