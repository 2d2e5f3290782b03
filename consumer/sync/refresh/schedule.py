"""Schedule: which read comes next, and whether it may be made now: what refresh may take of the budget, and whose turn
it is between pages of lists and single reads, and among the kinds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Literal

from consumer.clock import Clock
from consumer.ledger.tables import ReadRow
from consumer.payments import Budget, CallKind, Priority
from consumer.sync.quota import TokenBucket
from consumer.sync.refresh.policy import RefreshPolicy

URGENT = 4  # after so many single reads of subscriptions comes one of something else
ListedKind = Literal["subscription", "order"]
LISTED: tuple[ListedKind, ...] = ("subscription", "order")
UNLISTED = ("session", "service_order")  # read singly only
PAGES_RUNNING = 5  # after so many pages comes one single read, if one waits: a sixth of the requests


class ReadQuota:
    """What the reads that handlers asked for may take of the budget. They come before the walks of events and of
    reconcile, so without a bound a handler that asks again with every answer, or a thin list that leaves thousands of
    subscriptions to single reads, would end those walks, and what webhooks lose would stay lost (cases B23, G3).

    All of them have `per_s`; orders, of which thousands may become known at once, at most `order_per_s` of that.
    Beyond its share a read only takes what nobody else wants. `since_other`, `last_other`: see `in_turn`.
    """

    def __init__(self, clock: Clock, budget: Budget, policy: RefreshPolicy) -> None:
        self._budget = budget
        self._all = TokenBucket(clock, per_s=policy.per_s, burst=policy.burst)
        self._orders = TokenBucket(clock, per_s=policy.order_per_s, burst=policy.order_burst)
        self._refused: set[bool] = set()  # subscriptions? others?
        self.since_other = URGENT - 1  # the first other comes after one subscription
        self.last_other = "order"

    def begin(self) -> None:
        """A round begins: what was refused is asked for anew."""
        self._refused.clear()

    @property
    def is_spent(self) -> bool:
        """Whether a request was refused in this round."""
        return bool(self._refused)

    async def allows(self, kind: str) -> bool:
        """Take a request about this kind if one may be made now. Once refused, its like are refused in this round; who
        refuses a subscription refuses all."""
        is_urgent = kind == "subscription"
        if is_urgent in self._refused or True in self._refused:
            return False
        if self._grants(is_urgent) or await self._budget.predict_s(CallKind.READ, Priority.RECONCILE) == 0:
            if is_urgent:
                self.since_other += 1
            else:
                self.since_other, self.last_other = 0, kind
            return True
        self._refused.add(is_urgent)
        return False

    def _grants(self, is_urgent: bool) -> bool:
        if is_urgent:
            return self._all.grant(1) == 1
        return self._all.covers(1) and self._orders.grant(1) == 1 and self._all.grant(1) == 1


class Turns:
    """A list that answers something on every page is read as long as the share goes, which may be for ever when who was
    answered asks again. So after `PAGES_RUNNING` pages running one read is done singly: of subscriptions, of orders, of
    the rest (sessions, orders by the service's id) in turn, those that wait for nothing better. The pages running and
    whose turn it is outlast the rounds, of which each may have but one request (cases B22, B23).
    """

    def __init__(self) -> None:
        self._running = 0
        self._turns = ["rest", "order", "subscription"]
        self._waiting: dict[str, list[ReadRow]] = {}
        self._done: set[tuple[str, str]] = set()

    def begin(self, waiting: Iterable[ReadRow]) -> None:
        """A round begins, and these are to be read singly; of each kind the first come first."""
        self._done.clear()
        self._waiting = {turn: [] for turn in self._turns}
        for row in waiting:
            self._waiting[_turn(row)].append(row)
        for rows in self._waiting.values():
            rows.reverse()

    def paged(self) -> None:
        """A page is read."""
        self._running += 1

    def next(self) -> ReadRow | None:
        """What is to be read before the next page, if anything. It keeps its turn until it is `taken`."""
        if self._running < PAGES_RUNNING:
            return None
        for turn in self._turns:
            rows = self._waiting.get(turn, [])
            while rows and self.has_done(rows[-1]):
                rows.pop()
            if rows:
                return rows[-1]
        return None

    def taken(self, row: ReadRow) -> None:
        """This one is read now; the next turn is another kind's."""
        self._running = 0
        turn = _turn(row)
        self._turns.remove(turn)
        self._turns.append(turn)
        self.did([row])

    def did(self, rows: Iterable[ReadRow]) -> None:
        """These were read in this round, singly or by a page."""
        self._done.update((row.kind, row.object_id) for row in rows)

    def has_done(self, row: ReadRow) -> bool:
        """Whether this one was read in this round."""
        return (row.kind, row.object_id) in self._done


def _turn(row: ReadRow) -> str:
    return row.kind if row.kind in ("subscription", "order") else "rest"


def in_turn(
    due: Sequence[ReadRow], most: int, since_other: int = URGENT - 1, last_other: str = "order"
) -> list[ReadRow]:
    """Which of the due reads are done one by one, and in which order: subscriptions first, but a fifth is for others,
    however small the share of both is; orders and the rest (sessions) take turns. `since_other`: how many requests
    about subscriptions were made since the last about anything else; `last_other`: the kind of that one, for a round
    may have room for a single one."""
    urgent = [row for row in due if row.kind == "subscription"]
    orders = [row for row in due if row.kind == "order"]
    rest = [row for row in due if row.kind not in ("subscription", "order")]
    pairs = zip_longest(rest, orders) if last_other == "order" else zip_longest(orders, rest)
    others = [row for pair in pairs for row in pair if row is not None]
    urgent = urgent[: most - min(len(others), most // (URGENT + 1))]
    others = others[: most - len(urgent)]
    turns = list[ReadRow]()
    for row in urgent:
        if since_other >= URGENT and others:
            turns.append(others.pop(0))
            since_other = 0
        turns.append(row)
        since_other += 1
    return [*turns, *others]
