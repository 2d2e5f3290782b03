"""Certificate: for a window of time, every event the service lists, and what became of it here. With a digest.

It answers after an outage: was anything missed? It reads the whole list again; it trusts no bookmark.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import aclosing
from datetime import datetime
from typing import Any, Final

import orjson

from consumer.clock import Clock
from consumer.events import Source, first, parse_time
from consumer.ledger import Database
from consumer.ledger.outcomes import Outcome, outcomes
from consumer.payments import EventRecord, Priority
from consumer.sync.feed import FeedPage, Walk
from consumer.sync.mark import Mark
from consumer.sync.reader import Reader

VERSION: Final = 1
NAMED_MAX: Final = 1000
DONE: Final = frozenset({"handled", "no_handler", "skipped"})


class Certifier:
    """Makes certificates for one application."""

    def __init__(self, reader: Reader, database: Database, *, clock: Clock) -> None:
        self._reader = reader
        self._database = database
        self._clock = clock

    async def certify(
        self, since: datetime, until: datetime, on_page: Callable[[int], None] | None = None
    ) -> dict[str, Any]:
        """The certificate for [since, until), as a JSON document. `verdict` is `complete` when every listed event is
        in the ledger and its work done, `open` when some still wait, `missing` when some are not there.

        Raises PaymentsError and LedgerError: a certificate is whole or it is none.
        """
        walk = Walk(
            lister=self._reader.client.with_priority(Priority.BACKFILL).events,
            locators=self._reader.locators,
            mark=Mark(),
            now=self._clock.now(),
            since=since,
        )
        seen: dict[str, str] = {}
        counts: Counter[str] = Counter()
        named: dict[str, list[str]] = {"missing": [], "open": []}
        async with aclosing(walk.pages()) as pages:
            async for page in pages:
                found = await self._outcomes(page, since, until, counts)
                for event_id, outcome in found.items():
                    if event_id not in seen:
                        seen[event_id] = _judge(event_id, outcome, counts, named)
                if on_page is not None:
                    on_page(walk.pages_read)
        verdict = "missing" if counts["missing"] else "open" if counts["open"] else "complete"
        document = {
            "version": VERSION,
            "application": self._reader.application,
            "since": since.isoformat(),
            "until": until.isoformat(),
            "made_at": self._clock.now().isoformat(),
            "list_order": walk.order.value,
            "verdict": verdict,
            "listed": len(seen),
            "received_by_webhook": counts["webhook"],
            "recovered": counts["recovered"],
            "missing": counts["missing"],
            "without_time": counts["without_time"],
            "outcomes": {word[8:]: count for word, count in sorted(counts.items()) if word.startswith("outcome:")},
            "missing_ids": named["missing"],
            "open_ids": named["open"],
            "events_sha256": _lines_digest(seen),
        }
        return document | {"sha256": digest(document)}

    async def _outcomes(
        self, page: FeedPage, since: datetime, until: datetime, counts: Counter[str]
    ) -> Mapping[str, Outcome | None]:
        ids = []
        for item in page.items:
            at = self._time(item)
            if item.id is None:
                continue
            if at is None:
                counts["without_time"] += 1
            if at is None or since <= at < until:
                ids.append(item.id)
        async with self._database.reading() as session:
            known = await outcomes(session, self._reader.application, ids)
        return {event_id: known.get(event_id) for event_id in ids}

    def _time(self, item: EventRecord) -> datetime | None:
        return parse_time(first(item.raw, self._reader.locators.time))


def digest(document: Mapping[str, Any]) -> str:
    """The digest of a certificate without its own `sha256`: equal documents have equal digests."""
    content = {name: value for name, value in document.items() if name != "sha256"}
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _judge(event_id: str, outcome: Outcome | None, counts: Counter[str], named: dict[str, list[str]]) -> str:
    """Count one event; returns its word for the digest."""
    if outcome is None:
        counts["missing"] += 1
        if len(named["missing"]) < NAMED_MAX:
            named["missing"].append(event_id)
        return "missing"
    counts["recovered" if outcome.source is Source.BACKFILL else "webhook"] += 1
    counts[f"outcome:{outcome.word}"] += 1
    if outcome.word not in DONE:
        counts["open"] += 1
        if len(named["open"]) < NAMED_MAX:
            named["open"].append(event_id)
    return outcome.word


def _lines_digest(seen: Mapping[str, str]) -> str:
    lines = hashlib.sha256()
    for event_id in sorted(seen):
        lines.update(f"{event_id} {seen[event_id]}\n".encode())
    return lines.hexdigest()
