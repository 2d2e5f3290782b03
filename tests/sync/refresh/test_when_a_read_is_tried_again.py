"""When a read that failed is tried again, what that is counted as, and how soon the next round comes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from consumer.ledger.tables import ALARM_AFTER_ATTEMPTS, ReadRow
from consumer.payments import PaymentsError, ResourceNotFound, ServiceUnreachable
from consumer.sync.answering import ANSWERS_FOR_S, PROBE_AGAIN_S
from consumer.sync.api import LOOK_AGAIN_S, Cooldown
from consumer.sync.refresh.answers import Answers
from consumer.sync.refresh.policy import RefreshPolicy
from consumer.sync.refresh.stage import Refresh
from tests.sync.conftest import World, counted_by
from tests.sync.refreshing import ask, pending


class Service:
    """Answers whether it is there by a script."""

    def __init__(self, *script: bool) -> None:
        self.script, self.asked = list(script), 0
        self.application = self

    async def retrieve(self) -> None:
        """As the resource does."""
        self.asked += 1
        if not self.script.pop(0):
            raise ServiceUnreachable


def answers(world: World, service: Service | None = None) -> Answers:
    nobody: Any = service
    return Answers(world.app, nobody, world.publisher, Cooldown(world.clock), RefreshPolicy().retry)


async def waiting(world: World) -> ReadRow:
    (row,) = await pending(world)
    return row


# case: G7
async def test_it_is_due_again_after_a_wait_that_grows_and_says_why(world: World) -> None:
    await ask(world, "order", "A-1")
    stage, waits = answers(world), list[float]()
    for _ in range(3):
        await stage.put_off(await waiting(world), ServiceUnreachable())
        row = await waiting(world)
        waits.append((row.due_at - world.clock.now()).total_seconds())
    assert [round(one, 3) for one in waits] == [4.5, 13.5, 40.5]
    assert (row.attempts, row.code) == (3, ServiceUnreachable.code)
    assert counted_by(world.metrics, "reads_failed", "default") == 3
    assert counted_by(world.metrics, "reads_not_found", "default") == 0
    await stage.put_off(row, ResourceNotFound(), told=True)
    assert (await waiting(world)).code == "unreadable"
    assert counted_by(world.metrics, "reads_not_found", "default") == 1


# case: G7
async def test_the_eighth_failure_alone_is_an_alarm(world: World) -> None:
    await ask(world, "order", "A-1")
    stage = answers(world)
    with capture_logs() as logs:
        for _ in range(ALARM_AFTER_ATTEMPTS + 2):
            await stage.put_off(await waiting(world), ServiceUnreachable())
    assert [(line["event"], line["attempts"], line["object_id"]) for line in logs] == [("object_unreadable", 8, "A-1")]


# case: A14
async def test_whether_the_service_answers_at_all_is_asked_once_in_a_while(world: World) -> None:
    service = Service(True, False, True)
    stage, found = answers(world, service), list[tuple[bool, int]]()
    for seconds in (0.0, ANSWERS_FOR_S - 0.1, 0.1, PROBE_AGAIN_S - 0.1, 0.1):
        world.clock.advance(seconds)
        found.append((await stage._answering.answers(), service.asked))
    assert found == [(True, 1), (True, 1), (False, 2), (False, 2), (True, 3)]
    world.clock.advance(ANSWERS_FOR_S - 1)
    stage.service_answered()
    world.clock.advance(ANSWERS_FOR_S - 1)
    assert (await stage._answering.answers(), service.asked) == (True, 3)


class Rounds(Refresh):
    """Answers so many."""

    answered = 0

    async def once(self) -> int:
        """One round."""
        return self.answered


@pytest.mark.parametrize(("idle_s", "spent_s", "when_spent"), [(1.0, 0.5, 0.5), (0.25, 0.5, 0.25)])
async def test_the_next_round_comes_at_once_soon_or_a_while_later(
    world: World, idle_s: float, spent_s: float, when_spent: float
) -> None:
    stage = Rounds(world.app, world.publisher, policy=replace(RefreshPolicy(), idle_s=idle_s, spent_s=spent_s))
    assert await stage._step() == idle_s
    stage._quota._refused.add(True)
    assert await stage._step() == when_spent
    stage.answered = 1
    assert await stage._step() == 0.0


class HeldUp(Refresh):
    """Every round is held up, and may have answered something before."""

    found: list[ReadRow]

    async def _due(self) -> list[ReadRow]:
        return self.found


async def test_a_round_that_is_held_up_before_it_answered_anything_says_so(world: World) -> None:
    # case: G7
    now = world.clock.now()
    stage = HeldUp(world.app, world.publisher)
    stage.found = [ReadRow(application="default", kind="order", object_id="A-1", asked=1, due_at=now, created_at=now)]

    async def work_off(waiting: Iterator[ReadRow], answered: list[ReadRow]) -> None:
        for row in waiting:
            answered += [row] * how_many
            assert stage._cooldown.take(ServiceUnreachable("wait"))

    stage._singles.work_off = work_off  # type: ignore[method-assign]  # what it comes to is the test's
    how_many = 0
    with pytest.raises(PaymentsError, match="wait"):
        await stage.once()
    world.clock.advance(LOOK_AGAIN_S)
    how_many = 2
    assert await stage.once() == 2
