"""A hint's way from topic `deliveries` to topic `events` passes the files that the README names, and few of them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import orjson

import consumer.sync
from consumer.sync.backfill.catch_up import CatchUp
from consumer.sync.backfill.stage import Backfill
from consumer.sync.confirm.hints import HintConsumer
from consumer.sync.confirm.stage import Confirm
from tests.sync.conftest import DELIVERIES, World, delivery

HERE = Path(consumer.sync.__file__).parent
BELOW = (HERE.parent / "lists", HERE.parent / "runtime")
"""What the stages stand on that is their own kind of work: a file there is one to be read as well."""


@contextmanager
def files_passed(found: set[str]) -> Iterator[None]:
    """The files of `consumer/sync`, and of what is below it, in which a function is called meanwhile."""

    def called(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(HERE):
            found.add(str(path.relative_to(HERE)))
        elif event == "call" and any(path.is_relative_to(one) for one in BELOW):
            found.add(str(path.relative_to(HERE.parent)))

    sys.setprofile(called)
    try:
        yield
    finally:
        sys.setprofile(None)


def test_a_hint_ends_in_one_place() -> None:
    drops = re.compile(r"hints\.drop\(")
    assert [path.name for path in sorted(HERE.rglob("*.py")) if drops.search(path.read_text())] == ["settlement.py"]


async def test_a_hint_that_is_read_singly_passes_the_files_that_the_readme_names(world: World) -> None:
    # case: I15
    event_id = world.service.event(1, id="ord_1", order_id="A-1")["id"]
    await world.deliver(delivery(orjson.dumps({"id": event_id, "type": "order.paid"}), 1, event_id=event_id))
    taking = HintConsumer(world.broker, world.database, topic=DELIVERIES, applications={"default"}, clock=world.clock)
    settlement = world.settlement()
    confirm = Confirm(world.app, settlement, catch_up=CatchUp(Backfill(world.app, settlement)))
    passed: set[str] = set()
    with files_passed(passed):
        while not await taking.once():
            pass
        assert await confirm.once() == 1
    await taking.close()
    assert [event.id for event in await world.published()] == [event_id]
    assert len(passed) < 12, sorted(passed)
    way = re.search(r"## The way of a hint\n(.*?)\n## ", (HERE / "README.md").read_text(), re.S)
    assert way is not None, sorted(passed)
    assert set(re.findall(r"`([a-z_/]+\.py)`", way[1])) == passed
