"""The queue: which runs are due, how many wait or are dead, and why some wait on. It is asked again and again, so no
answer may cost more for the number of runs (see decision 10)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Select, Subquery, Table, bindparam, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.columns import unindexed
from consumer.errors import HandlerEndsProcess
from consumer.ledger.engine.counting import each_statement, up_to
from consumer.ledger.handling import lanes
from consumer.ledger.handling.lanes import RunId
from consumer.ledger.handling.runs import IS_ALONE, IS_UNCLAIMED
from consumer.ledger.tables import RunRow, RunStatus

_RUNS: Table = RunRow.__table__

PUT_OFF_LOOK = 1000
PUT_OFF_LONG = timedelta(days=1)


async def next_due(session: AsyncSession, over: datetime) -> dict[str, datetime]:
    """Handler to when its next run that nobody works on is due; it may be in the past. `over`: as for `claim`."""
    return {handler: at for handler, at in await session.execute(_NEXT_DUE, {"over": over}) if at is not None}


async def oldest_due(session: AsyncSession) -> dict[str, datetime]:
    """Handler to when its oldest run is due, or was, whether or not somebody works on it."""
    return {handler: at for handler, at in await session.execute(_first_due()) if at is not None}


def _first_due(*where: Any) -> Select[Any]:
    """From handler to handler by index `ix_runs_queue`, one probe each, and then the first run of each."""
    first = select(func.min(_RUNS.c.handler)).where(lanes.is_status(RunStatus.RETRYING))
    names = select(first.scalar_subquery().label("handler")).cte("names", recursive=True)
    following = first.where(_RUNS.c.handler > names.c.handler).scalar_subquery()
    names = names.union_all(select(following).where(names.c.handler.is_not(None)))
    at = (
        select(_RUNS.c.next_at)
        .where(lanes.is_status(RunStatus.RETRYING), _RUNS.c.handler == names.c.handler, *where)
        .order_by(_RUNS.c.next_at)
        .limit(1)
        .scalar_subquery()
    )
    return select(names.c.handler, at).where(names.c.handler.is_not(None))


_NEXT_DUE = _first_due(IS_UNCLAIMED)  # asked at every claim: built once


_HANDLERS_WITH = {
    status: each_statement(_RUNS.c.handler, lanes.is_status(status))
    for status in (RunStatus.RETRYING, RunStatus.PARKED, RunStatus.DEAD)
}


async def count_by_status(session: AsyncSession, application: str | None = None) -> dict[tuple[str, str], int]:
    """(handler, status) to how many runs wait or are dead, of all applications or of one, at most COUNT_MAX; what is
    done with is left out."""
    found: dict[tuple[str, str], int] = {}
    for status, handlers in _HANDLERS_WITH.items():
        for handler in await session.scalars(handlers):
            of_handler = select(_RUNS.c.handler).where(lanes.is_status(status), _RUNS.c.handler == handler)
            if application is not None:
                of_handler = of_handler.where(unindexed(_RUNS.c.application) == application)
            found[handler, status.value] = await up_to(session, of_handler)
    return found


@dataclass(frozen=True, kw_only=True)
class PutOff:
    """A run that was tried, and asks for later again and again: since when its event waits, and the last reason."""

    application: str
    event_id: str
    since: datetime
    reason: str | None


async def put_off(session: AsyncSession, now: datetime) -> dict[str, PutOff]:
    """Handler to the oldest of its runs that waits for its next time for PUT_OFF_LONG and more, whether that costs
    attempts or not. Looks at the PUT_OFF_LOOK of each handler that come next."""
    found: dict[str, PutOff] = {}
    for handler in await session.scalars(_HANDLERS_WITH[RunStatus.RETRYING]):
        given = {"handler": handler, "now": now, "long_ago": now - PUT_OFF_LONG}
        if (row := (await session.execute(_PUT_OFF, given)).first()) is not None:
            found[handler] = PutOff(
                application=row.application, event_id=row.event_id, since=row.created_at, reason=row.reason
            )
    return found


async def failing(session: AsyncSession) -> frozenset[str]:
    """The handlers of which some run failed and is tried again. Looks at the PUT_OFF_LOOK of each that come next."""
    return await _of_which_one(session, _FAILING)


async def suspected(session: AsyncSession) -> frozenset[str]:
    """The handlers of which a worker left some run behind alone. Looks as far as `failing`."""
    return await _of_which_one(session, _SUSPECTED)


async def left_alone(session: AsyncSession, handler: str, now: datetime) -> list[RunId]:
    """The runs of a handler that a worker left behind alone, and nobody took since. Looks as far as `failing`."""
    found = await session.execute(_LEFT_ALONE, {"handler": handler, "now": now})
    return [(row.application, row.event_id, row.handler) for row in found]


async def _of_which_one(session: AsyncSession, stands_so: Select[Any]) -> frozenset[str]:
    wanting = list(await session.scalars(_HANDLERS_WITH[RunStatus.RETRYING]))
    return frozenset([one for one in wanting if (await session.execute(stands_so, {"handler": one})).first()])


def _coming(*asked: ColumnElement[Any], where: ColumnElement[bool] | None = None) -> Subquery:
    """Of a handler's runs that come next, those of which this is so."""
    waits = [lanes.is_status(RunStatus.RETRYING), _RUNS.c.handler == bindparam("handler")]
    waits += [] if where is None else [where]
    return select(*asked).where(*waits).order_by(_RUNS.c.next_at).limit(PUT_OFF_LOOK).subquery()


def _one_that(is_so: ColumnElement[bool]) -> Select[Any]:
    coming = _coming(is_so.label("is_so"))
    return select(coming.c.is_so).where(coming.c.is_so).limit(1)


def _left_alone() -> Select[Any]:
    coming = _coming(
        _RUNS.c.application, _RUNS.c.event_id, _RUNS.c.handler, _RUNS.c.claimed_until, IS_ALONE.label("alone")
    )
    now = bindparam("now", type_=_RUNS.c.claimed_until.type)
    return select(coming).where(coming.c.alone, coming.c.claimed_until < now)


def _oldest_put_off() -> Select[Any]:
    now = bindparam("now", type_=_RUNS.c.next_at.type)
    columns = (_RUNS.c.application, _RUNS.c.event_id, _RUNS.c.created_at, _RUNS.c.code, _RUNS.c.reason)
    coming = _coming(*columns, where=_RUNS.c.next_at > now)
    long_ago = bindparam("long_ago", type_=_RUNS.c.created_at.type)
    old = select(coming).where(coming.c.code.is_not(None), coming.c.created_at <= long_ago)
    return old.order_by(coming.c.created_at).limit(1)


_PUT_OFF = _oldest_put_off()
_FAILING = _one_that(_RUNS.c.code.is_not(None))
_SUSPECTED = _one_that(or_(IS_ALONE, _RUNS.c.code == HandlerEndsProcess.code))
_LEFT_ALONE = _left_alone()
