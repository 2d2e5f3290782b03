"""How the reads that are due are worked off: one by one or by pages of a list, and when a walk of a list pays. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from consumer.payments import Cursor
from consumer.retry import RetryPolicy

BARREN_MAX = 2
SINGLES_PER_BARREN = 20
RESTS_MAX = 3
AHEAD_FROM = 50  # of the hundred that a page shows


def _slow() -> RetryPolicy:
    return RetryPolicy(attempts=1000, first_s=5.0, factor=3.0, ceiling_s=6 * 3600.0, jitter=0.2)


@dataclass(frozen=True, kw_only=True)
class RefreshPolicy:
    """`batch`: reads looked at per round; `singles`: of those, how many are done one by one before it is looked again
    whether a list pays; `concurrency`: at once; `retry`: the waits after a read that failed by itself. `idle_s`: how
    often the ledger is looked at while nothing is due (who asks may be in another process). `page_from`,
    `page_orders_from`: from how many due reads of subscriptions, of orders on their list is paged, until `BARREN_MAX`
    pages running, or one for every `SINGLES_PER_BARREN` that are due (for each, where the list has paid off), answered
    less than `page_yield` of them; `pages`: how many of them a round; `newest_every_s`: a walk that has gone on for
    longer looks at the newest page again. `per_s`, `burst`: requests, on average and at once, that walks have to make
    room for; `order_per_s`, `order_burst`: of those at most so many about anything else than subscriptions. Any further
    one only takes what nobody else wants; `spent_s`: how soon it is looked again whether there is such a one. The limit
    of the service is 4.8 a second: walks and hints keep what `per_s` leaves of it."""

    batch: int = 1000
    page_from: int = 200
    page_orders_from: int = 20
    page_yield: int = 3
    singles: int = 50
    pages: int = 20
    newest_every_s: float = 3.0
    per_s: float = 3.0
    burst: int = 30
    order_per_s: float = 1.5
    order_burst: int = 20
    concurrency: int = 4
    idle_s: float = 1.0
    spent_s: float = 0.5
    retry: RetryPolicy = field(default_factory=_slow)


@dataclass
class ListWalk:
    """Where a walk of a list goes on, and how many pages running answered next to nothing. Once one has answered, a
    walk that runs ahead of those who ask goes back to `after_hit`, and rests until `rests_until`; `tries` times.
    `promising`: the last walk of the list has paid off."""

    began: datetime
    promising: bool = False
    pages: int = 0
    found: int = 0
    cursor: Cursor | None = None
    barren: int = 0
    after_hit: Cursor | None = None
    tries: int = 0
    rests_until: float = 0.0

    def note(self, answered: int, unasked: int, next_cursor: Cursor | None, policy: RefreshPolicy, now: float) -> None:
        """A page was read, and answered so many; `unasked`: how many nobody has asked for so far. Events may be handled
        in the order of the list: then a walk that is faster than the workers runs ahead of them, and what it looks for
        comes up behind it. A page of what was answered before is nothing to wait at."""
        self.cursor = next_cursor
        self.pages, self.found = self.pages + 1, self.found + answered
        if answered >= policy.page_yield:
            self.barren, self.after_hit, self.tries = 0, next_cursor, 0
            return
        self.barren += 1
        is_ahead = self.after_hit is not None and unasked >= AHEAD_FROM
        if is_ahead and self.barren > BARREN_MAX and self.tries < RESTS_MAX and next_cursor is not None:
            self.cursor, self.barren, self.tries = self.after_hit, 0, self.tries + 1
            self.rests_until = now + self.tries * policy.newest_every_s

    @property
    def has_paid_off(self) -> bool:
        """Whether it has answered more than as many single reads would have."""
        return self.found >= self.pages

    def pays(self, due: int) -> bool:
        """Whether it is to go on after its barren pages, while so many reads are due: what it looks for may all lie at
        the far end of the list, and read singly it would cost a request each. Where the list has not shown that it
        answers, a small part of that is all that is risked."""
        is_worth_it = self.promising or self.has_paid_off
        return due > 0 and self.barren <= max(BARREN_MAX, due if is_worth_it else due // SINGLES_PER_BARREN)
