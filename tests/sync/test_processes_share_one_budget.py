"""The request budget in the ledger: what one process takes, another cannot take again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from consumer.clock import SystemClock
from consumer.ledger import Database
from consumer.ledger.reading.budgets import LedgerBudgetStore
from consumer.payments import Budget, BudgetExhausted, CallKind, Limit, Limits, Priority, Scope


async def test_counting_up_from_many_tasks_and_stores_loses_no_count(database: Database) -> None:
    # case: C17
    stores = [LedgerBudgetStore(database, SystemClock()) for _ in range(3)]

    def step(texts: Mapping[str, str], now: float) -> tuple[Mapping[str, str], int]:
        count = int(texts.get("a", "0")) + 1
        return {"a": str(count), "b": str(count)}, count

    counts = await asyncio.gather(*(stores[n % 3].update(["b", "a"], step) for n in range(60)))
    assert sorted(counts) == list(range(1, 61))


async def test_two_budgets_over_one_ledger_share_one_limit(database: Database) -> None:
    # case: C15, C17
    limits = Limits(ip=Limit(requests=20, window_s=600), application_reads=Limit(requests=600, window_s=60))
    clock = SystemClock()
    scope = Scope(ip="service", application="svc_app_x")
    budgets = [Budget(LedgerBudgetStore(database, clock), scope, clock, limits) for _ in range(2)]

    async def take(number: int) -> bool:
        try:
            await budgets[number % 2].acquire(CallKind.READ, Priority.LIVE, max_wait_s=0)
        except BudgetExhausted:
            return False
        return True

    taken = [await take(number) for number in range(40)]
    assert 0 < sum(taken) <= 20
