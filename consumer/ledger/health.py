"""Health: what the ledger says about how things stand, for `status`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Table, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.ledger import leases
from consumer.ledger.engine.counting import up_to
from consumer.ledger.handling import events, handlers, outbox, queue
from consumer.ledger.plans import plans
from consumer.ledger.plans.plans import HalfApplied
from consumer.ledger.reading import hints, quarantine, read_requests
from consumer.ledger.reading.read_requests import Unreadable
from consumer.ledger.tables import HandlerRow, ReadRow, RunStatus
from consumer.reason import Reason

LATELY: Final = timedelta(minutes=10)
# Nobody outside can bring these about.
OURS: Final = frozenset(
    {
        Reason.NOT_UNDERSTOOD,
        Reason.NOT_STORABLE,
        Reason.TOO_LARGE,
        Reason.NOT_A_DELIVERY,
        Reason.FETCHED_NOT_UNDERSTOOD,
        Reason.UNKNOWN_APPLICATION,
    }
)

_READS: Table = ReadRow.__table__


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Counts and ages, as of `at`. A time is None when there is nothing it would be about. A count ends at COUNT_MAX;
    `events` beyond that is what the database reckons.

    `gone_handlers`: how many runs wait for each handler that no living worker has. Theirs and those of paused handlers
    count as retrying or parked, but not for `oldest_due_at`, since nobody could work on them. `paused_for`: of those
    `paused_handlers` that are paused for some applications alone, which. `waiting_handlers`: what
    they depend on does not answer while runs of theirs wait, or they have put off an event for a day.

    `unasked`: hints that the service was not yet asked about; `denied`: those that it did not know often.
    `quarantined_lately`: put there in the last LATELY, by whoever sends; `refused`: records of the service's or our own
    that lie there, which nobody can have forged; `refused_lately`: those of the last LATELY. `unproved_bytes`: what
    strangers' deliveries of each application take. `half_applied`: the replay plan that was begun, and that nobody
    goes on with.
    `unreadable`: reads that fail again and again, of those that are done now; `unreadable_first`: the oldest of them.
    `runbooks`: what the authors of handlers that failed, are paused or wait tell the operator.
    """

    at: datetime
    events: int
    newest_event_at: datetime | None
    retrying: int
    parked: int
    dead: int
    oldest_due_at: datetime | None
    outbox_waiting: int
    outbox_oldest_at: datetime | None
    hints: int
    oldest_hint_at: datetime | None
    reads: int
    reads_due: int
    unasked: int
    oldest_unasked_at: datetime | None
    denied: int
    quarantined: int
    quarantined_lately: int
    refused_lately: int
    paused_handlers: tuple[str, ...]
    waiting_handlers: tuple[str, ...]
    gone_handlers: Mapping[str, int]
    worker_seen_at: datetime | None
    paused_for: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    half_applied: HalfApplied | None = None
    unproved_bytes: Mapping[str, int] = field(default_factory=dict)
    refused: int = 0
    unreadable: int = 0
    unreadable_first: tuple[Unreadable, ...] = ()
    runbooks: Mapping[str, str] = field(default_factory=dict)


async def figures(session: AsyncSession, now: datetime) -> Figures:
    """How things stand now."""
    counted = await queue.count_by_status(session)
    by_status: Counter[str] = Counter()
    waits: Counter[str] = Counter()
    for (handler, status), count in counted.items():
        by_status[status] += count
        if status in (RunStatus.RETRYING, RunStatus.PARKED):
            waits[handler] += count
    gone = sorted(await handlers.gone(session, waits, now))
    paused = await handlers.paused(session)
    held = {*gone, *paused.wholly}
    overdue = [at for name, at in (await queue.oldest_due(session)).items() if name not in held and at <= now]
    unasked, oldest_unasked_at = await hints.unasked(session)
    lately = await quarantine.count_since(session, now - LATELY)
    due = select(_READS.c.due_at).order_by(_READS.c.due_at)
    unreadable, unreadable_first = await read_requests.unreadable(session, await leases.led(session, now))
    waiting, oldest_emitted = await outbox.waiting(session, now)
    breakers, put_off = await handlers.waiting(session) & waits.keys(), await queue.put_off(session, now)
    died = {handler for (handler, status), count in counted.items() if status == RunStatus.DEAD and count}
    in_trouble = {*died, *paused.names, *breakers, *put_off, *await queue.failing(session)}
    return Figures(
        at=now,
        events=await events.about_how_many(session),
        newest_event_at=await events.last_recorded_at(session),
        retrying=by_status[RunStatus.RETRYING],
        parked=by_status[RunStatus.PARKED],
        dead=by_status[RunStatus.DEAD],
        oldest_due_at=min(overdue, default=None),
        outbox_waiting=waiting,
        outbox_oldest_at=oldest_emitted,
        hints=await hints.count(session),
        oldest_hint_at=min((await hints.oldest_each(session)).values(), default=None),
        reads=await up_to(session, due),
        reads_due=await up_to(session, due.where(_READS.c.due_at <= now)),
        unasked=unasked,
        oldest_unasked_at=oldest_unasked_at,
        denied=await hints.denied(session),
        quarantined=await quarantine.count(session),
        quarantined_lately=sum(lately.values()),
        refused_lately=sum(count for reason, count in lately.items() if reason in OURS),
        refused=await quarantine.count_of(session, OURS),
        paused_handlers=tuple(sorted(paused.names)),
        paused_for={name: paused.only(name) for name in sorted(paused.names - paused.wholly)},
        waiting_handlers=tuple(sorted({*breakers, *put_off})),
        gone_handlers={name: waits[name] for name in gone},
        half_applied=await plans.half_applied(session, now),
        unproved_bytes=await _unproved_bytes(session),
        unreadable=unreadable,
        unreadable_first=unreadable_first,
        runbooks=await handlers.runbooks(session, in_trouble),
        worker_seen_at=(await session.execute(select(func.max(HandlerRow.__table__.c.last_seen_at)))).scalar(),
    )


async def _unproved_bytes(session: AsyncSession) -> dict[str, int]:
    """What strangers' deliveries of each application take: of hints and quarantine, each with a limit of its own, the
    one that takes more."""
    lying = await quarantine.unproved_bytes(session)
    waiting = {name: size for name, (_, size) in (await hints.held(session)).items()}
    return {name: max(lying.get(name, 0), waiting.get(name, 0)) for name in lying.keys() | waiting.keys()}
