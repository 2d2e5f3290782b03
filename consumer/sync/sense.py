"""Sense: notices when webhooks fall silent while the list goes on, and when the list has a gap; starts the cure.

Silent webhooks (case O1: the endpoint or the application may be disabled): backfill walks more often, as it is all
that brings events now. A retention gap (B13): reconcile, as state is all that is left. Both are kept in the ledger for
`status` until they are over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.events import Source, parse_time
from consumer.ledger import bookmarks, events

LOG = structlog.get_logger()

WALK: Final = "sense"
SILENT_AFTER_EVENTS: Final = 3
SILENT_AFTER_WALKS: Final = 2
LOOK_BACK: Final = timedelta(days=1)


@dataclass(frozen=True, kw_only=True)
class Condition:
    """`silent_since`: webhooks are silent since then. `gap_at`: a gap was found then and is not yet reconciled.

    `recovered` events in `walks` walks were brought by the list and by no webhook, since the last webhook.
    """

    silent_since: datetime | None = None
    gap_at: datetime | None = None
    last_webhook_at: datetime | None = None
    recovered: int = 0
    walks: int = 0

    @classmethod
    def load(cls, state: Mapping[str, Any] | None) -> Condition:
        """From JSON; a fresh one for None."""
        if state is None:
            return cls()
        return cls(
            silent_since=parse_time(state.get("silent_since")),
            gap_at=parse_time(state.get("gap_at")),
            last_webhook_at=parse_time(state.get("last_webhook_at")),
            recovered=int(state.get("recovered") or 0),
            walks=int(state.get("walks") or 0),
        )

    def dump(self) -> dict[str, Any]:
        """As JSON, for the ledger."""
        return {
            name: value.isoformat() if isinstance(value, datetime) else value for name, value in asdict(self).items()
        }


def after_walk(
    before: Condition, *, recovered: int, gap: bool, last_webhook_at: datetime | None, now: datetime
) -> Condition:
    """The condition after a walk that recovered so many events. Pure."""
    found = replace(before, gap_at=now if gap else before.gap_at)
    heard = last_webhook_at is not None and (before.last_webhook_at is None or last_webhook_at > before.last_webhook_at)
    if heard:
        return replace(found, last_webhook_at=last_webhook_at, recovered=0, walks=0, silent_since=None)
    if not recovered:
        return found
    found = replace(found, recovered=found.recovered + recovered, walks=found.walks + 1)
    silent = found.recovered >= SILENT_AFTER_EVENTS and found.walks >= SILENT_AFTER_WALKS
    return replace(found, silent_since=found.silent_since or now) if silent else found


async def condition(session: AsyncSession, application: str) -> Condition:
    """What is known about an application now; for `status` too."""
    return Condition.load(await bookmarks.load(session, application, WALK))


async def note_walk(
    session: AsyncSession, application: str, *, recovered: int, gap: bool, token: int, now: datetime
) -> Condition:
    """Store what a walk tells, and say what changed. Raises LeaseLost."""
    before = await condition(session, application)
    since = before.last_webhook_at or now - LOOK_BACK
    heard_at = await events.last_received(session, application, Source.WEBHOOK, since)
    found = after_walk(before, recovered=recovered, gap=gap, last_webhook_at=heard_at, now=now)
    if found != before:
        await bookmarks.keep(session, application, WALK, found.dump(), token=token, now=now)
    if found.silent_since and not before.silent_since:
        LOG.error(
            "webhooks silent, backfill finding events: is the endpoint or the application disabled?",
            application=application,
            recovered=found.recovered,
        )
    if before.silent_since and not found.silent_since:
        LOG.info("webhooks are heard again", application=application)
    return found


async def note_reconciled(session: AsyncSession, application: str, *, began: datetime, token: int) -> None:
    """A reconcile walk that began then is complete: a gap found before is closed as far as it can be."""
    before = await condition(session, application)
    if before.gap_at is not None and before.gap_at <= began:
        state = replace(before, gap_at=None).dump()
        await bookmarks.keep(session, application, WALK, state, token=token, now=began)
        LOG.info("the gap is reconciled by state", application=application)
