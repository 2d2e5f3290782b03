"""One suite for every store of the shared budget: in memory, and in the ledger on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from consumer.clock import DrivenClock, SystemClock
from consumer.ledger import Database
from consumer.ledger.engine import schema
from consumer.ledger.reading.budgets import LedgerBudgetStore
from consumer.payments import (
    Budget,
    BudgetExhausted,
    BudgetStore,
    CallKind,
    CircuitOpen,
    CredentialCircuit,
    IdempotencyKeys,
    Limit,
    Limits,
    MemoryBudgetStore,
    MemoryIdempotencyKeys,
    Priority,
    Scope,
    Step,
    StoredIdempotencyKeys,
)

T = TypeVar("T")


class Ahead:
    """A store whose time is ahead of the real one by so many seconds."""

    def __init__(self, store: BudgetStore) -> None:
        self._store = store
        self.seconds = 0.0

    async def update(self, names: Sequence[str], step: Step[T]) -> T:
        return await self._store.update(names, lambda texts, now: step(texts, now + self.seconds))


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    """Where the store lives; None for memory."""
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite+aiosqlite:///{tmp_path}/ledger.db" if request.param == "sqlite" else None


@pytest.fixture
async def store(store_url: str | None) -> AsyncIterator[BudgetStore]:
    if store_url is None:
        yield MemoryBudgetStore(SystemClock())
        return
    database = Database(store_url)
    await schema.upgrade(database)
    yield LedgerBudgetStore(database, SystemClock())
    await database.stop()


def put(**texts: str) -> Any:
    def step(found: Mapping[str, str], now: float) -> tuple[Mapping[str, str], tuple[dict[str, str], float]]:
        return texts, (dict(found), now)

    return step


async def test_a_text_is_kept_replaced_and_forgotten(store: BudgetStore) -> None:
    # case: C15
    names = ["a", "b"]
    assert (await store.update(names, put(a="1")))[0] == {}
    assert (await store.update(names, put(a="2", b="3")))[0] == {"a": "1"}
    assert (await store.update(names, put(a="")))[0] == {"a": "2", "b": "3"}
    assert (await store.update(names, put()))[0] == {"b": "3"}
    assert (await store.update(["a"], put()))[0] == {}


async def test_its_time_does_not_run_backwards(store: BudgetStore) -> None:
    # case: C15
    times = [(await store.update(["a"], put(a="1")))[1] for _ in range(5)]
    assert times == sorted(times)


async def test_a_step_that_fails_changes_nothing(store: BudgetStore) -> None:
    # case: C15
    await store.update(["a"], put(a="1"))

    def failing(found: Mapping[str, str], now: float) -> tuple[Mapping[str, str], None]:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await store.update(["a"], failing)
    assert (await store.update(["a"], put()))[0] == {"a": "1"}


async def test_no_change_is_lost_among_many(store: BudgetStore) -> None:
    # case: C16
    def step(found: Mapping[str, str], now: float) -> tuple[Mapping[str, str], int]:
        count = int(found.get("x", "0")) + 1
        return {"x": str(count), "y": str(-count)}, count

    counts = await asyncio.gather(*(store.update(["x", "y"] if n % 2 else ["y", "x"], step) for n in range(40)))
    assert sorted(counts) == list(range(1, 41))


async def test_budgets_over_one_store_share_a_limit_and_a_pause(store: BudgetStore) -> None:
    # case: C6, C16
    limits = Limits(ip=Limit(requests=20, window_s=600))
    pods = [Budget(store, Scope(ip="one", application="a"), SystemClock(), limits) for _ in range(3)]
    for number in range(20):
        await pods[number % 3].acquire(CallKind.READ, Priority.LIVE, max_wait_s=0)
    for pod in pods:
        with pytest.raises(BudgetExhausted):
            await pod.acquire(CallKind.READ, Priority.LIVE, max_wait_s=0)
    other = [Budget(store, Scope(ip="two", application="a"), SystemClock(), limits) for _ in range(2)]
    await other[0].pause(CallKind.READ, 60)
    with pytest.raises(BudgetExhausted) as caught:
        await other[1].acquire(CallKind.READ, Priority.LIVE, max_wait_s=0)
    assert 50 < caught.value.retry_after_s <= 60


async def test_circuits_over_one_store_share_their_probes_and_closing(store: BudgetStore) -> None:
    # case: S14, S6
    clock, ahead = DrivenClock(), Ahead(store)
    one, two = (CredentialCircuit("default", app_id="svc_app_a", store=ahead, clock=clock) for _ in range(2))
    await one.refused(0)
    await two.refused(0)
    admitted: list[str] = []
    for _ in range(10):
        ahead.seconds += 31
        clock.advance(31)
        for circuit in (one, two):
            try:
                admitted.append(await circuit.admit(0))
            except CircuitOpen:
                admitted.append("wait")
    assert admitted.count("probe") == admitted.count("wait") == 10
    await one.accepted()
    ahead.seconds += 6
    clock.advance(6)
    assert await two.admit(0) == "pass"
    assert not two.is_open


@pytest.fixture(params=["memory", "stored"])
def keys(request: pytest.FixtureRequest, store: BudgetStore) -> IdempotencyKeys:
    return MemoryIdempotencyKeys() if request.param == "memory" else StoredIdempotencyKeys(store)


async def test_a_key_stays_until_its_outcome_is_known(keys: IdempotencyKeys) -> None:
    # case: C3, C4
    first = await keys.begin("a", "create/1", "digest")
    assert await keys.begin("a", "create/1", "digest") == first
    assert len({first, await keys.begin("b", "create/1", "digest"), await keys.begin("a", "create/2", "digest")}) == 3
    await keys.settle("a", "create/1", "another key")
    assert await keys.begin("a", "create/1", "digest") == first
    await keys.settle("a", "create/1", first)
    assert await keys.begin("a", "create/1", "digest") != first


async def test_a_changed_body_takes_a_new_key_for_good(keys: IdempotencyKeys) -> None:
    # case: C4
    first = await keys.begin("a", "create/1", "digest")
    second = await keys.begin("a", "create/1", "other digest")
    assert first != second
    assert await keys.begin("a", "create/1", "other digest") == second


async def test_concurrent_begins_of_one_operation_agree_on_its_key(keys: IdempotencyKeys) -> None:
    # case: C3
    found = await asyncio.gather(*(keys.begin("a", "create/1", "digest") for _ in range(10)))
    assert len(set(found)) == 1


async def test_stored_keys_survive_the_process(database: Database) -> None:
    # case: C3, G5
    first = await StoredIdempotencyKeys(LedgerBudgetStore(database, SystemClock())).begin("a", "create/1", "digest")
    again = await StoredIdempotencyKeys(LedgerBudgetStore(database, SystemClock())).begin("a", "create/1", "digest")
    assert first == again
