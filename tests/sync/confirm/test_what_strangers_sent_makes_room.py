"""The taking in of deliveries: what is stored is committed and counted, what strangers sent is pruned in time, and who
cannot go on leaves its group. The broker and the ledger are made by hand here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from consumer.broker import Record
from consumer.errors import BrokerUnavailable, LedgerUnavailable
from consumer.events import Delivery
from consumer.ledger.reading import hints, quarantine
from consumer.reason import Reason
from consumer.sync.confirm import hints as module
from consumer.sync.confirm.hints import HintConsumer
from consumer.sync.confirm.policy import FLOOD_QUIET_S, PRUNE_EVERY_S, PRUNE_FOR_S
from consumer.telemetry import way
from consumer.telemetry.metrics import Metrics
from tests.sync.confirm.test_what_of_a_batch_becomes_a_hint import record
from tests.sync.conftest import SteppedClock, counted_by, delivery

HINT = delivery(b'{"id":"evt_1"}', 1, event_id="evt_1")


LIMIT = 10_000


class Scene:
    """An intake, what its group and its ledger were told, and what they answer."""

    def __init__(self, clock: SteppedClock, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = clock
        self.told: list[str] = []
        self.polled: list[Any] = []
        self.held: dict[str, tuple[int, int]] = {}
        self.unproved: dict[str, int] = {}
        self.prunes: list[tuple[int, int]] = []
        self.prune_takes_s = 0.0
        self.asked: list[int] = []
        self.kept: list[Sequence[Delivery]] = []
        self.store_fails = self.start_fails = False
        for target, name in ((hints, "held"), (hints, "differing"), (hints, "keep"), (quarantine, "put"),
                             (quarantine, "unproved_bytes"), (quarantine, "prune")):  # fmt: skip
            monkeypatch.setattr(target, name, getattr(self, f"_{name}"))
        self.metrics = Metrics()
        self.wakes = {"default": asyncio.Event()}
        here: Any = self
        self.stage = HintConsumer(
            here, here, topic="deliveries", applications=["default"], clock=clock, metrics=self.metrics,
            wakes=self.wakes, max_hints=3, max_bytes=LIMIT,
        )  # fmt: skip

    async def takes(self, *records: Record) -> list[str]:
        """What the group and the ledger were told during a round in which this was polled."""
        self.told.clear()
        self.polled.append(list(records))
        assert await self.stage.once() == len(records)
        return self.told

    # --- the broker ------------------------------------------------------------------------------------------------

    def subscribe(self, topics: Sequence[str], group: str, **_: Any) -> Any:
        """As a Broker does."""
        assert (topics, group) == (("deliveries",), "confirm")
        return self

    async def start(self) -> None:
        """As a Subscription does."""
        self.told.append("start")
        if self.start_fails:
            raise BrokerUnavailable

    async def stop(self) -> None:
        """As a Subscription does."""
        self.told.append("stop")

    async def poll(self, batch: int, timeout_s: float) -> Any:
        """As a Subscription does."""
        assert (batch, timeout_s) == (500, 0.5)
        return self.polled.pop(0)

    async def commit(self, offsets: dict[Any, int]) -> None:
        """As a Subscription does."""
        self.told.append(f"commit {sorted(offsets.values())}")

    # --- the ledger ------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """As a Database does."""
        yield

    reading = transaction

    async def _held(self, _: object) -> dict[str, tuple[int, int]]:
        return dict(self.held)

    async def _differing(self, _: object, __: object) -> list[Any]:
        return []

    async def _keep(self, _: object, kept: Sequence[Delivery], __: object) -> None:
        if self.store_fails:
            raise LedgerUnavailable
        self.told.append(f"keep {len(kept)}")

    async def _put(self, _: object, refused: Sequence[tuple[Delivery, Reason]], __: object) -> None:
        self.told.extend(f"put {reason}" for _, reason in refused)

    async def _unproved_bytes(self, _: object) -> dict[str, int]:
        self.told.append("look")
        return self.unproved

    async def _prune(self, _: object, application: str, too_many: int) -> tuple[int, int]:
        self.told.append(f"prune {application}")
        self.asked.append(too_many)
        self.clock.advance(self.prune_takes_s)
        return self.prunes.pop(0)


@pytest.fixture
def scene(clock: SteppedClock, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(clock, monkeypatch)


# case: I10, G5
async def test_what_was_stored_is_committed_counted_told_and_wakes(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(way, "tell", lambda step, about: told.append(f"{step} {about.id}"))
    assert await scene.takes(record(HINT, 7), record(delivery(b"{}", 2), 8)) == [
        "start", "keep 1", "put no_event_id", "commit [9]", "look",
    ]  # fmt: skip
    assert told == ["hint_kept dlv_1"]
    assert counted_by(scene.metrics, "hints_taken", "default") == 1
    assert counted_by(scene.metrics, "quarantined", "default", "no_event_id") == 1
    assert scene.wakes["default"].is_set()
    assert await scene.takes() == [], "of nothing, nothing is stored, committed or pruned"


# case: R7
async def test_every_reason_is_counted_from_nothing_on(scene: Scene) -> None:
    found = [
        scene.metrics.registry.get_sample_value("consumer_quarantine_total", {"application": "default", "reason": one})
        for one in Reason
    ]
    assert found == [0] * len(Reason), "a counter that begins with its first count shows no increase"


# case: I15
async def test_a_flood_is_over_a_minute_after_its_last_also_when_nothing_comes_any_more(scene: Scene) -> None:
    with capture_logs() as logs:
        for held in (3, 3, 0, 3):  # room for one between two is no end
            scene.held = {"default": (held, 0)}
            scene.clock.advance(2)
            await scene.takes(record(HINT))
        for seconds in (FLOOD_QUIET_S - 1, 1):
            assert [line["event"] for line in logs] == ["hints_flooded"]
            scene.clock.advance(seconds)
            await scene.takes()
    assert [line["event"] for line in logs] == ["hints_flooded", "hints_flooded_over"]
    assert logs[-1]["times"] == 3
    assert counted_by(scene.metrics, "quarantined", "default", "flooded") == 3


# case: G5
async def test_who_cannot_store_leaves_the_group_and_reads_it_again(scene: Scene) -> None:
    scene.store_fails = True
    scene.polled.append([record(HINT)])
    with pytest.raises(LedgerUnavailable):
        await scene.stage.once()
    assert scene.told == ["start", "stop"]
    scene.store_fails = False
    assert (await scene.takes(record(HINT)))[:2] == ["start", "keep 1"]
    assert "start" not in await scene.takes(record(HINT)), "it is a member already"
    await scene.stage.close()
    await scene.stage.close()
    assert scene.told.count("stop") == 1


async def test_who_cannot_join_has_left_too(scene: Scene) -> None:
    scene.start_fails = True
    with pytest.raises(BrokerUnavailable):
        await scene.stage.once()
    assert scene.told == ["start", "stop"]


async def test_its_end_leaves_the_group(scene: Scene) -> None:
    await scene.takes(record(HINT))
    stop = asyncio.Event()
    stop.set()
    await scene.stage.run(stop)
    assert scene.told[-1] == "stop"


# --- room -----------------------------------------------------------------------------------------------------------


# case: I15
async def test_what_strangers_sent_is_looked_at_now_and_then(scene: Scene) -> None:
    assert await scene.takes() == ["start"], "at first nothing is known to be too much"
    looks = []
    for seconds in (0.0, PRUNE_EVERY_S - 0.1, 0.1, 0.1):
        scene.clock.advance(seconds)
        looks.append("look" in await scene.takes(record(HINT)))
    assert looks == [True, False, True, False]
    scene.clock.advance(PRUNE_EVERY_S)
    assert await scene.takes() == [], "nothing came"


@pytest.mark.parametrize(("size", "asked"), [(LIMIT - 1, []), (LIMIT, []), (LIMIT + 1, [1])])
async def test_what_is_over_the_bound_is_pruned(scene: Scene, size: int, asked: list[int]) -> None:
    # case: I15
    scene.unproved, scene.prunes = {"default": size, "stranger": 10}, [(1, 5)]
    with capture_logs() as logs:
        await scene.takes(record(HINT))
    assert scene.asked == asked
    assert counted_by(scene.metrics, "unproved_bytes", "default", "quarantine") == size
    assert counted_by(scene.metrics, "unproved_bytes", "unknown", "quarantine") == 10
    assert [(line["application"], line["deliveries"]) for line in logs] == [("default", 1)] * len(asked)


# case: I15, O1
async def test_pruning_is_said_now_and_then_and_its_end_a_minute_after_the_last(scene: Scene) -> None:
    scene.unproved = {"default": LIMIT + 1}
    with capture_logs() as logs:
        for _ in range(20):
            scene.prunes = [(1, 5)]
            await scene.takes(record(HINT))
            scene.clock.advance(PRUNE_EVERY_S)
        scene.unproved = {}
        scene.clock.advance(FLOOD_QUIET_S)
        await scene.takes()
    said = [(line["event"], line["times"]) for line in logs if line["event"].startswith("quarantine")]
    assert said == [("quarantine_pruned", 1), ("quarantine_pruned", 7), ("quarantine_pruned", 19),
                    ("quarantine_pruned_over", 20)]  # fmt: skip


@pytest.mark.parametrize(
    ("takes_s", "prunes", "asked", "goes_on"),
    [
        (0.0, [(4, 300), (3, 200)], [500, 200], False),
        (0.0, [(4, 499), (3, 1)], [500, 1], False),
        (0.0, [(4, 600)], [500], False),
        (0.0, [(4, 300), (0, 0)], [500, 200], True),
        (PRUNE_FOR_S / 2, [(4, 100), (4, 100), (9, 900)], [500, 400], True),
        (PRUNE_FOR_S, [(4, 499), (9, 900)], [500], True),
        (PRUNE_FOR_S, [(4, 500), (9, 900)], [500], False),
    ],
)
async def test_it_is_pruned_until_it_fits_or_for_a_second_and_the_rest_at_once_afterwards(
    scene: Scene, takes_s: float, prunes: list[tuple[int, int]], asked: list[int], goes_on: bool
) -> None:
    # case: I15
    scene.unproved, scene.prunes, scene.prune_takes_s = {"default": LIMIT + 500}, list(prunes), takes_s
    with capture_logs() as logs:
        await scene.takes(record(HINT))
    assert scene.asked == asked
    assert [line["deliveries"] for line in logs] == [sum(gone for gone, _ in prunes[: len(asked)])]
    scene.unproved = {}
    assert await scene.takes() == (["look"] if goes_on else []), "though nothing came"
    assert await scene.takes() == []


def test_bodies_count_from_nothing_in_each_part(monkeypatch: pytest.MonkeyPatch) -> None:
    # case: I22
    monkeypatch.setattr(module, "BODIES_MAX_BYTES", 4)
    records = [record(delivery(b"[11]\n", number, event_id=f"evt_{number}")) for number in range(3)]
    assert [len(part.hints) for part in module.in_parts(records, {"default"})] == [1, 1, 1]
