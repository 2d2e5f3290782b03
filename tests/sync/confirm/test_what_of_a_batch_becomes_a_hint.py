"""What of a batch of deliveries becomes a hint, what is kept aside and why, and for how much there is room."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from consumer.broker import Record
from consumer.broker.base import Partition
from consumer.events import Delivery
from consumer.ledger.reading import hints as ledger_hints
from consumer.ledger.reading import room
from consumer.ledger.tables import HintRow
from consumer.payments import ServiceUnreachable
from consumer.reason import Reason
from consumer.sync.api import LOOK_AGAIN_S
from consumer.sync.confirm import hints as module
from consumer.sync.confirm.decision import Verdict
from consumer.sync.confirm.hints import HintConsumer, Sorted, in_parts
from consumer.sync.confirm.policy import ConfirmPolicy
from consumer.sync.confirm.stage import Confirm
from consumer.telemetry.metrics import Metrics
from consumer.wire import pack_delivery
from tests.sync.conftest import LOCATORS, SteppedClock, World, counted_by, delivery

NOBODY: Any = None


def record(one: Delivery, offset: int = 7) -> Record:
    packed = pack_delivery(one, LOCATORS)
    return Record(partition=Partition("deliveries", 3), offset=offset, key=packed.key, value=packed.value,
                  headers=packed.headers, published_at=one.received_at)  # fmt: skip


def ids(found: Sorted) -> tuple[list[str], list[tuple[str, Reason]]]:
    return [one.id for one in found.hints], [(one.id, reason) for one, reason in found.refused]


# case: I10, I15, I22
def test_each_delivery_is_a_hint_or_has_its_reason() -> None:
    hint = delivery(b'{"id":"evt_1"}', 1, event_id="evt_1")
    nameless = delivery(b"{}", 2)
    refused = delivery(b"[]", 3, event_id="evt_3", problem=Reason.NOT_UNDERSTOOD)
    stranger = replace(delivery(b"{}", 4, event_id="evt_4"), application="stranger")
    odd = replace(record(hint), headers={}, key=b"default/odd")
    (found,) = in_parts([record(one) for one in (hint, nameless, refused, stranger)] + [odd], {"default"})
    assert ids(found) == (
        ["dlv_1"],
        [
            ("dlv_2", Reason.NO_EVENT_ID),
            ("dlv_3", Reason.NOT_UNDERSTOOD),
            ("dlv_4", Reason.UNKNOWN_APPLICATION),
            ("deliveries/3/7", Reason.NOT_A_DELIVERY),
        ],
    )
    assert (found.refused[-1][0].application, found.refused[-1][0].raw) == ("default", hint.raw)
    assert list(in_parts([], {"default"})) == []


def test_a_part_ends_with_the_body_that_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BODIES_MAX_BYTES", 10)
    of_five = [record(delivery(b"[11]\n", number, event_id=f"evt_{number}")) for number in range(6)]
    assert [ids(part)[0] for part in in_parts(of_five, {"default"})] == [
        ["dlv_0", "dlv_1", "dlv_2"], ["dlv_3", "dlv_4", "dlv_5"],
    ]  # fmt: skip


def intake(clock: SteppedClock, metrics: Metrics | None = None, **limits: int) -> HintConsumer:
    return HintConsumer(NOBODY, NOBODY, topic="deliveries", applications=["default"], clock=clock, metrics=metrics,
                        **limits)  # type: ignore[arg-type]  # numbers only  # fmt: skip


# case: I15
def test_each_application_has_room_for_so_many_and_for_so_many_bytes(clock: SteppedClock) -> None:
    row = room.size_of(delivery(b"", 0))

    def admitted(arrived: list[Delivery], waiting: dict[str, tuple[int, int]]) -> tuple[list[str], list[str]]:
        kept, flooded = intake(clock, max_hints=3, max_bytes=2 * row + 10)._admitted(arrived, waiting)
        return [one.id for one in kept], [one.id for one in flooded]

    small = [delivery(b"12", number) for number in range(4)]
    waiting = {"default": (1, 2)}
    assert admitted(small, waiting) == (["dlv_0", "dlv_1"], ["dlv_2", "dlv_3"]), "three of them, however small"
    assert waiting == {"default": (3, 2 * row + 6)}
    large = [delivery(b"123456", 0), delivery(b"12345", 1), delivery(b"1234", 2)]
    waiting = {}
    assert admitted(large, waiting) == (["dlv_0", "dlv_2"], ["dlv_1"])
    assert waiting == {"default": (2, 2 * row + 10)}
    other = replace(small[0], application="other")
    assert admitted([other], {"default": (3, 0)}) == (["dlv_0"], [])


async def test_what_waits_is_counted_once_a_second(clock: SteppedClock, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = [{"default": (2, 20)}, {"other": (1, 5)}]

    async def held(_: object) -> Mapping[str, tuple[int, int]]:
        return counts.pop(0)

    monkeypatch.setattr(ledger_hints, "held", held)
    metrics = Metrics()
    stage = intake(clock, metrics)
    for _ in range(2):
        assert await stage._waiting(NOBODY) == {"default": (2, 20)}
        assert counted_by(metrics, "unproved_bytes", "default", "hints") == 20
        clock.advance(0.9)
    clock.advance(0.2)
    assert await stage._waiting(NOBODY) == {"other": (1, 5)}
    assert counted_by(metrics, "unproved_bytes", "default", "hints") == 0


class Taken(HintConsumer):
    """Takes in nothing."""

    async def once(self, timeout_s: float = 0.5) -> int:
        """No batch."""
        return 0


async def test_after_a_batch_comes_the_next_without_a_pause(clock: SteppedClock) -> None:
    stage = Taken(NOBODY, NOBODY, topic="deliveries", applications=[], clock=clock)
    assert await stage._step() == 0.0
    assert stage._known("stranger") == "unknown"


class Failing(Confirm):
    """Each question fails, after all that fit at once were put."""

    async def _verdict(self, hint: HintRow) -> Verdict:
        await asyncio.sleep(0)
        raise ServiceUnreachable(hint.event_id)


async def test_the_first_failure_that_concerns_all_is_the_one_that_is_told(world: World) -> None:
    # case: G7
    stage = Failing(world.app, world.settlement(), policy=ConfirmPolicy(concurrency=2))
    at = world.clock.now()
    rows = [HintRow(application="default", delivery_id="dlv", event_id=f"evt_{number}", stored=b"", received_at=at,
                    next_at=at) for number in range(2)]  # fmt: skip
    verdicts = await stage._ask(rows)
    told = stage._cooldown.error
    assert isinstance(told, ServiceUnreachable)
    assert (verdicts, told.message) == ([], "evt_0")


class Rounds(Confirm):
    """Settles so many."""

    settled = 0

    async def once(self) -> int:
        """One round."""
        return self.settled


async def test_a_round_that_settled_some_is_followed_at_once(world: World) -> None:
    stage = Rounds(world.app, world.settlement(), policy=ConfirmPolicy(idle_s=3.0))
    assert await stage._step() == 3.0
    stage.settled = 1
    assert await stage._step() == 0.0


class Away(Confirm):
    """The service cannot be reached; `asked` counts the questions."""

    asked = 0

    async def _verdict(self, hint: HintRow) -> Verdict:
        self.asked += 1
        raise ServiceUnreachable("nobody answers")


async def test_a_service_that_is_away_is_asked_again_after_a_while_and_not_by_every_round(world: World) -> None:
    # case: G7, S14
    stage = Away(world.app, world.settlement(), policy=ConfirmPolicy(concurrency=1))
    async with world.database.transaction() as session:
        await ledger_hints.keep(session, [delivery(b"{}", 1, event_id="evt_1")], world.clock.now())
    asked = []
    for seconds in (0.0, LOOK_AGAIN_S - 0.1, 0.1, 0.0):
        world.clock.advance(seconds)
        with pytest.raises(ServiceUnreachable):
            await stage.once()
        asked.append(stage.asked)
    assert asked == [1, 1, 2, 2]
