"""Scripted list: `/v1/events` as services might list, and somebody who follows it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from consumer.events import Locators
from consumer.lists.bookmark import Bookmark
from consumer.lists.policy import WalkPolicy
from consumer.lists.walk import Walk
from consumer.payments import ApiError, Cursor, EventRecord, Page

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
    late: list[tuple[datetime, int]] = field(default_factory=list)
    hidden: dict[int, datetime] = field(default_factory=dict)
    every_s: float = 1.0

    def add(self, count: int) -> None:
        for _ in range(count):
            self.now += timedelta(seconds=self.every_s)
            self.events.append((next(self.numbers), self.now))

    def add_late(self, seconds: float) -> None:
        """An event of now that is listed, in its place, only that many seconds later."""
        self.add(1)
        number, at = self.events.pop()
        self.late.append((at + timedelta(seconds=seconds), number))
        self.hidden[number] = at

    def purge(self, count: int) -> None:
        del self.events[:count]

    async def list(self, *, limit: int = 100, cursor: Cursor | None = None) -> Page[EventRecord]:
        self.calls += 1
        self.before_page(self.calls)
        self._reveal()
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

    def _reveal(self) -> None:
        due = [number for visible_at, number in self.late if visible_at <= self.now]
        self.late = [(visible_at, number) for visible_at, number in self.late if visible_at > self.now]
        self.events += [(number, self.hidden.pop(number)) for number in due]
        self.events.sort(key=lambda event: (event[1], event[0]))

    def _record(self, number: int, at: datetime) -> EventRecord:
        document: dict[str, Any] = {"id": f"evt_{number}", "type": "order.paid"}
        if self.times != "hidden":
            document["created_at"] = (START if self.times == "equal" else at).isoformat()
        return EventRecord.read(document)

    @property
    def ids(self) -> set[str]:
        """All that is listed now."""
        self._reveal()
        return {f"evt_{number}" for number, _ in self.events}


def feed_policy(*, overlap_s: float) -> WalkPolicy:
    """Pages of three, each walk a sweep, and any pause long enough for a gap."""
    return WalkPolicy(
        gap_after=timedelta(0), limit=LIMIT, overlap_s=overlap_s, overlap_every_s=0.0, overlap_pages_max=1000
    )


def growing(service: ScriptedList, pages: int) -> Callable[[int], None]:
    """An event more before each of the next pages."""
    grown = itertools.count()

    def grow(_: int) -> None:
        if next(grown) < pages:
            service.add(1)

    return grow


@dataclass
class Follower:
    """Walks again and again with the bookmark that the last walk left, as backfill does."""

    service: ScriptedList
    bookmark: Bookmark = field(default_factory=Bookmark)
    seen: set[str] = field(default_factory=set)
    yielded: int = 0
    began: datetime = START
    policy: WalkPolicy = field(default_factory=lambda: feed_policy(overlap_s=3.0))
    clock_ahead_s: float = 0.0

    @property
    def completed(self) -> bool:
        """Whether the last walk came to its end."""
        return self.bookmark.walked_at == self.began

    def walk(self, *, sweeps: bool = True) -> Walk:
        return Walk(
            lister=self.service,
            locators=Locators(),
            bookmark=self.bookmark,
            now=self.began,
            policy=self.policy,
            sweeps=sweeps,
        )

    async def go(self, pages: int | None = None, *, sweeps: bool = True) -> Walk:
        """A walk, cut after `pages` pages: what was published by then stays, and so does the bookmark."""
        self.service.now += timedelta(milliseconds=1)
        self.began = self.service.now + timedelta(seconds=self.clock_ahead_s)
        walk = self.walk(sweeps=sweeps)
        steps = walk.pages()
        number = 0
        async for page in steps:
            self.seen |= {item.id for item in page.items if item.id}
            self.yielded += len(page.items)
            self.bookmark = Bookmark.load(page.bookmark.dump())
            number += 1
            if pages is not None and number >= pages:
                await steps.aclose()
                break
        return walk
