"""Refresh: the reads that handlers asked for, by pages of a list where many are due, and singly. See `answers`.

Walks nobody asked for (reconcile) publish only what differs.
"""

from __future__ import annotations

from consumer.errors import again
from consumer.ledger.reading import read_requests
from consumer.ledger.tables import ReadRow
from consumer.payments import Priority
from consumer.runtime.loop import Stage, together
from consumer.sync.api import Cooldown
from consumer.sync.application import Application
from consumer.sync.publisher import EventPublisher
from consumer.sync.refresh.answers import Answers
from consumer.sync.refresh.list_reads import ListReads
from consumer.sync.refresh.policy import RefreshPolicy
from consumer.sync.refresh.schedule import LISTED, UNLISTED, URGENT, ReadQuota, Turns, in_turn
from consumer.sync.refresh.single_reads import SingleReads


class Refresh(Stage):
    """Does the due reads of one application. One process at a time does (see Leader)."""

    def __init__(self, app: Application, publisher: EventPublisher, *, policy: RefreshPolicy | None = None) -> None:
        super().__init__(f"refresh {app.name}", app.clock)
        self._app = app
        self._policy = policy or RefreshPolicy()
        self._cooldown = cooldown = Cooldown(app.clock)
        self._quota = quota = ReadQuota(app.clock, app.client.budget, self._policy)
        self._turns = turns = Turns()
        resources = app.client.with_priority(Priority.REFRESH)
        answers = Answers(app, resources, publisher, cooldown, self._policy.retry)
        self._singles = singles = SingleReads(app, resources, answers, quota, cooldown)
        self._lists = {
            kind: ListReads(
                kind, app, resources, answers, singles, quota=quota, turns=turns, cooldown=cooldown, policy=self._policy
            )
            for kind in LISTED
        }

    async def _step(self) -> float:
        if await self.once():
            return 0.0
        return min(self._policy.idle_s, self._policy.spent_s) if self._quota.is_spent else self._policy.idle_s

    async def once(self) -> int:
        """One round over the due reads; returns how many were answered.

        Raises LedgerError, BrokerError (the reads stay due), and the PaymentsError that holds all calls up.
        """
        self._cooldown.check()
        self._quota.begin()
        answered, left = list[ReadRow](), await self._due()
        paged = {kind: reads for kind, reads in self._lists.items() if reads.is_paged(left)}
        self._turns.begin(row for row in left if row.kind not in paged or paged[row.kind].is_unanswered(row))
        for kind in LISTED if self._quota.since_other < URGENT else LISTED[::-1]:
            if kind in paged:
                left = await paged[kind].work_off(left, answered)
        left = [row for row in left if not self._turns.has_done(row)]
        waiting = iter(in_turn(left, self._policy.singles, self._quota.since_other, self._quota.last_other))
        await together(*(self._singles.work_off(waiting, answered) for _ in range(self._policy.concurrency)))
        if self._cooldown.error is not None and not answered:
            raise again(self._cooldown.error)
        return len(answered)

    async def _due(self) -> list[ReadRow]:
        """What is to be read now, each kind by itself: access hangs on subscriptions, and neither thousands of orders
        that became known at once nor thousands of older subscriptions may keep the others waiting (case B23)."""
        now, batch = self._app.clock.now(), self._policy.batch
        async with self._app.database.reading() as session:
            if not await read_requests.due(session, now, 1):
                return []
            listed = [await read_requests.due(session, now, batch, self._app.name, kind) for kind in LISTED]
            rest = await read_requests.due(session, now, batch, self._app.name, *UNLISTED)
        found = [*(row for rows in listed for row in rows), *rest]
        return sorted(found, key=lambda row: (row.due_at, row.object_id))  # the database leaves ties as they lie
