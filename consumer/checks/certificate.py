"""Certificate: for a window of time, every event the service lists, and what became of it here. With a digest.

It answers after an outage: was anything missed? It reads the whole list again; it trusts no bookmark. What it cannot
prove it calls `unproven`. Its numbers must add up, and anybody can check that, and the digest, from the file alone.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

import orjson

from consumer.clock import Clock
from consumer.events import Source
from consumer.ledger import Database
from consumer.ledger.engine.chunks import portions
from consumer.ledger.handling import outcomes
from consumer.ledger.handling.outcomes import QUARANTINED, UNCONFIRMED, WORST_FIRST, Outcome
from consumer.lists.bookmark import SERVICE_SKEW, Bookmark
from consumer.lists.orders import WalkPage
from consumer.lists.progress import ListStart, Progress, WalkProgress
from consumer.lists.walk import Walk, cursors_refused
from consumer.payments import CursorsRefused, Priority
from consumer.sync.api import ApplicationApi
from consumer.sync.application import Application
from consumer.sync.backfill.page import understand
from consumer.sync.identity import Identity

VERSION: Final = 2
NAMED_MAX: Final = 1000
CHUNK: Final = 500
DONE: Final = ("handled", "no_handler", "skipped")
OPEN: Final = ("retrying", "parked", "dead", QUARANTINED, UNCONFIRMED)
PROVENANCE: Final = "listed = received_by_webhook + recovered + missing"
FOLLOWED: Final = "the runs of each listed event, and of the events derived from it (one level) once they are recorded"
OUTCOMES: Final = f"listed = {' + '.join((*DONE, *OPEN))} + missing"


@dataclass
class _Window:
    """What the walk saw of the window: event ids, and what was listed but not understood (by its digest)."""

    since: datetime
    until: datetime
    ids: dict[str, None] = field(default_factory=dict)
    strange: dict[str, None] = field(default_factory=dict)
    without_time: int = 0
    oldest_at: datetime | None = None


class Certifier:
    """Makes certificates for one application."""

    def __init__(self, api: ApplicationApi, database: Database, *, clock: Clock) -> None:
        self._app = Application(api=api, database=database, clock=clock)

    async def certify(
        self, since: datetime, until: datetime, on_progress: Callable[[Progress], None] | None = None
    ) -> dict[str, Any]:
        """The certificate for [since, until), as a JSON document.

        `verdict`: `complete` when every listed event is in the ledger and its work done (`followed` says which work);
        `open` when nothing is missing but some are retrying, parked, dead, in quarantine or unconfirmed; `missing` when
        some are not here; `unproven` when that cannot be known (`unproven` says why). Raises PaymentsError,
        LedgerError and WrongApplication (another application's list proves nothing, case B32): a certificate is whole
        or it is none.
        """
        await Identity(self._app).check(remember=False, priority=Priority.BACKFILL)
        walk = Walk(
            lister=self._app.client.with_priority(Priority.BACKFILL).events,
            locators=self._app.locators,
            bookmark=Bookmark(),
            now=self._app.clock.now(),
            since=since,
        )
        window = _Window(since, until)
        begins_at = await ListStart(self._app.database, self._app.name).at()
        walk_progress = WalkProgress(walk, self._app.clock, begins_at=begins_at)
        refused = cursors_refused(self._app.name)
        async with aclosing(walk.pages()) as pages:
            async for page in pages:
                self._note(page, window)
                if walk.refused:
                    refused.lasts(CursorsRefused.code)
                if on_progress is not None:
                    on_progress(walk_progress.progress(page, listed=len(window.ids) + len(window.strange)))
        found = await self._outcomes(window)
        made_at = self._app.clock.now()
        unproven = [*await self._doubts(window), *(["window_not_over"] if until > made_at else [])]
        document = {
            "version": VERSION,
            "application": self._app.name,
            "since": since.isoformat(),
            "until": until.isoformat(),
            "made_at": made_at.isoformat(),
            "list_order": walk.order.value,
            "list_reaches_back_to": window.oldest_at.isoformat() if window.oldest_at else None,
            "without_time": window.without_time,
            "followed": FOLLOWED,
            **_counted(found, unproven),
        }
        return document | {"sha256": digest(document)}

    def _note(self, page: WalkPage, window: _Window) -> None:
        listed = understand(page.items, self._app)
        for event in listed.events:
            at = event.occurred_at
            window.without_time += at is None
            if at is not None:
                window.oldest_at = min(at, window.oldest_at or at)
            if at is None or window.since <= at < window.until:
                window.ids[event.id] = None
        for delivery in listed.strange:  # whose time is not known either: it belongs to every window
            window.strange[delivery.id] = None

    async def _outcomes(self, window: _Window) -> dict[str, Outcome | None]:
        """What became of each; asked after the walk, so that what came meanwhile is not called missing."""
        application, found = self._app.name, dict[str, Outcome | None]()
        for chunk in portions(list(window.ids), CHUNK):
            async with self._app.database.reading() as session:
                known = await outcomes.outcomes(session, application, chunk)
                rest = [event_id for event_id in chunk if event_id not in known]
                delivered = await outcomes.delivered_only(session, application, rest)
            found |= {event_id: known.get(event_id) or delivered.get(event_id) for event_id in chunk}
        async with self._app.database.reading() as session:
            derived = await outcomes.derived_open(session, application, window.ids, self._app.clock.now())
        for event_id, word in derived.items():
            if (own := found[event_id]) is not None:
                found[event_id] = replace(own, word=_worse(own.word, word))
        for chunk in portions(list(window.strange), CHUNK):
            async with self._app.database.reading() as session:
                kept = await outcomes.quarantined_deliveries(session, application, chunk)
            found |= {one: Outcome(Source.BACKFILL, QUARANTINED) if one in kept else None for one in chunk}
        return found

    async def _doubts(self, window: _Window) -> list[str]:
        """Why the list may not show all that happened in the window: the service may have forgotten its beginning.

        A list that begins later than the window proves nothing if we received business before its oldest event, and
        neither does an empty one if we ever received any.
        """
        if window.oldest_at is None and (window.ids or window.strange):
            return ["times_not_found"]
        if window.oldest_at is not None and window.oldest_at <= window.since:
            return []
        begins_at = window.oldest_at - SERVICE_SKEW if window.oldest_at else self._app.clock.now()
        async with self._app.database.reading() as session:
            forgotten = await outcomes.has_business_before(session, self._app.name, begins_at)
        return ["list_does_not_reach_back"] if forgotten else []


def digest(document: Mapping[str, Any]) -> str:
    """The digest of a certificate without its own `sha256`: equal documents have equal digests."""
    content = {name: value for name, value in document.items() if name != "sha256"}
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()


def equations(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The two sums that must come out, with both sides. Pure."""
    listed, missing = document["listed"], document["missing"]
    by_source = document["received_by_webhook"] + document["recovered"] + missing
    by_outcome = sum(document["outcomes"].values()) + missing
    return [
        {"says": PROVENANCE, "left": listed, "right": by_source, "holds": listed == by_source},
        {"says": OUTCOMES, "left": listed, "right": by_outcome, "holds": listed == by_outcome},
    ]


def verdict(document: Mapping[str, Any]) -> str:
    """What the numbers of a certificate say. Pure."""
    if document["missing"]:
        return "missing"
    if document["unproven"] or not all(one["holds"] for one in equations(document)):
        return "unproven"
    return "open" if any(document["outcomes"][word] for word in OPEN) else "complete"


def faults(document: Mapping[str, Any]) -> list[str]:
    """What is wrong with a certificate that somebody hands in, from the document alone; empty when it is intact."""
    if document.get("version") != VERSION:
        return [f"it is not of version {VERSION}"]
    found = []
    if document.get("sha256") != digest(document):
        found.append("the digest does not fit the contents")
    try:
        found += [f"does not add up: {one['says']}" for one in equations(document) if not one["holds"]]
        if document["equations"] != equations(document) or document["verdict"] != verdict(document):
            found.append("the verdict does not follow from the numbers")
    except (KeyError, TypeError, AttributeError):
        found.append("numbers are missing")
    return found


def _counted(found: Mapping[str, Outcome | None], unproven: Sequence[str]) -> dict[str, Any]:
    """The numbers, the equations and the verdict. Pure."""
    there = [outcome for outcome in found.values() if outcome is not None]
    words = Counter(outcome.word for outcome in there)
    webhook = sum(outcome.source is Source.WEBHOOK for outcome in there)
    numbers: dict[str, Any] = {
        "listed": len(found),
        "received_by_webhook": webhook,
        "recovered": len(there) - webhook,
        "missing": sum(outcome is None for outcome in found.values()),
        "outcomes": {word: words[word] for word in (*DONE, *OPEN)},
        "unproven": list(unproven),
    }
    lines = hashlib.sha256()
    for event_id in sorted(found):
        outcome = found[event_id]
        lines.update(f"{event_id} {outcome.word if outcome else 'missing'}\n".encode())
    return numbers | {
        "equations": equations(numbers),
        "verdict": verdict(numbers),
        "missing_ids": [event_id for event_id, outcome in found.items() if outcome is None][:NAMED_MAX],
        "open_ids": [event_id for event_id, one in found.items() if one and one.word not in DONE][:NAMED_MAX],
        "events_sha256": lines.hexdigest(),
    }


def _worse(own: str, derived: str) -> str:
    """The worse of an event's own state and that of what it derived. Pure."""
    return next((word for word in WORST_FIRST if word in (own, derived)), own)
