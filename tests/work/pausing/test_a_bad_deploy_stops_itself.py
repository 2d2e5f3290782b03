"""A handler whose runs die one after the other is paused, loudly, long before the topic is in the dead letters."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from consumer.broker import Broker
from consumer.ledger import Database
from consumer.ledger.handling import handlers
from consumer.ledger.handling.runs import Run
from consumer.ledger.tables import RunStatus
from consumer.plugin import Context, Event, Handler, declared, handles
from consumer.work.pausing.rules import PauseRules
from consumer.work.unit_of_work import UnitOfWork
from tests.support.ports import eventually
from tests.work.workshop import Workshop, order_paid

EVENTS = 150


@pytest.mark.slow
@pytest.mark.parametrize("transactional", [True, False])
async def test_it_is_paused_and_goes_on_after_the_repair(
    database: Database, broker: Broker, transactional: bool
) -> None:
    repaired = False

    @handles("order.paid", attempts=1, pause_after=10, concurrency=4, transactional=transactional)
    async def broken(event: Event, ctx: Context) -> None:
        if not repaired:
            raise KeyError("a name that was renamed")

    @handles("order.paid", transactional=transactional)
    async def fine(event: Event, ctx: Context) -> None:
        return None

    shop = Workshop(database, broker, [broken, fine])
    await shop.publish(*[order_paid(number) for number in range(EVENTS)])
    async with shop.working():
        await eventually(lambda: paused_reason(database, "broken"), within_s=20)
        await eventually(lambda: shop.count(".fine", "succeeded", EVENTS), within_s=20)
        dead = (await shop.statuses(".broken")).count("dead")
        # Ten in a row, and what was under way or in the same group when the tenth died.
        assert 10 <= dead <= 30
        assert shop.figure("consumer_work_handler_stopped_total", handler="broken") >= 1
        repaired = True
        async with database.transaction() as session:
            assert await handlers.resume(session, (await shop.runs("broken"))[0].handler)
        await eventually(lambda: shop.count(".broken", "succeeded", EVENTS - dead), within_s=20)
    assert (await shop.statuses(".broken")).count("dead") == dead


async def paused_reason(database: Database, name: str) -> str | None:
    async with database.reading() as session:
        return next((one.paused_reason for one in await handlers.everyone(session) if one.name.endswith(name)), None)


async def nothing(event: Event, ctx: Context) -> None:
    return None


def handler(pause_after: int = 5) -> Handler:
    return Handler(name="h", types=("*",), function=nothing, pause_after=pause_after)


def test_half_of_many_dead_is_as_bad_as_a_streak() -> None:
    rules, reasons = PauseRules(), []
    for number in range(40):
        status = RunStatus.DEAD if number % 3 else RunStatus.SUCCEEDED
        reasons.append(rules.saw(handler(), status))
    assert next(reason for reason in reasons if reason) == "7 of the newest 11 runs dead"
    assert len([reason for reason in reasons if reason]) == 1


def test_few_dead_among_many_are_no_reason() -> None:
    rules = PauseRules()
    assert not [reason for number in range(1000) if (reason := rules.saw(handler(), status_of(number % 100 == 0)))]


def test_it_can_be_turned_off_and_starts_anew_when_resumed() -> None:
    rules = PauseRules()
    assert not [reason for _ in range(500) if (reason := rules.saw(handler(0), RunStatus.DEAD))]
    rules.forget("h")
    stopped = [rules.saw(handler(), RunStatus.DEAD) for _ in range(10)]
    assert [reason for reason in stopped if reason] == ["5 runs dead in a row"]
    rules.forget("h")
    again = [rules.saw(handler(), RunStatus.DEAD) for _ in range(5)]
    assert again[-1] == "5 runs dead in a row"


def status_of(is_dead: bool) -> RunStatus:
    return RunStatus.DEAD if is_dead else RunStatus.SUCCEEDED


def test_deaths_with_a_success_in_between_are_not_in_a_row() -> None:
    @handles("order.paid", attempts=1, pause_after=5)
    async def shaky(event: Event, ctx: Context) -> None:
        return None

    handler = declared(shaky)
    assert handler is not None
    rules = PauseRules()
    for _ in range(20):  # the share of the dead stays under what stops it by itself
        assert [rules.saw(handler, RunStatus.DEAD) for _ in range(4)] == [None] * 4
        assert [rules.saw(handler, RunStatus.SUCCEEDED) for _ in range(12)] == [None] * 12
    assert [rules.saw(handler, RunStatus.DEAD) for _ in range(5)][4] == "5 runs dead in a row"


def test_in_one_batch_too_a_success_ends_a_row_of_deaths() -> None:
    unit = UnitOfWork(now=datetime(2026, 1, 1, tzinfo=UTC))

    def too_deadly_after(*statuses: RunStatus, name: str = "h") -> bool:
        for seq, status in enumerate(statuses):
            event = f"evt_{seq}"
            unit.add(Run(application="a", event_id=event, handler=name, seq=seq, key="", status=status, blocking=False))
        return unit.is_too_deadly(handler(2), "a")

    dead, succeeded, waits = RunStatus.DEAD, RunStatus.SUCCEEDED, RunStatus.RETRYING
    assert not too_deadly_after(dead, succeeded, dead)
    assert not too_deadly_after(dead, name="another")
    assert too_deadly_after(waits, dead)
    assert not unit.is_too_deadly(handler(0), "a"), "turned off"
    assert not too_deadly_after(succeeded)
