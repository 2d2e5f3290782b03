"""Transition: from the outcome of an attempt to what its run becomes. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache

from consumer.ledger.handling.attempts import Attempt
from consumer.ledger.handling.runs import blocks_when_dead
from consumer.ledger.tables import RunStatus
from consumer.plugin import Event, Handler
from consumer.retry import Dead, RetryAt, decide
from consumer.work.outcome import Failed, Outcome, Succeeded


@dataclass(frozen=True, kw_only=True)
class Transition:
    """What a run becomes. `attempts` counts those that were used up, this one included if it was."""

    status: RunStatus
    blocking: bool
    attempts: int
    next_at: datetime | None = None
    code: str | None = None
    reason: str | None = None
    fingerprint: str | None = None
    trace: str | None = None


def transition_after(handler: Handler, outcome: Outcome, *, used: int, now: datetime) -> Transition:
    """What becomes of a run after attempt number `used + 1`."""
    match outcome:
        case Succeeded():
            return _succeeded(used + 1)
        case Failed(failure, fingerprint, trace):
            match decide(failure, attempt=used + 1, policy=handler.retry, now=now):
                case RetryAt(at, counted):
                    return Transition(
                        status=RunStatus.RETRYING,
                        blocking=True,
                        attempts=used + 1 if counted else used,
                        next_at=at,
                        code=failure.code,
                        reason=failure.reason,
                        fingerprint=fingerprint,
                        trace=trace,
                    )
                case Dead(reason):
                    return Transition(
                        status=RunStatus.DEAD,
                        blocking=blocks_when_dead(handler.on_dead),
                        attempts=used + 1,
                        code=failure.code,
                        reason=reason,
                        fingerprint=fingerprint,
                        trace=trace,
                    )


@cache
def _succeeded(attempts: int) -> Transition:
    return Transition(status=RunStatus.SUCCEEDED, blocking=False, attempts=attempts)


def attempt_row(
    handler: Handler, event: Event, transition: Transition, *, number: int, worker: str, started_at: datetime,
    finished_at: datetime,
) -> Attempt:  # fmt: skip
    """The attempt as the ledger keeps it."""
    return Attempt(
        application=event.application,
        event_id=event.id,
        handler=handler.name,
        number=number,
        outcome=transition.status.value,
        code=transition.code,
        reason=transition.reason,
        fingerprint=transition.fingerprint,
        trace=transition.trace,
        code_version=handler.version,
        worker=worker,
        started_at=started_at,
        finished_at=finished_at,
    )


def is_of_several(row: Sequence[str], limit: int) -> bool:
    """Whether so many runs of a handler died, by their applications, where none counts for more than half: then it is
    the handler's fault, and no shop's."""
    if not 0 < limit <= len(row):
        return False
    counted = Counter(row).values()
    return len(counted) > 1 and sum(min(count, (limit + 1) // 2) for count in counted) >= limit
