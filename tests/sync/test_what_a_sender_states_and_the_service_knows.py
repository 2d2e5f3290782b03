"""Provenance: one odd record of the service keeps no other waiting; what a sender states is compared, and kept once."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from structlog.testing import capture_logs

from consumer.events import Event
from consumer.ledger.reading import quarantine
from consumer.reason import Reason
from consumer.sync import provenance, settlement
from consumer.sync.provenance import as_read, differing, other_body
from consumer.telemetry import way
from tests.sync.conftest import LOCATORS, World, counted_by, delivery

RECEIVED_AT = datetime(2026, 1, 1, tzinfo=UTC)
RECORD = {"id": "evt_1", "type": "order.paid", "data": {"object": {"id": "ord_1", "order_id": "A1"}}}


def read(raw: bytes) -> Event | None:
    return as_read(raw, LOCATORS, application="default", received_at=RECEIVED_AT, broke="record_broke")


def known() -> Event:
    found = read(orjson.dumps(RECORD))
    assert found is not None
    return found


def test_a_record_that_breaks_its_reading_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    # case: U1
    def build(*_: Any, **__: Any) -> Event:
        raise RuntimeError("nobody has thought of this")

    monkeypatch.setattr(provenance, "build_event", build)
    with capture_logs() as lines:
        assert read(orjson.dumps(RECORD)) is None
    assert [(one["event"], one["error"]) for one in lines] == [("record_broke", "RuntimeError")]


def test_a_body_that_cannot_be_read_differs_as_a_whole() -> None:
    # case: I16
    assert differing(delivery(b"no JSON"), known(), LOCATORS) == ("body",)
    assert differing(delivery(orjson.dumps(RECORD)), known(), LOCATORS) == ()


def test_a_body_beside_an_event_is_named_by_what_it_holds() -> None:
    # case: I16
    """The name is stored: another one would keep again what was kept."""
    found = other_body(delivery(b"{}"))
    assert (found.id, found.problem) == ("other:44136fa355b3678a1146ad16f7e8649e94fb4fc2", Reason.OTHER_BODY)


# --- settling ------------------------------------------------------------------------------------------------------


async def test_each_step_of_an_event_is_told_where_steps_are_asked_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case: O6
    hint = delivery(orjson.dumps(RECORD), event_id="evt_1")
    beside = replace(known(), id="evt_2")
    too_large = replace(known(), id="evt_3", raw=b"x" * 3_000_000)

    async def told() -> list[tuple[str, str, bool]]:
        with capture_logs() as lines:
            await world.settlement().settle({"evt_1": hint}, [known(), beside, too_large])
        found = [one for one in lines if one["event"] == "event_published"]
        return [(one["event_id"], one["source"], one["by_hint"]) for one in found]

    assert await told() == []
    monkeypatch.setattr(way, "is_told", lambda: True)
    assert await told() == [("evt_1", "webhook", True), ("evt_2", "backfill", False)]


# case: I16
@pytest.mark.parametrize(("ahead_s", "counted"), [(0, 1), (1, 0)])
async def test_another_body_that_came_while_its_id_waited_is_compared(
    world: World, ahead_s: float, counted: int
) -> None:
    hint = delivery(orjson.dumps(RECORD), event_id="evt_1")
    other = delivery(orjson.dumps({**RECORD, "type": "order.expired"}), event_id="evt_1")
    async with world.database.transaction() as session:
        at = hint.received_at - settlement.BESIDE_MARGIN
        await quarantine.put(session, [(other_body(other), Reason.OTHER_BODY)], at)
    waited = replace(hint, received_at=datetime.fromtimestamp(hint.received_at.timestamp() + ahead_s, UTC))
    await world.settlement().settle({"evt_1": waited}, [known()])
    assert counted_by(world.metrics, "mismatches", "default") == counted
