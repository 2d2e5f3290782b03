"""Scripted list: `/v1/events` as services might list, and somebody who follows it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from consumer.events import Locators
from consumer.payments import ApiError, Cursor, EventRecord, Page
from consumer.sync.feed import FeedPolicy, Walk
from consumer.sync.mark import Mark

START = datetime(2026, 1, 1, tzinfo=UTC)
LIMIT = 3


@dataclass
class ScriptedList:
    """`/v1/events` as a service might do it; events have numbers in the order they were created."""

    newest_first: bool = True
    inclusive: bool = False
    times: str = "shown"  # shown | hidden | equal
    invalid_cursor: str = "refuse"  # refuse | first_page | empty
    now: datetime = START
    events: list[tuple[int, datetime]] = field(default_factory=list)
    numbers: Any = field(default_factory=itertools.count)
    calls: int = 0
    before_page: Callable[[int], None] = lambda _: None

    def add(self, count: int) -> None:
        for _ in range(count):
            self.now += timedelta(seconds=1)
            self.events.append((next(self.numbers), self.now))

    def purge(self, count: int) -> None:
        del self.events[:count]

    async def list(self, *, limit: int = 100, cursor: Cursor | None = None) -> Page[EventRecord]:
        self.calls += 1
        self.before_page(self.calls)
        listed = self.events[::-1] if self.newest_first else self.events
        ids = [f"evt_{number}" for number, _ in listed]
        start = 0
        if cursor is not None:
            if cursor not in ids:
                if self.invalid_cursor == "refuse":
                    raise ApiError("made up", status=400)
                if self.invalid_cursor == "empty":
                    return Page((), None)
            else:
                start = ids.index(str(cursor)) + (0 if self.inclusive else 1)
        items = listed[start : start + limit]
        more = len(listed) > start + limit
        following = None
        if more:
            following = ids[start + limit] if self.inclusive else ids[start + limit - 1]
        return Page(tuple(self._record(*item) for item in items), following)

    def _record(self, number: int, at: datetime) -> EventRecord:
        document: dict[str, Any] = {"id": f"evt_{number}", "type": "order.paid"}
        if self.times != "hidden":
            document["created_at"] = (START if self.times == "equal" else at).isoformat()
        return EventRecord.read(document)

    @property
    def ids(self) -> set[str]:
        return {f"evt_{number}" for number, _ in self.events}


@dataclass
class Follower:
    """Walks again and again with the mark that the last walk left, as backfill does."""

    service: ScriptedList
    mark: Mark = field(default_factory=Mark)
    seen: set[str] = field(default_factory=set)
    yielded: int = 0
    began: datetime = START

    @property
    def completed(self) -> bool:
        """Whether the last walk came to its end."""
        return self.mark.walked_at == self.began

    def walk(self) -> Walk:
        policy = FeedPolicy(gap_after=timedelta(0), limit=LIMIT)
        return Walk(lister=self.service, locators=Locators(), mark=self.mark, now=self.service.now, policy=policy)

    async def go(self, pages: int | None = None) -> Walk:
        """A walk, cut after `pages` pages: what was published by then stays, and so does the mark."""
        self.service.now += timedelta(milliseconds=1)
        self.began = self.service.now
        walk = self.walk()
        steps = walk.pages()
        number = 0
        async for page in steps:
            self.seen |= {item.id for item in page.items if item.id}
            self.yielded += len(page.items)
            self.mark = Mark.load(page.mark.dump())
            number += 1
            if pages is not None and number >= pages:
                await steps.aclose()
                break
        return walk
