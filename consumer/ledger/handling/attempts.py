"""The attempts: each try of a run, kept with how it ended (cases H1, G2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Table, and_, bindparam, delete, exists, func, insert, select
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.errors import HandlerEndsProcess
from consumer.ledger import processes
from consumer.ledger.handling.runs import ClaimedRun
from consumer.ledger.tables import REASON_CHARS, AttemptRow, DeadLetterRow

_ATTEMPTS: Table = AttemptRow.__table__
_LETTERS: Table = DeadLetterRow.__table__

PUT_OFF: Final = "retry_later"
"""The code of a try that its handler puts off, which costs no attempt: the next one has the same number."""
PUT_OFF_KEPT: Final = 20
"""Of those in a row the newest are kept: a handler may look for its warehouse every minute, for months."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attempt as it is to be stored."""

    application: str
    event_id: str
    handler: str
    number: int
    outcome: str
    code: str | None
    reason: str | None
    fingerprint: str | None
    code_version: str
    worker: str
    started_at: datetime
    finished_at: datetime
    trace: str | None = None


async def add(session: AsyncSession, attempts: Sequence[Attempt]) -> None:
    """Keep the attempts. One that is kept already is left: whose commit was not acknowledged, it is stored again. Of
    tries that were put off one after another the newest are kept."""
    if not attempts:
        return
    given = [_attempt_values(attempt) for attempt in attempts]
    await session.execute(_KEEP, given)
    if put_off := [{f"b_{name}": one[name] for name in _OF_A_NUMBER} for one in given if one["code"] == PUT_OFF]:
        await session.execute(_FORGET, put_off)


_GIVEN_ATTEMPT = {name: bindparam(name, type_=_ATTEMPTS.c[name].type) for name in Attempt.__dataclass_fields__}
_SAME_ATTEMPT = ("application", "event_id", "handler", "worker", "started_at")
_KEEP = insert(_ATTEMPTS).from_select(
    list(_GIVEN_ATTEMPT),
    select(*_GIVEN_ATTEMPT.values()).where(
        ~exists().where(*[_ATTEMPTS.c[name] == _GIVEN_ATTEMPT[name] for name in _SAME_ATTEMPT])
    ),
)
_OF_A_NUMBER = ("application", "event_id", "handler", "number")
_IS_OF_IT = and_(_ATTEMPTS.c.code == PUT_OFF, *[_ATTEMPTS.c[name] == bindparam(f"b_{name}") for name in _OF_A_NUMBER])
_LAST_KEPT = select(_ATTEMPTS.c.id).where(_IS_OF_IT).order_by(_ATTEMPTS.c.id.desc()).limit(1).offset(PUT_OFF_KEPT - 1)
_FORGET = delete(_ATTEMPTS).where(_IS_OF_IT, _ATTEMPTS.c.id < _LAST_KEPT.scalar_subquery())


def _attempt_values(attempt: Attempt) -> dict[str, Any]:
    values = dict(attempt.__dict__)
    values["reason"] = (attempt.reason or "")[:REASON_CHARS] or None
    return values


async def of_event(session: AsyncSession, application: str, event_id: str) -> Sequence[AttemptRow]:
    """The kept attempts of an event's runs, oldest first."""
    statement = select(AttemptRow).where(_ATTEMPTS.c.application == application, _ATTEMPTS.c.event_id == event_id)
    return (await session.execute(statement.order_by(_ATTEMPTS.c.id))).scalars().all()


async def ended_with(session: AsyncSession, run: ClaimedRun) -> int:
    """In how many of its attempts the process ended; since it was redriven, where it was dead before. One that was
    heard again had only stood still."""
    same = [_ATTEMPTS.c[name] == getattr(run, name) for name in ("application", "event_id", "handler")]
    came_back = processes.lived_on(_ATTEMPTS.c.worker, _ATTEMPTS.c.finished_at)
    ended = and_(_ATTEMPTS.c.code == HandlerEndsProcess.code, ~came_back)
    died = exists().where(
        *[_LETTERS.c[name] == getattr(run, name) for name in ("application", "event_id", "handler")],
        _LETTERS.c.died_at >= _ATTEMPTS.c.finished_at,
    )
    return await session.scalar(select(func.count()).select_from(_ATTEMPTS).where(*same, ended, ~died)) or 0
