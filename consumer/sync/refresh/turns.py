"""Turns: the single reads that come in between the pages of a list. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from consumer.ledger.tables import ReadRow

PAGES_RUNNING = 5  # after so many pages comes one single read, if one waits: a sixth of the requests


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
