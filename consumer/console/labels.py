"""Labels: what the figures of `status` are called where people read them, in the command's answer and on the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

LEDGER: Final[Mapping[str, str]] = {
    "at": "as of",
    "events": "events recorded",
    "newest_event_at": "newest event recorded",
    "retrying": "runs that are tried again",
    "parked": "runs that wait behind another of their key, or for their application's pause to end",
    "dead": "dead runs",
    "oldest_due_at": "oldest run that is due",
    "outbox_waiting": "events of our own that wait to go out",
    "outbox_oldest_at": "oldest event of our own that waits",
    "hints": "webhooks that wait for their proof",
    "oldest_hint_at": "oldest webhook that waits for its proof",
    "reads": "reads that were asked for",
    "reads_due": "reads that are due",
    "unasked": "webhooks the service was not yet asked about",
    "oldest_unasked_at": "oldest webhook it was not yet asked about",
    "denied": "webhooks the service denied often",
    "quarantined": "deliveries in quarantine",
    "quarantined_lately": "put in quarantine in the last 10 minutes",
    "refused": "records in quarantine that nobody can have forged",
    "refused_lately": "such records in the last 10 minutes",
    "paused_handlers": "paused handlers",
    "paused_for": "paused for these applications alone",
    "waiting_handlers": "handlers that wait for what they depend on",
    "gone_handlers": "runs of handlers that no living worker has",
    "worker_seen_at": "a worker was last heard",
    "half_applied": "replay plan that nobody goes on with",
    "unproved_bytes": "bytes of unproved deliveries",
    "unreadable": "reads that fail again and again",
    "unreadable_first": "oldest of these reads",
}
READING: Final[Mapping[str, str]] = {
    "hints": "webhooks that wait for their proof",
    "has_credentials": "API credentials are set",
    "walked_at": "last complete walk of the events began",
    "silent_since": "webhooks are silent since",
    "gap_at": "events were forgotten before they were read",
    "reconciled_at": "last reconcile began",
    "reconcile_braked": "the last reconcile was stopped by its brake",
    "refused_at": "credentials were refused",
    "looked_at": "both ends were last compared",
    "unread": "events listed in brief that could not be read yet",
    "unplaced_paid": "paid orders the last reconcile could not keep",
    "leader": "read by the `sync` that is",
    "paused_until": "the service asked to wait until",
}
