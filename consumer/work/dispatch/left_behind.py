"""Left behind: a run whose process ended. While workers die again and again nobody knows of whom, those that come next
work on one run at a time: the one that such a worker leaves behind is the one that took its process with it. That puts
it off, and costs no attempt; a run that has done it ENDED_MAX times is dead, and its handler, where another event's run
died of it lately, is paused. It keeps its place in the queue: of a handler that does it on every event, others would
take each its turn before the first had its second.

Who told the ledger that it lives after its claim was over, or was stopped, did not end: its machine stood still. What
was judged before it could tell so counts no more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy.ext.asyncio import AsyncSession

from consumer.ledger.handling import attempts, dead
from consumer.ledger.handling.runs import ClaimedRun
from consumer.ledger.tables import RunStatus
from consumer.work.dispatch.result_writer import Result
from consumer.work.outcome import Failed, ended_its_process

ENDED_MAX: Final = 3
"""A process may end for a reason of its own, and again; three times in the same run's hands is no chance."""
AGAIN_S: Final = 15.0
"""When it is tried again: while the next worker still works on one run at a time, and others have gone first."""
LATELY: Final = timedelta(hours=1)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """`outcome` of the attempt that nobody saw end. `is_habit`: the handler did it on another event, too."""

    outcome: Failed
    is_habit: bool = False


async def judge(session: AsyncSession, run: ClaimedRun, now: datetime) -> Verdict:
    """What becomes of a run that its worker left behind alone. Raises LedgerError."""
    times = await attempts.ended_with(session, run) + 1
    again_s = AGAIN_S if times < ENDED_MAX else None
    outcome = ended_its_process(run.handler, run.left_by or "", times, again_s=again_s)
    is_habit = again_s is None and await dead.has_died_of(
        session, outcome.fingerprint, since=now - LATELY, but=(run.application, run.event_id)
    )
    return Verdict(outcome=outcome, is_habit=is_habit)


def in_its_place(result: Result) -> Result:
    """Of one that is tried again: it waits by being held, and is due since when it was. Pure."""
    if result.finish.status is not RunStatus.RETRYING:
        return result
    finish = replace(result.finish, next_at=result.run.due_at, held_until=result.finish.next_at)
    return replace(result, finish=finish)
