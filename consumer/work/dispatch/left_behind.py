"""Left behind: a run whose process ended. While workers die again and again nobody knows of whom, each works on one run
at a time: the one that is left behind is the one that took its process with it. That costs it an attempt; a run that
has done it ENDED_MAX times is dead, and its handler, where another event's run died of it lately, is paused.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy.ext.asyncio import AsyncSession

from consumer.ledger.handling import dead, runs
from consumer.ledger.handling.runs import ClaimedRun
from consumer.work.outcome import Failed, ended_its_process

ENDED_MAX: Final = 3
"""A process may end for a reason of its own, and again; three times in the same run's hands is no chance."""
LATELY: Final = timedelta(hours=1)


@dataclass(frozen=True, kw_only=True)
class LeftBehind:
    """`outcome` of the attempt that nobody saw end. `is_habit`: the handler did it on another event, too."""

    outcome: Failed
    is_habit: bool = False


async def judge(session: AsyncSession, run: ClaimedRun, now: datetime) -> LeftBehind:
    """What becomes of a run that its worker left behind. Raises LedgerError."""
    times = await runs.ended_with(session, run) + 1
    outcome = ended_its_process(run.handler, run.left_by or "", times, for_good=times >= ENDED_MAX)
    if not outcome.failure.permanent:
        return LeftBehind(outcome=outcome)
    return LeftBehind(
        outcome=outcome, is_habit=await dead.has_died_of(session, outcome.fingerprint, since=now - LATELY)
    )
