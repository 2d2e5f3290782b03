"""A result is kept until the ledger has it, and told only then; what a first success leaves is no attempt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from consumer.clock import DrivenClock
from consumer.errors import LedgerUnavailable
from consumer.ledger.handling.lanes import RunId
from consumer.ledger.handling.runs import ClaimedRun, Finished
from consumer.plugin import Context, Event, Handler
from consumer.work.dispatch import result_writer as module
from consumer.work.dispatch.result_writer import GROUP_MAX, Result, ResultWriter, conclude
from consumer.work.outcome import Outcome, Succeeded, failed
from tests.work.workshop import AT, order_paid

END = AT + timedelta(seconds=2.5)


async def nothing(event: Event, ctx: Context) -> None:
    return None


HANDLER = Handler(name="shop:ship", types=("*",), function=nothing, version="v7")


def result(outcome: Outcome, *, used: int = 0, number: int = 1) -> Result:
    run = ClaimedRun(application="default", event_id=f"evt_{number}", handler="shop:ship", seq=1, key="order:1",
                     attempts=used, plan=None, created_at=AT, due_at=AT)  # fmt: skip
    return conclude(HANDLER, run, order_paid(number), outcome, worker="w", started_at=AT, now=END)


# case: H2
@pytest.mark.parametrize(
    ("outcome", "used", "number"),
    [(Succeeded(), 0, None), (Succeeded(), 1, 2), (failed(ValueError("no")), 0, 1), (failed(ValueError("no")), 3, 4)],
)
def test_an_attempt_is_kept_of_what_did_not_succeed_at_once(outcome: Outcome, used: int, number: int | None) -> None:
    found = result(outcome, used=used)
    assert (found.attempt.number if found.attempt is not None else None) == number
    assert found.seconds == 2.5
    assert (found.finish.code_version, found.run.event_id) == ("v7", "evt_1")
    if found.attempt is not None:
        assert (found.attempt.started_at, found.attempt.finished_at, found.attempt.worker) == (AT, END, "w")


class Ledger:
    """Transactions, of which the script says which fail when they are committed."""

    def __init__(self, *fails: bool) -> None:
        self.fails, self.groups = list(fails), list[list[str]]()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """As a Database does."""
        yield
        if self.fails and self.fails.pop(0):
            self.groups.pop()
            raise LedgerUnavailable


class Writing:
    """A writer, what it stored and what it told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *fails: bool) -> None:
        self.ledger, self.clock, self.told = Ledger(*fails), DrivenClock(), list[tuple[int, int]]()
        self.known = frozenset[RunId]()
        database: Any = self.ledger

        async def store(_: object, group: Sequence[Result], *, worker: str, now: datetime) -> Finished:
            assert (worker, now) == ("w", self.clock.now())
            self.ledger.groups.append([one.run.event_id for one in group])
            fresh = frozenset(one.run.id for one in group) - self.known
            self.known |= fresh
            return Finished(let_go=3, stored=fresh)

        def told(some: Sequence[Result], done: Finished) -> None:
            assert done.stored == {one.run.id for one in some}, "also what a commit stored that was not acknowledged"
            self.told.append((len(some), done.let_go))

        monkeypatch.setattr(module, "store", store)
        self.writer = ResultWriter(
            database=database,
            clock=self.clock,
            worker="w",
            on_stored=told,
        )

    def add(self, count: int) -> None:
        """So many results."""
        for number in range(count):
            self.writer.add(result(Succeeded(), number=number))


async def test_results_are_stored_in_groups_and_told_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    writing = Writing(monkeypatch)
    writing.add(GROUP_MAX + 1)
    await writing.writer.flush()
    assert writing.ledger.groups == [[f"evt_{number}" for number in range(GROUP_MAX)], [f"evt_{GROUP_MAX}"]]
    assert writing.told == [(GROUP_MAX, 3), (1, 3)]
    assert not writing.writer._there.is_set()
    await writing.writer.flush()
    assert len(writing.told) == 2


# case: G5, O2
async def test_what_the_ledger_does_not_take_is_kept_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    writing = Writing(monkeypatch, True, True, False)
    with capture_logs() as logs:
        task = asyncio.create_task(writing.writer.run())
        await asyncio.sleep(0)
        assert writing.ledger.groups == []
        writing.add(2)
        for _ in range(2):
            for _ in range(5):
                await asyncio.sleep(0)
            assert (writing.told, writing.clock.sleepers) == ([], 1)
            writing.clock.advance(module.RETRY_S)
        for _ in range(5):
            await asyncio.sleep(0)
        assert writing.told == [(2, 3)]
        assert not task.done()
        task.cancel()
    assert [line["event"] for line in logs] == ["results_not_stored", "results_not_stored_over"]
    assert logs[0]["waiting"] == 2
