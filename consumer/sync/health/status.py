"""Status: how the reading of the service stands for one application, for `status`: from the ledger alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import orjson
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.errors import RecordRefused
from consumer.events import parse_time
from consumer.ledger import leases, processes
from consumer.ledger.processes import place_of
from consumer.ledger.reading import hints, key_values, sync_state
from consumer.lists.bookmark import Bookmark
from consumer.payments import UnexpectedAnswer
from consumer.payments.budget import Bucket
from consumer.payments.circuit import PROBE_EVERY_S
from consumer.runtime.loop import REFUSED
from consumer.sync.backfill import silence
from consumer.sync.backfill.unread import Unread
from consumer.sync.canary.sightings import Missed, Sightings
from consumer.sync.health.stalled import StalledStage, stalled_stages
from consumer.sync.reconcile import state as reconcile

# While credentials are refused somebody probes every PROBE_EVERY_S: an older refusal is nobody's any more.
REFUSAL_COUNTS: Final = timedelta(seconds=4 * PROBE_EVERY_S)


@dataclass(frozen=True, kw_only=True)
class ApplicationStatus:
    """One application. `has_credentials`: whether it can be read at all; `hints`: deliveries that wait for that (I15).
    `walked_at`: when the last complete walk of the events began. `silent_since`: webhooks are
    silent (O1). `gap_at`: events were forgotten before they were read, and state is not yet reconciled (B13).
    `refused_at`: the service refused the credentials then, and has not taken any since (O3). `missing`: what the
    service shows and the ledger has lacked for too long. `held_up`: stages of `sync` that fail again and again, with
    the reason (B7, B32). `looked_at`: when the two ends were compared last. `unplaced_paid`: listed orders that are
    paid, and that the last reconcile could not keep (F20). `unread`: listed events that could not be read yet (B22).
    `leader`: where the `sync` is that reads it (B26). `paused_until`: the service asked to wait so long (C6)."""

    application: str
    has_credentials: bool = True
    hints: int = 0
    walked_at: datetime | None = None
    silent_since: datetime | None = None
    gap_at: datetime | None = None
    reconciled_at: datetime | None = None
    reconcile_braked: bool = False
    refused_at: datetime | None = None
    missing: Missed | None = None
    held_up: tuple[StalledStage, ...] = ()
    looked_at: datetime | None = None
    unplaced_paid: int = 0
    unread: int = 0
    leader: str | None = None
    paused_until: datetime | None = None


async def application_status(
    session: AsyncSession, application: str, app_id: str | None, now: datetime, *, is_kept: bool = False
) -> ApplicationStatus:
    """How it stands now; `app_id` None where its credentials are not known. `is_kept`: a `sync` that has them keeps how
    far it came, so it is judged by that all the same."""
    waiting = await hints.count(session, application)
    if app_id is None and not is_kept:
        return ApplicationStatus(application=application, has_credentials=False, hints=waiting)
    bookmark = await Bookmark.of(session, application)
    delivery_health = await silence.DeliveryHealth.of(session, application)
    reconciled = await sync_state.load(session, application, reconcile.WALK) or {}
    unplaced = reconciled.get("unplaced_paid")
    unread = await Unread.of(session, application)
    held_up = with_unread(await stalled_stages(session, application, now), unread)
    paused_until = None
    if app_id is None:
        refused = _names_refusal(held_up)
    else:
        circuit = await key_values.load(session, f"circuit/{app_id}")
        refused = refused_at(circuit, now, walked_at=bookmark.walked_at)
        paused_until = pause_of(await key_values.load(session, f"application/{app_id}/reads"), now)
    seen = await Sightings.of(session, application)
    leader = await leases.leader(session, application, now)
    if refused and leader and not _names_refusal(held_up) and await _was_given_back(session, application, now):
        refused = None  # of who stands by, and asks once a minute; the one that leads is let in
    return ApplicationStatus(
        application=application,
        hints=waiting,
        walked_at=bookmark.walked_at,
        silent_since=delivery_health.silent_since,
        gap_at=delivery_health.gap_at,
        reconciled_at=parse_time(reconciled.get("began")),
        reconcile_braked=bool(reconciled.get("braked")),
        refused_at=refused,
        missing=seen.missed(),
        held_up=held_up,
        looked_at=seen.looked_at,
        unplaced_paid=unplaced if isinstance(unplaced, int) else 0,
        unread=len(unread.events),
        leader=leader and place_of(leader),
        paused_until=paused_until,
    )


def _names_refusal(held_up: Sequence[StalledStage]) -> datetime | None:
    """Since when the one that leads is refused, by its stages."""
    return min((one.since for one in held_up if one.code in REFUSED), default=None)


async def _was_given_back(session: AsyncSession, application: str, now: datetime) -> bool:
    """Whether a `sync` lives that gave the lead back because it is refused."""
    living = await processes.living(session, "sync", now)
    return any(application in one.said.get(processes.GAVE_WAY, "").split() for one in living)


async def application_statuses(
    session: AsyncSession,
    app_ids: Sequence[tuple[str, str | None]],
    now: datetime,
    *,
    kept: Collection[str] | None = None,
) -> list[ApplicationStatus]:
    """Of several applications, given as (name, app id or None). `kept`: those that some `sync` reads, by what it
    keeps; None: all for which something was ever kept."""
    kept = await sync_state.applications(session) if kept is None else kept
    return [await application_status(session, name, app_id, now, is_kept=name in kept) for name, app_id in app_ids]


def with_unread(held_up: tuple[StalledStage, ...], unread: Unread) -> tuple[StalledStage, ...]:
    """The same, and backfill where listed events wait to be read: no `sync` says it where a timer walks. Pure."""
    oldest = unread.oldest
    if oldest is None or any(one.stage == "backfill" for one in held_up):
        return held_up
    code = RecordRefused.code if oldest.is_refused else UnexpectedAnswer.code
    return (*held_up, StalledStage(stage="backfill", code=code, since=oldest.since))


def pause_of(bucket: str | None, now: datetime) -> datetime | None:
    """Until when a 429 holds this bucket of the request budget, by its stored text; None when none does. Pure."""
    left_s = Bucket.load(bucket or None).paused_s(now.timestamp())
    return now + timedelta(seconds=left_s) if left_s > 0 else None


def refused_at(circuit: str | None, now: datetime, *, walked_at: datetime | None = None) -> datetime | None:
    """The last refusal, from the circuit's shared text `[last refused or probed, last accepted]` in epoch seconds;
    None when the credentials were taken since (`walked_at`: a walk that began later was completed; a single command
    with a mistyped secret alarms nobody for long), or nobody has tried for long. Pure."""
    try:
        probed, accepted = orjson.loads(circuit or "[0, 0]")
        at = datetime.fromtimestamp(float(probed), UTC)
    except (ValueError, TypeError, OverflowError):
        return None
    is_taken = probed <= accepted or (walked_at is not None and walked_at > at)
    return at if not is_taken and abs(now - at) <= REFUSAL_COUNTS else None
