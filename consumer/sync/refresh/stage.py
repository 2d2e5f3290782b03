"""Refresh: the reads that handlers asked for, by pages of a list where many are due, and singly. See `answers`.

Each request goes to one of five lanes, by weight (`schedule`). A kind of which many are due is paged as long as that
pays (`list_reads`, `policy`); meanwhile only those are read singly that no walk has answered. A request is made while
refresh has its share of the budget, or nobody else wants it. Every round looks anew at what is due.

Walks nobody asked for (reconcile) publish only what differs.
"""

from __future__ import annotations

import asyncio
from functools import partial

from consumer.clock import Clock
from consumer.ledger import Database
from consumer.ledger.reading import read_requests
from consumer.ledger.tables import ReadRow
from consumer.payments import Priority
from consumer.sync.api import ApplicationApi, Cooldown
from consumer.sync.loop import StageFailure, run_repeatedly, together
from consumer.sync.metrics import StageMetrics
from consumer.sync.publisher import EventPublisher
from consumer.sync.refresh.answers import Answers
from consumer.sync.refresh.list_reads import ListReads
from consumer.sync.refresh.policy import RefreshPolicy
from consumer.sync.refresh.schedule import Lane, ReadQuota, Round, RoundRobin
from consumer.sync.refresh.single_reads import SingleReads
from consumer.sync.refresh.waiting import Request, Waiting

KINDS = (("subscription",), ("order",), ("session", "service_order"))  # as they wait for single reads


class Refresh:
    """Does the due reads of one application. One process at a time does (see Leader)."""

    def __init__(
        self,
        api: ApplicationApi,
        database: Database,
        publisher: EventPublisher,
        *,
        clock: Clock,
        metrics: StageMetrics | None = None,
        policy: RefreshPolicy | None = None,
    ) -> None:
        self.application = api.application
        self.metrics = metrics or StageMetrics()
        self._database = database
        self._clock = clock
        self._policy = policy or RefreshPolicy()
        self._cooldown = cooldown = Cooldown(clock)
        self._quota = ReadQuota(clock, api.client.budget, self._policy)
        self._round_robin = RoundRobin()
        resources = api.client.with_priority(Priority.REFRESH)
        answers = Answers(
            api.application,
            resources,
            database,
            publisher,
            clock=clock,
            metrics=self.metrics,
            cooldown=cooldown,
            retry=self._policy.retry,
        )
        self._singles = SingleReads(resources, answers, metrics=self.metrics, cooldown=cooldown)
        list_reads = partial(
            ListReads,
            resources=resources,
            database=database,
            answers=answers,
            singles=self._singles,
            clock=clock,
            cooldown=cooldown,
            policy=self._policy,
        )
        self._pages = {Lane.SUBSCRIPTION_PAGES: list_reads("subscription"), Lane.ORDER_PAGES: list_reads("order")}
        self.failure = StageFailure(f"refresh {api.application}")

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`."""
        await run_repeatedly(self._step, stop=stop, clock=self._clock, failure=self.failure)

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
        this = Round()
        waiting = Waiting(await self._due(), self._pages, self._singles, most=self._policy.singles)
        turn = asyncio.Condition()

        async def work_off() -> None:
            while this.held_up is None:
                async with turn:
                    request = await self._next(waiting, this, turn)
                if request is None:
                    return
                try:
                    await request(this)
                finally:
                    async with turn:
                        turn.notify_all()

        await together(*(work_off() for _ in range(self._policy.concurrency)))
        if this.held_up is not None and not this.answered:
            raise this.held_up
        return len(this.answered)

    async def _next(self, waiting: Waiting, this: Round, turn: asyncio.Condition) -> Request | None:
        """The next request, if one waits and may be made now. Whose turn it is has it, though its last page is still
        on its way: else all the others would go before, however little they weigh."""
        while (lanes := waiting.lanes(this)) and this.held_up is None:
            lane = self._round_robin.turn(lanes)
            if waiting.is_taken(lane):
                await turn.wait()
            elif not await self._quota.allows():
                return None
            elif lane in waiting.lanes(this):  # a page under way may have answered meanwhile what waited
                self._round_robin.took(lane)
                return waiting.take(lane, this)
        return None

    async def _due(self) -> list[ReadRow]:
        """What is to be read now, each kind by itself: access hangs on subscriptions, and neither thousands of orders
        that became known at once nor thousands of older subscriptions may keep the others waiting (case B23)."""
        now, batch = self._clock.now(), self._policy.batch
        async with self._database.reading() as session:
            found = [await read_requests.due(session, now, batch, self.application, *kinds) for kinds in KINDS]
        return [row for rows in found for row in rows]
