"""Silence: notices when webhooks fall silent while the list goes on, and when the list has a gap; starts the cure.

Silent webhooks (case O1: the endpoint or the application may be disabled): backfill walks more often, as it is all
that brings events now. A retention gap (B13): reconcile, as state is all that is left. Both are kept in the ledger for
`status` until they are over.

That a walk found an event which the ledger lacks proves no silence: its webhook may wait in the log for a worker. So
what a walk found is judged when it is recorded. Records of one key lie in one partition, in order: when the webhook's
came first, the event is recorded as the webhook's, and webhooks are heard. When the walk was quicker, the worker notes
the webhook that came after it (`ledger/reading/heard.py`), and that is heard as well: late is not silent. While no
worker records, nothing is judged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.events import Source
from consumer.ledger.handling import events
from consumer.ledger.handling.outcomes import outcomes
from consumer.ledger.reading import heard
from consumer.ledger.reading.sync_state import KeptState
from consumer.telemetry.logs import Condition

LOG = structlog.get_logger()

WALK: Final = "sense"
SILENT_AFTER_EVENTS: Final = 3
SILENT_AFTER_WALKS: Final = 2
LOOK_BACK: Final = timedelta(days=1)
PENDING_MAX: Final = 200


@dataclass(frozen=True, kw_only=True)
class DeliveryHealth(KeptState, walk=WALK):
    """`silent_since`: webhooks are silent; the last one came then. `gap_at`: a gap was found then, not yet reconciled.

    `recovered` events in `walks` walks were brought by the list and by no webhook, since the last webhook. `pending`
    were found by walks and are not recorded yet: the newest PENDING_MAX.
    """

    silent_since: datetime | None = None
    gap_at: datetime | None = None
    last_webhook_at: datetime | None = None
    recovered: int = 0
    walks: int = 0
    pending: tuple[str, ...] = ()


def after_walk(
    before: DeliveryHealth,
    *,
    recovered: Sequence[str],
    recorded: Mapping[str, Source],
    gap: bool,
    last_webhook_at: datetime | None,
    now: datetime,
) -> DeliveryHealth:
    """The condition after a walk that found these events unannounced; `recorded`: what brought those of the pending
    ones that the ledger has by now. Pure."""
    waiting = dict.fromkeys((*(one for one in before.pending if one not in recorded), *recovered))
    found = replace(before, gap_at=now if gap else before.gap_at, pending=tuple(waiting)[-PENDING_MAX:])
    newer = last_webhook_at is not None and (before.last_webhook_at is None or last_webhook_at > before.last_webhook_at)
    if newer or Source.WEBHOOK in recorded.values():
        at = last_webhook_at if newer else before.last_webhook_at
        return replace(found, last_webhook_at=at, recovered=0, walks=0, silent_since=None)
    unheard = len(recorded)
    if not unheard:
        return found
    found = replace(found, recovered=found.recovered + unheard, walks=found.walks + 1)
    silent = found.recovered >= SILENT_AFTER_EVENTS and found.walks >= SILENT_AFTER_WALKS
    since = found.silent_since or found.last_webhook_at or now  # where none was ever heard, from when it was noticed
    return replace(found, silent_since=since) if silent else found


def silence_of(application: str, monotonic: Callable[[], float] = time.monotonic) -> Condition:
    """What says that webhooks are silent."""
    return Condition("webhooks_silent", level="error", monotonic=monotonic, application=application)


async def note_walk(
    session: AsyncSession,
    application: str,
    *,
    recovered: Sequence[str],
    gap: bool,
    heard_at: datetime | None = None,
    token: int,
    now: datetime,
    silent: Condition | None = None,
) -> DeliveryHealth:
    """Store what a walk tells, and say by `silent` whether webhooks are; what another process found lasts here.
    `heard_at`: when the newest webhook came that a read confirmed, as far as this process knows; the rest is in the
    ledger. Raises LeaseLost."""
    before = await DeliveryHealth.of(session, application, locks=True)
    since = before.last_webhook_at or now - LOOK_BACK
    recorded_at = await events.last_received(session, application, Source.WEBHOOK, since)
    noted_at = await heard.last(session, application)
    recorded = await outcomes(session, application, before.pending)
    found = after_walk(
        before,
        recovered=recovered,
        recorded={event_id: outcome.source for event_id, outcome in recorded.items()},
        gap=gap,
        last_webhook_at=max(filter(None, (recorded_at, noted_at, heard_at)), default=None),
        now=now,
    )
    if found != before:
        await found.keep(session, application, token=token, now=now)
    silent = silent or silence_of(application)
    if silent_since := found.silent_since or before.silent_since:
        hint = "is the endpoint or the application disabled?"
        silent.lasts("webhooks_silent", hint=hint, since=silent_since.isoformat(), recovered=found.recovered)
    if found.silent_since is None:
        silent.over()
    return found


async def note_later(
    session: AsyncSession, application: str, recovered: Sequence[str], *, token: int, now: datetime
) -> None:
    """A walk that is noted found these unannounced as well: they are judged with the next one. Raises LeaseLost."""
    before = await DeliveryHealth.of(session, application, locks=True)
    pending = tuple(dict.fromkeys((*before.pending, *recovered)))[-PENDING_MAX:]
    if pending != before.pending:
        await replace(before, pending=pending).keep(session, application, token=token, now=now)


async def note_gap(session: AsyncSession, application: str, *, at: datetime, token: int) -> None:
    """Events were lost unread then: a walk of state that began before, to heal an earlier gap, does not close this one.
    Raises LeaseLost."""
    before = await DeliveryHealth.of(session, application, locks=True)
    if before.gap_at is None or before.gap_at < at:
        await replace(before, gap_at=at).keep(session, application, token=token, now=at)


async def note_reconciled(session: AsyncSession, application: str, *, began: datetime, token: int) -> None:
    """A reconcile walk that began then is complete: a gap found before is closed as far as it can be."""
    before = await DeliveryHealth.of(session, application, locks=True)
    if before.gap_at is not None and before.gap_at <= began:
        await replace(before, gap_at=None).keep(session, application, token=token, now=began)
        LOG.info("retention_gap_over", application=application)
