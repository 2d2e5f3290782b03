"""A payment is told soon after it is listed, whichever end of the list that is; the next walk is not waited for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from consumer.lists.ends import PAGE, PAGES_AT_ONCE
from consumer.sync.application import Application
from consumer.sync.reconcile.newest_payments import HELD_MAX
from tests.sync.conftest import World
from tests.sync.reconciling import lists, reconcile, remembered, seen
from tests.sync.service import Json


def payment(number: int, status: str = "SUCCEEDED") -> Json:
    return {"id": f"pay_{number}", "order_id": "A-1", "status": status}


def newest_first(payments: Sequence[Json]) -> list[Json]:
    return list(reversed(payments))


# case: F29
@pytest.mark.parametrize("ordered", [list, newest_first])
@pytest.mark.parametrize("before", [0, 1, 100, 350])
async def test_before_the_next_walk(world: World, ordered: Callable[[Sequence[Json]], list[Json]], before: int) -> None:
    there = [payment(number) for number in range(before)]
    lists(world, payments=ordered(there))
    stage = reconcile(world)
    await stage.once()
    assert (await remembered(world)).payments_baselined
    await stage._step()
    assert await seen(world) == [], "what was there is history"
    lists(world, payments=ordered([*there, payment(before, "PENDING"), payment(before + 1)]))
    for _ in range(2):
        world.clock.advance(60)
        await stage._step()
        assert await seen(world) == [], "its event is on its way"
    for _ in range(2):
        world.clock.advance(60)
        await stage._step()
    assert set(await seen(world)) == {(f"payment:pay_{before}", "PENDING"), (f"payment:pay_{before + 1}", "SUCCEEDED")}
    lists(world, payments=ordered([*there, payment(before), payment(before + 1)]))
    for _ in range(3):
        world.clock.advance(60)
        await stage._step()
    assert (f"payment:pay_{before}", "SUCCEEDED") in await seen(world)
    assert len(await seen(world)) == 3
    assert world.service.calls["/v1/orders"] == 1, "no walk was made"


# case: F29, F38
async def test_what_becomes_final_while_it_is_held_has_its_time_from_then_on(world: World) -> None:
    """Else it would be told seconds before its order.paid is here, as money of no order."""
    lists(world, payments=[])
    stage = reconcile(world)
    await stage.once()
    for status in ("CONFIRMED", "CONFIRMED", "SUCCEEDED", "SUCCEEDED"):
        lists(world, payments=[payment(1, status)])
        world.clock.advance(50)
        await stage._step()
        assert await seen(world) == []
    world.clock.advance(50)
    await stage._step()
    assert await seen(world) == [("payment:pay_1", "SUCCEEDED")]


async def test_a_look_takes_a_version_for_all_that_it_may_show(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # case: A40
    lists(world, payments=[])
    stage, taken = reconcile(world), list[int]()
    await stage.once()
    versions = Application.versions

    async def counted(self: Application, count: int = 1) -> int:
        taken.append(count)
        return await versions(self, count)

    monkeypatch.setattr(Application, "versions", counted)
    await stage._step()
    [count] = taken
    assert isinstance(count, int)
    assert count >= PAGE * PAGES_AT_ONCE + HELD_MAX
