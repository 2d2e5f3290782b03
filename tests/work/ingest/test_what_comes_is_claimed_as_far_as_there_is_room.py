"""Of the runs that a batch adds, those on events that are new and due now are claimed, as far as there is room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from consumer.clock import DrivenClock
from consumer.ledger.handling import runs
from consumer.ledger.handling.runs import ClaimedRun, Run
from consumer.ledger.tables import RunStatus
from consumer.work.ingest.claiming import Claiming
from tests.contract.ledger.facts import run
from tests.work.workshop import AT, order_paid

SHIP, NOTE = "shop:ship", "shop:note"


@pytest.mark.parametrize(
    ("room", "claimed"),
    [
        ({SHIP: 9, NOTE: 9}, ["evt_1 shop:ship", "evt_2 shop:ship", "evt_1 shop:note"]),
        ({SHIP: 1, NOTE: 9}, ["evt_1 shop:ship", "evt_1 shop:note"]),
        ({SHIP: 0, NOTE: 0}, []),
    ],
)
async def test_each_handlers_room_is_filled_in_order(
    monkeypatch: pytest.MonkeyPatch, room: dict[str, int], claimed: list[str]
) -> None:
    asked: list[tuple[str, int]] = []

    def rooms(handler: str, new: int) -> int:
        asked.append((handler, new))
        return room[handler]

    async def claim_new(_: object, added: Sequence[Run], **__: object) -> Sequence[ClaimedRun]:
        return [
            ClaimedRun(application=one.application, event_id=one.event_id, handler=one.handler, seq=one.seq,
                       key=one.key, attempts=0, plan=None, created_at=AT, due_at=AT)
            for one in added
        ]  # fmt: skip

    monkeypatch.setattr(runs, "claim_new", claim_new)
    added = [run(1, handler=SHIP), run(2, handler=SHIP), run(1, handler=NOTE), run(3, handler=SHIP),
             replace(run(2, handler=NOTE), status=RunStatus.PARKED)]  # fmt: skip
    fresh = {("default", f"evt_{number}"): order_paid(number) for number in (1, 2)}
    nobody: Any = None
    found = await Claiming(rooms, DrivenClock(), "w").claim(nobody, added, fresh)
    assert [f"{one.run.event_id} {one.run.handler}" for one in found] == claimed
    assert all(one.event.id == one.run.event_id for one in found)
    assert asked == [(SHIP, 2), (NOTE, 1)]
