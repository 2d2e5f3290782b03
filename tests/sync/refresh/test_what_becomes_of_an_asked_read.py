"""What becomes of a read that was asked for: answered and gone, unless it was asked for again meanwhile; or due again
later, with why."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from consumer.errors import RecordTooLarge
from consumer.ledger.reading.observation import Observation
from consumer.ledger.tables import TOLD
from consumer.payments import AuthenticationError, Priority, ServiceUnreachable, UnexpectedAnswer
from consumer.sync.api import Cooldown
from consumer.sync.publisher import Left
from consumer.sync.refresh.answers import Answers
from consumer.sync.refresh.policy import RefreshPolicy
from tests.sync.conftest import World, counted_by
from tests.sync.refreshing import ask, pending, refresh

RETRY = RefreshPolicy().retry


class Topic:
    """Takes what it is told to."""

    def __init__(self, *, takes: bool) -> None:
        self._takes = takes

    async def tell(self, seen: Sequence[Observation]) -> tuple[Sequence[Observation], Left]:
        """As a publisher does."""
        return (seen, Left()) if self._takes else ([], Left(too_large=tuple(one.event() for one in seen)))


def answers(world: World, *, takes: bool = True) -> Answers:
    resources = world.app.client.with_priority(Priority.REFRESH)
    topic: Any = Topic(takes=takes)
    return Answers(world.app, resources, topic, Cooldown(world.clock), RETRY)


def shown(world: World, version: int) -> Observation:
    return world.app.observation("order", "A-1", version, {"order_id": "A-1", "status": "PAID"})


# case: G7
@pytest.mark.parametrize("meanwhile", [False, True])
async def test_it_is_gone_when_it_is_answered_unless_it_was_asked_for_again_meanwhile(
    world: World, meanwhile: bool
) -> None:
    await ask(world, "order", "A-1")
    [row] = await pending(world)
    it = answers(world)
    version = await it.version([row])
    world.clock.advance(1)
    if meanwhile:
        await ask(world, "order", "A-1")
    await it.found([(row, [shown(world, version)])], version)
    assert len(await pending(world)) == meanwhile
    assert counted_by(world.metrics, "reads_answered", "default") == 1


# case: G7
async def test_what_is_asked_for_meanwhile_in_a_day_is_due_in_a_day(world: World) -> None:
    for _ in range(3):
        await ask(world, "order", "A-1")
    [row] = await pending(world)
    it = answers(world)
    version = await it.version([row])
    await ask(world, "order", "A-1", after_s=86_400)
    tomorrow = world.clock.now() + timedelta(days=1)
    world.clock.advance(1)
    await it.found([(row, [shown(world, version)])], version)
    [after] = await pending(world)
    assert after.due_at == tomorrow


# case: I10
async def test_what_the_topic_takes_in_no_form_is_due_again_later_and_counts_as_no_answer(world: World) -> None:
    await ask(world, "order", "A-1")
    [row] = await pending(world)
    it = answers(world, takes=False)
    version = await it.version([row])
    await it.found([(row, [shown(world, version)])], version)
    [after] = await pending(world)
    assert (after.attempts, after.code) == (1, RecordTooLarge.code)
    assert after.due_at > world.clock.now()
    assert counted_by(world.metrics, "reads_answered", "default") == 0
    assert counted_by(world.metrics, "reads_failed", "default") == 1


# case: G7
@pytest.mark.parametrize("error", [UnexpectedAnswer("odd"), ServiceUnreachable("away")])
async def test_a_failure_that_says_nothing_of_the_object_is_why_it_is_due_again(
    world: World, error: UnexpectedAnswer | ServiceUnreachable
) -> None:
    await ask(world, "order", "A-1")
    [row] = await pending(world)
    await answers(world).failed(row, 1, error)
    [after] = await pending(world)
    assert after.code == error.code != TOLD


# case: G7
async def test_no_such_object_is_counted_and_who_cannot_even_be_asked_holds_all_up(world: World) -> None:
    await ask(world, "subscription", "sub_1")
    world.service.failing["/v1/application"] = 401
    with pytest.raises(AuthenticationError):
        await refresh(world).once()
    assert counted_by(world.metrics, "reads_unreadable", "default") == 0
    del world.service.failing["/v1/application"]
    world.clock.advance(600)
    await refresh(world).once()
    assert counted_by(world.metrics, "reads_unreadable", "default") == 1
